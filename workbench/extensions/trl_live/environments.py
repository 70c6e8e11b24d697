"""Environments of a generation (R14): one for each row, played and scored by the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from workbench.basics.findings import Checked, Finding, NotChecked
from workbench.extensions.trl_live.rows import SampledRows
from workbench.linting.rule import RuleResult


def apart(
    generated: SampledRows, played: Sequence[Any], paid_by: Sequence[Any]
) -> Iterator[RuleResult]:
    """R14: every row has an environment of its own, and the one that it was played in scores it."""
    if not played:
        yield NotChecked("environments (environment_factory)")
        return
    yield Checked(len(played))
    rows: dict[int, int] = {}
    for row, environment in enumerate(played):
        other = rows.setdefault(id(environment), row)
        if other != row:
            yield Finding(
                f"it is played in the very environment of {generated.name(other)}",
                generated.place(row),
            )
        elif row < len(paid_by) and paid_by[row] is not environment:
            whose = rows_of(paid_by[row], played)
            words = f"that of {generated.name(whose[0])}" if whose else "another one"
            yield Finding(
                f"it is scored by {words}, not by the environment that it was played in",
                generated.place(row),
            )


def rows_of(environment: Any, played: Sequence[Any]) -> list[int]:
    """The rows that were played in it."""
    return [row for row, other in enumerate(played) if other is environment]
