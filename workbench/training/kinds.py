"""Parts of a configuration that come in kinds: those of the package by a short name, anybody's by `package.module:Name`.

KINDS["env"]["frozenlake"]         a class of the package
KINDS["env"]["my_env:Guess"]       imported, and checked for what an environment family needs
KINDS["algorithm"]["grpo"]         a value: settings begin from what it holds
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from inspect import signature
from typing import Any

from workbench.basics.plugins import HERE, is_named, load_named, name_of, not_importable
from workbench.basics.settings import annotations_of
from workbench.engines import ENGINES
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.objectives import OBJECTIVES
from workbench.learn.algorithms.own import algorithm_named, handed_algorithm
from workbench.learn.algorithms.own import kind_of as kind_of_algorithm
from workbench.learn.algorithms.settings import objective_name, objective_named
from workbench.values import Task
from workbench.values.errors import ConfigError
from workbench.worlds import ENVS

# What a class of one's own must have, and what that is.
NEEDED: dict[str, dict[str, str]] = {
    "env": {
        "name": "a short name: name: ClassVar[str] = 'guess'",
        "max_turns": "the most answers of a trajectory",
        "task": "task(task_seed) -> Task",
        "make": "make() -> an environment with reset and step",
    },
    "engine": {"open": "open(model) -> an engine (workbench/engines/base.py)"},
}
PAGE = {"env": "docs/extend/environment.md", "engine": "docs/extend/engine.md"}


@dataclass(frozen=True)
class KindTable(Mapping[str, Any]):
    """Kind -> the part that settings of this kind are read onto: a class, or a value. Those of the package are listed; a
    name with a colon is imported when it is asked for (ConfigError where that cannot be)."""

    listed: Mapping[str, Any]
    own: Callable[[str], Any]  # by "package.module:Name"
    kind_of: Callable[[Any], str]  # of a part that is made

    def __getitem__(self, kind: str) -> Any:
        return self.own(kind) if is_named(kind) else self.listed[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self.listed)

    def __len__(self) -> int:
        return len(self.listed)


def own_class(part: str, reference: str) -> type:
    """The class that a part's kind names, with all that the part needs. Raises ConfigError."""
    kind = load_named(reference, f"{part}.kind")
    check_class(part, kind, reference)
    return kind


def check_class(part: str, kind: Any, reference: str) -> None:
    """Raises ConfigError for what cannot be a kind of this part, naming what it lacks."""
    if not isinstance(kind, type):
        raise ConfigError(
            f"{part}.kind {reference!r} is {kind!r:.80}, not a class; name its class, "
            f"{name_of(kind)}, and set its fields by name: {part}.FIELD"
        )
    if not is_dataclass(kind):
        if part == "env" and hasattr(kind, "step"):
            raise ConfigError(
                f"env.kind {reference!r} is one environment, with reset and step; name its family, which makes tasks"
            )
        raise ConfigError(
            f"{part}.kind {reference!r} is no dataclass: put @dataclass(frozen=True) before the class; its "
            "fields are its settings, each with its type"
        )
    try:
        annotations_of(kind)
    except NameError as error:
        raise ConfigError(
            f"{part}.kind {reference!r} has a field whose type cannot be looked up: {error}; import it in its "
            "module, at run time"
        ) from error
    own = {field.name for field in fields(kind)}
    serves_many = getattr(kind, "serves_many", False)  # one object for many trajectories
    lacking = []
    for name, words in NEEDED[part].items():
        needed = "make_shared" if name == "make" and serves_many else name
        if name not in own and not hasattr(kind, needed):
            lacking.append(words)
    if lacking:
        raise ConfigError(
            f"{part}.kind {reference!r} lacks {'; '.join(lacking)}. {PAGE[part]} has an example"
        )


LISTED = {"env": ENVS, "engine": ENGINES}  # algorithms are values and have names of their own


def kind_of(part: str, value: Any) -> str:
    """The name that a part has in a file: a short one, or "module:Qualname" of a class of one's own.

    Raises ConfigError for a value that no file can name, or that is no such part.
    """
    if part == "algorithm":
        return kind_of_algorithm(value)
    if short := LISTED[part].name_for(type(value)):
        return short
    reference = name_of(type(value))
    check_class(part, type(value), reference)
    if "<" in reference:  # inside a function; a notebook's cell can be found by its own kernel
        raise ConfigError(f"{part}: {not_importable(reference)}")
    return reference


# Parts that come in kinds: key -> (kind -> what it begins from). One more of the package is a line in its own table.
KINDS: dict[str, KindTable] = {
    "env": KindTable(ENVS, partial(own_class, "env"), partial(kind_of, "env")),
    "engine": KindTable(ENGINES, partial(own_class, "engine"), partial(kind_of, "engine")),
    "algorithm": KindTable(ALGORITHMS, algorithm_named, kind_of_algorithm),
}
# ... and those inside another part.
TABLES: dict[str, KindTable] = {
    **KINDS,
    "algorithm.objective": KindTable(OBJECTIVES, objective_named, objective_name),
}


def handed_part(part: str, value: Any) -> Any:
    """A part that was handed over as a value of Python, or as its class. Raises ConfigError for what cannot be that part."""
    if part == "algorithm":
        return handed_algorithm(value)
    try:
        made = value() if isinstance(value, type) else value
    except TypeError as error:
        raise ConfigError(
            f"{part}: {name_of(value)} is a class that cannot be made without arguments ({error}); hand over one that is "
            "made"
        ) from error
    check_class(part, type(made), name_of(made))
    return made


def check_importable(kind: str, part: str) -> None:
    """Raises ConfigError where a process of its own could not import a kind: one that a notebook's cell defined."""
    if is_named(kind) and kind.startswith(f"{HERE}:"):
        raise ConfigError(
            f"{part}: {not_importable(kind)}; or train in this process: wb.train_here(config, path)"
        )


def check_tasks(family: Any) -> None:
    """Raises ConfigError where the `task` of a family of one's own takes or gives something else."""
    if LISTED["env"].name_for(type(family)):
        return
    words = f"task(task_seed) of {name_of(type(family))} returns a Task, the same for the same whole number"
    try:
        signature(family.task).bind(0)
    except TypeError as error:
        raise ConfigError(
            f"{words}; this one is task{signature(family.task)}. {PAGE['env']} has an example"
        ) from error
    try:
        made = family.task(0)
    except Exception:  # which seeds it takes is its own business
        return
    if not isinstance(made, Task):
        raise ConfigError(f"{words}; task(0) gave {made!r:.80}. {PAGE['env']} has an example")
