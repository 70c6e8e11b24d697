"""One symptom, four causes: what R23's finding names where each is planted, and what it leaves open where evidence is missing.

The sample here is small; `python -m experiments.attribution` plants a hundred.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from attribution_kit import (
    CLEAN,
    WITHHELD,
    Case,
    cap_logits,
    cases,
    encode_answers_anew,
    lag,
    repeat_first_token,
    tried,
)
from mismatch_kit import lie_about_sampling

from workbench.extensions.engine_audit import attribution as attributing
from workbench.extensions.engine_audit import live
from workbench.extensions.engine_audit.attribution import (
    DELIVERY,
    ENGINE,
    STALENESS,
    TOKENS,
    WeightVersions,
    off_turns,
)
from workbench.extensions.engine_audit.recovery import _spelled
from workbench.linting.evidence import Evidence

FAST = {"learner.lr": 3e-3}
STALE = Case(
    STALENESS, "", "", lambda s: lag(s, 2, honest=True), "bandit", 3, FAST, before=1, after=3
)
UNDELIVERED = replace(STALE, kind=DELIVERY, plant=lambda s: lag(s, 2, honest=False))
HOT = Case(
    ENGINE,
    "",
    "",
    lie_about_sampling,
    "bandit",
    3,
    FAST | {"collect.temperature": 1.5},
    before=1,
    after=1,
)
CAPPED = Case(ENGINE, "", "", lambda s: cap_logits(s, 5.0), "bandit", 3, FAST, before=1, after=1)
TWICE = Case(TOKENS, "", "", repeat_first_token, "bandit", 3, FAST, before=1, after=1)
AGAIN = Case(
    TOKENS,
    "",
    "",
    encode_answers_anew,
    "bandit",
    3,
    FAST | {"collect.temperature": 2.0, "train.tasks_per_step": 4},
    before=0,
    after=2,
)


@pytest.mark.parametrize("case", [STALE, UNDELIVERED, HOT, TWICE], ids=lambda case: case.kind)
def test_a_planted_cause_is_named_in_the_finding(case):
    outcome = tried(case)
    assert outcome.gap and outcome.named == (case.kind,)
    assert f"The cause is {case.kind}: " in outcome.words


def test_nothing_is_named_in_a_clean_run():
    """Negative control: the same training with nothing planted."""
    outcome = tried(replace(STALE, kind=CLEAN, plant=lambda session: None))
    assert not outcome.gap and outcome.named == () and not outcome.words


def test_what_is_missing_is_said_and_nothing_is_named_wrongly():
    """The same two runs differ by nothing but the number that the engine says."""
    for case in (STALE, UNDELIVERED):
        outcome = tried(case, WITHHELD)
        assert outcome.withheld["versions"] == (), (
            "older weights, and nobody says which they were to be"
        )
        assert outcome.withheld["weights"] == () and outcome.withheld["journal"] == (case.kind,)


@pytest.mark.full
def test_an_engine_that_no_hypothesis_repeats_is_named_by_exclusion():
    outcome = tried(CAPPED, ("journal", "weights"))
    assert outcome.named == (ENGINE,)
    assert outcome.withheld == {"journal": (), "weights": ()}


@pytest.mark.full
def test_sampled_ids_are_found_without_a_journal():
    outcome = tried(AGAIN, ("journal",))
    assert outcome.named == (TOKENS,) and outcome.withheld["journal"] in ((TOKENS,), ())


@pytest.mark.full
@pytest.mark.parametrize(
    "case", list(cases(3, seed=7)), ids=lambda case: f"{case.kind} {case.what}"
)
def test_drawn_cases_are_never_called_by_another_name(case):
    outcome = tried(case)
    assert outcome.named in ((), (case.kind,)), outcome.words
    assert not outcome.gap or case.kind != CLEAN


# ------------------------------------------------------------------------------------------------ parts by themselves


def known(labels, *, of, trainer=3, complete=False, journal=True):
    """Facts of one turn a token, with these labels."""
    turns = np.arange(len(labels))
    claims = SimpleNamespace(
        trajectory_M=turns, segment_M=0 * turns, turn_M=0 * turns, version_M=np.array(labels)
    )
    versions = WeightVersions(of, trainer, complete)
    return SimpleNamespace(
        claims=claims, versions=versions, limits=(1e-4, 0.01), has_journal=journal
    )


def test_the_number_that_turns_say_decides_between_staleness_and_delivery():
    of = {"now": 3, "version 1": 1}
    named = attributing._named_by_label
    assert named(known([1, 3], of=of), ["version 1", "now"], 1.0, 0.0).causes == (STALENESS,)
    assert named(known([3, 3], of=of), ["version 1", "now"], 1.0, 0.0).causes == (DELIVERY,)
    both = named(known([1, 3], of=of), ["version 1", "version 1"], 1.0, 0.0)
    assert both.causes == (DELIVERY, STALENESS)
    untold = named(known([-1, -1], of=of), ["version 1", "now"], 1.0, 0.0)
    assert untold.causes == () and untold.candidates == (STALENESS, DELIVERY)
    assert "cannot be told" in str(untold) and attributing.VERSIONS in str(untold)


def test_turns_belong_to_older_weights_only_where_these_leave_clearly_less():
    facts = known([3, 3, 1], of={"now": 3, "version 1": 1, "version 2": 2})
    gaps = {
        "now": np.array([1e-7, 0.1, 0.1]),
        "version 2": np.array([0.9e-7, 1e-7, 1.0e-7]),
        "version 1": np.array([0.2, 0.2, 1.2e-7]),
    }
    chosen = attributing._weights_of_turns(facts, gaps)
    assert chosen == ["now", "version 2", "version 1"], (
        "of two that fit, the one that the turn names"
    )


def test_the_engine_is_named_by_exclusion_only_where_nothing_is_missing():
    gap_M = np.array([0.1, 0.1])
    full = attributing._by_exclusion(known([3, 3], of={}, complete=True), gap_M, ())
    assert full.causes == (ENGINE,)
    blind = attributing._by_exclusion(known([3, 3], of={}, journal=False), gap_M, ())
    assert blind.causes == () and set(blind.candidates) == set(attributing.FOUR)
    by_label = attributing._by_exclusion(known([1, 3], of={}), np.array([0.1, 0.0]), ())
    assert by_label.causes == (STALENESS,) and "not tried" in by_label.words
    other = attributing._by_exclusion(known([1, 3], of={}), np.array([0.0, 0.1]), ())
    assert other.causes == (), "the turns that say they are older are not those that disagree"


def test_a_turn_is_off_by_its_mean_or_by_one_token():
    turn_M = np.array([0, 0, 1, 1, 2, 2])
    gap_M = np.array([1e-6, 1e-6, 3e-4, 0.0, 0.0, 0.02])
    assert off_turns(gap_M, turn_M, (1e-4, 0.01)).tolist() == [False, True, True]


def test_ids_of_the_same_text_are_found_by_their_logprobs(monkeypatch):
    texts = ["", "a", "b", "ab", "abb"]
    logps = np.log(np.array([0.1, 0.3, 0.2, 0.15, 0.25]))
    monkeypatch.setattr(
        "workbench.extensions.engine_audit.recovery._next", lambda forward, ids: logps
    )
    own = [4, 3, 1, 2]  # "abb" "ab" "a" "b"
    sampled = [1, 2, 2, 3, 3]
    assert _spelled(None, texts, [], own, logps[sampled[:4]]) == sampled[:4]
    assert _spelled(None, texts, [], own, logps[own]) is None, "they are the trained ids themselves"
    assert _spelled(None, texts, [], own, logps[sampled[:4]] - 0.05) is None, "other logprobs"


def test_a_stored_step_says_where_the_cause_is_told():
    assert "workbench audit" in live.mismatch_cause(Evidence())


@pytest.mark.parametrize(("engine", "shows"), [({"dtype": "float32"}, True), ({}, False)])
def test_an_engine_of_the_users_need_not_say_in_what_it_computes(engine, shows):
    config = SimpleNamespace(
        engine=SimpleNamespace(**engine),
        learner=SimpleNamespace(precision="fp32"),
        train=SimpleNamespace(staleness=0),
    )
    assert live._shows_all(SimpleNamespace(config=config)) is shows
