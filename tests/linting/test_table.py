"""The table of rules: complete, in order, each with what it means and how to mend it, and as the guide tells it."""

from __future__ import annotations

import re
from pathlib import Path

from workbench.linting import RULES, Evidence
from workbench.linting.rule import WHEN, check

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/lint.md"


def test_rules_are_numbered_without_a_gap():
    assert list(RULES) == [f"R{number}" for number in range(1, len(RULES) + 1)]
    assert {f"R{number}" for number in range(1, 15)} <= set(RULES)


def test_every_rule_says_what_it_means_and_how_to_mend_it():
    for rule in RULES.values():
        assert rule.when in WHEN, rule.id
        assert (
            len(rule.means) > 40
            and rule.means.endswith(".")
            and len(rule.mend) > 40
            and rule.mend.endswith(".")
        ), rule.id
        assert all(re.fullmatch(r"[\w.-]+#\d+", thread) for thread in rule.threads), rule.id


def test_every_rule_names_evidence_that_there_is():
    fields = set(Evidence.__dataclass_fields__)
    assert all(set(rule.needs) <= fields for rule in RULES.values())


def test_of_nothing_no_rule_has_passed():
    report = check(Evidence(), list(RULES.values()))
    assert report.counts() == {"errors": 0, "notes": 0, "passed": 0, "not_checked": len(RULES)}
    assert all(answer.missing for answer in report)


def test_the_guide_tells_every_rule():
    text = GUIDE.read_text()
    for rule in RULES.values():
        assert re.search(rf"^\| {rule.id} \| {re.escape(rule.title)}", text, re.MULTILINE), rule.id
