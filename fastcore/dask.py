"""Columns of Dask DataFrames masked, completed, embedded and scored, partition by partition. Needs the extra `dask`.

The threads of a process share the model that it has loaded, and their texts share steps. Rows stay in order, with all
their columns; a row that fails has missing values, and the reason in `<output>_error`.
"""

from typing import TYPE_CHECKING, Any

from fastcore import batches
from fastcore.errors import MissingPackageError

if TYPE_CHECKING:
    import dask.dataframe
    import pandas

__all__ = ["embed", "generate", "mask", "score"]

_DTYPES = {"string": "string", "double": "float64", "int64": "Int64", "bool": "boolean", "list<float>": "object"}


def mask(df: "dask.dataframe.DataFrame", column: str, *, model: str, **options: Any) -> "dask.dataframe.DataFrame":
    """A column of texts masked, in its place unless `output` names another.

    options: those of `fastcore.batches.mask`, and `threads` of each process (by default those of `fastcore info`).
    """
    return _mapped(df, options.pop("threads", None), batches.mask(column, model=model, **options))


def generate(df: "dask.dataframe.DataFrame", column: str, *, model: str, **options: Any) -> "dask.dataframe.DataFrame":
    """A column of prompts completed. options: those of `fastcore.batches.generate`, and `threads`, as in `mask`."""
    return _mapped(df, options.pop("threads", None), batches.generate(column, model=model, **options))


def embed(df: "dask.dataframe.DataFrame", column: str, *, model: str, **options: Any) -> "dask.dataframe.DataFrame":
    """Vectors of a column of texts. options: those of `fastcore.batches.embed`, and `threads`, as in `mask`."""
    return _mapped(df, options.pop("threads", None), batches.embed(column, model=model, **options))


def score(df: "dask.dataframe.DataFrame", column: str, *, model: str, **options: Any) -> "dask.dataframe.DataFrame":
    """How probable texts are. options: those of `fastcore.batches.score`, and `threads`, as in `mask`."""
    return _mapped(df, options.pop("threads", None), batches.score(column, model=model, **options))


def _mapped(df: Any, threads: int | None, task: batches.Task) -> Any:
    try:
        import dask.dataframe  # noqa: F401
    except ImportError as error:
        raise MissingPackageError("Dask is not installed: pip install 'fastcore-engine[dask]'") from error
    batches.check_columns(task, list(df.columns))
    meta = _with_columns(df._meta, task, {name: [] for name in task.columns})
    return df.map_partitions(_partition, task, threads, meta=meta)


def _partition(frame: "pandas.DataFrame", task: batches.Task, threads: int | None) -> "pandas.DataFrame":
    column = frame[task.column]
    values = [None if missing else value for value, missing in zip(column, column.isna(), strict=True)]
    return _with_columns(frame, task, batches.Runner(task, threads)(values))


def _with_columns(frame: "pandas.DataFrame", task: batches.Task, columns: dict[str, list[Any]]) -> "pandas.DataFrame":
    import pandas

    kinds = task.columns
    return frame.assign(
        **{
            name: pandas.Series(values, index=frame.index, dtype=_DTYPES[kinds[name]])
            for name, values in columns.items()
        }
    )
