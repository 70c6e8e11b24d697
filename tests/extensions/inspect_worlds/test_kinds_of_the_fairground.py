"""Further kinds of bugs in a user's own file: each is named by its check, and the same family without it is passed by."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.counts import reduced
from tests.extensions.inspect_worlds import fairground
from tests.extensions.inspect_worlds.kinds_kit import expect_named, expect_passed_by, findings_of
from workbench.basics.findings import NOTE, Finding
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
    return findings_of(family, check)


def test_one_fact_about_a_name_alone_is_one_problem_in_all_its_wordings():
    found = findings(fairground.Ages("wording", nameless=True), "E2")
    assert [how for how, what in found if "about the same name" in what] == ["note"]
    assert findings(fairground.Ages(nameless=True), "E2") == []


def test_a_map_of_what_lies_around_moves_the_other_way():
    assert findings(fairground.Walks(), "E32") == []


OF_PITFALLS = "E36"
PITFALLS = {
    "return all(a == b for a, b in zip(x, y))": "ends with the shorter",
    "return abs(x - y) / y <= 0.01": "below zero",
    "return rng.integers(0, len(x) - 1)": "never draws the last one",
    "return 1.0 if x else 0.0 - y": "belongs to the else side alone",
    "return y.strip('answer: ')": "any of these letters",
    "y.strip(); return y": "throws it away",
    "\n    ".join(
        ("try:", "    return int(x) == y", "except ValueError:", "    return True")
    ): "what raises counts as right",
}
SOUND = (
    "return len(x) == len(y) and all(a == b for a, b in zip(x, y))",
    "return all(a == b for a, b in zip(x, y, strict=True))",
    "return all(a <= b for a, b in zip(x, x[1:]))",
    "return abs(x - y) / abs(y) <= 0.01",
    "return rng.integers(0, len(x))",
    "return 0.0 if x else 1.0 - y",
    "return (1.0 if x else 0.0) - y",
    "return y.strip(' .\\n')",
    "y = y.strip(); return y",
    "x.replace(y); return y",  # a path
    "x.replace(y, rng, inplace=True); return x",  # a table
    "\n    ".join(("try:", "    return int(x) == y", "except ValueError:", "    return False")),
)


def pitfalls_in(tmp_path, monkeypatch, code, *, before="", named=""):
    """Of a module with a function of this code beside its family, below the lines `before`; of files that are `named` so."""
    name = f"own_{abs(hash(code))}"
    body = f"""
{before}

def judge(x, y, rng):
    {code}


class Family:
    name = "own"
    max_turns = 1

    def make(self):
        return object()
"""
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = CheckInput(importlib.import_module(name).Family())
    try:
        found = [each for each in check_pitfalls(given) if isinstance(each, Finding)]
    finally:
        del sys.modules[name]  # the next one's is looked at alone
    assert all(each.severity == NOTE for each in found)
    return [each.what for each in found if (named or name) in each.what]


def test_what_else_is_imported_is_none_of_an_authors_files(tmp_path, monkeypatch):
    """A module that nothing of the family uses, and one whose function it calls."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_helper", "own_stranger"):
        (tmp_path / f"{name}.py").write_text(
            "def shorter(text):\n    text.strip()\n    return text\n"
        )
    importlib.import_module("own_stranger")
    try:
        code = "from own_helper import shorter"
        found = pitfalls_in(tmp_path, monkeypatch, "return shorter(x)", before=code, named="own_")
    finally:
        for name in ("own_helper", "own_stranger"):
            del sys.modules[name]
    assert [what.partition(":")[0] for what in found] == ["own_helper.py"]


@pytest.mark.parametrize("code", PITFALLS, ids=PITFALLS.values())
def test_code_that_does_not_do_what_it_looks_like_is_named(tmp_path, monkeypatch, code):
    (what,) = pitfalls_in(tmp_path, monkeypatch, code)
    assert PITFALLS[code] in what


@pytest.mark.parametrize("code", SOUND, ids=range(len(SOUND)))
def test_sound_code_is_passed_by(tmp_path, monkeypatch, code):
    assert pitfalls_in(tmp_path, monkeypatch, code) == []


@pytest.mark.parametrize("kind", reduced(list(KINDS), QUICK), ids=" ".join)
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    name, bug = kind
    check, words, severity = KINDS[kind]
    found = findings(getattr(fairground, name)(bug), check)
    expect_named(found, words, severity)
    twin = findings(getattr(fairground, name)(), check)
    expect_passed_by(twin, words)
