"""One symptom, four causes: what R23's finding names where each is planted, and what it leaves open where evidence is missing.

The sample here is small; `python -m experiments.attribution` plants a hundred.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attribution_kit import (
    CLEAN,
    WITHHELD,
    Case,
    cap_logits,
    cases,
    encode_answers_anew,
    further_cases,
    heat,
    lag,
    repeat_first_token,
    tried,
)
from mismatch_kit import add_adapter, lie_about_sampling
from transformers import GPT2Config, GPT2LMHeadModel

from workbench.engines.digests import digests
from workbench.engines.intake import WeightNames
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
from workbench.extensions.engine_audit.causes import Cause, Explained
from workbench.extensions.engine_audit.forward import HELD, NOW, Hypothesis
from workbench.extensions.engine_audit.held import HeldWeights, held_by
from workbench.extensions.engine_audit.recovery import _spelled
from workbench.extensions.engine_audit.toggles import DTYPE, HEAD, PART, UNEXPLAINED
from workbench.extensions.engine_audit.toggles import STALE as OLDER_WEIGHTS
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


UNMERGED = replace(HOT, kind=DELIVERY, plant=lambda s: add_adapter(s, 1, 0.3), settings=FAST)


@pytest.mark.parametrize(
    "case",
    [STALE, UNDELIVERED, HOT, TWICE, UNMERGED],
    ids=["stale", "undelivered", "engine", "tokens", "adapter"],
)
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
        assert outcome.withheld["journal"] == outcome.withheld["held"] == (case.kind,)
        # That they are not the learner's is read from the engine; that they are those of the version it says is not.
        expected = () if case is STALE else (DELIVERY,)
        assert outcome.withheld["weights"] == expected


@pytest.mark.full
def test_an_engine_that_no_hypothesis_repeats_is_named_by_exclusion():
    """Older weights are not missed: the engine is read to hold the learner's. What it holds is, and so are its ids."""
    outcome = tried(CAPPED, ("journal", "weights", "held"))
    assert outcome.named == (ENGINE,)
    assert outcome.withheld == {"journal": (), "weights": (ENGINE,), "held": ()}


@pytest.mark.full
def test_weights_that_no_version_has_are_read_from_the_engine_or_left_open():
    outcome = tried(UNMERGED, WITHHELD)
    assert outcome.named == (DELIVERY,) and "no version is known to have" in outcome.words
    assert outcome.withheld["held"] == outcome.withheld["versions"] == ()


@pytest.mark.full
def test_two_causes_at_once_are_both_named():
    def both(session):
        add_adapter(session, 1, 0.3)
        heat(session, 1.5)

    assert tried(replace(UNMERGED, plant=both)).named == (DELIVERY, ENGINE)


@pytest.mark.full
def test_sampled_ids_are_found_without_a_journal():
    outcome = tried(AGAIN, ("journal",))
    assert outcome.named == (TOKENS,) and outcome.withheld["journal"] in ((TOKENS,), ())


@pytest.mark.full
@pytest.mark.parametrize(
    "case",
    [*cases(3, seed=7), *further_cases(1, seed=7)],
    ids=lambda case: f"{case.kind} {case.what}",
)
def test_drawn_cases_are_never_called_by_another_name(case):
    outcome = tried(case)
    assert outcome.named in ((), (case.kind,)), outcome.words
    assert not outcome.gap or case.kind != CLEAN


# ------------------------------------------------------------------------------------------------ parts by themselves


def known(labels, *, of, trainer=3, held=None, journal=True):
    """Facts of one turn a token, with these labels."""
    turns = np.arange(len(labels))
    claims = SimpleNamespace(
        trajectory_M=turns, segment_M=0 * turns, turn_M=0 * turns, version_M=np.array(labels)
    )
    versions = WeightVersions(of, trainer, held)
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
    own = HeldWeights(3, NOW, "")
    full = attributing._by_exclusion(known([3, 3], of={}, held=own), gap_M, ())
    assert full.causes == (ENGINE,) and "holds the learner's weights" in str(full)
    unread = attributing._by_exclusion(known([3, 3], of={}), gap_M, ())
    assert unread.causes == () and set(unread.candidates) == {ENGINE, DELIVERY}
    assert attributing.READING in str(unread), "where to look"
    since = attributing._by_exclusion(known([2, 2], of={}, held=own), gap_M, ())
    assert since.causes == () and STALENESS in since.candidates, "what it held then is not known"
    blind = attributing._by_exclusion(known([2, 3], of={}, journal=False), gap_M, ())
    assert blind.causes == () and set(blind.candidates) == set(attributing.FOUR)
    by_label = attributing._by_exclusion(known([1, 3], of={}), np.array([0.1, 0.0]), ())
    assert by_label.causes == (STALENESS,) and "not tried" in by_label.words
    other = attributing._by_exclusion(known([1, 3], of={}), np.array([0.0, 0.1]), ())
    assert other.causes == (), "the turns that say they are older are not those that disagree"


