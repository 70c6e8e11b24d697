"""The settings of an algorithm that may decide credit: what there are, what they may be, an algorithm with others."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.liveness import inert_settings
from workbench.learn.algorithms.own import algorithm_named, as_algorithm
from workbench.learn.algorithms.settings import declared_settings
from workbench.learn.batch import Batch
from workbench.types.errors import ConfigError, nearest
from workbench.types.plugins import is_named
from workbench.types.settings import Range, annotations_of, bare
from workbench.views.credit_editor import Knob

# Settings that decide the loss or the number of updates, not what a token is worth.
LOSS_ONLY = frozenset(
    (
        "objective",
        "clip_low",
        "clip_high",
        "dual_clip",
        "sampler_cap",
        "reduction",
        "fixed_length",
        "epochs",
        "minibatches",
        "minibatch_size",
        "value_clip",
        "filter.equal_updates",
    )
)


def knobs_of(algorithm: Algorithm) -> tuple[Knob, ...]:
    """The settings of an algorithm that may decide credit; what it is set to is where they begin."""
    declared = declared_settings(algorithm)
    own = [
        knob
        for name, (hint, value) in declared.items()
        if not is_dataclass(value)
        if (knob := _knob(name, hint, value))
    ]
    nested = [
        knob
        for part, (_, values) in declared.items()
        if is_dataclass(values)
        for inner, hint in annotations_of(type(values)).items()
        if (knob := _knob(f"{part}.{inner}", hint, getattr(values, inner)))
    ]
    shared = {
        "entropy_coef",
        "kl_coef",
        "kl_estimator",
        "kl_in",
    }  # last: what makes an estimator stands first
    own.sort(key=lambda knob: knob.name in shared)
    order = ("", "rewards", "filter", "masks")
    return (
        *own,
        *sorted(
            nested, key=lambda knob: order.index(knob.part) if knob.part in order else len(order)
        ),
    )


def _knob(name: str, hint: Any, value: Any) -> Knob | None:
    if name in LOSS_ONLY:
        return None
    kind, allowed = (
        bare(hint),
        next((n for n in getattr(hint, "__metadata__", ()) if isinstance(n, Range)), None),
    )
    if kind is bool:
        return Knob(name, value, (True, False))
    if allowed is not None and allowed.choices:
        return Knob(
            name,
            value,
            (*([None] if type(None) in typing.get_args(kind) else []), *allowed.choices),
        )
    if kind is int:
        return Knob(name, value, low=0)
    if kind is float:
        return Knob(name, value, high=1.0 if allowed is not None and allowed.most == 1 else None)
    return None  # text that this page knows no choices of: set it in code


def inert_of(algorithm: Algorithm, batch: Batch) -> dict[str, str]:
    """Settings that cannot act beside the others, each with the reason, as a config's check says it."""
    sizes = batch.group_of_trajectory_N.bincount()
    found = inert_settings(algorithm, len(sizes), int(sizes.max()))
    return {name: why for name, dead, why in found if dead and name not in LOSS_ONLY}


def with_settings(algorithm: Algorithm, settings: Mapping[str, Any]) -> Algorithm:
    """The algorithm with these settings (dotted names). Raises ConfigError for one that it does not have, and for a
    value of another kind."""
    declared, own, nested = declared_settings(algorithm), {}, {}
    for name, value in settings.items():
        if not has_setting(algorithm, name):
            known = [knob.name for knob in knobs_of(algorithm)]
            raise ConfigError(f"{named(algorithm)} has no setting {name!r}; {nearest(name, known)}")
        part, _, inner = name.partition(".")
        hint, now = declared[part]
        _check_kind(name, value, bare(annotations_of(type(now))[inner] if inner else hint))
        if inner:
            nested.setdefault(part, {})[inner] = value
        else:
            own[part] = value
    own |= {part: replace(algorithm.settings[part], **values) for part, values in nested.items()}
    return algorithm(**own) if own else algorithm


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """Raises ConfigError where a value is of another kind than the setting, before arithmetic does in its own words."""
    if is_dataclass(hint):
        inner = ", ".join(f"{name}.{f.name}" for f in fields(hint))
        raise ConfigError(f"{name} is no setting but a part of them; set one of {inner}")
    kinds = {bool: "true or false", int: "a whole number", float: "a number"}
    if hint not in kinds:
        return
    right = isinstance(value, (int, float) if hint is float else hint) and (
        hint is bool or not isinstance(value, bool)
    )
    if not right:
        raise ConfigError(f"{name} is {kinds[hint]}; got {value!r}")


def has_setting(algorithm: Algorithm, name: str) -> bool:
    part, _, inner = name.partition(".")
    if part not in algorithm.settings:
        return False
    values = algorithm.settings[part]
    return not inner or is_dataclass(values) and inner in {f.name for f in fields(values)}


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
