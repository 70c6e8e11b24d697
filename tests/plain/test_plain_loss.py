"""Objectives, KL, value loss, weights for another sampler and reductions by `plain` and by the code that trains:
values, gradients and what a bound holds, over random tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.learning_data import tiny_model, token_entropy, token_logprobs
from workbench.learn.algorithms import objectives as ops_clip
from workbench.learn.ops.loss import (
    ESTIMATORS,
    REDUCTIONS,
    clipped_value_loss,
    kl_estimate,
    reduction,
)
from workbench.plain import loss

seeds = st.integers(0, 10**6)
bounds = st.fixed_dictionaries(
    {"low": st.sampled_from([0.0, 0.2, 1.0, 3e-4]), "high": st.sampled_from([0.0, 0.28, 4e-4])}
)


def tokens(seed: int, count: int = 40) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """logp (a leaf), old_logp, advantage, counts: ratios on both sides of every bound, a few of them absurd."""
    rng = np.random.default_rng(seed)
    old = torch.from_numpy(-rng.exponential(2.0, count))
    moved = torch.from_numpy(
        rng.choice([0.0, 1e-4, 0.1, 0.5, 1.5, 30.0], count) * rng.choice([-1, 1], count)
    )
    logp = (old + moved).requires_grad_()
    advantage = torch.from_numpy(rng.normal(size=count) * rng.choice([0, 1, 1], count))
    return logp, old, advantage, torch.from_numpy(rng.random(count) < 0.8)


def gradient(values: Tensor, leaf: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(values.sum(), leaf, retain_graph=True)
    return found


def alike(
    mine: loss.ObjectiveValue, theirs: ops_clip.Clipped, leaf: Tensor, near: float = 1e-12
) -> bool:
    """Loss, gradient, ratio and state are the same."""
    size = 1 + float(theirs.loss.detach().abs().max())
    pairs = (
        (mine.loss, theirs.loss),
        (mine.ratio, theirs.ratio),
        (gradient(mine.loss, leaf), gradient(theirs.loss, leaf)),
    )
    return all(torch.allclose(a, b, rtol=near, atol=near * size) for a, b in pairs) and torch.equal(
        mine.state.int(), theirs.state.int()
    )


@given(seeds, bounds, st.sampled_from([0.0, 1.5, 3.0]))
def test_clip_and_dual_clip(seed, bound, dual):
    logp, old, advantage, counts = tokens(seed)
    assert alike(
        loss.clip(logp, old, advantage, counts, **bound, dual=dual),
        ops_clip.clipped_surrogate(logp, old, advantage, **bound, dual=dual),
        logp,
    )


@given(seeds, bounds)
def test_gspo_one_segment_at_a_time(seed, bound):
    parts = [tokens(seed + n, 5 + 3 * n) for n in range(3)]
    logp, old, advantage, counts = (
        torch.cat([part[i] for part in parts]).detach() for i in range(4)
    )
    logp.requires_grad_()
    segment = torch.tensor([n for n, part in enumerate(parts) for _ in part[0]])
    mine = [
        loss.gspo(
            logp[segment == n],
            old[segment == n],
            advantage[segment == n],
            counts[segment == n],
            **bound,
        )
        for n in range(3)
    ]
    mine = loss.ObjectiveValue(*(torch.cat(columns) for columns in zip(*mine)))
    assert alike(
        mine, ops_clip.sequence_surrogate(logp, old, advantage, segment, counts, **bound), logp
    )


@given(seeds, bounds)
def test_cispo(seed, bound):
    logp, old, advantage, counts = tokens(seed)
    assert alike(
        loss.cispo(logp, old, advantage, counts, **bound),
        ops_clip.weighted_logprob(logp, old, advantage, **bound),
        logp,
    )


def test_at_the_first_update_the_clip_has_the_gradient_of_reinforce():
    _, old, advantage, counts = tokens(0)
    logp = old.clone().requires_grad_()
    assert torch.equal(gradient(loss.clip(logp, old, advantage, counts).loss, logp), -advantage)


@given(seeds, st.sampled_from(ESTIMATORS))
def test_kl(seed, estimator):
    logp, ref, _, _ = tokens(seed)
    mine, theirs = loss.kl(logp, ref, estimator), kl_estimate(logp, ref, estimator)
    assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)
    assert torch.allclose(gradient(mine, logp), gradient(theirs, logp), rtol=1e-12, atol=1e-12)


@given(seeds, st.sampled_from([0.0, 0.2, 0.5]))
def test_value_loss(seed, clip):
    value, old, target, _ = tokens(seed)
    mine, theirs = (
        loss.value_loss(value, old, target, clip),
        clipped_value_loss(value, old, target, clip=clip).loss,
    )
    assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)
    assert torch.allclose(gradient(mine, value), gradient(theirs, value), rtol=1e-12, atol=1e-12)


@given(seeds, st.sampled_from([0.5, 1.0, 2.0]))
def test_sampler_weight(seed, cap):
    old, rollout, _, known = tokens(seed)
    rollout = torch.where(known, rollout, torch.nan)
    assert torch.equal(
        loss.sampler_weight(old, rollout, cap), ops_clip.sampler_weight(old, rollout, cap=cap)
    )


@given(seeds, st.sampled_from(REDUCTIONS))
def test_reductions(seed, kind):
    rng = np.random.default_rng(seed)
    weights = [rng.choice([0.0, 0.0, 1.0, 0.5], rng.integers(0, 6)) for _ in range(5)]
    weight_T = torch.from_numpy(np.concatenate(weights))
    row_T = torch.tensor([n for n, own in enumerate(weights) for _ in own], dtype=torch.int64)
    length = 7 if kind == "fixed-length" else 0
    mine = np.concatenate(loss.shares(weights, kind, length))
    if not bool((weight_T != 0).any()):
        assert not mine.any()
        return
    scale_T, denominator = reduction(kind, weight_T != 0, row_T, fixed_length=length)
    assert np.allclose(mine, (weight_T * scale_T / denominator).numpy(), rtol=1e-14, atol=0)


def test_a_logprob_is_about_its_own_token():
    model, ids = tiny_model(), torch.tensor([3, 1, 4, 1, 5, 9])
    logits = model(input_ids=ids[None]).logits
    logp, entropy = loss.logprobs(model, ids)
    assert torch.isnan(logp[0]) and torch.isnan(entropy[0])
    assert torch.allclose(logp[1:], token_logprobs(logits, ids[None])[0, 1:].double(), atol=1e-5)
    assert torch.allclose(entropy[1:], token_entropy(logits, ids[None])[0, 1:].double(), atol=1e-5)


def test_a_token_that_cannot_be_has_no_part_in_the_entropy():
    class Two(nn.Module):
        """Says of every place that it is token 0 or 1, alike."""

        def forward(self, input_ids, use_cache):
            logits = torch.tensor([0.0, 0.0, -torch.inf]).expand(1, input_ids.shape[1], 3)
            return type("Output", (), {"logits": logits})

    logp, entropy = loss.logprobs(Two(), torch.tensor([0, 1, 2]))
    assert logp[1:].tolist() == [-np.log(2), -np.inf] and torch.allclose(
        entropy[1:], torch.tensor(np.log(2))
    )


# ------------------------------------------------------------------------------------------------ negative controls


def minus(logp, old, advantage, counts, **bound):
    return loss.clip(logp, old, -advantage, counts, **bound)


def the_other_way_round(logp, old, advantage, counts, **bound):
    return loss.clip(2 * old - logp, old, advantage, counts, **bound)


def never_held(logp, old, advantage, counts, **bound):
    return loss.clip(logp, old, advantage, counts, low=1.0, high=1e9)


def a_neighbours(logp, old, advantage, counts, **bound):
    return loss.clip(logp, old, advantage.roll(1), counts, **bound)


def without_gradient(logp, old, advantage, counts, **bound):
    found = loss.clip(logp, old, advantage, counts, **bound)
    return found._replace(loss=found.loss.detach() + 0.0 * logp)


@pytest.mark.parametrize(
    "wrong",
    [minus, the_other_way_round, never_held, a_neighbours, without_gradient],
    ids=lambda wrong: wrong.__name__,
)
def test_a_wrong_objective_is_noticed(wrong):
    logp, old, advantage, counts = tokens(1)
    bound = {"low": 0.2, "high": 0.28}
    theirs = ops_clip.clipped_surrogate(logp, old, advantage, **bound)
    assert alike(loss.clip(logp, old, advantage, counts, **bound), theirs, logp)
    assert not alike(wrong(logp, old, advantage, counts, **bound), theirs, logp)


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_a_wrong_denominator_is_noticed(kind):
    weights = [np.ones(3), np.array([1.0, 0.0]), np.zeros(2)]
    others = {other: np.concatenate(loss.shares(weights, other, 5)) for other in REDUCTIONS}
    assert sum(np.allclose(others[kind], other) for other in others.values()) == 1
    assert not np.allclose(others[kind], np.concatenate([own / 7 for own in weights])), (
        "by the padded length"
    )