def search(kind, left):
    """What a search took, and what it left of two tokens."""
    causes = (Cause(kind, "words", "numbers"),)
    return Explained((), causes, np.full((2, 2), left), 1)


def test_a_setting_is_believed_where_little_is_left_or_the_weights_are_read():
    gap_M = np.array([1e-3, 1e-3])
    facts = known([3, 3], of={})

    def asked(kind, left, is_read):
        facts.explained = lambda: search(kind, left)
        return attributing._by_search(facts, gap_M, is_read)

    assert asked(DTYPE, 1e-7, False).causes == (ENGINE,)
    assert asked(DTYPE, 2e-4, False) is None, "an adapter of that size looks like it"
    assert asked(DTYPE, 2e-4, True).causes == (ENGINE,)
    assert asked(PART, 2e-4, True) is None, "it holds the learner's weights, so no part is older"
    assert asked(UNEXPLAINED, 1e-7, True) is None


def test_what_an_engine_holds_is_known_by_its_bits():
    config = GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=11, n_positions=8)
    model = GPT2LMHeadModel(config)
    now = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other = {name: tensor + 1 for name, tensor in now.items()}
    known_sets = {"version 1": other, NOW: now}

    def read(held):
        engine = SimpleNamespace(held=held, policy_version=3)
        return held_by(engine, known_sets, model)

    assert (read(now).name, read(now).words, read(now).kind) == (NOW, "", "")
    half = {name: tensor.bfloat16() for name, tensor in now.items()}
    assert read(half).name == NOW and "bfloat16" in read(half).words
    assert read(other).name == "version 1" and read(other).weights is None
    assert read(other).kind == OLDER_WEIGHTS
    norm = "transformer.ln_f.bias"
    damaged = read({**now, norm: now[norm] + 1e-6})
    assert damaged.name == HELD and f"1 of {len(now)} tensors" in damaged.words
    assert norm in damaged.words and damaged.weights is not None and damaged.kind == PART
    # A head that has come loose from the embedding that it is tied to.
    head = "lm_head.weight"
    loose = read({**now, head: now[head] + 1})
    assert (loose.name, loose.kind) == (HELD, HEAD) and "tied" in loose.words
    all_parts = read({name: tensor + 2 for name, tensor in now.items()})
    assert (all_parts.name, all_parts.kind) == (HELD, OLDER_WEIGHTS)
    sent = digests(WeightNames.of(model).choose(now))
    assert read(sent).name == NOW
    lost = read({**sent, norm: "float32 8 0"})
    assert lost.name == HELD and norm in lost.words and lost.weights is None
    assert read({"an adapter": "float32 8 0"}) is None
    assert held_by(SimpleNamespace(policy_version=3), known_sets, model) is None


def test_digests_that_differ_are_weights_that_did_not_arrive():
    """They cannot be tried, so nothing is said of what else may be wrong."""
    facts = known([3, 3], of={NOW: 3})
    facts.forward = SimpleNamespace(known={NOW: {}})
    held = HeldWeights(3, HELD, "digests of 2 of 4 tensors")
    facts.versions = WeightVersions({NOW: 3}, 3, held)
    gap_M = np.array([0.1, 0.1])
    told = attributing._other_weights(facts, held, gap_M, (), Hypothesis())
    assert told.causes == (DELIVERY,) and "digests of 2 of 4" in told.words
    older = HeldWeights(2, HELD, "digests of 2 of 4 tensors")
    untold = attributing._other_weights(facts, older, gap_M, (), Hypothesis())
    assert untold.causes == () and untold.candidates == (STALENESS, DELIVERY)


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


class StandInLearner:
    """One tensor, and how often it was asked for."""

    version = 0
    asked = 0

    def weights(self):
        self.asked += 1
        return {"w": torch.zeros(4)}


@pytest.mark.parametrize(("staleness", "kept"), [(0, 2), (1, 1)])
def test_weights_are_copied_only_where_the_rule_will_ask(staleness, kept):
    learner = StandInLearner()
    train = SimpleNamespace(staleness=staleness)
    session = SimpleNamespace(learner=learner, place=(0, 1), config=SimpleNamespace(train=train))
    for step in (1, 2):
        learner.version = step
        live.remember_step(session, step, ())
    assert learner.asked == len(live._memories[learner].sets) == kept
