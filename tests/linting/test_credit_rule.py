"""R6: credit that is not what rewards and settings say is named by token, whatever way it went wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.composed import of_estimator
from tests.linting.credited import answer, batch_of, draw, errors, evidence_of, groups_of, updated
from workbench.learn.algorithms import ALGORITHMS, GRPO, PPO, Reinforce, ReinforcePP, TurnPPO
from workbench.learn.algorithms.base import Advantages, Credit
from workbench.learn.algorithms.parts import Masks
from workbench.learn.algorithms.settings import with_settings
from workbench.learn.batch import Batch
from workbench.linting import Evidence

NAMES = [name for name in ALGORITHMS if name != "ranks"]


def with_credit(evidence: Evidence, **changes) -> Evidence:
    return replace(evidence, credit=replace(evidence.credit, **changes))


def tokens_of(evidence: Evidence, row: int) -> np.ndarray:
    return np.flatnonzero(
        evidence.plain_trajectories.sampled_T & (evidence.plain_trajectories.row_T == row)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fresh", [False, True])
def test_what_training_computes_passes(name, fresh):
    found = answer(evidence_of(draw(5, fresh=fresh, unscored=3), ALGORITHMS[name]()), "R6")
    assert found.status == "passed" and found.looked > 20 and not found.missing, found


@settings(max_examples=40)
@given(
    st.sampled_from(NAMES),
    st.integers(0, 500),
    st.integers(0, 10**6),
    st.sampled_from([1e-3, -0.5, 2.0]),
)
def test_one_wrong_number_is_enough(name, seed, which, by):
    """Any single advantage, weight or return that is changed is named at its own token."""
    evidence = evidence_of(draw(seed), ALGORITHMS[name]())
    credit = evidence.credit
    trained = torch.nonzero(credit.weight_T != 0)[:, 0]
    if not len(trained):
        return
    token = int(trained[which % len(trained)])
    for column in (
        "advantage_T",
        "weight_T",
        *(["return_T"] if credit.return_T is not None else []),
    ):
        values_T = getattr(credit, column).clone()
        if values_T[token].isnan():
            continue
        values_T[token] += by
        found = answer(with_credit(evidence, **{column: values_T}), "R6")
        assert found.errors, column
        assert found.errors[0].place == evidence.plain_trajectories.place(token)


# ------------------------------------------------------------------------------------------------ bugs of others


def last_segment_only(credit: Credit, batch: Batch) -> torch.Tensor:
    """SkyRL#1492"""
    last_N = torch.zeros(batch.num_trajectories, dtype=torch.int64).scatter_reduce(
        0, batch.trajectory_of_segment_S, torch.arange(batch.num_segments), "amax"
    )
    return torch.where(
        batch.segment_of_token_T == last_N[batch.trajectory_of_token_T], credit.advantage_T, 0.0
    )


def first_trajectories_mean(credit: Credit, batch: Batch) -> torch.Tensor:
    """PipelineRL#54"""
    first = torch.tensor(
        [int((batch.group_of_trajectory_N == g).nonzero()[0]) for g in range(batch.num_groups)]
    )
    above_N = batch.reward_N - batch.reward_N[first][batch.group_of_trajectory_N]
    return above_N[batch.trajectory_of_token_T] * credit.weight_T


def of_the_neighbour(credit: Credit, batch: Batch) -> torch.Tensor:
    by_token = credit.advantage_T[batch.eligible_T].roll(1)
    return torch.zeros_like(credit.advantage_T).masked_scatter(batch.eligible_T, by_token)


def zero_after_observations(credit: Credit, batch: Batch) -> torch.Tensor:
    """verl#7300: what comes before the last reply is lost."""
    last_N = torch.zeros(batch.num_trajectories, dtype=torch.int32).scatter_reduce(
        0, batch.trajectory_of_token_T[batch.eligible_T], batch.turn_T[batch.eligible_T], "amax"
    )
    return torch.where(batch.turn_T == last_N[batch.trajectory_of_token_T], credit.advantage_T, 0.0)


def reversed_groups(credit: Credit, batch: Batch) -> torch.Tensor:
    by_row = {
        n: credit.advantage_T[(batch.trajectory_of_token_T == n) & batch.eligible_T]
        for n in range(batch.num_trajectories)
    }
    row_N = [float(by_row[n][0]) for n in range(batch.num_trajectories)][::-1]
    return torch.tensor(row_N, dtype=torch.float64)[batch.trajectory_of_token_T] * credit.weight_T


