"""The settings of an algorithm that may decide credit: what there are, what they may be, an algorithm with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.basics.plugins import is_named
from workbench.basics.settings import Declared
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import PARTS, Algorithm
from workbench.learn.algorithms.liveness import inert_settings
from workbench.learn.algorithms.own import algorithm_named, as_algorithm
from workbench.learn.algorithms.settings import declared_by_name
from workbench.learn.algorithms.settings import with_settings as algorithm_with
from workbench.learn.batch import Batch
from workbench.look.cells.edits import Knob
from workbench.training.words import meant
from workbench.values.errors import ConfigError, nearest

# Settings that decide the loss or the number of updates, not what a token is worth.
LOSS_ONLY = frozenset(
    (
        "sampler_cap",
        "reduction",
        "fixed_length",
        "epochs",
        "minibatches",
        "minibatch_size",
        "critic.value_clip",
        "filter.equal_updates",
    )
)
# Parts in the order of the page: what makes an estimator stands first.
ORDER = ("estimator", "critic", "", "reference", "rewards", "filter", "masks")


def knobs_of(algorithm: Algorithm) -> tuple[Knob, ...]:
    """The settings of an algorithm that may decide credit; what it is set to is where they begin."""
    declared = declared_by_name(algorithm).items()
    knobs = [_knob(name, setting) for name, setting in declared if decides_credit(name)]
    return tuple(sorted(filter(None, knobs), key=lambda knob: ORDER.index(knob.part)))


def decides_credit(name: str) -> bool:
    return name not in LOSS_ONLY and not name.startswith("objective.")


def _knob(name: str, setting: Declared) -> Knob | None:
    allowed = next(iter(setting.ranges), None)
    if setting.hint is bool:
        return Knob(name, setting.default, (True, False))
    if allowed is not None and allowed.choices:
        nothing = [None] if setting.optional else []
        return Knob(name, setting.default, (*nothing, *allowed.choices))
    if setting.hint is int:
        return Knob(name, setting.default, low=0)
    if setting.hint is float:
        within_one = allowed is not None and allowed.most == 1
        return Knob(name, setting.default, high=1.0 if within_one else None)
    return None  # text that this page knows no choices of: set it in code


def inert_of(algorithm: Algorithm, batch: Batch) -> dict[str, str]:
    """Settings that cannot act beside the others, each with the reason, as a config's check says it."""
    sizes = batch.group_of_trajectory_N.bincount()
    settings = inert_settings(algorithm, len(sizes), int(sizes.max()))
    return {name: why for name, dead, why in settings if dead and decides_credit(name)}


def with_settings(algorithm: Algorithm, settings: Mapping[str, Any]) -> Algorithm:
    """The algorithm with these settings. Raises ConfigError for one that it does not have, and for a value of another
    kind."""
    declared = declared_by_name(algorithm)
    for name, value in settings.items():
        if name in PARTS:
            inner = ", ".join(known for known in declared if known.startswith(f"{name}."))
            raise ConfigError(f"{name} is no setting but a part of them; set one of {inner}")
        if name not in declared:
            known = [knob.name for knob in knobs_of(algorithm)]
            hint = meant(f"algorithm.{name}", known)
            raise ConfigError(f"{named(algorithm)} has no setting {name!r}; {hint}")
        _check_kind(name, value, declared[name].hint)
    return algorithm_with(algorithm, settings)


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """Raises ConfigError where a value is of another kind than the setting, before arithmetic does in its own words."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number"}
    if hint not in kinds:
        return
    right = isinstance(value, (int, float) if hint is float else hint) and (
        hint is bool or not isinstance(value, bool)
    )
    if not right:
        raise ConfigError(f"{name} is {kinds[hint]}; got {value!r}")


def has_setting(algorithm: Algorithm, name: str) -> bool:
    return name in algorithm.settings


def chosen(algorithm: Algorithm | str) -> Algorithm:
    """An algorithm by its name ("grpo", "my_module:MINE"), or as it is. Raises ConfigError for what is none."""
    if not isinstance(algorithm, str):
        return as_algorithm(algorithm, "the algorithm")
    return algorithm_named(algorithm) if is_named(algorithm) else ALGORITHMS[known_name(algorithm)]


def known_name(name: str, known: Mapping[str, Algorithm] = ALGORITHMS) -> str:
    if name not in known:
        raise ConfigError(
            f"no algorithm {name!r}; {nearest(name, known)}; there are {', '.join(known)}"
        )
    return name


def named(algorithm: Any) -> str:
    return getattr(algorithm, "name", "") or type(algorithm).__name__
