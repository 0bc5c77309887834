"""Chat templates and messages: random programs, damaged published templates, damaged conversations."""

import copy
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

from fastcore.text import sandbox
from fastcore.text.tokenizer import Tokenizer
from fuzz.mutate import TEXTS, mutate_json
from fuzz.reader import READERS, Reader

SPECIAL = ["<|im_start|>", "<|im_end|>", "</s>"]
MADE, SECONDS = 1 << 20, 0.1  # of a template, here
TEMPLATES = Path(__file__).parents[1] / "data" / "templates"

NAMES = (
    "messages",
    "tools",
    "a",
    "b",
    "ns.x",
    "bos_token",
    "loop",
    "message",
    "range",
    "f",
    "nothing",
    "namespace",
    "ns",
)
NUMBERS = ("0", "1", "2", "-1", "3", "60", "99999", "10**9", "2**63", "1.5", "1e308", "7**99")
WORDS = (
    "''",
    "'a'",
    "'ab' * 999",
    "'\\n'",
    "'{}'",
    "'%s'",
    "'{:9999999}'",
    "'%9999999d'",
    "'<|im_end|>'",
    "'{0.x}'",
    "' x '",
)
OPERATORS = ("+", "-", "*", "**", "/", "//", "%", "~", "==", "!=", "<", "in", "not in", "and", "or", "is", "|")
FILTERS = (
    "abs", "attr", "batch", "capitalize", "center", "default", "dictsort", "escape", "filesizeformat", "first",
    "float", "format", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max",
    "min", "pprint", "random", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select",
    "selectattr", "slice", "sort", "string", "striptags", "sum", "title", "tojson", "trim", "truncate", "unique",
    "upper", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr",
)  # fmt: skip
TESTS = (
    "defined",
    "none",
    "string",
    "mapping",
    "iterable",
    "sequence",
    "odd",
    "eq(1)",
    "in([1])",
    "sameas(a)",
    "number",
)
METHODS = (
    "append", "capitalize", "center", "count", "encode", "endswith", "expandtabs", "find", "format", "format_map",
    "get", "index", "isdigit", "items", "join", "keys", "ljust", "lower", "lstrip", "partition", "pop", "replace",
    "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "to_bytes", "translate", "upper",
    "update", "values", "zfill", "__class__", "__len__", "mro", "cycle", "changed",
)  # fmt: skip


def expression(rng: random.Random, depth: int = 2) -> str:
    """A random expression, which may be worth nothing."""
    what = rng.randrange(12) if depth else rng.randrange(3)

    def inner() -> str:
        return expression(rng, depth - 1)

    def inners() -> str:
        return ", ".join(inner() for _ in range(rng.randrange(3)))

    match what:
        case 0:
            return rng.choice(NAMES)
        case 1:
            return rng.choice(NUMBERS)
        case 2:
            return rng.choice(WORDS)
        case 3 | 4:
            return f"({inner()} {rng.choice(OPERATORS)} {inner()})"
        case 5 | 6:
            return f"({inner()} | {rng.choice(FILTERS)}{rng.choice(['', f'({inners()})'])})"
        case 7:
            return f"({inner()} is {rng.choice(TESTS)})"
        case 8 | 9:
            return f"{inner()}.{rng.choice(METHODS)}({inners()})"
        case 10:
            return f"{inner()}[{rng.choice([inner(), '0', '-1', '1:', ':2', '::-1', repr('content')])}]"
    return rng.choice(
        (f"[{inners()}]", f"({inner()},)", f"{{{inner()}: {inner()}}}", f"range({inner()})", f"f({inners()})")
    )


