"""Kinds of bugs in a user's own files that are found by playing: each is named by its check, and the same family without it is
passed by."""

from __future__ import annotations

import pytest

from tests.counts import reduced
from tests.extensions.inspect_worlds import benches, slips
from tests.extensions.inspect_worlds.kinds_kit import expect_named, expect_passed_by, findings_of

# (family, its bug) -> (check, words of the finding, severity)
KINDS = {
    ("Picks", "recall"): ("E27", "the right items and wrong ones beside them", "error"),
    ("Picks", "two thirds"): ("E27", "a list with one item exchanged", "error"),
    ("Balance", "sign"): ("E27", "where right answers are of both signs", "error"),
    ("Balance", "digits"): ("E27", "without its decimal point", "error"),
    ("Balance", "wide"): ("E27", "four times as far off as the prompt allows", "error"),
    ("Balance", "commas"): ("E30", "commas between thousands as in", "error"),
    ("Capitals", "case"): ("E30", "small letters as in", "error"),
    ("Capitals", "first"): ("E30", "the last answer counts", "error"),
    ("Letters", "any order"): ("E27", "the right word backwards", "error"),
    ("Letters", "as shown"): ("E2", "in another order", "error"),
    ("Stories", "wording"): ("E2", "in other words, with the same numbers", "note"),
    ("Sums", "order"): ("E2", "with their words in another order", "note"),
    ("Sums", "large"): ("E2", "held-out tasks differ", "note"),
    ("Levels", "by seed"): ("E2", "grows with the task's seed", "note"),
    ("Verdicts", "mostly"): ("E9", "one answer, 'yes', is right at", "note"),
    ("Coded", "among them"): ("E31", "stands among the examples", "error"),
    ("Passages", "cut"): ("E31", "the text is cut before the place that answers", "error"),
    ("Doors", "goes on"): ("E13", "a wrong answer does not end a trajectory", "error"),
    ("Doors", "first"): ("E13", "the first wrong answer ends the trajectory", "error"),
    ("Pit", "no pit"): ("E13", "is ever over by itself", "note"),
    ("Pit", "bonus"): ("E29", "the sign of the reward is not that of the prompt", "error"),
    ("Pit", "no cost"): ("E29", "it is never paid, or is another number", "note"),
    ("Pit", "few turns"): ("E14", "the turns run out before the solver is done", "note"),
    ("Riddle", "no turn to answer"): ("E14", "who asks all questions never answers", "error"),
    ("Tank", "before"): ("E31", "is not what the environment holds", "note"),
    ("Tank", "turned"): ("E31", "the reward goes against what is shown", "error"),
    ("Lock", "again"): ("E12", "not to solve is worth more", "error"),
    ("Cards", "sorts"): ("E25", "solver_action changes the environment", "error"),
    ("Cards", "sees"): ("E25", "the solver knows what chance will bring", "note"),
    ("Cards", "constant"): ("E25", "random play always says 'red'", "note"),
    ("Trips", "kept"): ("E25", "random play earns more than the solver", "note"),
    ("Stalls", "floors"): ("E28", "where 3.5 is right", "error"),
    ("Stalls", "four"): ("E28", "it looks as if lists are cut there", "note"),
    ("Stalls", "dearest"): ("E28", "are in another order (the opposite one)", "error"),
    ("Stalls", "overlap"): ("E28", "and again for page = 2", "error"),
}
QUICK = [
    ("Picks", "recall"),
    ("Balance", "sign"),
    ("Balance", "commas"),
    ("Doors", "goes on"),
    ("Pit", "bonus"),
    ("Tank", "turned"),
    ("Cards", "sorts"),
]
# Settings by which a family is bent, where it is not by a bug of its code; and those of its twin.
BENT = {
    ("Pit", "few turns"): ({"max_turns": 4}, {}),
    ("Riddle", "no turn to answer"): ({"max_turns": 3}, {}),
    ("Doors", "first"): ({"bug": "first", "tries": 3}, {"tries": 3}),
}


def family_of(name):
    return getattr(slips, name, None) or getattr(benches, name)


def findings(family, check):
    slips.PLANS.clear()
    return findings_of(family, check, budget_s=0.5)


@pytest.mark.parametrize("kind", reduced(list(KINDS), QUICK), ids=" ".join)
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    name, bug = kind
    check, words, severity = KINDS[kind]
    bent, right = BENT.get(kind, ({"bug": bug}, {}))
    found = findings(family_of(name)(**bent), check)
    expect_named(found, words, severity)
    twin = findings(family_of(name)(**right), check)
    expect_passed_by(twin, words)
