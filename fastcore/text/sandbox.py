"""The environment that chat templates run in: transformers' helpers, in jinja2's sandbox, under a budget.

A template is a program that came with a checkpoint. jinja2's sandbox keeps it from the interpreter; the budget keeps it
from running or growing without end. Everything that repeats or makes something is charged before it does: jinja2 has
hooks for operators, calls and outputs; filters and tests are wrapped; loops, macros, `~`, slices and comparisons are
sent through functions of the environment when a template is parsed.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache, wraps
from string import Formatter
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["budget", "environment"]

MAX_SOURCE = 200_000  # characters of a template
SECONDS = 5.0  # of this thread's work for one rendering; a prompt of a million characters takes well below one
MAX_MADE = (
    1 << 27
)  # characters of all texts that a rendering makes; an item of a list, a node of a loop's body count too
MAX_NUMBER = 1 << 16  # a whole number given to a filter or a text's method: a width, a count
MAX_BITS = 1 << 12  # of a whole number
MAX_SLOW = 100_000  # characters for filters that take more than one look at each
MAX_DEPTH = 500  # of lists and dicts in one another
ITEM, NODE, TURN = 64, 4, 4096  # what an item of a list, a node in a loop and a turn of a recursive one are charged
STEPS_PER_LOOK = 256  # at the clock


class _Budget:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self._left = MAX_MADE
        self._steps = 0
        self._end = time.thread_time() + SECONDS

    def charge(self, size: int) -> None:
        """For one step, and for making that many characters."""
        self._left -= size
        if self._left < 0:
            raise SecurityError(f"it repeats or makes too much: more than {MAX_MADE} characters in all")
        self.look(size)

    def look(self, size: int) -> None:
        """For reading that many characters."""
        self._steps += 1 + (size >> 10)
        if self._steps >= STEPS_PER_LOOK:
            self._steps = 0
            if time.thread_time() > self._end:
                raise SecurityError(f"it takes more than {SECONDS:g} seconds")


class _Current(threading.local):
    budget: _Budget | None = None


_current = _Current()


@contextmanager
def budget() -> Iterator[None]:
    """Within, templates are compiled and rendered under one budget, which is this thread's."""
    before, _current.budget = _current.budget, _Budget()
    try:
        yield
    finally:
        _current.budget = before


def _charge(size: int) -> None:
    if _current.budget is not None:
        _current.budget.charge(size)


def _look(size: int) -> None:
    if _current.budget is not None:
        _current.budget.look(size)


def _size(*values: Any) -> int:
    """About how many characters values have as text, where what is shared counts each time; an error beyond bounds.

    Lists and dicts in one another cost this much to write, to compare and to hash.
    """
    size, depth, level = 0, 0, list(values)
    while level:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str | bytes):
                size += len(item)
            elif isinstance(item, Mapping):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list | tuple | set | frozenset):
                inner += item
            size += ITEM
            if size > MAX_MADE or len(inner) * ITEM > MAX_MADE:
                raise SecurityError(f"it makes a text of more than {MAX_MADE} characters")
        depth, level = depth + 1, inner
        if depth > MAX_DEPTH:
            raise SecurityError(f"it puts more than {MAX_DEPTH} lists or dicts in one another")
    return size


def _look_at(*values: Any) -> None:
    """For values that are compared, hashed or passed on."""
    for value in values:
        _look(_size(value) if isinstance(value, list | tuple | Mapping) else _length(value))


def _length(value: Any) -> int:
    """What copying a text or a list is charged; 0 for other values."""
    if isinstance(value, str | bytes):
        return len(value)
    return ITEM * len(value) if isinstance(value, list | tuple | Mapping) else 0


def _made(value: Any) -> Any:
    """A value that has just been made, charged."""
    _charge(_length(value))
    return value


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise SecurityError(f"a number beyond {MAX_NUMBER} is given to a filter or a method, as a width or a count")


# ---------------------------------------------------------------------- operators, methods, filters


def _charge_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    for many, times in ((left, right), (right, left)):
        if isinstance(times, int) and not isinstance(many, int):
            _charge(_length(many) * max(times, 0))


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise SecurityError(f"it makes a number of more than {MAX_BITS} bits")


_KEY = r"%(?:\([^)]{0,99}\))?"
_WIDE = re.compile(rf"{_KEY}[-#0 +]{{0,9}}(?:\d{{5}}|\*|\d*\.(?:\d{{5}}|\*))|{_KEY}[-#0 +]{{9}}|%\([^)]{{99}}")


