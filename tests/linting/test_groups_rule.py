"""R7 and R8: what is compared is the same problem, and there is something to compare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.linting.credited import (
    a_trajectory,
    answer,
    draw,
    errors,
    evidence_of,
    groups_of,
    with_unscored,
)
from workbench.learn.algorithms import ALGORITHMS, GRPO, PPO, RLOO, Reinforce
from workbench.linting import Evidence
from workbench.rollouts.config import CollectConfig
from workbench.values import Message, Observation, Segment, Source, Span, Task

PAIRS = groups_of(
    [[((2, 1.0),), ((1, 0.0),), ((1, 0.5),)], [((1, 2.0),), ((2, 2.5),), ((1, 7.0),)]]
)


def edited(where: int, number: int, /, **changes) -> Evidence:
    """As tuples: what a Group would refuse can be looked at too."""
    made = [list(group) for group in PAIRS]
    made[where][number] = replace(made[where][number], **changes)
    return Evidence(tuple(map(tuple, made)))


@given(st.integers(0, 300), st.booleans())
def test_groups_that_are_collected_pass(seed, fresh):
    evidence = evidence_of(draw(seed, fresh=fresh, unscored=2), GRPO(), collect=CollectConfig())
    assert answer(evidence, "R7").status == "passed" and not errors(evidence, "R8")


OTHER = Observation((Message("user", "another problem"),))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"task": Task("task-0", "test", 9)}, "task_seed of its task is 9"),
        ({"task": Task("task-9", "test", 0)}, "id of its task is 'task-9'"),
        ({"task": Task("task-0", "test", 0, {"level": 3})}, "payload of its task"),
        ({"first_observation": OTHER}, "starts from another observation"),
        ({"attempt": 0}, "occurs twice"),
        ({"dynamics_seed": 1}, "drawn once for both"),
        (
            {
                "segments": (
                    Segment(
                        (
                            Span(Source.PROMPT, 0, [1, 2, 3]),
                            Span(Source.POLICY, 0, [4], [-1.0], sampled=True),
                        )
                    ),
                )
            },
            "its first prompt (3 tokens)",
        ),
        (
            {
                "segments": (
                    Segment(
                        (
                            Span(Source.PROMPT, 0, [1, 7]),
                            Span(Source.POLICY, 0, [4], [-1.0], sampled=True),
                        )
                    ),
                )
            },
            "they differ from token 1 on",
        ),
    ],
)
def test_a_trajectory_that_does_not_belong(changes, words):
    found = answer(edited(0, 1, **changes), "R7")
    assert any(words in finding.what for finding in found.errors), found
    assert found.errors[0].place.index == 1


def test_one_task_in_two_groups():
    twice = Evidence(
        (
            tuple(PAIRS[0]),
            tuple(
                replace(t, attempt=t.attempt + 8, dynamics_seed=t.dynamics_seed + 50)
                for t in PAIRS[0]
            ),
        )
    )
    assert "compared in two halves" in errors(twice, "R7")[0]
    renamed = Evidence(
        (
            tuple(PAIRS[0]),
            tuple(
                replace(t, task=replace(t.task, id="other"), dynamics_seed=t.dynamics_seed + 50)
                for t in PAIRS[0]
            ),
        )
    )
    assert not errors(renamed, "R7") and "two names" in answer(renamed, "R7").notes[0].what


def test_what_never_started_has_nothing_to_differ_in():
    assert not errors(edited(0, 1, first_observation=Observation(()), segments=(), turns=()), "R7")


@pytest.mark.parametrize(
    "field, values",
    [
        ("group_of_trajectory_N", [0, 0, 0, 0, 1, 1]),
        ("group_of_trajectory_N", [0, 1, 0, 1, 0, 1]),
        ("tag_N", [0] * 6),
        ("names_N", ("x",) * 6),
    ],
)
def test_a_batch_that_groups_otherwise(field, values):
    """Search-R1#88"""
    evidence = evidence_of(PAIRS, GRPO())
    made = torch.tensor(values) if isinstance(values, list) else values
    assert errors(replace(evidence, batch=replace(evidence.batch, **{field: made})), "R7")


