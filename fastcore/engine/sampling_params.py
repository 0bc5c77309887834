"""How to choose tokens and when to stop: the options of a request, each of them checked."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, TypedDict

import numpy as np

__all__ = ["GRAMMARS", "GREEDY_TEMPERATURE", "SamplingOptions", "SamplingParams", "check_speculate"]

GREEDY_TEMPERATURE = 1e-4  # up to here a temperature asks for the argmax: the rest would be drawn from rounding errors
MAX_COMPLETIONS = 128  # of a prompt, as OpenAI has it
GRAMMARS = ("json_schema", "regex", "grammar", "choice")  # the fields that hold a text to something
MAX_STOP_STRINGS = 64  # each is looked for after each token


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens and when to stop. Every field is checked; a wrong one is a `ValueError` that names it.

    temperature: 0 (and anything up to 1e-4) is greedy; above, logits are divided by it.
    top_k: sample from the k most probable tokens; 0 or -1 is off.
    top_p: sample from the smallest set of most probable tokens that holds this share of the mass; in (0, 1], 1 is off.
    min_p: drop tokens less probable than min_p times the most probable one; in [0, 1], 0 is off.
    repetition_penalty: above 1 discourages tokens of the prompt and the output; above 0, 1 is off.
    presence_penalty, frequency_penalty: subtracted from the logit of output tokens, once or per occurrence; in [-2, 2].
    seed: the same seed gives the same tokens, in any batch; None draws one from the system.
    max_tokens: at most this many new tokens; 0 generates none; None leaves it to the caller (`generate`: 256).
    min_tokens: no end-of-sequence token and no stop token before this many new tokens.
    stop: strings that end the text and are not part of it; one or several, up to 64.
    stop_token_ids: tokens that end the text, next to the model's own end-of-sequence tokens.
    ignore_eos: go on after the model's end-of-sequence tokens.
    logprobs: None for none, else the number of most probable tokens to report at each step, next to the chosen one.
    prompt_logprobs: the same for the tokens of the prompt.
    logit_bias: token id -> number added to its logit; -inf bans the token.
    n: completions per prompt, up to 128.
    json_schema, regex, grammar, choice: what the whole text is held to, at most one of them: a JSON schema (a dict, or
    its JSON), a regular expression, a Lark grammar, or a list of texts. The text ends where nothing can follow.
    speculate: ngram guesses tokens from the text so far and verifies several in one step, which changes no token | off
    | None, the default, as the model was opened.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    n: int = 1
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    speculate: str | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}")
        given = [name for name in GRAMMARS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} are given; a text is held to one of them")

    def replace(self, **changes: Any) -> "SamplingParams":
        """A copy with some fields changed and checked again; an unknown name is a `TypeError`."""
        names = [field.name for field in fields(self)]
        for name in changes:
            if name not in names:
                close = get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
                raise TypeError(f"unknown sampling option {name!r}; {hint}")
        return replace(self, **changes)

    @classmethod
    def from_generation_config(cls, generation: Mapping[str, Any]) -> "SamplingParams":
        """What a checkpoint's generation_config.json asks for; what it does not name stays at its default.

        `do_sample` decides, as in transformers: false is greedy; true without a temperature is 1. Raises ValueError for
        a value that is none.
        """
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        given = {name: generation[name] for name in names if generation.get(name) is not None}
        if generation.get("do_sample") is True:
            given = {"temperature": 1.0, **given}
        elif generation.get("do_sample") is False:
            given["temperature"] = 0.0
        try:
            return cls(**given)
        except ValueError as error:
            raise ValueError(f"generation_config.json: {error}") from None

    @property
    def held_to(self) -> tuple[str, str] | None:
        """The kind and the source of what the text is held to."""
        for kind in GRAMMARS:
            value = getattr(self, kind)
            if value is not None:
                return kind, json.dumps(value) if kind == "choice" else value
        return None

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class SamplingOptions(TypedDict, total=False):
    """The fields of SamplingParams as keywords of a call. None leaves a field as it is."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    logprobs: int | None
    prompt_logprobs: int | None
    logit_bias: Mapping[int, float] | None
    n: int | None
    json_schema: Mapping[str, Any] | str | None
    regex: str | None
    grammar: str | None
    choice: Sequence[str] | None
    speculate: str | None


# ---- Checks of the options: each takes a field's name and value and returns the value in its plain Python type.