BUGS = {
    "SkyRL#1492": (GRPO(), last_segment_only, True),
    "PipelineRL#54": (GRPO(estimator={"normalize_std": False}), first_trajectories_mean, False),
    "shifted by one": (Reinforce(), of_the_neighbour, False),
    "verl#7300": (ReinforcePP(), zero_after_observations, False),
    "turned round": (GRPO(), reversed_groups, False),
    "sign": (GRPO(), lambda credit, batch: -credit.advantage_T, False),
    "population deviation": (
        GRPO(),
        lambda credit, batch: credit.advantage_T * (4 / 3) ** 0.5,
        False,
    ),
    "float16": (PPO(), lambda credit, batch: credit.advantage_T.half().double(), False),
}


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_of_other_frameworks(bug):
    algorithm, wrong, fresh = BUGS[bug]
    evidence = evidence_of(draw(11, fresh=fresh), algorithm)
    assert not errors(evidence, "R6")
    planted = with_credit(evidence, advantage_T=wrong(evidence.credit, evidence.batch))
    assert errors(planted, "R6"), bug


def test_what_it_looks_like_is_said():
    evidence = evidence_of(groups_of([[((2, 1.0), (2, 2.0)), ((3, 5.0),)]], fresh=True), GRPO())
    advantage_T = evidence.credit.advantage_T

    def said(values_T) -> str:
        return errors(with_credit(evidence, advantage_T=values_T), "R6")[0]

    assert "twice" not in said(2 * advantage_T) and "2 times what it should be" in said(
        2 * advantage_T
    )
    assert "advantage 0, but" in said(last_segment_only(evidence.credit, evidence.batch))
    assert "(so at 2 tokens of this trajectory, which sampled 4)" in said(
        last_segment_only(evidence.credit, evidence.batch)
    )
    row_T = evidence.batch.trajectory_of_token_T
    assert "nothing in it carries any" in said(torch.where(row_T == 0, 0.0, advantage_T))
    assert "-0.707106" in said(-advantage_T) and "0.707106" in said(-advantage_T)


@pytest.mark.parametrize(
    "settings_",
    [
        {"estimator.gamma": 0.9},
        {"estimator.lam": 0.9},
        {"critic.bootstrap": "truncated"},
        {"estimator.whiten": False},
        {"reference.kl_coef": 0.1},
    ],
)
def test_a_setting_that_was_not_followed(settings_):
    """Credit by the defaults, where something else was declared: gamma ignored, a limit taken for an end, and so on."""
    evidence = evidence_of(draw(4), PPO())
    told = replace(evidence, algorithm=with_settings(PPO, settings_))
    assert not errors(evidence, "R6") and errors(told, "R6")


def test_credit_on_an_unscored_trajectory_and_critic_targets():
    groups = draw(8, unscored=2)
    evidence = evidence_of(groups, PPO())
    row_T = evidence.batch.trajectory_of_token_T
    widened = torch.where(row_T == 2, evidence.batch.eligible_T.double(), evidence.credit.weight_T)
    assert any(
        "weight 1, but" in what for what in errors(with_credit(evidence, weight_T=widened), "R6")
    )
    moved = torch.where(evidence.credit.return_T.isnan(), torch.nan, evidence.credit.return_T + 1)
    assert any(
        what.startswith("return ") for what in errors(with_credit(evidence, return_T=moved), "R6")
    )
    assert errors(with_credit(evidence, return_T=None), "R6")
    turn = evidence_of(groups, TurnPPO())
    every = torch.where(turn.batch.eligible_T, turn.credit.return_T.nan_to_num(), torch.nan)
    assert errors(with_credit(turn, return_T=every, critic_weight_T=None), "R6")


# ------------------------------------------------------------------------------------------------ evidence


@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO(reference={"kl_coef": 0.1}),
        PPO(minibatches=2),
        TurnPPO(),
        ReinforcePP(reference={"kl_coef": 0.05}),
    ],
)
def test_a_stored_table_is_as_good(algorithm):
    """Of a run there are tables: the same verdict from them alone, and the same finding."""
    whole = updated(draw(2), algorithm)
    tables = Evidence(whole.groups, algorithm=algorithm, updates=whole.updates)
    assert answer(tables, "R6").status == "passed" and not answer(tables, "R6").missing
    columns = dict(whole.updates[0].table.columns)
    columns["advantage"] = np.where(columns["turn"] == 0, columns["advantage"], 0.0)
    planted = [
        whole.updates[0]._replace(table=replace(whole.updates[0].table, columns=columns)),
        *whole.updates[1:],
    ]
    assert errors(replace(tables, updates=tuple(planted)), "R6")


