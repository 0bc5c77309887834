"""Is the engine right about this model, on this machine? A card of checks, each with what it compared and how close."""

import json
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcore import _kernels
from fastcore.checkpoints.checkpoint import Checkpoint
from fastcore.checkpoints.folder import read_config
from fastcore.checkpoints.open import open_checkpoint
from fastcore.classify import TokenClassifier
from fastcore.engine.state import Piece, SequenceState, StatePool, run_step
from fastcore.errors import CheckpointError, Error
from fastcore.llm import LLM
from fastcore.model.config import ModelConfig
from fastcore.models import Model, load_model
from fastcore.sources.registry import resolve
from fastcore.text.tokenizer import Tokenizer
from fastcore.threads import resolve_num_threads

__all__ = ["Check", "verify"]

LOGITS_TOLERANCE = (
    2e-4  # largest difference over the standard deviation of the reference: f32 rounding through the layers
)
SENSITIVITY_TOLERANCE = 1e-4
TIE = 1e-3  # between two logits that are closer than this, either token is right
NEW_TOKENS = 24
POOL_BYTES = 1 << 30

Array = NDArray[np.float32]

TEXT = (
    "The river rises in the hills above the town and runs for ninety miles to the sea. In 1884 a bridge of iron was "
    "built across it, the longest of its kind; engineers came from abroad to see it. Today it carries two lanes of "
    "traffic, a footpath, and - on clear evenings - a crowd that comes to watch the light go. The town is called"
)
STRINGS = (
    "",
    " ",
    "Hello, world!",
    "  two  spaces  ",
    "1234567 3.14159 1,000,000",
    "don't we'll I'M",
    "tabs\tand\r\nline\n\n\nbreaks\n",
    "naïve café Việt Nam Straße",
    "e\u0301 decomposed, \u1112\u1161\u11ab jamo, \ufb01 ligature",
    "👩‍👩‍👧 🏳️‍🌈 🇫🇷 ☎",
    "日本語と中文和한국어",
    "العربية עברית हिन्दी",
    "para\u2029graph\u2028line\u00a0space\u200bzero",
    "NUL \x00 and \x7f",
    "def f(x):\n    return {'a': [1, 2], \"b\": x**2}\n",
    " " * 300,
    "<|im_start|>user\nhi<|im_end|><|endoftext|></s><think>",
    TEXT,
)
_USER = {"role": "user", "content": "What is 2 + 2?"}
_ANSWER = {"role": "assistant", "content": "4"}
_SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS: tuple[tuple[dict[str, str], ...], ...] = (
    (_USER,),
    (_SYSTEM, _USER),
    ({"role": "system", "content": ""}, _USER),
    (_USER, _ANSWER, {"role": "user", "content": "  And 3 + 3?  \n"}),
    (_SYSTEM, _USER, _ANSWER),
    (_USER, {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4"}, _USER),
)


@dataclass(frozen=True)
class Check:
    """One line of the card. passed: None where the check could not be made, for the reason in `detail`."""

    name: str
    passed: bool | None
    detail: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def verify(
    model: str | Path | None,
    *,
    golden: str | Path | None = None,
    num_threads: int | None = None,
    report: Callable[[Check], None] | None = None,
) -> list[Check]:
    """Check a model folder, file or name, with its weights as stored.

    golden: a folder with the case.json and logits.npy of this model, to compare with instead of transformers. report:
    called with each check as it is done. A failure is a Check, not an exception; ModelNotFoundError is raised.
    """
    path, threads = resolve(model), resolve_num_threads(num_threads)
    subject = _open(path, threads)
    checks: list[Check] = []

    def run(name: str, check: Callable[[], "_Outcome"]) -> None:
        try:
            passed, detail, figures = check()
        except (Error, ValueError) as error:
            passed, detail, figures = False, str(error), {}
        checks.append(Check(name, passed, detail, figures))
        if report is not None:
            report(checks[-1])

    run("config fields", subject.config_fields)
    run("tensors", subject.tensors)
    run("token ids", subject.token_ids)
    run("chat template", subject.chat_template)
    if not checks[1].passed:
        return checks
    for name, check in subject.against(None if golden is None else Path(golden)):
        run(name, check)
    for name, check in subject.laws():
        run(name, check)
    return checks


_Outcome = tuple[bool | None, str, Mapping[str, Any]]
_Checks = Iterator[tuple[str, Callable[[], _Outcome]]]


def _skip(reason: str) -> _Outcome:
    return None, reason, {}


def _open(path: Path, num_threads: int) -> "_Subject":
    subject = _LanguageModel(path, num_threads)
    try:
        is_classifier = subject.config.is_token_classifier
    except Error:  # its own check says what is wrong
        is_classifier = False
    return _Classifier(path, num_threads) if is_classifier else subject


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings about unknown config fields, which have a check of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


class _Subject(ABC):
    """The model under test."""

    def __init__(self, path: Path, num_threads: int) -> None:
        self.path = path
        self.folder = path if path.is_dir() else path.parent
        self.num_threads = num_threads

    @cached_property
    def checkpoint(self) -> Checkpoint:
        with _quietly():
            return open_checkpoint(self.path)

    @cached_property
    def config(self) -> ModelConfig:
        with _quietly():
            try:
                return self.checkpoint.config()
            except Error:
                if "checkpoint" in self.__dict__:
                    raise
                return read_config(self.folder)  # damaged weights have a check of their own

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.of(self.checkpoint)

    @cached_property
    def prompt(self) -> list[int]:
        if self.tokenizer is not None:
            ids = self.tokenizer.encode(TEXT)
        else:
            ids = [(7919 * i + 13) % self.config.vocab_size for i in range(64)]
        return ids[: max(1, self.config.context_length - NEW_TOKENS)]

    # ---------------------------------------------------------------- files

    def config_fields(self) -> _Outcome:
        unknown = self.config.unrecognised
        figures = {"model_type": self.config.model_type, "unrecognised": list(unknown)}
        if unknown:
            return False, f"fields unknown to fastcore, which may change the result: {', '.join(unknown)}", figures
        return True, f"{self.config.model_type}: every field is read, refused or known to change nothing", figures

    def tensors(self) -> _Outcome:
        count = len(self.checkpoint)
        packed = self.load()
        detail = f"{count} tensors, each taken by name with the shape of the config; {packed / 1e6:.1f} MB packed"
        return True, detail, {"tensors": count, "packed_bytes": packed}

    @abstractmethod
    def load(self) -> int:
        """Load the model; bytes of its packed weights."""

    # ---------------------------------------------------------------- text

    def token_ids(self) -> _Outcome:
        if self.tokenizer is None or not (self.folder / "tokenizer.json").is_file():
            return _skip("no tokenizer.json")
        import tokenizers

        library = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        library.no_truncation()
        library.no_padding()
        wrong = []
        for text in STRINGS:
            for special in (True, False):
                ids = self.tokenizer.encode(text, add_special_tokens=special)
                decoder = self.tokenizer.decoder()
                streamed = "".join(map(decoder.push, ids)) + decoder.finish()
                if ids != library.encode(text, add_special_tokens=special).ids or streamed != library.decode(ids):
                    wrong.append(text)
        figures = {"strings": len(STRINGS), "different": wrong}
        if wrong:
            return (
                False,
                f"ids or streamed text differ from the tokenizers library, for example on {wrong[0]!r}",
                figures,
            )
        return True, f"equal to the tokenizers library on {len(STRINGS)} strings, streamed text too", figures

    def chat_template(self) -> _Outcome:
        if self.tokenizer is None or not self.tokenizer.has_chat_template:
            return _skip("no chat template")
        source, names = _template_of(self.folder)
        if source is None:
            return _skip("no single template to compare with")
        differing, refused = 0, 0
        for conversation in CONVERSATIONS:
            for prompt in (True, False):
                expected = _plain_rendering(source, names, conversation, prompt)
                try:
                    found = self.tokenizer.apply_chat_template(list(conversation), add_generation_prompt=prompt)
                except Error:
                    found = None
                differing += found != expected
                refused += found is None
        count = 2 * len(CONVERSATIONS)
        figures = {"renderings": count, "different": differing, "refused_by_the_template": refused}
        if differing:
            return False, f"{differing} of {count} conversations differ from plain jinja2", figures
        return True, f"{count} conversations equal to plain jinja2, {refused} of them refused by both", figures

    # ---------------------------------------------------------------- numbers

    @abstractmethod
    def against(self, golden: Path | None) -> _Checks:
        """Comparisons with a golden folder, or else with transformers."""

    @abstractmethod
    def laws(self) -> _Checks:
        """What must be equal bit for bit."""


class _LanguageModel(_Subject):
    @cached_property
    def model(self) -> Model:
        with _quietly():
            return load_model(self.checkpoint, "auto", self.num_threads)

    @cached_property
    def pool(self) -> StatePool:
        return StatePool(self.model, POOL_BYTES)

    def load(self) -> int:
        return self.model.weight_bytes

    def logits(self, ids: Sequence[int], sizes: Sequence[int] | None = None, num_threads: int | None = None) -> Array:
        """Logits at every position, with the tokens run in pieces of these sizes."""
        result = np.empty((len(ids), self.config.vocab_size), np.float32)
        with SequenceState(self.pool, prompt_length=len(ids)) as sequence:
            for size in [len(ids)] if sizes is None else sizes:
                start = sequence.length
                piece = Piece(sequence, ids[start : start + size], range(size))
                threads = num_threads or self.num_threads
                run_step(self.model, [piece], num_threads=threads, logits=result[start : start + size])
        return result

    def greedy(self, ids: Sequence[int], count: int) -> tuple[list[int], list[float]]:
        """The next tokens, one step each, and the gap between the two best logits at each."""
        tokens: list[int] = []
        gaps: list[float] = []
        row = np.empty((1, self.config.vocab_size), np.float32)
        with SequenceState(self.pool) as sequence:
            for _ in range(count):
                new = [*ids, *tokens][sequence.length :]
                run_step(self.model, [Piece(sequence, new, [len(new) - 1])], num_threads=self.num_threads, logits=row)
                second, best = np.partition(row[0], -2)[-2:]
                tokens.append(int(row[0].argmax()))
                gaps.append(float(best - second))
        return tokens, gaps

    def against(self, golden: Path | None) -> _Checks:
        if golden is not None:
            case, expected = _read_golden(golden)
            ids = case["input_ids"]
            yield "logits", lambda: _compare_logits(self.logits(ids), expected, "the golden")
            if "greedy" in case:
                yield "greedy tokens", lambda: self._compare_greedy(ids, case["greedy"], "the golden")
            return
        reference = _Transformers.open(self.path)
        if isinstance(reference, str):
            reason = reference
            yield "logits", lambda: _skip(reason)
            yield "greedy tokens", lambda: _skip(reason)
            return
        source = f"transformers {reference.version} in f32"
        yield "logits", lambda: _compare_logits(self.logits(self.prompt), reference.logits(self.prompt), source)
        yield (
            "greedy tokens",
            lambda: self._compare_greedy(self.prompt, reference.greedy(self.prompt, NEW_TOKENS), source),
        )

    def _compare_greedy(self, ids: Sequence[int], expected: Sequence[int], source: str) -> _Outcome:
        tokens, gaps = self.greedy(ids, len(expected))
        same = next((i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b), len(expected))
        figures = {"tokens": len(expected), "equal": same, "smallest_gap": min(gaps[: same + 1])}
        if same == len(expected):
            return (
                True,
                f"{same} tokens equal to {source}; the two best logits were {min(gaps):.2g} apart or more",
                figures,
            )
        if gaps[same] <= TIE:
            return (
                True,
                f"{same} tokens equal to {source}, then a tie: the two best are {gaps[same]:.1g} apart",
                figures,
            )
        return False, f"token {same} is {tokens[same]} and {source} has {expected[same]}", figures

    def laws(self) -> _Checks:
        ids = self.prompt
        expected = self.logits(ids)

        def equal(found: Array) -> bool:
            return bool(np.array_equal(found, expected))

        def chunks() -> _Outcome:
            cuts = [_cut(len(ids), size) for size in (1, 5, 17, max(1, len(ids) - 1))]
            same = [equal(self.logits(ids, sizes)) for sizes in cuts]
            figures = {"cuts": len(cuts), "equal": sum(same)}
            return (
                all(same),
                f"logits of {len(ids)} tokens in {len(cuts)} ways to cut them, token by token too",
                figures,
            )

        yield "law: threads", lambda: _threads_law(lambda n: equal(self.logits(ids, num_threads=n)))
        yield "law: chunks", chunks
        yield "law: batch", self._batch_law
        yield "law: instruction sets", lambda: _isa_law(lambda: equal(self.logits(ids)))

    def _batch_law(self) -> _Outcome:
        prompts = [self.prompt[:1], self.prompt[:7], self.prompt, self.prompt[3:20]]
        sequences = [SequenceState(self.pool) for _ in prompts]
        try:
            pieces = [Piece(sequence, ids, range(len(ids))) for sequence, ids in zip(sequences, prompts, strict=True)]
            together = np.empty((sum(map(len, prompts)), self.config.vocab_size), np.float32)
            run_step(self.model, pieces, num_threads=self.num_threads, logits=together)
        finally:
            for sequence in sequences:
                sequence.free()
        passed = bool(np.array_equal(together, np.concatenate([self.logits(ids) for ids in prompts])))
        detail = f"{len(prompts)} prompts in one step get the logits they get alone"
        if self.tokenizer is not None:
            llm = LLM.from_model(self.model, self.tokenizer, num_threads=self.num_threads, kv_cache_bytes=POOL_BYTES)
            batch = [completion.token_ids for completion in llm.generate(prompts, max_tokens=8)]
            passed &= batch == [llm.generate(ids, max_tokens=8).token_ids for ids in prompts]
            detail += ", and the same tokens after them"
        return passed, detail, {"prompts": len(prompts)}


class _Classifier(_Subject):
    @cached_property
    def model(self) -> TokenClassifier:
        return self._open(self.num_threads)

    def _open(self, num_threads: int) -> TokenClassifier:
        with _quietly():
            return TokenClassifier(self.checkpoint, num_threads=num_threads)

    def load(self) -> int:
        return self.model.model.weight_bytes

    def against(self, golden: Path | None) -> _Checks:
        if golden is None:
            yield "logits", lambda: _skip("a token classifier is compared with a golden folder only; give one")
            return
        case, expected = _read_golden(golden)

        def compare() -> _Outcome:
            found, sensitivity = self.model.logits(case["input_ids"])
            passed, detail, figures = _compare_logits(found, expected, "the golden")
            if sensitivity is None or case.get("sensitivity_logit") is None:
                return passed, detail, figures
            difference = abs(float(sensitivity) - case["sensitivity_logit"])
            close = difference <= SENSITIVITY_TOLERANCE
            return bool(passed and close), detail, {**figures, "sensitivity_difference": difference}

        yield "logits", compare

    def laws(self) -> _Checks:
        ids = self.prompt
        expected = self.model.logits(ids)

        def equal(found: tuple[Array, Any]) -> bool:
            return bool(np.array_equal(found[0], expected[0]) and found[1] == expected[1])

        def batch() -> _Outcome:
            texts = [TEXT, "", "Call Anna on 555-0100.", TEXT[:200]]
            alone = [self.model.score(text) for text in texts]
            together = self.model.score(texts)
            same = all(
                np.array_equal(a.logits, b.logits) and a.sensitivity_logit == b.sensitivity_logit
                for a, b in zip(alone, together, strict=True)
            )
            return same, f"{len(texts)} texts together get the scores they get alone", {"texts": len(texts)}

        def threads(count: int) -> bool:
            return equal(self._open(count).logits(ids))

        yield "law: threads", lambda: _threads_law(threads)
        yield "law: batch", batch if self.tokenizer is not None else (lambda: _skip("no tokenizer.json"))
        yield "law: instruction sets", lambda: _isa_law(lambda: equal(self.model.logits(ids)))


# ---------------------------------------------------------------- laws


def _threads_law(equal: Callable[[int], bool]) -> _Outcome:
    counts = (1, 2, 3)
    same = [count for count in counts if equal(count)]
    return len(same) == len(counts), "equal bits with 1, 2 and 3 threads", {"threads": list(counts), "equal": same}


def _isa_law(equal: Callable[[], bool]) -> _Outcome:
    isas = _kernels.available_isas()
    same = []
    for isa in isas:
        with _isa(isa):
            if equal():
                same.append(isa)
    return len(same) == len(isas), f"equal bits on {', '.join(isas)}", {"instruction_sets": list(isas), "equal": same}


@contextmanager
def _isa(name: str) -> Iterator[None]:
    before = _kernels.active_isa()
    _kernels.use_isa(name)
    try:
        yield
    finally:
        _kernels.use_isa(before)


def _cut(count: int, size: int) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]


# ---------------------------------------------------------------- references


def _compare_logits(found: Array, expected: Array, source: str) -> _Outcome:
    if found.shape != expected.shape:
        return False, f"shape {list(found.shape)}, and {source} has {list(expected.shape)}", {}
    spread = float(expected.std())
    difference = float(np.abs(found - expected).max())
    passed = bool(difference <= LOGITS_TOLERANCE * spread)
    figures = {"positions": len(found), "max_difference": difference, "std": spread, "tolerance": LOGITS_TOLERANCE}
    detail = f"{len(found)} positions: largest difference {difference / spread:.1e} of the std, against {source}"
    return passed, detail, figures


def _read_golden(folder: Path) -> tuple[dict[str, Any], Array]:
    try:
        case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        case["input_ids"] = list(case["input_ids"])
        return case, np.load(folder / "logits.npy")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{folder} is not a golden folder with case.json and logits.npy: {error}") from error


class _Transformers:
    """The same checkpoint in transformers, in f32 with eager attention."""

    def __init__(self, model: Any, version: str) -> None:
        self._model = model
        self.version = version

    @classmethod
    def open(cls, path: Path) -> "_Transformers | str":
        """The model, or the reason why there is none."""
        if not path.is_dir():
            return "transformers reads folders only; give a golden folder"
        try:
            import torch
            import transformers
        except ImportError:
            return "transformers is not installed; install it, or give a golden folder"
        release = tuple(int(number) for number in transformers.__version__.split(".")[:2])
        options = {
            "dtype" if release >= (4, 56) else "torch_dtype": torch.float32,
            "attn_implementation": "eager",
            "local_files_only": True,
        }
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(path, **options).eval()
        except Exception as error:  # whatever another library raises about this folder
            return f"transformers does not load this model: {error}"
        return cls(model, transformers.__version__)

    def logits(self, ids: Sequence[int]) -> Array:
        import torch

        with torch.no_grad():
            found: Array = self._model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()
        return found

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        import torch

        tokens: list[int] = []
        new, cache = list(ids), None
        with torch.no_grad():
            for _ in range(count):
                output = self._model(torch.tensor([new]), past_key_values=cache, use_cache=True)
                new, cache = [int(output.logits[0, -1].argmax())], output.past_key_values
                tokens += new
        return tokens


# ---------------------------------------------------------------- plain jinja2


def _template_of(folder: Path) -> tuple[str | None, dict[str, str]]:
    """The source of the default template as the files have it, and the special tokens that it may name."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= json.loads((folder / name).read_text(encoding="utf-8"))
    names = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token") and isinstance(value, (str, dict))
    }
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    return source, names


def _plain_rendering(
    source: str, names: Mapping[str, str], messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
) -> str | None:
    """What jinja2 alone makes of the template; None where it refuses."""
    import datetime

    import jinja2

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    source = re.sub(r"({%[-+]?\s*)generation(\s*[-+]?%})", r"\1if true\2", source)
    source = re.sub(r"({%[-+]?\s*)endgeneration(\s*[-+]?%})", r"\1endif\2", source)
    try:
        return environment.from_string(source).render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            raise_exception=refuse,
            strftime_now=lambda form: datetime.datetime.now().strftime(form),
            **names,
        )
    except jinja2.TemplateError:
        return None
