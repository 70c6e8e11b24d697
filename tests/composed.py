"""Algorithms of one's own, for tests: parts of another one, with a function or a class in place of one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from workbench.learn.algorithms import GRPO, Algorithm, Estimator


def of_class(kind: type[Algorithm], base: Algorithm = GRPO, **settings: Any) -> Algorithm:
    """An algorithm of a class derived from `Algorithm`, made of the parts of another one."""
    parts = {f.name: getattr(base, f.name) for f in fields(Algorithm)}
    own = {
        name: settings.pop(name)
        for name in list(settings)
        if name in kind.__dataclass_fields__.keys() - parts.keys()
    }
    return kind(**parts | {"name": kind.__name__.lower()}, **own)(**settings)


def of_estimator(function: Callable, base: Algorithm = GRPO, **known: Any) -> Algorithm:
    """An algorithm whose credit is given by this function."""
    return replace(base, name=function.__name__, estimator=Estimator(function, **known))
