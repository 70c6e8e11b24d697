"""Parts of a configuration that come in kinds: those of the package by a short name, anybody's by `package.module:Name`.

KINDS["env"]["frozenlake"]         a class of the package
KINDS["env"]["my_env:Guess"]       imported, and checked for what an environment family needs
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import signature
from typing import Any

from workbench.engines import ENGINES
from workbench.envs import ENVS
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.own import algorithm_named, kind_of as kind_of_algorithm
from workbench.learn.algorithms.settings import settings_type
from workbench.types import Task
from workbench.types.errors import ConfigError
from workbench.types.plugins import HERE, is_named, load_named, name_of, not_importable
from workbench.types.settings import annotations_of

# What a class of one's own must have, and what that is.
NEEDED: dict[str, dict[str, str]] = {
    "env": {
        "name": "a short name: name: ClassVar[str] = 'guess'",
        "max_turns": "the most answers of an attempt",
        "task": "task(task_seed) -> Task",
        "make": "make() -> an environment with reset and step",
    },
    "engine": {"open": "open(model) -> an engine (workbench/engines/base.py)"},
}
PAGE = {"env": "docs/extend/environment.md", "engine": "docs/extend/engine.md"}


class KindTable(Mapping[str, type]):
    """Kind -> the dataclass of its settings. Those of the package are listed; a name with a colon is imported when it is
    asked for (ConfigError where that cannot be)."""

    def __init__(
        self, names: Mapping[str, Any], listed: Callable[[str], type], own: Callable[[str], type]
    ) -> None:
        self._names, self._listed, self._own = names, listed, own

    def __getitem__(self, kind: str) -> type:
        if is_named(kind):
            return self._own(kind)
        if kind not in self._names:
            raise KeyError(kind)
        return self._listed(kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def own_class(part: str, reference: str) -> type:
    """The class that a part's kind names, with all that the part needs. Raises ConfigError."""
    found = load_named(reference, f"{part}.kind")
    check_class(part, found, reference)
    return found


def check_class(part: str, found: Any, reference: str) -> None:
    """Raises ConfigError for what cannot be a kind of this part, naming what it lacks."""
    if not isinstance(found, type):
        raise ConfigError(
            f"{part}.kind {reference!r} is {found!r:.80}, not a class; name its class, "
            f"{name_of(found)}, and set its fields by name: {part}.FIELD"
        )
    if not is_dataclass(found):
        raise ConfigError(
            f"{part}.kind {reference!r} is no dataclass: put @dataclass(frozen=True) before the class; its "
            "fields are its settings, each with its type"
        )
    try:
        annotations_of(found)
    except NameError as error:
        raise ConfigError(
            f"{part}.kind {reference!r} has a field whose type cannot be looked up: {error}; import it in its "
            "module, at run time"
        ) from error
    own = {field.name for field in fields(found)}
    other = (
        {"make": "make_shared"} if getattr(found, "serves_many", False) else {}
    )  # one object for many attempts
    lacking = [
        words
        for name, words in NEEDED[part].items()
        if name not in own and not hasattr(found, other.get(name, name))
    ]
    if lacking:
        raise ConfigError(
            f"{part}.kind {reference!r} lacks {'; '.join(lacking)}. {PAGE[part]} has an example"
        )


LISTED = {"env": ENVS, "engine": ENGINES}  # algorithms are values and have names of their own


@cache
def _settings_of_algorithm(name: str) -> type:
    """Made when it is asked for: that takes milliseconds."""
    return settings_type(ALGORITHMS[name])


# Parts that come in kinds: key -> (kind -> class). One more of the package is a line in its own room's table.
KINDS: dict[str, Mapping[str, type]] = {
    "env": KindTable(ENVS, ENVS.__getitem__, lambda name: own_class("env", name)),
    "engine": KindTable(ENGINES, ENGINES.__getitem__, lambda name: own_class("engine", name)),
    "algorithm": KindTable(
        ALGORITHMS, _settings_of_algorithm, lambda name: settings_type(algorithm_named(name))
    ),
}


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
