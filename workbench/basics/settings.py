"""A setting carries its range and one line of meaning, where it is declared:

    @dataclass(frozen=True)
    class LoopConfig:
        steps: Annotated[int, at_least(1), "collects of the run, each with its updates"] = 30
        share: Annotated[float | None, above(0, most=1), "of the groups that are kept; none: all"] = None

        def __post_init__(self) -> None:
            check_settings(self, "loop")   # ConfigError: loop.steps is at least 1, got 0

`settings_of(LoopConfig, "loop")` lists them. A range is a promise about one value; what several settings must keep
together is checked by hand behind `check_settings`. None is in every range of a setting that may be None.

A part whose settings are not its fields (the keyword-only arguments of a function, say) has methods
`declared_settings()`, and `with_settings(name=value)` if they are set otherwise than fields are.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, NamedTuple

from workbench.values.errors import ConfigError, shortened

MOST_WHOLE = (1 << 63) - 1  # of a setting without a range: a seed


@dataclass(frozen=True, eq=False)
class Range:
    """The values that a setting may have."""

    words: str  # "at least 1", say; follows on "is"
    holds: Callable[[Any], bool]
    why: str = ""  # follows on the error: the reason, or what to do instead
    most: float = math.inf  # the largest number
    choices: tuple[Any, ...] = ()  # all values, where they are few

    def accepts(self, value: Any) -> bool:
        """Whether the value is inside; one of another type is not."""
        try:
            return bool(self.holds(value))
        except Exception:  # of whatever kind the value is: an array is not true or false
            return False


def at_least(low: float, *, most: float = math.inf, why: str = "") -> Range:
    """A finite number from `low` on, `most` included."""

    def holds(value: Any) -> bool:
        return low <= value <= most and math.isfinite(value)

    return Range(f"at least {low}{_up_to(most)}", holds, why, most)


def above(low: float, *, most: float = math.inf, why: str = "") -> Range:
    """A finite number larger than `low`, `most` included."""

    def holds(value: Any) -> bool:
        return low < value <= most and math.isfinite(value)

    return Range(f"above {low}{_up_to(most)}", holds, why, most)


def at_most(high: float, *, why: str = "") -> Range:
    """A finite number up to `high`."""
    return Range(f"at most {high}", lambda value: value <= high and math.isfinite(value), why, high)


def probability(why: str = "") -> Range:
    """A number from 0 to 1."""
    return Range("a probability, from 0 to 1", lambda value: 0 <= value <= 1, why, most=1)


def one_of(*names: Any, why: str = "") -> Range:
    """One of these values, and nothing else."""
    listed = [str(name) for name in names]
    words = f"one of {', '.join(listed)}" if len(names) > 2 else " or ".join(listed)
    return Range(words, lambda value: value in names, why, choices=names)


def _up_to(most: float) -> str:
    return f" and at most {most:,}" if math.isfinite(most) else ""


class Inert(NamedTuple):
    """A setting that may have no effect beside the others (invariant 11)."""

    name: str
    dead: bool  # it has none
    why: str


@dataclass(frozen=True)
class Setting:
    """One setting as it is listed. `default` is MISSING (of `dataclasses`) where a value must be given."""

    key: str
    type: str
    default: Any
    range: str
    meaning: str


@dataclass(frozen=True, eq=False)
class Declared:
    """A setting as it is declared."""

    name: str
    hint: Any  # its type, without range and meaning
    kinds: tuple[Any, ...]  # the types that it may have, None left out
    optional: bool  # whether it may be None
    ranges: tuple[Range, ...]
    meaning: str
    default: Any  # MISSING where a value must be given; of a part that is made: what it holds

    def checked(self, value: Any, where: str) -> Any:
        """The value, a list given for a tuple as a tuple. Raises ConfigError, which begins with `where`, for a value
        outside the range, for a number that is none, and for what raises when it is looked at."""
        try:
            return self._checked(value, where)
        except ConfigError:
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{where} cannot be looked at: {shortened(value)} ({type(value).__name__}) ended in {words}"
            ) from error

    def _checked(self, value: Any, where: str) -> Any:
        if value is None and self.optional:
            return value
        if tuple in self.kinds and isinstance(value, list):
            value = tuple(value)
        wanted = _number_wanted(self.kinds)
        if wanted and (isinstance(value, bool) or not isinstance(value, wanted)):
            words = "a whole number" if wanted is Integral else "a number"
            raise ConfigError(f"{where} is {words}, got {shortened(value)}")
        if wanted is Integral and abs(value) > MOST_WHOLE:
            raise ConfigError(
                f"{where} is a whole number of at most 63 bits, got {shortened(value)}"
            )
        for allowed in self.ranges:
            if not allowed.accepts(value):
                or_none = ", or none" if self.optional else ""
                why = f" ({allowed.why})" if allowed.why else ""
                raise ConfigError(
                    f"{where} is {allowed.words}{or_none}; got {shortened(value)}{why}"
                )
        return value

    def inner(self) -> Any:
        """The part whose settings lie below this one: a value, or a class where none is made yet; None: there is none."""
        parts = (self.default, *self.kinds)
        return next((part for part in parts if is_dataclass(part)), None)


def declarations(part: Any) -> tuple[Declared, ...]:
    """The settings of a dataclass, or of a value of one: what the value holds are the defaults then."""
    if isinstance(part, type):
        return _of_class(part)
    if hasattr(part, "declared_settings"):
        return part.declared_settings()
    return declared_fields(part)


def declared_fields(part: Any) -> tuple[Declared, ...]:
    """The fields of a value of a dataclass, as settings."""
    declared = _of_class(type(part))
    return tuple(replace(setting, default=getattr(part, setting.name)) for setting in declared)


@cache
def declared_arguments(function: Callable) -> tuple[Declared, ...]:
    """The keyword-only arguments of a function, as settings."""
    hints = annotations_of(function)
    declared = []
    for name, argument in inspect.signature(function).parameters.items():
        if argument.kind is argument.KEYWORD_ONLY:
            declared.append(_read(name, hints.get(name, Any), argument.default))
    return tuple(declared)


def with_values(part: Any, values: Mapping[str, Any]) -> Any:
    """The same part with other values of its settings."""
    if hasattr(part, "declared_settings") and hasattr(part, "with_settings"):
        return part.with_settings(**values)
    return replace(part, **values)


def check_settings(settings: Any, part: str = "") -> None:
    """Refuse a value outside its declared range, and a number that is none; a list given for a tuple becomes one.

    `part` stands before the name in an error ("train" for train.steps); "": the name of the class. Raises ConfigError.
    """
    for declared in _of_class(type(settings)):
        value = getattr(settings, declared.name)
        checked = declared.checked(value, f"{part or type(settings).__name__}.{declared.name}")
        if checked is not value:
            object.__setattr__(settings, declared.name, checked)


def settings_of(part: Any, key: str = "") -> Iterator[Setting]:
    """The settings of a dataclass in the order of its fields; a part that is a dataclass itself gives its own.

    Of a value instead of a class: what it holds are the defaults.
    """
    for declared in declarations(part):
        name = f"{key}.{declared.name}" if key else declared.name
        inner = declared.inner()
        if inner is not None:
            yield from settings_of(inner, name)
        else:
            ranges = " and ".join(allowed.words for allowed in declared.ranges)
            yield Setting(name, _type_words(declared), declared.default, ranges, declared.meaning)


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
def _of_class(kind: type) -> tuple[Declared, ...]:
    hints = annotations_of(kind)
    own = [field for field in fields(kind) if field.init]
    return tuple(_read(field.name, hints[field.name], default_of(field)) for field in own)


def _read(name: str, annotation: Any, default: Any) -> Declared:
    notes: tuple[Any, ...] = getattr(annotation, "__metadata__", ())
    hint = bare(annotation)
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if is_union else (hint,)
    may_be = [typing.get_origin(kind) or kind for kind in kinds if kind is not type(None)]
    ranges = [note for note in notes if isinstance(note, Range)]
    meanings = [note for note in notes if isinstance(note, str)]
    return Declared(
        name=name,
        hint=hint,
        kinds=tuple(may_be),
        optional=type(None) in kinds,
        ranges=tuple(ranges),
        meaning=meanings[0] if meanings else "",
        default=default,
    )


def _number_wanted(kinds: tuple[Any, ...]) -> type | None:
    """What a value must be an instance of, where the type says a number."""
    if kinds == (int,):
        return Integral
    return Real if kinds == (float,) else None


def _type_words(declared: Declared) -> str:
    words = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true or false",
        tuple: "list",
    }
    names = [words.get(kind, "settings by name") for kind in declared.kinds]
    return " or ".join([*names, *(["none"] if declared.optional else [])])
