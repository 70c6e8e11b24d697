"""Further kinds of bugs in a user's own file: each is named by its check, and the same family without it is passed by."""

from __future__ import annotations

import pytest

from tests.counts import reduced
from tests.extensions.inspect_worlds import fairground
from workbench.extensions.inspect_worlds.checks import check_family

# (family, its bug) -> (check, words of the finding, severity)
KINDS = {
    ("Throws", "lowest die"): ("E32", "the upper bound is left out", "note"),
    ("Draws", "puts back"): ("E32", "with replacement", "note"),
    ("Shots", "one draw"): ("E4", "who fails there once fails for ever", "note"),
    ("Lines", "unknown"): ("E35", "lambda words, given: words[0] == given", "note"),
    ("Losses", "signed"): ("E27", "the right answers of other tasks are right", "note"),
    ("Steps", "sorted"): ("E27", "the right answers of other tasks are right", "note"),
    ("Nests", "again"): ("E27", "the first item, said as often as there are items", "error"),
    ("Ages", "wording"): ("E2", "in other words, with the same numbers and names", "note"),
    ("Fair", "last day"): ("E28", "leaves out what is of the very day", "error"),
    ("Fair", "coarse key"): ("E22", "depends on what was played before it", "error"),
}
QUICK = [("Throws", "lowest die"), ("Lines", "unknown"), ("Losses", "signed"), ("Fair", "last day")]


def findings(family, check):
    fairground.KEPT.clear()
    report = check_family(family, only=(check,), budget_s=1.0, tasks=12).findings
    return [(each.severity, each.what) for answer in report for each in answer.findings]


@pytest.mark.parametrize("kind", reduced(list(KINDS), QUICK), ids=" ".join)
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    name, bug = kind
    check, words, severity = KINDS[kind]
    found = findings(getattr(fairground, name)(bug), check)
    assert any(words in what and how == severity for how, what in found), found
    twin = findings(getattr(fairground, name)(), check)
    assert not [what for how, what in twin if how == "error" or words in what], twin
