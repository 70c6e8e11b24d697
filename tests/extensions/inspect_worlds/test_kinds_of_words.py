"""Kinds of bugs that neither solver nor random play notice: each is named by its check, and the same family without it is passed
by."""

from __future__ import annotations

import pytest

from tests.counts import reduced
from tests.extensions.inspect_worlds import signposts
from tests.extensions.inspect_worlds.kinds_kit import expect_named, expect_passed_by, findings_of

# (family, its bug) -> (check, words of the finding, severity)
KINDS = {
    ("Debts", "sign"): ("E19", "answers below zero are never right", "error"),
    ("Debts", "one digit"): ("E19", "are never right", "error"),
    ("Spelled", "peeks"): ("E25", "random play is right at", "note"),
    ("Exam", "never"): ("E12", "is right at none", "note"),
    ("Guess", "nameless"): ("E6", "what Python calls an object", "error"),
    ("Sums", "left to right"): ("E33", "whose answer can be worked out", "error"),
    ("Spelled", "anywhere"): ("E27", "where the right one stands in words", "error"),
    ("Hidden", "not shown"): ("E33", "the very same prompt", "error"),
    ("Options", "twice"): ("E33", "stands under two letters", "error"),
    ("Pairs", "one alone"): ("E33", "of which there may be several", "note"),
    ("Explained", "matched"): ("E30", "asks for words before the answer", "error"),
    ("Explained", "bare"): ("E30", "states the form", "error"),
    ("Unfilled", "blank"): ("E6", "a blank that was not filled in", "error"),
    ("Counting", "idle"): ("E34", "the setting 'length' changes nothing", "note"),
    ("Exam", "free"): ("E12", "which cannot be read, earns 0", "error"),
    ("Exam", "mostly"): ("E12", "is right at", "note"),
    ("Field", "turned"): ("E32", "the other way", "error"),
    ("Field", "turned map"): ("E32", "by the map that is shown", "error"),
    ("Field", "round"): ("E32", "comes out on the other side", "error"),
    ("Field", "never right"): ("E25", "never says 'right'", "note"),
    ("Field", "over"): ("E14", "are said to be over (terminated)", "note"),
    ("Guess", "turned"): ("E32", "what a reply says of a guess is not so", "error"),
    ("Lamp", "again"): ("E12", "two actions in turn are paid", "error"),
    ("Visits", "cut"): ("E28", "lists are cut there", "note"),
    ("Visits", "small"): ("E28", "does in small letters", "error"),
    ("Visits", "default"): ("E28", "by default, and a call without it", "error"),
}
QUICK = [
    ("Debts", "sign"),
    ("Sums", "left to right"),
    ("Explained", "matched"),
    ("Exam", "free"),
    ("Field", "turned"),
    ("Lamp", "again"),
    ("Visits", "cut"),
]


def made(name, bug):
    if bug == "turned map":
        return signposts.Field(bug="turned", as_map=True)
    return getattr(signposts, name)(bug=bug)


def twin_of(name, bug):
    return signposts.Field(as_map=True) if bug == "turned map" else getattr(signposts, name)()


@pytest.mark.parametrize("kind", reduced(list(KINDS), QUICK), ids=" ".join)
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    name, bug = kind
    check, words, severity = KINDS[kind]
    found = findings_of(made(name, bug), check)
    expect_named(found, words, severity)
    twin = findings_of(twin_of(name, bug), check)
    expect_passed_by(twin, words)
