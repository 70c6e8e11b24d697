"""What is said against what is the case: kinds of bugs that somebody's own files had and no check named, each beside the same family
without it."""

from __future__ import annotations

import pytest

from tests.extensions.inspect_worlds import oversights
from tests.extensions.inspect_worlds.kinds_kit import expect_named, expect_passed_by, findings_of
from workbench.extensions.inspect_worlds.checks.edges import bounds_in

KINDS = {
    ("Parcels", "", "zeros"): ("E33", "have lost leading zeros"),
    ("Parcels", "", "case"): ("E33", "have lost the case of a code"),
    ("Parcels", "", "accents"): ("E33", "have lost accents"),
    ("Parcels", "", "sign"): ("E33", "have lost a sign"),
    ("Symbols", "", "shuffled"): ("E33", "does not follow its text"),
    ("Tasks", "days", "days"): ("E33", "Count with datetime.timedelta"),
    ("Tasks", "form", "form"): ("E33", "which is none"),
    ("Tasks", "forms", "forms"): ("E33", "which is none"),
    ("Tasks", "order", "order"): ("E33", "asks for an order"),
    ("Tasks", "decimals", "decimals"): ("E33", "was never rounded"),
    ("Tasks", "line", "line"): ("E33", "in the line after the one"),
    ("Tasks", "line", "zone"): ("E33", "+60 (minutes)"),
    ("Tasks", "labels", "labels"): ("E33", "turned by 1"),
    ("Orders", "", "texts"): ("E30", "with numbers as the prompt's example"),
    ("Orders", "", "order"): ("E30", "keys in another order"),
    ("Room", "", "total"): ("E29", "all that was earned so far"),
    ("Room", "", "draws"): ("E25", "its range is off by one"),
    ("Room", "", "bound"): ("E14", "6 is refused where 5 is taken"),
    ("Room", "", "thoughts"): ("E32", "read out of the thoughts"),
    ("Room", "", "several"): ("E32", "are both carried out"),
    ("Game", "hands", "peeks"): ("E32", "goes by the policy's"),
    ("Game", "cards", "sees"): ("E32", "the policy has lost"),
    ("Game", "stones", "four"): ("E32", "plays by other rules"),
    ("Maze", "", "walls"): ("E32", "is walked through"),
    ("Maze", "", "stale"): ("E23", "a part of each reply is one action late"),
    ("Higher", "", "turned"): ("E32", "what a reply says of a guess is not so"),
    ("Roads", "", "miles"): ("E28", "brings numbers in miles"),
    ("Roads", "", "bound"): ("E28", "leaves out what is exactly there"),
}


def family_of(name: str, kind: str, bug: str):
    settings = {"bug": bug} | ({"kind": kind} if kind else {})
    return getattr(oversights, name)(**settings)


def findings(family, check):
    return findings_of(family, check, budget_s=0.5)


@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    name, of, bug = kind
    check, words = KINDS[kind]
    found = findings(family_of(name, of, bug), check)
    expect_named(found, words)
    twin = findings(family_of(name, of, ""), check)
    expect_passed_by(twin, words)


@pytest.mark.parametrize(
    "prompt, edges",
    [
        ("Say a number between 3 and 9.", [(3, 4), (9, 8)]),
        ("Book from 9:00 to 17:00.", [(9, 10), (17, 16)]),
        ("Bid at most 25.", [(25, 24)]),
        ("A number strictly between 3 and 9.", []),
        ("Prices from 1.50 to 2.50 euros.", []),
        ("You have 8 turns.", []),
    ],
)
def test_the_bounds_that_a_prompt_names(prompt, edges):
    assert [(bound.edge, bound.inner) for bound in bounds_in(prompt)] == edges
