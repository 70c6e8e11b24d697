"""Credit: every sampled token carries its trajectory's (R6)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
