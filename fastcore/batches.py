"""What is done with a batch of rows: values in, new columns out, whoever brings the batches.

A task says what is done, and can be pickled; a `Runner` does it, in whichever process it is made. Each row's result is
the one that it has alone, so that it does not matter how rows are divided into batches, or batches among processes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from fastcore.classify import TokenClassifier
from fastcore.engine.sampling_params import SamplingOptions, SamplingParams
from fastcore.errors import CacheFullError, MissingPackageError, NonFiniteError
from fastcore.llm import LLM
from fastcore.locks import Lock
from fastcore.pii.masking import MaskingOptions, MaskingRules, Operator

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "BATCH_ROWS",
    "Embed",
    "Generate",
    "Mask",
    "Runner",
    "Score",
    "Task",
    "arrow_types",
    "check_columns",
    "chunked",
    "embed",
    "generate",
    "mask",
    "score",
]

BATCH_ROWS = 256
BATCH_CODE_POINTS = 32768  # a batch is some steps long, so that most of them are full
MODELS_KEPT = 2  # in a process, for tasks that come again: those of the next partition, and of another column

ROW_FAULTS = (ValueError, NonFiniteError, CacheFullError)  # of a row; anything else is a fault of the whole batch

Row = tuple[Any, ...]


# ---- What is done


@dataclass(frozen=True)
class Task:
    """The base of all tasks.

    model: a folder, a file, a hub id or a named model, which every process that does the task can open; those of one
    machine share the memory of a packed folder (`fastcore quantize`).
    column: whose values are read. output: the column of what comes out, and the beginning of the names beside it.
    loading: options of LLM or TokenClassifier, such as num_threads.
    """

    model: str | None
    column: str
    output: str
    loading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.output == self.column and not isinstance(self, Mask):
            raise ValueError(f"the output is the column {self.column!r} itself; give another name")

    @property
    def columns(self) -> dict[str, str]:
        """The new columns and their Arrow types by name, `<output>_error` the last: null, or why the row failed."""
        return {self.output: "string", **self.more_columns, f"{self.output}_error": "string"}

    @property
    def more_columns(self) -> dict[str, str]:
        return {}

    def load(self) -> Any:
        """The model. Raises what loading raises."""
        llm = LLM(self.model, **self.loading)
        _ = llm.tokenizer  # one that is missing is no fault of a row
        return llm

    def run(self, model: Any, values: Sequence[Any]) -> list[Row]:
        """What the columns but the last hold, for each value, none of which is None."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mask(Task):
    """Texts masked by a token classifier. By default the column itself, so that nothing stays in clear beside it.

    rules: what is masked, and how. Placeholders are numbered within each text.
    """

    rules: MaskingRules = field(default_factory=MaskingRules)

    def load(self) -> TokenClassifier:
        classifier = TokenClassifier(self.model or "", **self.loading)
        _ = classifier.tokenizer
        return classifier

    def run(self, model: TokenClassifier, values: Sequence[Any]) -> list[Row]:
        return [(found.mask(self.rules).text,) for found in model(_texts(values))]


@dataclass(frozen=True)
class Generate(Task):
    """Prompts completed; with `chat`, questions (or lists of messages) answered through the model's chat template.

    params: how tokens are chosen, n = 1. Beside the text stand why it ended and how many tokens it has.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    chat: bool = False
    system: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.params.n != 1:
            raise ValueError(f"n is {self.params.n}; a row has one completion")
        if self.system is not None and not self.chat:
            raise ValueError("a system message needs chat: a plain prompt has no messages")

    @property
    def more_columns(self) -> dict[str, str]:
        return {f"{self.output}_finish_reason": "string", f"{self.output}_tokens": "int64"}

    def run(self, model: LLM, values: Sequence[Any]) -> list[Row]:
        prompts = [model.tokenizer.encode_chat(self._messages(value)) for value in values] if self.chat else values
        done = model.generate(prompts if self.chat else _texts(values), self.params)
        return [(each.text, each.finish_reason, len(each.token_ids)) for each in done]

    def _messages(self, value: Any) -> list[Mapping[str, Any]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *(value if isinstance(value, list) else [{"role": "user", "content": _text(value)}])]


@dataclass(frozen=True)
class Embed(Task):
    """Vectors of texts, f32 [hidden_size]. pooling: mean | last. normalize: to length 1."""

    pooling: str = "mean"
    normalize: bool = True

    @property
    def columns(self) -> dict[str, str]:
        return super().columns | {self.output: "list<float>"}

    def run(self, model: LLM, values: Sequence[Any]) -> list[Row]:
        vectors = model.embed(_texts(values), pooling=self.pooling, normalize=self.normalize)
        return [(vector.tolist(),) for vector in vectors]


@dataclass(frozen=True)
class Score(Task):
    """How probable texts are: the sum of the logprobs of their tokens, and whether greedy decoding would write them.

    context: what stands before every text; empty is the model's beginning-of-sequence token.
    """

    context: str = ""

    @property
    def columns(self) -> dict[str, str]:
        return super().columns | {self.output: "double"}

    @property
    def more_columns(self) -> dict[str, str]:
        return {f"{self.output}_greedy": "bool"}

    def run(self, model: LLM, values: Sequence[Any]) -> list[Row]:
        return list(model.loglikelihood([(self.context, text) for text in _texts(values)]))


def _texts(values: Sequence[Any]) -> list[str]:
    return list(map(_text, values))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {type(value).__name__}")
    return value


# ---- Tasks of the options that they are called with
#
# model, column, output and loading are those of Task.


def mask(
    column: str,
    *,
    model: str,
    output: str | None = None,
    loading: Mapping[str, Any] | None = None,
    operator: Operator = "replace",
    **options: Unpack[MaskingOptions],
) -> Mask:
    """Texts masked. operator and options: as in `TokenClassifier.mask`. output: by default the column itself."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return Mask(str(model), column, output or column, loading or {}, MaskingRules(operator, **given))


