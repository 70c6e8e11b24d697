"""The settings of an algorithm, each by one name, whichever part of the composition holds it."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, make_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from workbench.learn.algorithms.objectives import OBJECTIVES, ClipObjective
from workbench.types.errors import ConfigError, nearest
from workbench.types.settings import annotations_of

if TYPE_CHECKING:
    from workbench.learn.algorithms.algorithm import Algorithm

Declared = tuple[Any, Any]  # (annotation, value)
OBJECTIVE = Annotated[str, "clip: PPO's; gspo: one ratio a sequence; cispo: bounded weights, no clip"]


def declared_settings(algorithm: Algorithm) -> dict[str, Declared]:
    """Every setting by name, with its annotation; those of masks, rewards and filter are in one value each."""
    found: dict[str, Declared] = {}
    for name, value in ((f.name, getattr(algorithm, f.name)) for f in fields(algorithm)):
        if name == "estimator":
            found |= _fields_of(value.settings)
        elif name == "objective":
            found |= {name: (OBJECTIVE, value.name)} | _fields_of(value) | dict(_bounds_that_it_lacks(value))
        elif name in ("critic", "reference"):
            found |= {} if value is None else _fields_of(value)
        elif name != "name":
            found[name] = annotations_of(type(algorithm))[name], value
    return found


def with_settings(algorithm: Algorithm, settings: Mapping[str, Any]) -> Algorithm:
    """The same algorithm with other values. Raises ConfigError for a setting that it does not have."""
    values = {**algorithm.settings, **settings}
    if unknown := [name for name in settings if name not in algorithm.settings]:
        raise ConfigError(f"{algorithm.name} has no setting {unknown[0]!r}; {nearest(unknown[0], algorithm.settings)}")

    def part(kind: type) -> Any:
        return kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values})

    if values["objective"] not in (*OBJECTIVES, algorithm.objective.name):
        raise ConfigError(f"algorithm.objective is one of {', '.join(OBJECTIVES)}, got {values['objective']!r}")
    is_kept = values["objective"] == algorithm.objective.name
    objective = type(algorithm.objective) if is_kept else OBJECTIVES[values["objective"]]
    for name, (_, nothing) in _bounds_that_it_lacks(objective):
        if values.get(name, nothing) != nothing:
            raise ConfigError(f"algorithm.{name} belongs to objective 'clip'; {objective.name!r} has no such bound")
    own = {f.name: values[f.name] for f in fields(algorithm) if f.name in values}
    return replace(
        algorithm, **own | {"objective": part(objective)}, reference=part(type(algorithm.reference)),
        estimator=replace(algorithm.estimator, settings=part(type(algorithm.estimator.settings))),
        critic=None if algorithm.critic is None else part(type(algorithm.critic)))


def settings_type(algorithm: Algorithm) -> type:
    """A dataclass that declares every setting; its defaults are the values of this algorithm. `make_part()`
    gives the algorithm with the values of one."""
    found = declared_settings(algorithm)
    return make_dataclass(algorithm.name, [(name, *declared) for name, declared in found.items()], frozen=True,
                          namespace={"make_part": lambda self: algorithm(**vars(self)),
                                     "__doc__": algorithm.estimator.function.__doc__})


def _fields_of(part: Any) -> dict[str, Declared]:
    return {f.name: (annotations_of(type(part))[f.name], getattr(part, f.name)) for f in fields(part)}


def _bounds_that_it_lacks(objective: Any) -> Iterator[tuple[str, Declared]]:
    """Settings of the default objective that another one of ours has not: off, but known, so that both may be set."""
    if objective.name in OBJECTIVES:
        own = {f.name for f in fields(objective)}
        yield from ((name, declared) for name, declared in _fields_of(ClipObjective()).items() if name not in own)
