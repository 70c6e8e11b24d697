"""Kinds of bugs that somebody planted without knowing the checks: each is named by its check, and the same family without it is
passed by."""

from __future__ import annotations

import pytest

from tests.extensions.inspect_worlds import planted
from tests.extensions.inspect_worlds.kinds_kit import expect_named, expect_passed_by, findings_of

KINDS = {
    ("Line", "late"): ("E23", "one action late"),
    ("Line", "key"): ("E24", "two different states"),
    ("Line", "beginning"): ("E25", "read by their beginning"),
    ("Line", "tags"): ("E25", "random play is never understood"),
    ("Line", "same draw"): ("E4", "the same draw in every step"),
    ("Line", "payload"): ("E5", "playing changes the task itself"),
    ("Line", "to and fro"): ("E12", "can be had again and again"),
    ("Line", "total"): ("E12", "paid again in every later turn"),
    ("Line", "nonsense"): ("E12", "cheaper than a wrong try"),
    ("Sum", "nan"): ("E12", "always 'nan'"),
    ("Sum", "by chance"): ("E4", "depends on dynamics_seed, and its prompt does not"),
    ("Sum", "names"): ("E2", "with another name in it"),
    ("Sum", "easiest"): ("E2", "easier than all that is trained on"),
    ("ScoredSum", "unscored"): ("E26", "score() is None"),
    ("ScoredSum", "by task"): ("E22", "remembered"),
    ("ScoredSum", "running mean"): ("E22", "depends on what was scored before"),
    ("Choice", "number"): ("E9", "modulo 4"),
    ("Sides", "role"): ("E12", "its sign is turned for 'buyer'"),
    ("Sentence", "repeats"): ("E12", "said 40 times"),
}


def findings(family, check):
    for memory in (planted.VERDICTS, planted.SCORED):
        memory.clear()
    return findings_of(family, check, budget_s=0.5)


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    name, bug = kind
    check, words = KINDS[kind]
    found = findings(getattr(planted, name)(bug=bug), check)
    expect_named(found, words)
    twin = findings(getattr(planted, name)(), check)
    expect_passed_by(twin, words)


def test_held_out_harder_tasks_are_passed_by():
    found = findings(planted.Sum(bug="hardest"), "E2")
    assert not [what for _, what in found if "easier than all" in what]