def _charge_format(text: str, values: Any, is_percent: bool) -> None:
    if is_percent:
        is_wide = _WIDE.search(text) is not None
    else:
        specs = [spec or "" for _, _, spec, _ in Formatter().parse(text)]
        is_wide = any("{" in spec or re.search(r"\d{5}", spec) for spec in specs)
    if is_wide:
        raise SecurityError("a format asks for a width that is too large, or that is not written in it")
    _charge(len(text) + (text.count("%") if is_percent else text.count("{")) * _size(values))


def _charge_method(text: Any, name: str, given: Sequence[Any]) -> None:
    """What a method of a text (or bytes) makes, where it may be more than the text."""
    _charge(len(text))
    if name in ("format", "format_map"):
        _charge_format(str(text), given, False)
    elif name == "join":
        _charge(_size(*given) + len(text) * _length(given[0] if given else []) // ITEM)
    elif name == "replace":
        _charge_replace(text, given)
    elif name == "translate":
        _charge(len(text) * _size(*given))
    else:
        _check_numbers(given)
        if name == "expandtabs":
            tab: Any = b"\t" if isinstance(text, bytes) else "\t"
            _charge(text.count(tab) * max([8, *map(abs, given)]))


def _charge_replace(text: Any, given: Sequence[Any]) -> None:
    kind = bytes if isinstance(text, bytes) else str
    if len(given) >= 2 and isinstance(given[0], kind) and isinstance(given[1], kind):
        _charge(len(text) + text.count(given[0]) * len(given[1]))


# those that give or pass on what they are given, or look at it lazily
_LIGHT = frozenset(
    [
        *("attr", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random"),
        *("reject", "rejectattr", "safe", "select", "selectattr"),
    ]
)
_SLOW = frozenset(["pprint", "striptags", "title", "urlize", "wordwrap", "xmlattr"])


def _bounded_filter(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter_)  # with what jinja2 marks filters by
    def bounded(*args: Any, **kwargs: Any) -> Any:
        at = next((i for i, arg in enumerate(args) if not isinstance(arg, Context | jinja2.Environment | _Eval)), 0)
        given = [*args[at + 1 :], *kwargs.values()]
        value = args[at] if args else None
        _charge(1)
        if isinstance(value, Iterator) and name not in _LIGHT:
            value = _made(list(value))
            args = (*args[:at], value, *args[at + 1 :])
        if name not in _LIGHT:
            size = _size(value)
            _charge(size if name in ("string", "join", "tojson") or isinstance(value, str) else 0)
            _look(size)
            _check_numbers(given)
            if size > MAX_SLOW and name in _SLOW:
                raise SecurityError(f"the filter {name!r} is given too much")
            _charge_growth(name, value, given)
        return _made(filter_(*args, **kwargs))

    return bounded


_Eval = jinja2.nodes.EvalContext


def _charge_growth(name: str, value: Any, given: Sequence[Any]) -> None:
    """What a filter makes beyond what it is given."""
    widths = [len(item) if isinstance(item, str) else abs(item) for item in given if isinstance(item, int | str)]
    widest = max(widths, default=0)
    match name:
        case "replace":
            _charge_replace(str(value), [str(item) for item in given[:2]])
        case "format":
            _charge_format(str(value), given, True)
        case "join" if isinstance(value, str | list | tuple | Mapping):
            _charge(len(value) * widest)
        case "indent":
            _charge((1 + str(value).count("\n")) * widest)
        case "wordwrap":
            _charge((1 + len(str(value))) * max([len(item) for item in given if isinstance(item, str)], default=1))
        case "escape" | "e" | "forceescape" | "urlencode":
            _charge(8 * len(str(value)))
        case "sum" if not all(item is None or isinstance(item, int | float | str) for item in given):
            raise SecurityError("the filter 'sum' adds numbers alone")


def _bounded_test(test: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(test)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _look_at(*args)
        return test(*args, **kwargs)

    return bounded


# ---------------------------------------------------------------------- the environment


class _Loop:
    """A loop's items, each of which is charged a turn."""

    def __init__(self, items: Any, cost: int) -> None:
        self._items = items
        self._cost = cost

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            _charge(self._cost)
            yield item

    def __len__(self) -> int:
        return len(self._items)


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's text; here it is a plain scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


_CHARGED = (
    *(nodes.For, nodes.Macro, nodes.CallBlock, nodes.Concat, nodes.Getitem),
    *(nodes.Compare, nodes.Operand, nodes.Pair),
)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        # jinja2 would go on with an undefined value, which prints as nothing
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is unsafe")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise SecurityError(f"it has {len(source)} characters; expected at most {MAX_SOURCE}")
        tree = super()._parse(source, name, filename)
        for node in list(tree.find_all(_CHARGED)):
            if isinstance(node, nodes.For):
                node.iter = _through(node, "counted_loop", node.iter, nodes.Const(_cost(node)))
            elif isinstance(node, nodes.Macro | nodes.CallBlock):
                call = _through(node, "counted_call", nodes.Const(_cost(node)))
                node.body = [nodes.ExprStmt(call, lineno=node.lineno), *node.body]
            elif isinstance(node, nodes.Concat):
                node.nodes = [_through(node, "joined", nodes.List(node.nodes, lineno=node.lineno))]
            elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
                node.node = _through(node, "copied", node.node)
            elif isinstance(node, nodes.Compare | nodes.Operand):
                node.expr = _through(node, "read", node.expr)
            elif isinstance(node, nodes.Pair):
                node.key = _through(node, "read", node.key)
        tree.set_environment(self)
        return tree

    @staticmethod
    def counted_loop(items: Any, cost: int) -> Any:
        return items if isinstance(items, Undefined) or not isinstance(items, Iterable) else _Loop(items, cost)

    @staticmethod
    def counted_call(cost: int) -> None:
        _charge(cost)

    @staticmethod
    def joined(values: list[Any]) -> str:
        _charge(_size(values))
        return "".join(map(str, values))

    @staticmethod
    def copied(value: Any) -> Any:
        _charge(_length(value))
        return value

    @staticmethod
    def read(value: Any) -> Any:
        _look_at(value)
        return value

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int):
            _look_at(argument)
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if any(obj is own for own in _OWN):
            return obj(*args)
        _charge(1)
        _look_at(*(arg for arg in (*args, *kwargs.values()) if isinstance(arg, list | tuple | Mapping)))
        if isinstance(obj, LoopContext) and args:  # a recursive loop
            args = (_Loop(args[0], TURN), *args[1:])
        method = getattr(obj, "__wrapped__", obj)  # of `format`, which jinja2 has put its own in place of
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes):
            if method.__name__ == "join" and args:
                args = (list(args[0]), *args[1:])
            _charge_method(owner, method.__name__, [*args, *(kwargs[name] for name in kwargs if name[:1] != "_")])
        elif isinstance(owner, int | float):
            _check_numbers(args)
        elif isinstance(owner, list | tuple) and method.__name__ in ("count", "index"):
            _look_at(owner)
        return _made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _charge(1)
        if operator == "*":
            _charge_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(right, 0))
        elif operator == "%" and isinstance(left, str):
            _charge_format(left, right, True)
        elif operator == "+":
            _charge(_length(left) + _length(right))
        return super().call_binop(context, operator, left, right)


