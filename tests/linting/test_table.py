"""The table of rules: complete, in order, each with what it means and how to fix it, and as the guide tells it."""

from __future__ import annotations

import re
from pathlib import Path

from workbench.linting import Evidence, all_rules, table
from workbench.linting.rule import WHEN, check

RULES = all_rules()

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
    counts = report.counts()
    assert counts.pop("not_checked") == len(RULES) and not any(counts.values())
    assert all(answer.missing for answer in report)


def test_the_guide_tells_every_rule():
    text = GUIDE.read_text()
    for rule in RULES.values():
        assert re.search(rf"^\| {rule.id} \| {re.escape(rule.title)}", text, re.MULTILINE), rule.id


def test_rules_of_an_extension_are_looked_up_and_missed_by_nobody(monkeypatch):
    of_extensions = {rule.id for rule in table.extension_rules()}
    assert of_extensions == {f"R{number}" for number in (14, 20, *range(24, 32), *range(39, 49))}
    assert not of_extensions & table.RULES.keys()
    assert RULES.keys() == table.RULES.keys() | of_extensions
    asked = table.lint_evidence(Evidence(), rules=table.RULES.values())
    assert not of_extensions & {answer.rule for answer in asked}
    monkeypatch.setattr(table, "provided", lambda kind: {})
    assert table.extension_rules() == ()