def _refuse(name: str, value: object, expected: str) -> ValueError:
    try:
        shown = repr(value)
    except ValueError:  # Python writes no number of so many digits
        shown = "a number of thousands of digits"
    return ValueError(f"{name} is {shown if len(shown) <= 100 else f'{shown[:97]}...'}; expected {expected}")


def _real(accepts: Callable[[float], bool], expected: str) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise _refuse(name, value, expected)
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond all floats
            number = math.inf if value == abs(value) else -math.inf
        if not accepts(number):
            raise _refuse(name, value, expected)
        return number

    return check


def _integer(low: int, high: int, expected: str, optional: bool = False) -> Callable[[str, Any], int | None]:
    def check(name: str, value: Any) -> int | None:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
            raise _refuse(name, value, expected)
        if int(value) > high:
            raise _refuse(name, value, f"at most {high}" if high == _LARGE else expected)
        return int(value)

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _refuse(name, value, "True or False")
    return bool(value)


def _stop_strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or not all(isinstance(text, str) and text for text in strings):
        raise _refuse(name, value, "a string or a list of strings, none of them empty")
    if len(strings) > MAX_STOP_STRINGS:
        raise ValueError(f"{name} has {len(strings)} strings; expected at most {MAX_STOP_STRINGS}")
    return tuple(strings)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise _refuse(name, value, "a list of token ids")
    return tuple(_token_id(name, token_id) for token_id in value)


def _token_id(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) <= _LARGE:
        raise _refuse(name, value, "token ids, whole numbers from 0")
    return int(value)


def _bias(name: str, value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _refuse(name, value, "a dict of token id -> number")
    number = _real(lambda bias: abs(bias) <= _LARGEST_F32 or bias == -math.inf, "token id -> a number of f32, or -inf")
    return {_token_id(name, token_id): number(name, bias) for token_id, bias in value.items()}


def _schema(name: str, value: Any) -> str | None:
    """As JSON."""
    if value is None:
        return None
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        if isinstance(schema, Mapping):
            return json.dumps(dict(schema), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        pass
    raise _refuse(name, value, "a JSON schema: a dict of JSON types, or its JSON text")


def _source(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise _refuse(name, value, "a text that is not empty")
    return value


def _choice(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise _refuse(name, value, "a list of one or more texts")
    if not all(isinstance(text, str) and text for text in value):
        raise _refuse(name, value, "texts, none of them empty")
    return tuple(value)


def check_speculate(name: str, value: Any) -> str | None:
    if value not in (None, "off", "ngram"):
        raise _refuse(name, value, "ngram, off or None")
    return None if value is None else str(value)


_LARGE = 2**63 - 1
_LARGEST_F32 = float(np.finfo(np.float32).max)
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "temperature": _real(lambda x: 0.0 <= x < math.inf, "a finite number from 0 (greedy)"),
    "top_k": _integer(-1, _LARGE, "a whole number from 1, or 0 or -1 for off"),
    "top_p": _real(lambda x: 0.0 < x <= 1.0, "a number above 0 and up to 1 (off)"),
    "min_p": _real(lambda x: 0.0 <= x <= 1.0, "a number from 0 (off) to 1"),
    "repetition_penalty": _real(lambda x: 1e-6 <= x <= 1e6, "a number above 0, from 1e-6 to 1e6; 1 is off"),
    "presence_penalty": _real(lambda x: -2.0 <= x <= 2.0, "a number from -2 to 2; 0 is off"),
    "frequency_penalty": _real(lambda x: -2.0 <= x <= 2.0, "a number from -2 to 2; 0 is off"),
    "seed": _integer(-(2**63), 2**64 - 1, "a whole number of at most 64 bits, or None", optional=True),
    "max_tokens": _integer(0, _LARGE, "a whole number from 0, or None", optional=True),
    "min_tokens": _integer(0, _LARGE, "a whole number from 0"),
    "stop": _stop_strings,
    "stop_token_ids": _token_ids,
    "ignore_eos": _flag,
    "logprobs": _integer(0, _LARGE, "a whole number from 0, or None", optional=True),
    "prompt_logprobs": _integer(0, _LARGE, "a whole number from 0, or None", optional=True),
    "logit_bias": _bias,
    "n": _integer(1, MAX_COMPLETIONS, f"a whole number from 1 to {MAX_COMPLETIONS}"),
    "json_schema": _schema,
    "regex": _source,
    "grammar": _source,
    "choice": _choice,
    "speculate": check_speculate,
}
