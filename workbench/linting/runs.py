"""A whole run: no batch twice, versions advance (R21)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
