"""The settings of an algorithm by name; a name says which part of the composition owns it: `objective.clip_high`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from operator import attrgetter
from typing import Any

from workbench.basics.plugins import is_named, load_named, name_of
from workbench.basics.settings import Declared, declarations, with_values
from workbench.learn.algorithms.base import CreditAlgorithm
from workbench.learn.algorithms.objectives import OBJECTIVES, Objective
from workbench.values.errors import ConfigError, nearest

OBJECTIVE = "algorithm.objective.kind"


# ------------------------------------------------------------------------------------------------ by name


def declared_by_name(algorithm: CreditAlgorithm) -> dict[str, Declared]:
    """Every setting by its name, with what it is set to."""
    by_name: dict[str, Declared] = {}
    for own in declarations(algorithm):
        part = own.inner()
        if part is None:
            by_name[own.name] = own
        else:
            by_name |= {f"{own.name}.{setting.name}": setting for setting in declarations(part)}
    return by_name


def with_settings(
    algorithm: CreditAlgorithm, settings: Mapping[str, Any], whole: Mapping[str, Any] = {}
) -> CreditAlgorithm:
    """The same algorithm with other values by name; `objective.kind` makes its objective another one. `whole`: parts that
    take the place of others. All are set at once: what goes together is refused one by one.

    Raises ConfigError for a setting that it does not have, naming the nearest.
    """
    parts: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in settings.items():
        part, _, inner = name.rpartition(".")
        if part:
            parts.setdefault(part, {})[inner] = value
        else:
            own[inner] = value
    if (kind := parts.get("objective", {}).pop("kind", None)) is not None:
        algorithm = replace(algorithm, objective=_objective_of(algorithm, kind))
    known = declared_by_name(algorithm)
    if unknown := [name for name in settings if name not in {*known, "objective.kind"}]:
        raise ConfigError(
            f"{algorithm.name} has no setting {unknown[0]!r}; {nearest(unknown[0], known)}"
        )
    if not settings and not whole:
        return algorithm
    changed = {
        name: with_values(getattr(algorithm, name), values) for name, values in parts.items()
    }
    return replace(algorithm, **own, **changed, **whole)


def setting_of(algorithm: Any, name: str, default: Any) -> Any:
    """A setting by its name, of whatever is used as an algorithm; `default` where it has none of this name."""
    try:
        return attrgetter(name)(algorithm)
    except AttributeError:
        return default


# ------------------------------------------------------------------------------------------------ objectives by kind


def objective_name(objective: Objective) -> str:
    """Its `algorithm.objective.kind`: a short name if it is ours, else "module:Qualname" of its class."""
    own = OBJECTIVES.get(objective.name) is type(objective)
    return objective.name if own else name_of(type(objective))


def objective_named(reference: str) -> type:
    """The class that "package.module:Name" names. Raises ConfigError."""
    return objective_class(load_named(reference, OBJECTIVE), f"{OBJECTIVE} {reference!r}")


def objective_class(found: Any, what: str) -> type:
    """`found`, if it is the class of an objective that can be made without arguments. Raises ConfigError, which begins with
    `what` and says what it lacks."""
    if (
        not isinstance(found, type)
        or not is_dataclass(found)
        or not callable(getattr(found, "loss", None))
    ):
        raise ConfigError(
            f"{what} is {found!r:.80}; expected the class of an objective: @dataclass(frozen=True), settings as "
            "fields, and loss(inputs) -> Clipped. docs/extend/algorithm.md has an example"
        )
    if not isinstance(getattr(found, "name", None), str):
        raise ConfigError(
            f"{what}: an objective has a name: add name: ClassVar[str] = '{found.__name__.lower()}' to it"
        )
    try:
        found()
    except TypeError as error:
        raise ConfigError(
            f"{what} cannot be made without arguments ({error}); give each of its fields a default"
        ) from error
    return found


def _objective_of(algorithm: CreditAlgorithm, kind: Any) -> Objective:
    """The objective of this kind: the algorithm's own as it is set, another one as it is by default."""
    if kind == objective_name(algorithm.objective):
        return algorithm.objective
    if is_named(kind):
        return objective_named(kind)()
    if kind not in OBJECTIVES:
        raise ConfigError(
            f"{OBJECTIVE} is one of {', '.join(OBJECTIVES)}, or package.module:Name of your own; got {kind!r}"
        )
    return OBJECTIVES[kind]()
