"""A setting carries its range and one line of meaning, where it is declared:

    @dataclass(frozen=True)
    class LoopConfig:
        steps: Annotated[int, at_least(1), "collects of the run, each with its updates"] = 30
        share: Annotated[float | None, above(0, most=1), "of the groups that are kept; none: all"] = None

        def __post_init__(self) -> None:
            check_settings(self, "loop")   # ConfigError: loop.steps is at least 1, got 0

`settings_of(LoopConfig, "loop")` lists them. A range is a promise about one value; what several settings must keep
together is checked by hand behind `check_settings`. None is in every range of a setting that may be None.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any, NamedTuple

from workbench.types.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Range:
    """Which values a setting may have. `words` follow on "is", `why` on the error: the reason, or what to do instead.
    `most`: the largest number; `choices`: all values, where they are few."""

    words: str
    holds: Callable[[Any], bool]
    why: str = ""
    most: float = math.inf
    choices: tuple[Any, ...] = ()

    def accepts(self, value: Any) -> bool:
        """Whether the value is inside; one of another type is not."""
        try:
            return bool(self.holds(value))
        except TypeError:
            return False


def at_least(low: float, *, most: float = math.inf, why: str = "") -> Range:
    """A finite number from `low` on, `most` included."""
    return Range(
        f"at least {low}" + _up_to(most),
        lambda value: low <= value <= most and math.isfinite(value),
        why,
        most,
    )


def above(low: float, *, most: float = math.inf, why: str = "") -> Range:
    """A finite number larger than `low`, `most` included."""
    return Range(
        f"above {low}" + _up_to(most),
        lambda value: low < value <= most and math.isfinite(value),
        why,
        most,
    )


def at_most(high: float, *, why: str = "") -> Range:
    """A finite number up to `high`."""
    return Range(f"at most {high}", lambda value: value <= high and math.isfinite(value), why, high)


def probability(why: str = "") -> Range:
    """A number from 0 to 1."""
    return Range("a probability, from 0 to 1", lambda value: 0 <= value <= 1, why, most=1)


def one_of(*names: Any, why: str = "") -> Range:
    """One of these values, and nothing else."""
    words = (
        f"one of {', '.join(map(str, names))}" if len(names) > 2 else " or ".join(map(str, names))
    )
    return Range(words, lambda value: value in names, why, choices=names)


def _up_to(most: float) -> str:
    return f" and at most {most}" if math.isfinite(most) else ""


class Inert(NamedTuple):
    """A setting that cannot act if `dead`, and why: what a part's `inert_settings()` says of itself (law 11)."""

    name: str
    dead: bool
    why: str


@dataclass(frozen=True)
class Setting:
    """One setting as it is listed. `default` is MISSING (of `dataclasses`) where a value must be given."""

    key: str
    type: str
    default: Any
    range: str
    meaning: str


@dataclass(frozen=True)
class _Declared:
    """A field as its annotation declares it. `kinds`: the types that it may have, None left out."""

    field: Field
    kinds: tuple[Any, ...]
    optional: bool
    ranges: tuple[Range, ...]
    meaning: str


def check_settings(settings: Any, part: str = "") -> None:
    """Refuse a value outside its declared range, and a number that is none; a list given for a tuple becomes one.

    `part` stands before the name in an error ("train" for train.steps); "": the name of the class. Raises ConfigError.
    """
    for declared in _declared(type(settings)):
        name = declared.field.name
        value = getattr(settings, name)
        if value is None and declared.optional:
            continue
        if tuple in declared.kinds and isinstance(value, list):
            object.__setattr__(settings, name, value := tuple(value))
        where = f"{part or type(settings).__name__}.{name}"
        wanted = _number_wanted(declared.kinds)
        if wanted and (isinstance(value, bool) or not isinstance(value, wanted)):
            raise ConfigError(
                f"{where} is a {'whole ' if wanted is Integral else ''}number, got {value!r}"
            )
        for allowed in declared.ranges:
            if not allowed.accepts(value):
                or_none = ", or none" if declared.optional else ""
                raise ConfigError(
                    f"{where} is {allowed.words}{or_none}; got {value!r}"
                    + (f" ({allowed.why})" if allowed.why else "")
                )


def settings_of(kind: Any, part: str = "") -> Iterator[Setting]:
    """The settings of a dataclass in the order of its fields; a part that is a dataclass itself gives its own.

    Of a value instead of a class: what it holds are the defaults.
    """
    for declared in _declared(kind if isinstance(kind, type) else type(kind)):
        name = declared.field.name
        key = f"{part}.{name}" if part else name
        default = default_of(declared.field) if isinstance(kind, type) else getattr(kind, name)
        inner = next((each for each in (default, *declared.kinds) if is_dataclass(each)), None)
        if inner is not None:
            yield from settings_of(inner, key)
        else:
            yield Setting(
                key,
                _type_words(declared),
                default,
                " and ".join(allowed.words for allowed in declared.ranges),
                declared.meaning,
            )


def default_of(field: Field) -> Any:
    """The value of a field that is not given; MISSING where it must be."""
    return field.default if field.default_factory is MISSING else field.default_factory()


@cache
def annotations_of(kind: Any) -> dict[str, Any]:
    """The annotations of a class or function by name, evaluated, with range and meaning. Slow the first time."""
    return typing.get_type_hints(kind, include_extras=True)


def bare(annotation: Any) -> Any:
    """The type of a setting, without its range and meaning."""
    return typing.get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


@cache
def _declared(kind: type) -> tuple[_Declared, ...]:
    return tuple(
        _read(field, annotations_of(kind)[field.name]) for field in fields(kind) if field.init
    )


def _read(field: Field, annotation: Any) -> _Declared:
    notes: tuple[Any, ...] = getattr(annotation, "__metadata__", ())
    hint = bare(annotation)
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if is_union else (hint,)
    return _Declared(
        field,
        tuple(typing.get_origin(each) or each for each in kinds if each is not type(None)),
        type(None) in kinds,
        tuple(note for note in notes if isinstance(note, Range)),
        next((note for note in notes if isinstance(note, str)), ""),
    )


def _number_wanted(kinds: tuple[Any, ...]) -> type | None:
    """What a value must be an instance of, where the type says a number."""
    if kinds == (int,):
        return Integral
    return Real if kinds == (float,) else None


def _type_words(declared: _Declared) -> str:
    words = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true or false",
        tuple: "list",
    }
    names = [words.get(each, "settings by name") for each in declared.kinds]
    return " or ".join([*names, *(["none"] if declared.optional else [])])
