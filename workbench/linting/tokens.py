"""Tokens: prefixes, provenance, alignment, share, turn ids, noise (R1 R3 R4 R5 R9 R22)."""
from __future__ import annotations

from workbench.linting.rule import Rule

RULES: tuple[Rule, ...] = ()
