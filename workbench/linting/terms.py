"""Which tokens each term of the loss is taken over, truncation (R10 R11)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
