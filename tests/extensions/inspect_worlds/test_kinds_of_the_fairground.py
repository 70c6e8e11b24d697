"""Further kinds of bugs in a user's own file: each is named by its check, and the same family without it is passed by."""

from __future__ import annotations

import importlib

import pytest

from tests.counts import reduced
from tests.extensions.inspect_worlds import fairground
from workbench.basics.findings import NOTE, Finding
from workbench.extensions.inspect_worlds.checks import check_family
from workbench.extensions.inspect_worlds.checks.reached import check_pitfalls
from workbench.extensions.scripted_play.given import CheckInput

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
    ("Prizes", "turned"): ("E32", "is shown in another one", "error"),
    ("Prizes", "no shots"): ("E24", "that info['state'] tells apart", "note"),
    ("Fair", "last day"): ("E28", "leaves out what is of the very day", "error"),
    ("Fair", "coarse key"): ("E22", "depends on what was played before it", "error"),
}
QUICK = [("Throws", "lowest die"), ("Lines", "unknown"), ("Losses", "signed"), ("Fair", "last day")]


def findings(family, check):
    fairground.KEPT.clear()
    report = check_family(family, only=(check,), budget_s=1.0, tasks=12).findings
    return [(each.severity, each.what) for answer in report for each in answer.findings]


def test_one_fact_about_a_name_alone_is_one_problem_in_all_its_wordings():
    found = findings(fairground.Ages("wording", nameless=True), "E2")
    assert [how for how, what in found if "about the same name" in what] == ["note"]
    assert findings(fairground.Ages(nameless=True), "E2") == []


def test_a_map_of_what_lies_around_moves_the_other_way():
    assert findings(fairground.Walks(), "E32") == []


OF_PITFALLS = "E36"
PITFALLS = {
    "all(a == b for a, b in zip(x, y))": "ends with the shorter",
    "abs(x - y) / y <= 0.01": "below zero",
    "rng.integers(0, len(x) - 1)": "never draws the last one",
    "1.0 if x else 0.0 - y": "belongs to the else side alone",
    "y.strip('answer: ')": "any of these letters",
}
SOUND = (
    "len(x) == len(y) and all(a == b for a, b in zip(x, y))",
    "all(a == b for a, b in zip(x, y, strict=True))",
    "all(a <= b for a, b in zip(x, x[1:]))",
    "abs(x - y) / abs(y) <= 0.01",
    "rng.integers(0, len(x))",
    "0.0 if x else 1.0 - y",
    "(1.0 if x else 0.0) - y",
    "y.strip(' .\\n')",
)


def pitfalls_in(tmp_path, monkeypatch, expression):
    """Of a module with a family that has the expression in its `task`."""
    name = f"own_{abs(hash(expression))}"
    body = f"""
class Family:
    name = "own"
    max_turns = 1

    def task(self, x, y=1, rng=None):
        return {expression}

    def make(self):
        return object()
"""
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = CheckInput(importlib.import_module(name).Family())
    found = [each for each in check_pitfalls(given) if isinstance(each, Finding)]
    assert all(each.severity == NOTE for each in found)
    return [each.what for each in found if name in each.what]


@pytest.mark.parametrize("expression", PITFALLS)
def test_an_expression_that_does_not_do_what_it_looks_like_is_named(
    tmp_path, monkeypatch, expression
):
    (what,) = pitfalls_in(tmp_path, monkeypatch, expression)
    assert PITFALLS[expression] in what


@pytest.mark.parametrize("expression", SOUND)
def test_a_sound_expression_is_passed_by(tmp_path, monkeypatch, expression):
    assert pitfalls_in(tmp_path, monkeypatch, expression) == []


@pytest.mark.parametrize("kind", reduced(list(KINDS), QUICK), ids=" ".join)
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    name, bug = kind
    check, words, severity = KINDS[kind]
    found = findings(getattr(fairground, name)(bug), check)
    assert any(words in what and how == severity for how, what in found), found
    twin = findings(getattr(fairground, name)(), check)
    assert not [what for how, what in twin if how == "error" or words in what], twin
