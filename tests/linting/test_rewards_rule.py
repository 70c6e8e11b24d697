"""R16: rewards are counted once, and what could not be scored is not zero."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.linting.credited import answer, changed, draw, errors, evidence_of, groups_of
from workbench.learn.algorithms import GRPO
from workbench.linting import Evidence
from workbench.values import Trajectory

GROUPS = groups_of([[((2, 1.0), (3, 2.0)), ((1, 0.5),)], [((1, 2.0),), ((2, -1.5),)]])


@settings(max_examples=20)
@given(st.integers(0, 500), st.booleans())
def test_what_was_collected_passes(seed, fresh):
    found = answer(evidence_of(draw(seed, fresh=fresh, unscored=4), GRPO()), "R16")
    assert found.status == "passed" and not found.findings


@pytest.mark.parametrize(
    "name, index, value, words",
    [
        ("reward_N", 0, 6.0, "reward_N[0] is 6, the trajectories say 3"),
        ("turn_reward_K", 1, 4.0, "turn_reward_K[1] is 4"),
        ("outcome_N", 2, 0.0, "outcome_N[2] is 0, the trajectories say none"),
        ("reward_N", 3, float("nan"), "reward_N[3] is none"),
    ],
)
def test_a_number_of_the_batch(name, index, value, words):
    evidence = evidence_of(GROUPS, GRPO())
    changed_T = getattr(evidence.batch, name).clone()
    changed_T[index] = value
    found = errors(replace(evidence, batch=replace(evidence.batch, **{name: changed_T})), "R16")
    assert any(words in what for what in found), found


def test_unscored_that_became_zero():
    """trl#5902"""
    groups = changed(
        GROUPS, 0, 1, turns=(replace(GROUPS[0][1].turns[0], reward=None, reward_parts={}),)
    )
    evidence = evidence_of(groups, GRPO())
    assert not errors(evidence, "R16")
    batch = replace(
        evidence.batch,
        reward_N=evidence.batch.reward_N.nan_to_num(0.0),
        scored_N=torch.ones_like(evidence.batch.scored_N),
    )
    found = errors(replace(evidence, batch=batch), "R16")
    assert any("is 0, the trajectories say none" in what for what in found)
    assert any("scored_N[1] is True" in what for what in found)


def test_parts_that_do_not_sum_up():
    turns = (
        GROUPS[0][0].turns[0],
        replace(GROUPS[0][0].turns[1], reward_parts={"goal": 1.0, "format": 0.5}),
    )
    found = answer(Evidence(tuple(map(tuple, changed(GROUPS, 0, 0, turns=turns)))), "R16").errors
    assert "sum to 1.5" in found[0].what and found[0].place.turn == 1


def test_a_sum_that_forgets_or_doubles(monkeypatch):
    """The property that everybody reads, against the turns."""
    evidence = Evidence(tuple(map(tuple, GROUPS)))
    for wrong in (
        lambda t: float(t.turns[-1].reward),
        lambda t: 2 * sum(turn.reward for turn in t.turns),
        lambda t: None,
    ):
        monkeypatch.setattr(Trajectory, "reward", property(wrong))
        assert errors(evidence, "R16")


def test_paid_twice():
    paid = [
        [replace(t, outcome=sum(turn.reward for turn in t.turns)) for t in group]
        for group in GROUPS
    ]
    assert "counted twice" in errors(Evidence(tuple(map(tuple, paid))), "R16")[0]
    honest = [[replace(t, outcome=1.0) for t in group] for group in GROUPS]
    assert not errors(Evidence(tuple(map(tuple, honest))), "R16")


def test_a_turned_sign_is_noted():
    groups = groups_of([[((1, float(n % 2)),) for n in range(8)]])
    right = [[replace(t, success=t.reward > 0) for t in group] for group in groups]
    wrong = [[replace(t, success=t.reward <= 0) for t in group] for group in groups]
    assert not answer(Evidence(tuple(map(tuple, right))), "R16").findings
    assert "sign" in answer(Evidence(tuple(map(tuple, wrong))), "R16").notes[0].what
