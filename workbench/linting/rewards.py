"""Rewards are counted once, and unscored is not zero (R16)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
