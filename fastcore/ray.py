"""Columns of Ray Data datasets masked, completed, embedded and scored. Needs the extra `ray`.

A pool of actors shares out the batches; Ray holds reading back where they are busy, and repeats what an actor that died
had begun. Give the path of a packed folder (`fastcore quantize`), which all actors of a machine share. Rows stay in
order, with all their columns; a row that fails has nulls, and the reason in `<output>_error`.
"""

from typing import TYPE_CHECKING, Any

from fastcore import batches
from fastcore.errors import MissingPackageError

if TYPE_CHECKING:
    import pyarrow
    from ray.data import Dataset

__all__ = ["embed", "generate", "mask", "score"]


def mask(dataset: "Dataset", column: str, *, model: str, **options: Any) -> "Dataset":
    """A column of texts masked, in its place unless `output` names another.

    options: those of `fastcore.batches.mask`, and of the pool: `actors` in the cluster (by default one a machine),
    `threads` of each (by default the cluster's CPUs divided by the actors), `batch_size` in rows.
    """
    return _mapped(dataset, *_pool(options), batches.mask(column, model=model, **options))


def generate(dataset: "Dataset", column: str, *, model: str, **options: Any) -> "Dataset":
    """A column of prompts completed. options: those of `fastcore.batches.generate`, and of the pool, as in `mask`."""
    return _mapped(dataset, *_pool(options), batches.generate(column, model=model, **options))


def embed(dataset: "Dataset", column: str, *, model: str, **options: Any) -> "Dataset":
    """Vectors of a column of texts. options: those of `fastcore.batches.embed`, and of the pool, as in `mask`."""
    return _mapped(dataset, *_pool(options), batches.embed(column, model=model, **options))


def score(dataset: "Dataset", column: str, *, model: str, **options: Any) -> "Dataset":
    """How probable texts are. options: those of `fastcore.batches.score`, and of the pool, as in `mask`."""
    return _mapped(dataset, *_pool(options), batches.score(column, model=model, **options))


class _Actor:
    """A task and its model in a process of Ray's."""

    def __init__(self, task: batches.Task, num_threads: int) -> None:
        self._runner = batches.Runner(task, num_threads)

    def __call__(self, table: "pyarrow.Table") -> "pyarrow.Table":
        return self._runner.arrow(table)


def _pool(options: dict[str, Any]) -> tuple[int | None, int | None, int]:
    """Taken from the options: how many actors, threads of each, rows of a batch."""
    return options.pop("actors", None), options.pop("threads", None), options.pop("batch_size", 4 * batches.BATCH_ROWS)


def _mapped(
    dataset: "Dataset", actors: int | None, threads: int | None, batch_size: int, task: batches.Task
) -> "Dataset":
    try:
        import ray
        from ray.data import ActorPoolStrategy
    except ImportError as error:
        raise MissingPackageError("Ray Data is not installed: pip install 'fastcore-engine[ray]'") from error
    actors = actors or sum(node["Alive"] and "CPU" in node["Resources"] for node in ray.nodes())
    threads = threads or max(1, int(ray.cluster_resources().get("CPU", 1)) // actors)
    # A block may be a million short texts; an actor takes, and repeats, no more than a batch.
    mapped = dataset.repartition(target_num_rows_per_block=batch_size).map_batches(
        _Actor,
        fn_constructor_args=(task, threads),
        compute=ActorPoolStrategy(size=actors),
        # a core less than it has threads: where actors took all of them, nothing could be read or written
        num_cpus=threads - 1 if threads > 1 else 0.5,
        batch_format="pyarrow",
        batch_size=batch_size,
    )
    mapped.context.execution_options.preserve_order = True
    return mapped
