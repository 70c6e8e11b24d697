"""Groups: identity, and whether there is anything to compare (R7 R8)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
