"""The rules of the lint about worlds: environments, what was played in them, and evaluations."""

from __future__ import annotations

from itertools import chain

from workbench.extensions.world_rules import (
    evaluations,
    figures,
    isolation,
    leaks,
    payments,
    replayed,
    splits,
    tool_results,
    words,
    worlds,
    worth,
)
from workbench.linting.rule import Rule

MODULES = (
    isolation,
    replayed,
    splits,
    evaluations,
    figures,
    leaks,
    tool_results,
    payments,
    words,
    worlds,
    worth,
)
RULES: tuple[Rule, ...] = tuple(chain.from_iterable(module.RULES for module in MODULES))