def test_a_batch_alone_is_as_good():
    evidence = evidence_of(draw(6), PPO())
    alone = replace(evidence, groups=())
    assert answer(alone, "R6").status == "passed"
    planted = with_credit(alone, advantage_T=evidence.credit.advantage_T.roll(1))
    assert errors(planted, "R6")


def test_what_is_missing_is_said():
    groups = draw(1)
    bare = Evidence(tuple(map(tuple, groups)), algorithm=GRPO())
    assert answer(bare, "R6").status == "not checked" and "credit" in answer(bare, "R6").missing[0]
    assert answer(Evidence(algorithm=GRPO()), "R6").status == "not checked"
    without = replace(evidence_of(groups, PPO()), batch=Batch.from_groups(groups))
    found = answer(without, "R6")
    assert "value_T" in found.missing[0] and not found.errors
    assert (
        "algorithm" in answer(replace(evidence_of(groups, GRPO()), algorithm=None), "R6").missing[0]
    )


def test_credit_for_another_batch():
    evidence = evidence_of(draw(1), GRPO())
    other = evidence_of(draw(2), GRPO())
    assert "tokens" in errors(replace(evidence, credit=other.credit), "R6")[0]


# ------------------------------------------------------------------------------------------------ algorithms of yours


def halves(inputs):
    """Something that no second implementation knows."""
    return Advantages(inputs.of_rows((inputs.reward_N > 0).double() / 2))


def test_an_estimator_of_yours_is_held_to_what_holds_for_all():
    groups = draw(9, fresh=True, unscored=1)
    evidence = evidence_of(groups, of_estimator(halves))
    found = answer(evidence, "R6")
    assert found.status == "partly checked" and "halves" in found.missing[0]
    row_T, credit = evidence.batch.trajectory_of_token_T, evidence.credit
    acting = evidence.batch.eligible_T & (credit.advantage_T != 0)
    first = int(acting.nonzero()[0])
    for changes in (
        {"weight_T": torch.where(row_T == 1, evidence.batch.eligible_T.double(), credit.weight_T)},
        {"advantage_T": credit.advantage_T.index_fill(0, torch.tensor([first]), float("nan"))},
        {"weight_T": credit.weight_T.index_fill(0, torch.tensor([first]), 0.0)},
        {"weight_T": (evidence.batch.source_T == 3).double()},
    ):
        assert errors(with_credit(evidence, **changes), "R6"), changes
    noted = answer(
        with_credit(
            evidence, advantage_T=credit.advantage_T.index_fill(0, torch.tensor([first]), 0.25)
        ),
        "R6",
    )
    assert noted.notes and not noted.errors  # tokens may be told apart on purpose


def test_declared_switches_are_no_error():
    for algorithm in (
        GRPO(masks=Masks(loss_mask=False)),
        PPO(masks=Masks(advantage_mask=False, loss_mask=False)),
        of_estimator(halves)(masks=Masks(loss_mask=False)),
    ):
        assert not errors(evidence_of(draw(3), algorithm), "R6")
    wide = evidence_of(draw(3), GRPO(masks=Masks(loss_mask=False)))
    assert errors(replace(wide, algorithm=GRPO()), "R6")  # negative control: not declared


def test_facts_are_those_of_the_batch():
    groups = draw(3)
    evidence = evidence_of(groups, PPO())
    assert errors(replace(evidence, batch=batch_of(groups, 99)), "R6")


def test_a_spread_at_the_edge_of_rounding_is_not_judged():
    """Where two honest roundings decide differently, credit that differs is neither right nor wrong."""
    for apart, judged in ((1e-9, False), (1e-8, True), (1e-10, True)):
        evidence = evidence_of(groups_of([[((1, 1.0),), ((1, 1.0 - apart),)]]), GRPO())
        assert answer(evidence, "R6").status == "passed"
        other = evidence_of(groups_of([[((1, 1.0),), ((1, 0.0),)]]), GRPO()).credit.advantage_T
        planted = with_credit(
            evidence, advantage_T=torch.where(evidence.credit.advantage_T == 0, other, 0.0)
        )
        found = answer(planted, "R6")
        assert bool(found.errors) == judged and (judged or "clearly rounding" in found.missing[0])
