"""Logprob settings and stale weights (R12 R17)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
