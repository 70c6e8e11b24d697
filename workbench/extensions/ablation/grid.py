"""From a `[grid]` to its points: every value of one axis with every value of the others.

    [grid]
    "algorithm.estimator.normalize_std" = [true, false]                        # a list
    "learner.lr" = { from = 1e-5, to = 1e-3, steps = 3, scale = "log" }        # a range, both ends in it
    [[grid.linked]]                                                            # one axis: these vary together
    "train.tasks_per_step" = [4, 8]
    "train.group_size" = [8, 4]

Points come in the order of the file, the last axis fastest.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any

import numpy as np

from workbench.values.errors import ConfigError, nearest

RANGE_KEYS = ("from", "to", "steps", "scale")
SCALES = ("linear", "log")
MOST_POINTS = 10_000
MOST_COUNTED = 10**15  # points that an error counts
LONGEST_NAME = 60  # characters, of a point: its name becomes part of file names
Point = dict[str, Any]  # setting -> value


@dataclass(frozen=True)
class Axis:
    """One direction of a grid. `settings`: what varies, several where they vary together; `values`: for each step along
    it one value per setting."""

    settings: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]


def axes_of(tree: Mapping[str, Any], where: str) -> tuple[Axis, ...]:
    """The axes of a `[grid]`. ConfigError, beginning with `where`, for what is no list, range or linked table."""
    if not isinstance(tree, Mapping) or not tree:
        raise ConfigError(
            f"{where} holds settings, each with a list of values or a range, got {tree!r}"
        )
    axes = []
    for name, value in tree.items():
        if name == "linked":
            place = f"{where}.linked"
            axes += [_linked(table, place) for table in _tables(value, place)]
        else:
            values = values_of(value, f"{where}: {name}")
            axes.append(Axis((name,), tuple((one,) for one in values)))
    names = [*chain.from_iterable(axis.settings for axis in axes)]
    twice = [name for name, often in Counter(names).items() if often > 1]
    if twice:
        raise ConfigError(f"{where}: {twice[0]} is in two axes; a setting varies along one")
    size = math.prod(len(axis.values) for axis in axes)
    if size > MOST_POINTS:
        counted = f"{size:,}" if size <= MOST_COUNTED else f"more than {MOST_COUNTED:,}"
        raise ConfigError(
            f"{where} has {counted} points, at most {MOST_POINTS:,}; leave out values, or link "
            "settings"
        )
    return tuple(axes)


def values_of(value: Any, where: str) -> list[Any]:
    """A list as it is, or the numbers of a range { from, to, steps, scale }. ConfigError for anything else."""
    if isinstance(value, Mapping):
        return _range(value, where)
    if not isinstance(value, list) or not value:
        raise ConfigError(
            f"{where}: expected a list of values, or a range such as {{ from = 1, to = 3, steps = 3 }}, got "
            f"{value!r}"
        )
    if len(value) > MOST_POINTS:
        raise ConfigError(f"{where}: at most {MOST_POINTS:,} values, got {len(value):,}")
    for one, other in combinations(value, 2):
        if one == other and type(one) is type(other):
            raise ConfigError(f"{where}: every value once, got {value!r}")
    return value


def _range(tree: Mapping[str, Any], where: str) -> list[Any]:
    for key in tree:
        if key not in RANGE_KEYS:
            raise ConfigError(f"{where}: a range has no {key!r}; {nearest(key, RANGE_KEYS)}")
    low = tree.get("from")
    high = tree.get("to")
    steps = tree.get("steps")
    scale = tree.get("scale", "linear")
    are_numbers = all(type(end) in (int, float) and np.isfinite(end) for end in (low, high))
    if not are_numbers or low == high:
        raise ConfigError(
            f"{where}: a range goes from one number to another, got {low!r} and {high!r}"
        )
    if type(steps) is not int or not 2 <= steps <= MOST_POINTS:
        raise ConfigError(
            f"{where}: steps of a range: expected a whole number of values, at least 2, got {steps!r}"
        )
    if scale not in SCALES:
        raise ConfigError(f"{where}: scale is one of {', '.join(SCALES)}, got {scale!r}")
    if scale == "log" and min(low, high) <= 0:
        raise ConfigError(
            f"{where}: on a logarithmic scale both ends are above 0, got {low!r} and {high!r}"
        )
    spaced = np.geomspace if scale == "log" else np.linspace
    # Six digits, so that a value reads as it was meant (0.0003, not 0.00030000000000000003); the ends stay exact.
    between = [float(f"{value:.6g}") for value in spaced(low, high, steps)[1:-1]]
    values = [low, *between, high]
    if type(low) is type(high) is int and all(float(value).is_integer() for value in values):
        values = [int(value) for value in values]
    if len({*values}) != len(values):
        raise ConfigError(
            f"{where}: {steps} steps from {low} to {high} are closer together than six digits tell"
        )
    return values


def _tables(value: Any, where: str) -> list[Mapping[str, Any]]:
    tables = value if isinstance(value, list) else [value]
    if not all(isinstance(table, Mapping) and len(table) > 1 for table in tables):
        raise ConfigError(
            f"{where} holds tables of at least two settings that vary together, got {value!r}"
        )
    return tables


def _linked(table: Mapping[str, Any], where: str) -> Axis:
    columns = {
        name: [*value] if isinstance(value, list) else values_of(value, f"{where}: {name}")
        for name, value in table.items()
    }
    lengths = {name: len(values) for name, values in columns.items()}
    if len({*lengths.values()}) != 1 or not all(lengths.values()):
        raise ConfigError(
            f"{where}: settings that vary together have lists of one length, got "
            + ", ".join(f"{name}: {length}" for name, length in lengths.items())
        )
    return Axis(tuple(columns), tuple(zip(*columns.values())))


# ------------------------------------------------------------------------------------------------ points


def points_of(axes: Sequence[Axis]) -> list[Point]:
    """Every point, as the settings it makes; the last axis varies fastest."""
    points = []
    for chosen in product(*(axis.values for axis in axes)):
        point: Point = {}
        for axis, values in zip(axes, chosen):
            point |= zip(axis.settings, values)
        points.append(point)
    return points


def short_names(settings: Sequence[str]) -> dict[str, str]:
    """A setting's last part, where that names it alone: learner.lr is lr."""
    last = [name.rpartition(".")[2] for name in settings]
    often = Counter(last)
    return {name: short if often[short] == 1 else name for name, short in zip(settings, last)}


def label_of(point: Mapping[str, Any]) -> str:
    """As a reader sees it: `lr = 0.001, normalize_std = true`."""
    short = short_names([*point])
    return ", ".join(f"{short[name]} = {worded(value)}" for name, value in point.items())


def worded(value: Any) -> str:
    """A value as TOML would have it, numbers short."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def names_of(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each point, safe in file names and unlike all others: `lr-0.001_normalize_std-true`; the number of the
    point where that would be too long, or where two would be alike."""
    names = [*map(_name_of, points)]
    often = Counter(names)
    safe = []
    for number, name in enumerate(names):
        fits = len(name) <= LONGEST_NAME and ".." not in name and name[:1].isalnum()
        safe.append(name if fits and often[name] == 1 else f"point-{number:04}")
    return safe


def _name_of(point: Mapping[str, Any]) -> str:
    short = short_names([*point])
    parts = [f"{short[name].rpartition('.')[2]}-{worded(value)}" for name, value in point.items()]
    return "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") for part in parts)
