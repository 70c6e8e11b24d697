"""Games of words, codes and boards, and tools: a slip in each is named by its check, and the same
without it is passed by."""

from __future__ import annotations

import pytest

from tests.counts import reduced
from tests.extensions.inspect_worlds import arcade
from tests.extensions.inspect_worlds.kinds_kit import expect_named, expect_passed_by, findings_of

# (family, its bug) -> (check, words of the finding, severity)
KINDS = {
    ("Words", "counts twice"): ("E32", "what a reply says of a guess is not so", "error"),
    ("Codes", "counts twice"): ("E32", "what a reply says of a guess is not so", "error"),
    ("Crosses", "one diagonal"): ("E13", "3 in the other diagonal stand on", "error"),
    ("Dice", "plus"): ("E31", "and the number goes up", "error"),
    ("Quarry", "less"): ("E12", "and there is no solver", "note"),
    ("Heights", "radians"): ("E28", "where 0.5 is right", "error"),
    ("Heights", "xor"): ("E28", "where 8 is right", "error"),
    ("Census", "any call"): ("E12", "a call that means nothing earns it as well", "note"),
    ("Capitals", "wordings"): ("E2", "in other words, about the same name", "note"),
    ("Staff", "last page"): ("E25", "tasks and fails at the others", "note"),
    ("Balances", "no sign"): ("E19", "gold answers below zero are never right", "error"),
    ("Races", "first lane"): ("E25", "never succeeds at tasks whose 'lane' is '1'", "note"),
    ("Coins", "one side"): ("E12", "succeeds at 100%", "error"),
    ("Trips", "both sides"): ("E27", "the right answers of other tasks are right at", "note"),
}
QUICK = [("Words", "counts twice"), ("Crosses", "one diagonal"), ("Census", "any call")]


@pytest.mark.parametrize("kind", reduced(list(KINDS), QUICK), ids=" ".join)
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    name, bug = kind
    check, words, severity = KINDS[kind]
    found = findings_of(getattr(arcade, name)(bug), check)
    expect_named(found, words, severity)
    twin = findings_of(getattr(arcade, name)(), check)
    expect_passed_by(twin, words)
