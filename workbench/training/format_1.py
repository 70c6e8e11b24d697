"""Configurations of format 1, in which all settings of an algorithm had one name each, whichever of its parts held it.

    algorithm.clip_high = 0.28        now algorithm.objective.clip_high
    algorithm.objective = "gspo"      now algorithm.objective.kind

Runs stored before, and files that say `format = 1`, are read so. It is the only difference between the formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.basics.settings import declarations
from workbench.learn.algorithms.objectives import OBJECTIVES, ClipObjective
from workbench.learn.algorithms.settings import objective_name
from workbench.training.kinds import TABLES

OWNERS = ("estimator", "critic", "reference")


def from_format_1(tree: Mapping[str, Any], base: Any) -> dict[str, Any]:
    """The tree in today's keys. `base`: the configuration, or the class of one, that it will be read onto. What is no
    setting is left where it is, for the reader to refuse. Raises ConfigError for code that cannot be imported."""
    algorithm = tree.get("algorithm")
    if not isinstance(algorithm, Mapping):
        return dict(tree)
    moved = dict(algorithm)
    kind = moved.get("kind")
    begun = base.algorithm
    if isinstance(kind, str) and kind in TABLES["algorithm"]:
        begun = TABLES["algorithm"][kind]
    objective = _objective(moved, begun.objective)
    parts = {"objective": objective} if objective else {}
    for owner in OWNERS:
        names = _names(getattr(begun, owner)) if getattr(begun, owner) is not None else ()
        values = {name: moved.pop(name) for name in names if name in moved}
        if values:
            parts[owner] = values
    return {**tree, "algorithm": moved | parts}


def _objective(moved: dict[str, Any], begun: Any) -> dict[str, Any]:
    """The settings of the objective, taken out of those of the algorithm. An objective of ours kept the bounds of the one
    before it, and knew, switched off, those bounds of the default one that it has not."""
    table = TABLES["algorithm.objective"]
    kind = moved.pop("objective", None)
    if kind == begun.name:  # runs stored the short name of an algorithm's own objective once
        kind = objective_name(begun)
    values: dict[str, Any] = {} if kind is None else {"kind": kind}
    part = begun
    if isinstance(kind, str) and kind != objective_name(begun) and kind in table:
        part = table[kind]
    ours = OBJECTIVES.get(part.name) in (part, type(part))
    for name in _names(part):
        if name in moved:
            values[name] = moved.pop(name)
        elif ours and part is not begun and hasattr(begun, name):
            values[name] = getattr(begun, name)
    for setting in declarations(ClipObjective) if ours else ():
        if moved.get(setting.name, ...) == setting.default and setting.name not in _names(part):
            del moved[setting.name]
    return values


def _names(part: Any) -> list[str]:
    return [setting.name for setting in declarations(part)]
