"""Columns of Spark DataFrames masked, completed, embedded and scored. Needs the extra `spark`.

Batches come as Arrow. A Python process of an executor loads the model once and keeps it for the partitions to come.
Give the path of a packed folder (`fastcore quantize`) that every machine has, which its processes share. Rows stay in
their partition, in order, with all their columns; a row that fails has nulls, and the reason in `<output>_error`.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fastcore import batches
from fastcore.errors import MissingPackageError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["embed", "generate", "mask", "mask_udf", "score"]


def mask(df: "DataFrame", column: str, *, model: str, **options: Any) -> "DataFrame":
    """A column of texts masked, in its place unless `output` names another.

    options: those of `fastcore.batches.mask`, and `threads` of each task (by default spark.task.cpus).
    """
    return _mapped(df, options.pop("threads", None), batches.mask(column, model=model, **options))


def generate(df: "DataFrame", column: str, *, model: str, **options: Any) -> "DataFrame":
    """A column of prompts completed. options: those of `fastcore.batches.generate`, and `threads`, as in `mask`."""
    return _mapped(df, options.pop("threads", None), batches.generate(column, model=model, **options))


def embed(df: "DataFrame", column: str, *, model: str, **options: Any) -> "DataFrame":
    """Vectors of a column of texts. options: those of `fastcore.batches.embed`, and `threads`, as in `mask`."""
    return _mapped(df, options.pop("threads", None), batches.embed(column, model=model, **options))


def score(df: "DataFrame", column: str, *, model: str, **options: Any) -> "DataFrame":
    """How probable texts are. options: those of `fastcore.batches.score`, and `threads`, as in `mask`."""
    return _mapped(df, options.pop("threads", None), batches.score(column, model=model, **options))


def mask_udf(*, model: str, **options: Any) -> Any:
    """A pandas_udf of texts that masks them, for `select` and, registered, for SQL; options as in `mask`.

    Register it by another name than mask, which is a function of Spark's own. It has no place for errors: a text that
    fails is an error of the query.
    """
    _needs_pyspark()
    import pandas
    from pyspark.sql.functions import pandas_udf

    threads = options.pop("threads", None) or _task_cpus()
    task = batches.mask("text", model=model, **options)

    def masked(texts: pandas.Series) -> pandas.Series:
        columns = batches.Runner(task, threads)([text if isinstance(text, str) else None for text in texts])
        for reason in filter(None, columns["text_error"]):
            raise ValueError(reason)
        return pandas.Series(columns["text"], dtype=object)

    return pandas_udf(masked, "string")


def _mapped(df: "DataFrame", threads: int | None, task: batches.Task) -> "DataFrame":
    _needs_pyspark()
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    batches.check_columns(task, df.columns)
    new = {name: StructField(name, from_arrow_type(kind)) for name, kind in batches.arrow_types(task).items()}
    kept = [new.pop(field.name, field) for field in df.schema.fields]
    return df.mapInArrow(partial(_batches, task, threads or _task_cpus()), StructType([*kept, *new.values()]))


def _batches(
    task: batches.Task, num_threads: int, parts: "Iterable[pyarrow.RecordBatch]"
) -> "Iterator[pyarrow.RecordBatch]":
    import pyarrow

    runner = batches.Runner(task, num_threads)
    for part in parts:
        yield from runner.arrow(pyarrow.Table.from_batches([part])).combine_chunks().to_batches()


def _task_cpus() -> int:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return 1 if session is None else int(session.sparkContext.getConf().get("spark.task.cpus", "1"))


def _needs_pyspark() -> None:
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise MissingPackageError("Spark is not installed: pip install 'fastcore-engine[spark]'") from error