def generate(
    column: str,
    *,
    model: str,
    output: str = "completion",
    loading: Mapping[str, Any] | None = None,
    params: SamplingParams | None = None,
    chat: bool = False,
    system: str | None = None,
    **options: Unpack[SamplingOptions],
) -> Generate:
    """Prompts completed, or with `chat` questions answered. params and options: as in `LLM.generate`."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return Generate(
        str(model), column, output, loading or {}, (params or SamplingParams()).replace(**given), chat, system
    )


def embed(
    column: str,
    *,
    model: str,
    output: str = "embedding",
    loading: Mapping[str, Any] | None = None,
    pooling: str = "mean",
    normalize: bool = True,
) -> Embed:
    """Vectors of texts. pooling and normalize: as in `LLM.embed`."""
    return Embed(str(model), column, output, loading or {}, pooling, normalize)


def score(
    column: str,
    *,
    model: str,
    output: str = "logprob",
    loading: Mapping[str, Any] | None = None,
    context: str = "",
) -> Score:
    """How probable texts are after `context`: as in `LLM.loglikelihood`."""
    return Score(str(model), column, output, loading or {}, context)


# ---- Doing it


class Runner:
    """A task in this process, with its model: a call takes values and gives the columns, a list for each.

    None gives None. A row that fails has None and the reason in `<output>_error`; the others are not touched by it.
    """

    def __init__(self, task: Task, num_threads: int | None = None) -> None:
        """num_threads: those of the model, where `loading` says nothing of them."""
        if num_threads is not None:
            task = replace(task, loading={"num_threads": num_threads, **task.loading})
        self.task = task
        self.model = _loaded(task)

    def __call__(self, values: Sequence[Any]) -> dict[str, list[Any]]:
        """Any number of values; the model has BATCH_ROWS of them at a time."""
        found = [self._columns(values[start : start + BATCH_ROWS]) for start in range(0, len(values), BATCH_ROWS)]
        return {name: [value for columns in found for value in columns[name]] for name in self.task.columns}

    def _columns(self, values: Sequence[Any]) -> dict[str, list[Any]]:
        there = [i for i, value in enumerate(values) if value is not None]
        names = list(self.task.columns)
        rows: list[Row] = [(None,) * len(names)] * len(values)
        for i, row in zip(there, self._rows([values[i] for i in there]), strict=True):
            rows[i] = row
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def _rows(self, values: Sequence[Any]) -> list[Row]:
        """Of values that are there. Where they fail together, each half is tried by itself."""
        if not values:
            return []
        try:
            return [(*row, None) for row in self.task.run(self.model, values)]
        except ROW_FAULTS as error:
            if len(values) == 1:
                return [(None,) * (len(self.task.columns) - 1) + (" ".join(str(error).split()),)]
        middle = len(values) // 2
        return self._rows(values[:middle]) + self._rows(values[middle:])

    def arrow(self, table: "pyarrow.Table") -> "pyarrow.Table":
        """The table with the new columns; other columns and the order of rows stay."""
        task = self.task
        check_columns(task, table.schema.names)
        columns = self(table.column(task.column).to_pylist())
        for name, kind in arrow_types(task).items():
            values = _pyarrow().array(columns[name], kind)
            index = table.schema.get_field_index(name)
            table = table.append_column(name, values) if index < 0 else table.set_column(index, name, values)
        return table


def check_columns(task: Task, names: Sequence[str]) -> None:
    """Raise ValueError where a table lacks the task's column, or has one that would be written over."""
    if task.column not in names:
        raise ValueError(f"no column {task.column!r}; the columns are {', '.join(map(repr, names))}")
    taken = [name for name in task.columns if name in names and name != task.column]
    if taken:
        raise ValueError(f"a column {taken[0]!r} is there already; give another name as output")


def arrow_types(task: Task) -> "dict[str, pyarrow.DataType]":
    """The new columns and their types."""
    arrow = _pyarrow()
    known = {"string": arrow.string(), "double": arrow.float64(), "int64": arrow.int64(), "bool": arrow.bool_()}
    known["list<float>"] = arrow.list_(arrow.float32())
    return {name: known[kind] for name, kind in task.columns.items()}


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackageError("tables need pyarrow: pip install 'fastcore-engine[data]'") from error
    return pyarrow


_models: list[tuple[tuple[Any, ...], Any]] = []  # the latest last
_models_lock = Lock()


def _loaded(task: Task) -> Any:
    """The model of a task: one that this process has loaded already, if any."""
    key = (type(task).load, task.model, dict(task.loading))
    with _models_lock.usable():
        found = next((entry for entry in _models if entry[0] == key), None)
        if found is None:
            del _models[: max(0, len(_models) + 1 - MODELS_KEPT)]
            found = (key, task.load())
        else:
            _models.remove(found)
        _models.append(found)
        return found[1]


def chunked(items: Iterable[Any], size: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Items in lists of up to BATCH_ROWS, which end where their sizes come to BATCH_CODE_POINTS."""
    chunk: list[Any] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item)
        if len(chunk) == BATCH_ROWS or total >= BATCH_CODE_POINTS:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
