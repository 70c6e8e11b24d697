"""What of a grid is compared: weights of its arms, so that a difference of two and an interaction of two axes are one kind.

    pair_weights("b", "a")                     {"b": 1, "a": -1}
    interaction_weights(places, "lr", "k")     does k matter more where lr is another?

The interaction of two axes is a difference of differences, between their first and last values: (last lr, last k) -
(first lr, last k) - (last lr, first k) + (first lr, first k), each a mean over the rest of the grid. A mean over weights
is judged like any other difference, seed by seed and task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from workbench.values.errors import ConfigError, nearest

# arm -> setting of the grid -> value, in the order of the plan
Places = Mapping[str, Mapping[str, Any]]


def pair_weights(first: str, second: str) -> dict[str, float]:
    return {first: 1.0, second: -1.0}


def places_in(arms: Mapping[str, Mapping[str, Any]]) -> Places:
    """Of the arms of a table, those that stand on a grid."""
    return {name: arm["at"] for name, arm in arms.items() if arm.get("at")}


def axes_in(places: Places) -> list[str]:
    """Settings that take several values, in the order of the plan."""
    names = dict.fromkeys(chain.from_iterable(places.values()))
    return [name for name in names if len(values_along(places, name)) > 1]


def values_along(places: Places, axis: str) -> list[Any]:
    """The values of a setting, in the order of the plan; true is not 1."""
    values = [at[axis] for at in places.values() if axis in at]
    return [*{(type(value) is bool, value): value for value in values}.values()]


def named_axis(name: str | None, axes: Sequence[str], what: str = "axes") -> str:
    """The axis of this name, or of which it is the last part; None: the only one. ConfigError where there is none, or
    several. `what`: the axes, in words."""
    matches = [axis for axis in axes if name in (None, axis, axis.rpartition(".")[2])]
    if len(matches) == 1:
        return matches[0]
    if not axes:
        raise ConfigError("this plan has no grid along which settings vary")
    nearest_axis = f"; {nearest(name, axes)}" if name else ""
    raise ConfigError(f"name one of the {what} {', '.join(axes)}{nearest_axis}")


def interaction_weights(places: Places, a: str, b: str) -> dict[str, float]:
    """Arm -> weight. ConfigError where an axis is none, or a corner of the two is no arm."""
    a = named_axis(a, axes_in(places))
    b = named_axis(b, axes_in(places))
    if a == b:
        raise ConfigError(f"an interaction is of two axes, got {a} twice")
    a0, *_, a1 = values_along(places, a)
    b0, *_, b1 = values_along(places, b)
    weights: dict[str, float] = {}
    for value_a, value_b, sign in ((a1, b1, 1), (a0, b1, -1), (a1, b0, -1), (a0, b0, 1)):
        corner = arms_at(places, {a: value_a, b: value_b})
        if not corner:
            raise ConfigError(
                f"the interaction of {a} and {b} needs an arm at {a} = {value_a}, {b} = {value_b}, and there is "
                "none: settings that are linked are one axis"
            )
        weights |= dict.fromkeys(corner, sign / len(corner))
    return weights


def arms_at(places: Places, wanted: Mapping[str, Any]) -> list[str]:
    """The arms at these values."""
    return [arm for arm, at in places.items() if _stands_at(at, wanted)]


def _stands_at(at: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a place has all these values; true is not 1."""
    for name, value in wanted.items():
        if name not in at or at[name] != value or type(at[name]) is not type(value):
            return False
    return True
