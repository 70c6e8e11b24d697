"""A family with a slip beside the same without it: what a check says of each."""

from __future__ import annotations

from workbench.extensions.inspect_worlds.checks import check_family

Found = list[tuple[str, str]]  # (severity, what)


def findings_of(family, *checks, budget_s=1.0) -> Found:
    report = check_family(family, only=checks, budget_s=budget_s, tasks=12).findings
    return [(each.severity, each.what) for answer in report for each in answer.findings]


def expect_named(found: Found, words: str, severity: str | None = None) -> None:
    """One finding has these words, and this severity; None: any."""
    assert any(words in what and severity in (None, how) for how, what in found), found


def expect_passed_by(found: Found, words: str) -> None:
    """No error, and nothing with these words."""
    assert not [what for how, what in found if how == "error" or words in what], found
