"""Bugs in a user's own files, of the kinds that a blind set found unnamed: each is named by its check, and the same family
without it, and others that look like it and are meant so, are passed by."""

from __future__ import annotations

import pytest

from tests.counts import reduced
from tests.extensions.inspect_worlds import quizzes, shelves, tracks
from workbench.extensions.inspect_tasks.answers import framed
from workbench.extensions.inspect_worlds.checks import check_family

# (family, its bug) -> (check, words of the finding, severity)
KINDS = {
    ("Product", "beginning"): ("E27", "the beginning of the right answer is paid", "error"),
    ("Product", "cut"): ("E27", "with .6 behind it is paid", "error"),
    ("Product", "near"): ("E27", "another last digit is paid", "error"),
    ("Product", "longer"): ("E27", "one more digit is paid", "error"),
    ("Product", "listed"): ("E27", "among four of other tasks is paid", "error"),
    ("Product", "evaluated"): ("E27", "own expression, copied, is paid", "error"),
    ("Product", "last digit"): ("E27", "another last digit is paid", "error"),
    ("Product", "sign"): ("E27", "the other sign is paid", "note"),
    ("Stone", "like"): ("E27", "somewhat alike", "error"),
    ("Stone", "pattern"): ("E27", "'.*' is paid", "error"),
    ("Stone", "part"): ("E27", "the beginning of the right answer is paid", "error"),
    ("Stone", "letters"): ("E27", "the beginning of the right answer is paid", "error"),
    ("Stone", "named"): ("E27", "among four of other tasks is paid", "error"),
    ("Sorted", "as far as"): ("E27", "the first half of the items is paid", "error"),
    ("Sorted", "set"): ("E27", "with its first two items swapped is paid", "error"),
    ("Sorted", "some"): ("E27", "the first half of the items is paid", "error"),
    ("Options", "repeated"): ("E27", "the whole question, repeated,", "error"),
    ("Options", "place"): ("E9", "at place 3 from the front", "error"),
    ("Label", "id"): ("E9", "the task's identifier modulo", "error"),
    ("Label", "longest"): ("E9", "the longest of all", "error"),
    ("Label", "spaces"): ("E9", "the white space at its end", "error"),
    ("Label", "wording"): ("E9", "which of its sentences", "note"),
    ("Shelf", "raises"): ("E28", "declares 'cent' as a value of 'unit', and raises", "error"),
    ("Shelf", "default"): ("E28", "is asked for 3 by 'limit', and brings 4", "error"),
    ("Shelf", "words"): ("E28", "declares 'words', and it has no effect", "error"),
    ("Shelf", "unit"): ("E28", "declares 'unit', and it has no effect", "error"),
    ("Shelf", "limit"): ("E28", "is asked for 1 by 'limit', and brings 3", "error"),
    ("Shelf", "one more"): ("E28", "is asked for 1 by 'limit', and brings 2", "error"),
    ("Shelf", "most"): ("E28", "'at most five results', and brings 6", "error"),
    ("Shelf", "mute"): ("E28", "with an empty text, as if they had succeeded", "note"),
    ("Shelf", "cut"): ("E28", "results at 70 characters, without a word", "error"),
    ("Track", "last answer"): ("E14", "the limit is asked before the answer is judged", "error"),
    ("Track", "fewer turns"): ("E14", "the prompt states 14 moves, and 12 can be made", "error"),
    ("Track", "truncated"): ("E13", "are said to be cut by a limit", "error"),
    ("Track", "late"): ("E29", "the reward is paid one turn late", "error"),
    ("Track", "part late"): ("E29", "'nearer' of the reward is paid one turn late", "error"),
    ("Track", "large"): ("E29", "'outcome' moves what a trajectory earns by 1 at most", "note"),
    ("Track", "small"): ("E29", "'nearer' moves what a trajectory earns by 0.00015", "note"),
    ("Track", "flat"): ("E29", "'nearer' of the reward is 0 in all", "note"),
}
QUICK = [
    kind
    for kind in KINDS
    if kind[1] in ("beginning", "set", "place", "id", "unit", "last answer", "late")
]
# Meant so: family -> what it may be noted for.
MEANT = {
    "FirstNumber": (),
    "Estimate": ("E27",),
    "Between": ("E27",),
    "Divisor": (),
    "Spelled": (),
    "Typo": (),
    "AnyOrder": ("E27",),
    "Parity": (),
    "Third": (),
    "Ledger": (),
    "Track": (),
    "Shelf": (),
}
CHECKS = ("E9", "E14", "E23", "E27", "E28", "E29")


def family_of(name, bug=""):
    cls = next(
        getattr(module, name) for module in (quizzes, shelves, tracks) if hasattr(module, name)
    )
    if bug == "fewer turns":
        return cls(max_turns=12)
    return cls(bug=bug) if bug else cls()


def findings(family, *checks):
    report = check_family(family, only=checks, budget_s=1.0).findings
    return [
        (answer.rule, each.severity, each.what) for answer in report for each in answer.findings
    ]


@pytest.mark.parametrize("kind", reduced(list(KINDS), QUICK), ids=" ".join)
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    check, words, severity = KINDS[kind]
    found = findings(family_of(*kind), check)
    assert any(words in what and how == severity for _, how, what in found), found
    assert findings(family_of(kind[0]), check) == []


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant_so_is_no_error(name):
    found = findings(family_of(name), *CHECKS)
    assert not [each for each in found if each[1] == "error"], found
    assert {rule for rule, _, _ in found} <= set(MEANT[name]), found


def test_an_answer_is_found_in_its_form():
    assert framed(['{"answer": 12}', '{"answer": 17}']) == [
        ('{"answer": ', "12", "}"),
        ('{"answer": ', "17", "}"),
    ]
    assert framed(["<answer>a b</answer>", "x <answer>a c</answer>"])[1] == (
        "x <answer>",
        "a c",
        "</answer>",
    )
    assert [words for _, words, _ in framed(["lamp", "lake"])] == ["lamp", "lake"]
