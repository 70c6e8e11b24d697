"""Algorithms of the user's own by name: "my_module:MINE" in a configuration, and the name of one that was made in Python.

What is named may be an `Algorithm`, a class derived from it, a function without arguments that gives one, an `Estimator`
(with PPO's clip), or the class of an objective (with GRPO's estimator).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any

from workbench.basics.plugins import (
    held_by_modules,
    is_named,
    load_named,
    name_of,
    not_importable,
    reference_to,
)
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.estimators import GROUP_RELATIVE, Estimator
from workbench.learn.algorithms.named import ALGORITHMS
from workbench.learn.algorithms.settings import objective_class, objective_name, with_settings
from workbench.values.errors import ConfigError


def algorithm_named(reference: str) -> Algorithm:
    """The algorithm that "package.module:Name" names; its own name is then that reference. Raises ConfigError for what
    cannot be imported, and for what is no algorithm and no part of one."""
    return replace(
        as_algorithm(load_named(reference, "algorithm.kind"), f"algorithm.kind {reference!r}"),
        name=reference,
    )


def handed_algorithm(value: Any) -> Algorithm:
    """The algorithm that a value of Python is or makes, under the name by which it is found again where it has one. Raises
    ConfigError for what is none."""
    if isinstance(value, Algorithm) or not (reference := reference_to(value)):
        return as_algorithm(value)
    return algorithm_named(reference)


def as_algorithm(found: Any, what: str = "algorithm") -> Algorithm:
    """The algorithm that a value is, or gives without arguments. Raises ConfigError, which begins with `what`."""
    try:
        made = _made(found)
    except (TypeError, ConfigError) as error:
        raise ConfigError(
            f"{what} gives no algorithm without arguments ({error}); give each of its fields or arguments a "
            "default"
        ) from error
    if not isinstance(made, Algorithm):
        raise ConfigError(
            f"{what} is {made!r:.80}; expected an Algorithm, such as MINE = Algorithm('mine', "
            "Estimator(my_estimator)), a class derived from it, an Estimator, or the dataclass of an "
            "objective: settings as fields, and loss(inputs)"
        )
    return made


def _made(found: Any) -> Any:
    if isinstance(found, Estimator):
        return Algorithm(found.function.__name__, found)
    if (
        isinstance(found, type)
        and is_dataclass(found)
        and hasattr(found, "loss")
        and not issubclass(found, Algorithm)
    ):
        return Algorithm(
            found.name, GROUP_RELATIVE, objective=objective_class(found, "what is named")()
        )
    return found if isinstance(found, Algorithm) or not callable(found) else found()


def kind_of(algorithm: Algorithm) -> str:
    """By what name a configuration finds this algorithm again: one of the table, or "module:NAME".

    Raises ConfigError where it stands under no name: then neither a stored run nor another process could find it.
    """
    usual = ALGORITHMS.get(algorithm.name)
    if "<" in (objective := objective_name(algorithm.objective)):
        raise ConfigError(f"algorithm.objective.kind: {not_importable(objective)}")
    if is_named(algorithm.name) or usual is not None and _is_of(algorithm, usual):
        return algorithm.name
    for reference, value in _candidates(algorithm):
        if _is_of(algorithm, value) and "<" not in reference:
            return reference
    raise ConfigError(
        f"algorithm {algorithm.name!r} is not one of the package's, and is not a module-level name, so that "
        "a stored run could not find it again; write MINE = Algorithm(...) at the top of a module or of a "
        "notebook's cell, and hand over MINE, or MINE(setting=value)"
    )


def _candidates(algorithm: Algorithm) -> Iterator[tuple[str, Algorithm]]:
    """("module:NAME", value) of what might be the algorithm under a name; a notebook's own names last."""
    if type(algorithm) is not Algorithm:
        try:
            yield name_of(algorithm), type(algorithm)()
        except TypeError:  # not without arguments: then a value of it may stand somewhere
            pass
    home = algorithm.estimator.function.__module__
    for reference, value in held_by_modules(home):
        is_algorithm = issubclass(type(value), Algorithm)  # (isinstance wakes lazy values)
        if is_algorithm and value.name == algorithm.name:
            yield reference, value


def _is_of(algorithm: Algorithm, other: Algorithm) -> bool:
    """Whether it is the other one, with settings of its own."""
    if algorithm == other:
        return True
    objective = {"objective.kind": objective_name(algorithm.objective)}
    try:
        return with_settings(other, objective | algorithm.settings) == algorithm
    except ConfigError:
        return False
