"""The reference rendering and forged control tokens (R2 R15)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