_OWN = (_Sandbox.counted_loop, _Sandbox.counted_call, _Sandbox.joined, _Sandbox.copied, _Sandbox.read)


def _through(node: nodes.Node, name: str, *arguments: Any) -> nodes.Call:
    """A call of one of the environment's own functions."""
    function = nodes.EnvironmentAttribute(name, lineno=node.lineno)
    return nodes.Call(function, list(arguments), [], None, None, lineno=node.lineno)


def _cost(node: nodes.Node) -> int:
    """What one turn through a loop or macro is charged: the text it writes of its own, and its size."""
    inner = list(node.find_all(nodes.Node))
    return NODE * len(inner) + sum(len(item.data) for item in inner if isinstance(item, nodes.TemplateData))


def _output(value: Any) -> Any:
    _charge(_size(value))
    return value


@cache
def environment() -> jinja2.Environment:
    sandbox = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_output, cache_size=0
    )
    sandbox.filters["tojson"] = _tojson
    sandbox.filters = {name: _bounded_filter(name, filter_) for name, filter_ in sandbox.filters.items()}
    tests: dict[str, Any] = dict(sandbox.tests)
    sandbox.tests = {name: _bounded_test(test) for name, test in tests.items()}
    del sandbox.globals["lipsum"]
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    return sandbox


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter would escape <, > and & for HTML
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None:
        _charge(6 * _size(value) if ensure_ascii else 0)
        return encoder.encode(value)
    parts = []
    for part in encoder.iterencode(value):
        _charge(len(part))
        parts.append(part)
    return "".join(parts)


def _raise_exception(message: Any) -> None:
    _charge(_size(message))
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > 1000:
        raise SecurityError("the format of strftime_now is too long")
    return datetime.now().strftime(form)
