"""The lint: is what is about to be trained what it is taken for? Rules over whatever evidence is at hand."""

from __future__ import annotations

from workbench.linting.evidence import Evidence, StepFacts, Update
from workbench.linting.rule import Rule, check
from workbench.linting.table import RULES, all_rules, lint_evidence

__all__ = [
    "RULES",
    "Evidence",
    "Rule",
    "StepFacts",
    "Update",
    "all_rules",
    "check",
    "lint_evidence",
]
