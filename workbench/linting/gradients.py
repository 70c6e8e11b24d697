"""The learner's gradient beside a plain one (R19)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
