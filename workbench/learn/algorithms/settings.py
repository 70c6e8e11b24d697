"""The settings of an algorithm, each by one name, whichever part of the composition holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, make_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from workbench.learn.algorithms.objectives import OBJECTIVES, ClipObjective
from workbench.types.errors import ConfigError, nearest
from workbench.types.plugins import is_named, load_named, name_of
from workbench.types.settings import annotations_of

if TYPE_CHECKING:
    from workbench.learn.algorithms.algorithm import Algorithm

Declared = tuple[Any, Any]  # (annotation, value)
OBJECTIVE = Annotated[
    str,
    "clip: PPO's; gspo: one ratio a sequence; cispo: bounded weights, no clip; or one of your own as "
    "package.module:Name, which brings its settings",
]


def declared_settings(algorithm: Algorithm) -> dict[str, Declared]:
    """Every setting by name, with its annotation; those of masks, rewards and filter are in one value each."""
    found: dict[str, Declared] = {}
    for name, value in ((f.name, getattr(algorithm, f.name)) for f in fields(algorithm)):
        if name == "estimator":
            found |= _fields_of(value.settings)
        elif name == "objective":
            found |= (
                {name: (OBJECTIVE, objective_name(value))}
                | _fields_of(value)
                | dict(_bounds_that_it_lacks(value))
            )
        elif name in ("critic", "reference"):
            found |= {} if value is None else _fields_of(value)
        elif name != "name":
            found[name] = annotations_of(type(algorithm))[name], value
    return found


def objective_name(objective: Any) -> str:
    """What `algorithm.objective` calls it: a short name if it is ours, else "module:Qualname" of its class."""
    return (
        objective.name
        if OBJECTIVES.get(objective.name) is type(objective)
        else name_of(type(objective))
    )


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


def with_settings(algorithm: Algorithm, settings: Mapping[str, Any]) -> Algorithm:
    """The same algorithm with other values. Raises ConfigError for a setting that it does not have."""
    values = {**algorithm.settings, **settings}
    objective, given = _chosen_objective(algorithm, values["objective"]), values
    known, before = set(algorithm.settings), type(algorithm.objective)
    if objective is not before and not {objective, before} <= set(OBJECTIVES.values()):
        known -= _settings_with(before)
        known |= _settings_with(objective)
        given = settings  # its defaults are its own
    if unknown := [name for name in settings if name not in known]:
        raise ConfigError(
            f"{algorithm.name} has no setting {unknown[0]!r}; {nearest(unknown[0], known)}"
        )

    def part(kind: type, values: Mapping[str, Any] = values) -> Any:
        return kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values})

    for name, (_, nothing) in _bounds_that_it_lacks(objective):
        if values.get(name, nothing) != nothing:
            raise ConfigError(
                f"algorithm.{name} belongs to objective 'clip'; {objective.name!r} has no such bound"
            )
    own = {f.name: values[f.name] for f in fields(algorithm) if f.name in values}
    return replace(
        algorithm,
        **own | {"objective": part(objective, given)},
        reference=part(type(algorithm.reference)),
        estimator=replace(algorithm.estimator, settings=part(type(algorithm.estimator.settings))),
        critic=None if algorithm.critic is None else part(type(algorithm.critic)),
    )


def _chosen_objective(algorithm: Algorithm, name: Any) -> type:
    """The class that `algorithm.objective` names; the algorithm's own is there without being imported."""
    if name in (objective_name(algorithm.objective), algorithm.objective.name):
        return type(algorithm.objective)
    if is_named(name):
        return objective_class(
            load_named(name, "algorithm.objective"), f"algorithm.objective {name!r}"
        )
    if name not in OBJECTIVES:
        raise ConfigError(
            f"algorithm.objective is one of {', '.join(OBJECTIVES)}, or package.module:Name of your own; got "
            f"{name!r}"
        )
    return OBJECTIVES[name]


def settings_type(algorithm: Algorithm) -> type:
    """A dataclass that declares every setting; its defaults are the values of this algorithm. `make_part()` gives the
    algorithm with the values of one; `with_parts(settings)` the dataclass where they name another objective, which brings
    settings of its own."""
    found = declared_settings(algorithm)

    def with_parts(settings: Mapping[str, Any]) -> type:
        own = found["objective"][1]
        objective = settings.get("objective", own)
        other = objective not in (own, algorithm.objective.name) and (
            is_named(objective) or is_named(own)
        )
        return settings_type(algorithm(objective=objective)) if other else made

    made = make_dataclass(
        algorithm.name,
        [(name, *declared) for name, declared in found.items()],
        frozen=True,
        namespace={
            "make_part": lambda self: algorithm(**vars(self)),
            "with_parts": staticmethod(with_parts),
            "__doc__": algorithm.estimator.function.__doc__,
        },
    )
    return made


def _settings_with(objective: type) -> set[str]:
    return {f.name for f in fields(objective)} | dict(_bounds_that_it_lacks(objective)).keys()


def _fields_of(part: Any) -> dict[str, Declared]:
    return {
        f.name: (annotations_of(type(part))[f.name], getattr(part, f.name)) for f in fields(part)
    }


def _bounds_that_it_lacks(objective: Any) -> Iterator[tuple[str, Declared]]:
    """Settings of the default objective that another one of ours has not: off, but known, so that both may be set."""
    if OBJECTIVES.get(objective.name) in (objective, type(objective)):
        own = {f.name for f in fields(objective)}
        yield from (
            (name, declared)
            for name, declared in _fields_of(ClipObjective()).items()
            if name not in own
        )
