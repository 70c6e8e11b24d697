"""R10 and R11: each term of the loss counts sampled tokens, and the same ones for trajectories that a limit cut short."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.linting.credited import answer, changed, draw, errors, evidence_of, groups_of, updated
from workbench.learn.algorithms import GRPO, PPO, TurnPPO
from workbench.learn.algorithms.parts import Filter, Masks
from workbench.linting import Evidence
from workbench.rollouts.config import CollectConfig
from workbench.values import StopReason

ALL_TERMS = {"entropy_coef": 0.01, "reference": {"kl_coef": 0.1, "kl_in": "loss"}}
TERMS = [
    ("policy", "weight_T", "loss_over"),
    ("entropy", "entropy_weight_T", "entropy_over"),
    ("kl", "kl_weight_T", "kl_loss_over"),
    ("critic", "critic_weight_T", "critic_over"),
]


def with_credit(evidence: Evidence, **changes) -> Evidence:
    return replace(evidence, credit=replace(evidence.credit, **changes))


@settings(max_examples=20)
@given(
    st.integers(0, 300),
    st.booleans(),
    st.sampled_from(
        [PPO(**ALL_TERMS), GRPO(), TurnPPO(), GRPO(filter=Filter("within_group", attempts=2))]
    ),
)
def test_what_training_computes_passes(seed, fresh, algorithm):
    evidence = evidence_of(draw(seed, fresh=fresh, unscored=2), algorithm)
    assert not answer(evidence, "R10").findings and not answer(evidence, "R11").findings


@pytest.mark.parametrize("term, field, switch", TERMS)
def test_a_term_over_observations_is_named_unless_declared(term, field, switch):
    """Search-R1#21, RAGEN#54, unsloth#5673"""
    wide = evidence_of(draw(3), PPO(**ALL_TERMS, masks=Masks(**{switch: "response"})))
    assert not errors(wide, "R10")
    undeclared = replace(wide, algorithm=PPO(**ALL_TERMS))
    found = errors(undeclared, "R10")
    assert any(f"counts in the {term} term" in what and "it is ENV" in what for what in found)
    others = [name for name, _, _ in TERMS if name != term]
    assert not any(f"counts in the {name} term" in what for what in found for name in others)


def test_one_stray_token_is_found_at_its_place():
    evidence = evidence_of(draw(4, fresh=True), GRPO())
    token = int((evidence.batch.source_T == 3).nonzero()[1])
    weight_T = evidence.credit.weight_T.index_fill(0, torch.tensor([token]), 1.0)
    found = answer(with_credit(evidence, weight_T=weight_T), "R10").errors
    assert found[0].place == evidence.plain_trajectories.place(token) and found[0].count == 1


def test_the_tables_of_updates_are_looked_at():
    evidence = updated(draw(2), GRPO(entropy_coef=0.1))
    alone = replace(evidence, credit=None, batch=None)
    assert answer(alone, "R10").status == "passed"
    columns = dict(evidence.updates[0].table.columns)
    columns["used"] = columns["used"] | (columns["source"] == 3)
    planted = replace(
        alone,
        updates=(
            evidence.updates[0]._replace(table=replace(evidence.updates[0].table, columns=columns)),
        ),
    )
    assert any("was trained" in what for what in errors(planted, "R10"))


def test_a_reason_of_its_own():
    """Supervised fine-tuning names its exception in the credit; an algorithm of ours has to declare it."""
    evidence = evidence_of(draw(2), GRPO())
    wide = replace(
        evidence.credit,
        weight_T=evidence.batch.response_T.double(),
        widened="supervised: everything shown",
    )
    assert not errors(replace(evidence, credit=wide, algorithm=None), "R10")
    assert errors(replace(evidence, credit=wide), "R10")
    assert errors(replace(evidence, credit=replace(wide, widened=None), algorithm=None), "R10")


# ------------------------------------------------------------------------------------------------ R11


LIMITED = groups_of(
    [[((2, 1.0), (3, 2.0)), ((1, 0.5),), ((2, 3.0),)], [((1, 2.0),), ((2, 2.5),), ((1, 4.0),)]]
)
LIMITED = changed(LIMITED, 0, 1, stop_reason=StopReason.CONTEXT_FULL)


@pytest.mark.parametrize("field", ["entropy_weight_T", "kl_weight_T", "critic_weight_T"])
def test_a_trajectory_in_one_mask_and_not_in_another(field):
    """trl#4976"""
    evidence = evidence_of(LIMITED, PPO(**ALL_TERMS))
    assert not errors(evidence, "R11")
    masked = torch.where(evidence.batch.trajectory_of_token_T == 1, 0.0, evidence.credit.weight_T)
    found = answer(with_credit(evidence, **{field: masked}), "R11").errors
    assert (
        len(found) == 1
        and "a limit ended this trajectory" in found[0].what
        and found[0].place.index == 1
    )


def test_a_trajectory_that_is_left_out_silently():
    evidence = evidence_of(LIMITED, GRPO())
    masked = torch.where(evidence.batch.trajectory_of_token_T == 1, 0.0, evidence.credit.weight_T)
    dropped = with_credit(evidence, weight_T=masked)
    assert any("it ended by context_full" in what for what in errors(dropped, "R11"))
    assert not errors(
        replace(dropped, algorithm=GRPO(filter=Filter("within_group", attempts=2))), "R11"
    )


@pytest.mark.parametrize("name", ["terminated_N", "truncated_N", "context_full_N"])
def test_flags_of_the_batch(name):
    evidence = evidence_of(LIMITED, PPO())
    wrong = replace(evidence.batch, **{name: ~getattr(evidence.batch, name)})
    found = answer(replace(evidence, batch=wrong), "R11").errors
    assert [finding.count for finding in found] == [6] and found[0].what.startswith(name)


class Family:
    max_turns = 2


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"stop_reason": StopReason.MAX_TURNS}, "ended by max_turns after 1 turns; the limit is 2"),
        ({"stop_reason": StopReason.ENV_ERROR}, "counts as scored"),
        ({"turns": ()}, "without a turn"),
    ],
)
def test_stop_reasons_that_cannot_be(changes, words):
    groups = tuple(map(tuple, changed(LIMITED, 1, 0, **changes)))
    evidence = Evidence(groups, family=Family())
    assert any(words in what for what in errors(evidence, "R11"))
    assert not errors(Evidence(tuple(map(tuple, LIMITED)), family=Family()), "R11")


def test_a_limit_that_unscores():
    """A trajectory that ran out of room is taken out by calling it unscored."""
    groups = tuple(map(tuple, changed(LIMITED, 0, 1, scored=False)))
    own = Evidence(groups, collect=CollectConfig())
    assert "nothing broke" in errors(own, "R11")[0]
    assert answer(Evidence(groups), "R11").notes and not errors(
        Evidence(groups), "R11"
    )  # its outcome may have failed
