"""Plain values as JSON that keeps their kinds, between a sandbox and what asks it: no object, and so no code, comes out.

    None, true and false, whole numbers, numbers, texts, bytes, lists, tuples, sets and mappings of these are told
    apart; anything else is `Other`, with the name of its class, which equals nothing but itself.

A value is what its class says exactly: an instance of a class of the program's own, derived from int and equal to
everything, is `Other`. Standard library only.
"""

from __future__ import annotations

import math
from typing import Any

MOST_PARTS = 10_000
MOST_DEPTH = 40
MOST_DIGITS = 10_000


class Other:
    """A value that stays where it is; its class had this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<a {self.name}>"


class SizeError(ValueError):
    """More parts, or deeper, than a value may have."""


_GROUPS = {list: "l", tuple: "t", set: "s", frozenset: "f"}
_MADE = {mark: kind for kind, mark in _GROUPS.items()}


def encoded(value: Any) -> Any:
    """Raises SizeError."""
    return _encoded(value, MOST_DEPTH, [MOST_PARTS])


def _encoded(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if depth < 0 or left[0] < 0:
        raise SizeError(
            f"a value has at most {MOST_PARTS:,} parts, and {MOST_DEPTH} in one another"
        )
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        left[0] -= len(value) // 100
        return value.encode("utf-8", "replace").decode()
    if kind is int:
        if value.bit_length() > 3 * MOST_DIGITS:
            raise SizeError(f"a whole number has at most {MOST_DIGITS:,} digits")
        return ["i", hex(value)]
    if kind is float:
        return ["n", value.hex() if math.isfinite(value) else str(value)]
    if kind is complex:
        return ["c", _encoded(value.real, depth, left), _encoded(value.imag, depth, left)]
    if kind is bytes:
        left[0] -= len(value) // 100
        return ["b", value.hex()]
    if kind in _GROUPS:
        return [_GROUPS[kind], *(_encoded(part, depth - 1, left) for part in value)]
    if kind is dict:
        pairs = []
        for key, part in value.items():
            pairs.append([_encoded(key, depth - 1, left), _encoded(part, depth - 1, left)])
        return ["d", *pairs]
    return ["o", str(kind.__name__)[:100]]


def decoded(content: Any) -> Any:
    """What was encoded. Raises ValueError for anything else."""
    try:
        return _decoded(content, MOST_DEPTH + 1, [MOST_PARTS])
    except (TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"no value of a sandbox: {error}") from error


def _decoded(content: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if depth < 0 or left[0] < 0:  # who sends it may count otherwise than who wrote this
        raise ValueError("a value of a sandbox has too many parts, or too many in one another")
    if content is None or isinstance(content, (bool, str)):
        return content
    mark, *parts = content
    if mark in _MADE:
        return _MADE[mark](_decoded(part, depth - 1, left) for part in parts)
    if mark == "d":
        return {
            _decoded(key, depth - 1, left): _decoded(value, depth - 1, left) for key, value in parts
        }
    if mark == "i":
        return int(parts[0], 16)
    if mark == "n":
        return float.fromhex(parts[0])
    if mark == "c":
        return complex(_decoded(parts[0], depth, left), _decoded(parts[1], depth, left))
    if mark == "b":
        return bytes.fromhex(parts[0])
    if mark == "o":
        return Other(str(parts[0]))
    raise ValueError(f"no value of a sandbox: {mark!r:.40}")
