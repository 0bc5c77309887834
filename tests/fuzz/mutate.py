"""Mutations that keep most of a structure and break a part of it. Everything follows from the generator given."""

import copy
import json
import math
import random
from collections.abc import Sequence
from typing import Any

__all__ = ["INTEGERS", "TEXTS", "VALUES", "json_bytes", "mutate_bytes", "mutate_fields", "mutate_json"]

INTEGERS = [
    *(0, 1, -1, 2, 3, 7, 8, 16, 127, 128, 255, 256, 65535, 65536),
    *(2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64),
    *(-(2**31), -(2**63), 10**18, 10**30, 10**400),
]
FLOATS = [
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-320, 1e-45, 1e-30, 1e6, 1e30, 1e39, 1e300, 1e308),
    *(math.inf, -math.inf, math.nan),
]
TEXTS = [
    *("", "a", " ", "\0", "\ud800", "é", "😀", "../x", "x" * 300, "null", "0", "1e6", "<|im_end|>"),
    *("model.", "a b", "▁", "Ġ"),
]
VALUES: list[Any] = [None, True, False, [], {}, [1], ["a"], {"a": 1}, [[[[]]]], *INTEGERS, *FLOATS, *TEXTS]


def mutate_json(value: Any, rng: random.Random, rounds: int = 3, names: Sequence[str] = ()) -> Any:
    """A JSON value with a few parts changed, in place where it can be. names: keys that may be set anywhere."""
    for _ in range(1 + int(rng.random() ** 2 * rounds)):
        parent, key = _place(value, rng)
        if parent is None:
            if rng.random() < 0.05:
                return rng.choice(VALUES)
            parent, key = _place(value, rng)
            if parent is None:
                continue
        _change(parent, key, rng, names)
    return value


def _place(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A random container in `value` and a key of it."""
    parent, key = None, None
    while isinstance(value, (dict, list)) and value:
        parent = value
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = parent[key]
        if rng.random() < 0.4:
            break
    return parent, key


def _change(parent: Any, key: Any, rng: random.Random, names: Sequence[str]) -> None:
    old, what = parent[key], rng.randrange(9)
    if what < 4:
        parent[key] = _value(rng)
    elif what == 4:
        parent[key] = _near(old, rng)
    elif what == 5:
        parent[key] = rng.choice(([old], {"a": old}, [old, old], [[old]]))
    elif what == 6:
        del parent[key]
    elif isinstance(parent, list):
        parent.insert(key, rng.choice((old, _value(rng))))
    elif what == 7:
        name = rng.choice(names) if names and rng.random() < 0.8 else rng.choice(TEXTS)
        parent[name] = _value(rng) if rng.random() < 0.7 else old
    else:
        other = rng.choice(list(parent))
        parent[key], parent[other] = parent[other], parent[key]


def _value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(VALUES))


def _near(old: Any, rng: random.Random) -> Any:
    """A value of the same kind as the old one, where that is a number or a text."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        small = float(old) if abs(old) < 2**60 else 0
        return rng.choice((old + 1, old - 1, -old, old * 2, old // 2, old * 1000, small, str(old)))
    if isinstance(old, float):
        return rng.choice((-old, old * 2, old * 1e10, old / 1e10, old * 1e300, 0.0))
    if isinstance(old, str):
        return rng.choice((old + rng.choice(TEXTS), old[:-1], old.upper(), rng.choice(TEXTS)))
    return _value(rng)


def json_bytes(value: Any, rng: random.Random) -> bytes:
    """Its text, now and then with a repeated key, or damaged as text."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")
    luck = rng.random()
    if luck < 0.05 and text.startswith(b"{") and len(text) > 2:
        end = text.find(b",")
        if end > 0:
            text = text[: end + 1] + text[1:]
    elif luck < 0.12:
        text = mutate_bytes(text, rng)
    elif luck < 0.13:
        text = b"[" * rng.choice((10, 100, 3000)) + text
    return text


def mutate_bytes(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Flipped bits, changed, cut, repeated and inserted runs; ends of other inputs."""
    out = bytearray(data)
    for _ in range(1 + int(rng.random() ** 2 * 4)):
        if not out:
            out += rng.randbytes(8)
        at, what = rng.randrange(len(out)), rng.randrange(7)
        if what == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            out[at] = rng.choice((0, 1, 127, 128, 254, 255, rng.randrange(256)))
        elif what == 2:
            del out[at : at + rng.choice((1, 2, 4, 8, 64))]
        elif what == 3:
            out[at:at] = out[at : at + rng.choice((1, 4, 8, 32))]
        elif what == 4:
            del out[at:]
        elif what == 5:
            out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8)))
        elif others:
            other = rng.choice(others)
            out[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(out)


def mutate_fields(data: bytes, fields: Sequence[tuple[int, int]], rng: random.Random) -> bytes:
    """The (position, size) fields of a binary format: other numbers in them, or dropped, repeated, exchanged."""
    out = bytearray(data)
    for _ in range(1 + int(rng.random() ** 2 * 3)):
        position, size = rng.choice(fields)
        what = rng.randrange(6)
        if what < 3 and size <= 8:
            number = rng.choice(INTEGERS) if rng.random() < 0.7 else rng.randrange(64)
            out[position : position + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
        elif what == 3:
            del out[position : position + size]
        elif what == 4:
            out[position:position] = out[position : position + size]
        else:
            other, length = rng.choice(fields)
            out[position : position + size] = data[other : other + length]
    return bytes(out)