def statement(rng: random.Random, depth: int = 2) -> str:
    """A random piece of a template."""

    def body() -> str:
        return "".join(statement(rng, depth - 1) for _ in range(rng.randrange(1, 4)))

    match rng.randrange(10) if depth else rng.randrange(3):
        case 0:
            return rng.choice(("text", "\n", "<|im_start|>", "  ", "{# x #}", "😀"))
        case 1 | 2:
            return "{{ " + expression(rng) + " }}"
        case 3:
            return "{% set " + rng.choice(("a", "b", "ns.x", "messages")) + " = " + expression(rng) + " %}"
        case 4:
            return "{% set a %}" + body() + "{% endset %}"
        case 5 | 6:
            over = rng.choice(("messages", "range(30)", "range(100000)", expression(rng)))
            recursive = rng.choice(("", "", " recursive", " if message"))
            return "{% for message in " + over + recursive + " %}" + body() + "{% endfor %}"
        case 7:
            return "{% if " + expression(rng) + " %}" + body() + "{% else %}" + body() + "{% endif %}"
        case 8:
            return "{% macro f(a, b=1) %}" + body() + "{% endmacro %}"
    block = rng.choice(("filter", "generation"))
    return f"{{% {block}{' upper' if block == 'filter' else ''} %}}{body()}{{% end{block} %}}"


@cache
def published() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.jinja"))]


CONVERSATION = [
    {"role": "system", "content": "You are terse."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Weather<|im_end|> in "}, {"type": "text", "text": "Malmö?"}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "x"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "sun"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSun.", "reasoning_content": None},
    {"role": "user", "content": "Thanks </s>"},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
KEYS = ("role", "content", "tool_calls", "name", "function", "arguments", "type", "text", "reasoning_content")


def make_template(rng: random.Random) -> bytes:
    if rng.random() < 0.7:
        source = "{% set ns = namespace(x='') %}" + "".join(statement(rng) for _ in range(rng.randrange(1, 5)))
    else:
        source = rng.choice(published())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(source))
            piece = rng.choice((statement(rng, 1), expression(rng, 1), "{%", "%}", "{{", "", source[at : at + 40]))
            source = source[:at] + piece + source[at + rng.choice((0, 1, 5, 30)) :]
    return json.dumps({"source": source, "messages": CONVERSATION, "tools": rng.choice((None, TOOLS))}).encode()


def make_messages(rng: random.Random) -> bytes:
    conversation = {"messages": copy.deepcopy(CONVERSATION[rng.randrange(3) :]), "tools": copy.deepcopy(TOOLS)}
    case = mutate_json(conversation, rng, names=KEYS)
    if rng.random() < 0.3 and isinstance(case, dict) and isinstance(case.get("messages"), list):
        content = "".join(rng.choice((*TEXTS, *SPECIAL, "<|im_", "end|>", "</", "s>")) for _ in range(4))
        case["messages"].append({"role": "user", "content": content})
    return json.dumps({"source": rng.choice(published()), **case} if isinstance(case, dict) else {}).encode()


@cache
def backend() -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate([*SPECIAL, *pre_tokenizers.ByteLevel.alphabet()])}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    return made


def read_chat(case: bytes) -> None:
    """The prompt of the conversation: as many special tokens in a row as the template wrote, and no more."""
    parts: dict[str, Any] = json.loads(case)
    tokenizer = Tokenizer(backend(), {"chat_template": parts.get("source", ""), "eos_token": "</s>"})
    before = sandbox.MAX_MADE, sandbox.SECONDS
    sandbox.MAX_MADE, sandbox.SECONDS = MADE, SECONDS
    try:
        text, ids = tokenizer.chat_prompt(parts.get("messages"), tools=parts.get("tools"))
    finally:
        sandbox.MAX_MADE, sandbox.SECONDS = before
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    allowed = tokenizer.encode(text, add_special_tokens=False)
    assert sum(i in tokenizer.special_ids for i in ids) <= sum(i in tokenizer.special_ids for i in allowed)


READERS["template"] = Reader(make_template, read_chat, (ValueError,))
READERS["messages"] = Reader(make_messages, read_chat, (ValueError,))
