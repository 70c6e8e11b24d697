"""Environments: isolated, and replayed (R14 R20)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