def test_states_of_other_groups_are_not_the_same():
    groups = groups_of([[((1, 1.0, "s"),), ((1, 0.0, "s"),)], [((1, 2.0, "s"),), ((1, 2.5, "t"),)]])
    evidence = evidence_of(groups, GRPO())
    assert not errors(evidence, "R7")
    mixed = replace(evidence.batch, state_of_turn_K=torch.tensor([0, 0, 0, 1]))
    assert "state_of_turn_K[" in errors(replace(evidence, batch=mixed), "R7")[0]


# ------------------------------------------------------------------------------------------------ R8


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "ranks"])
def test_single_trajectories(name):
    """rllm#916: an error exactly where trajectories are compared."""
    groups = groups_of([[((2, 1.0),)], [((1, 2.0),)]])
    algorithm = ALGORITHMS[name]()
    compares = algorithm.min_group_size > 1
    found = errors(Evidence(tuple(map(tuple, groups)), algorithm=algorithm), "R8")
    assert bool(found) == compares, found
    assert not errors(
        Evidence(tuple(map(tuple, groups)), algorithm=Reinforce(estimator={"baseline": "none"})),
        "R8",
    )


def test_flat_and_single_groups_are_noted_with_their_share():
    groups = groups_of(
        [[((1, 1.0),), ((2, 1.0),)], [((1, 2.0),), ((1, 0.0),)], [((1, 5.0),), ((1, 3.0),)]]
    )
    notes = [
        note.what for note in answer(evidence_of(with_unscored(groups, 2, 0), GRPO()), "R8").notes
    ]
    assert any("1 of 2 groups have zero variance (50%)" in what for what in notes)
    assert any("1 of 3 groups have a single scored trajectory" in what for what in notes)


def test_rounding_that_is_trained_on():
    """Three times -0.1 is not the float -0.3; divided by a deviation it becomes an advantage."""
    groups = groups_of(
        [[((1, -0.1), (1, -0.1), (1, -0.1)), ((1, -0.3),)], [((1, 2.0),), ((1, 0.0),)]]
    )
    evidence = evidence_of(groups, GRPO())
    assert not errors(evidence, "R6")
    row_T = evidence.batch.trajectory_of_token_T
    blown = (
        torch.where(row_T == 0, -0.7, torch.where(row_T == 1, 0.7, evidence.credit.advantage_T))
        * evidence.credit.weight_T
    )
    planted = replace(evidence, credit=replace(evidence.credit, advantage_T=blown))
    assert "make it 0" in errors(planted, "R6")[0]


@pytest.mark.parametrize("algorithm", [GRPO(), GRPO(estimator={"normalize_std": False}), RLOO()])
def test_a_baseline_of_one_trajectory(algorithm):
    """PipelineRL#54: what the first trajectory earned instead of the mean."""
    evidence = evidence_of(PAIRS, algorithm)
    assert not errors(evidence, "R6")
    base_N = evidence.batch.reward_N[torch.tensor([0, 0, 0, 3, 3, 3])]
    advantage_T = (evidence.batch.reward_N - base_N)[
        evidence.batch.trajectory_of_token_T
    ] * evidence.credit.weight_T
    planted = replace(evidence, credit=replace(evidence.credit, advantage_T=advantage_T))
    assert errors(planted, "R6")
    turned = replace(
        evidence, credit=replace(evidence.credit, advantage_T=-evidence.credit.advantage_T)
    )
    assert errors(turned, "R6")


def test_what_is_missing_is_said_and_a_critic_compares_nobody():
    assert answer(Evidence(), "R8").status == "not checked"
    assert answer(Evidence(tuple(map(tuple, PAIRS))), "R8").missing
    assert not errors(evidence_of(groups_of([[((2, 1.0),)], [((1, 2.0),)]]), PPO()), "R8")
    assert a_trajectory(0, 0, ((1, 1.0),)).reward == 1.0 and np.isfinite(PAIRS[0][0].reward)
