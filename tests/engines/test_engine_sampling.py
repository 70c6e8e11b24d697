"""From logits and one uniform number to a token: exact properties, no statistics. R rows, V vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TopPLogitsWarper

from workbench.engines import sampling
from workbench.engines.sampling import bend, sample_rows, uniforms
from workbench.values.seeds import rng_at, seed_of

LARGEST = float(np.nextafter(1.0, 0.0))


def draw(logits_RV, uniform_R, temperature=1.0, top_p=1.0):
    logits_RV = torch.as_tensor(logits_RV, dtype=torch.float32)
    rows = len(logits_RV)
    return sample_rows(
        logits_RV,
        np.full(rows, float(temperature)),
        np.full(rows, float(top_p)),
        np.asarray(uniform_R, dtype=np.float64),
    )


@given(st.integers(0, 2**32), st.sampled_from([0.5, 1.0, 1.7]), st.sampled_from([0.3, 0.9, 1.0]))
@settings(max_examples=25)
def test_evenly_spread_uniforms_give_every_token_its_share(seed, temperature, top_p):
    """Inverse CDF: of n evenly spread uniforms, token v gets n * p(v), give or take one."""
    count, vocab = 2000, 9
    logits_V = np.random.default_rng(seed).normal(size=vocab) * 2
    spread = (np.arange(count) + 0.5) / count
    sampled = draw(np.tile(logits_V, (count, 1)), spread, temperature, top_p)
    probability = bend(
        torch.tensor(logits_V, dtype=torch.float32)[None],
        np.array([temperature]),
        np.array([top_p]),
    )
    expected = probability[0].double().exp().numpy() * count
    assert (np.abs(np.bincount(sampled.token, minlength=vocab) - expected) <= 1.01).all()
    np.testing.assert_allclose(sampled.logp, probability[0].numpy()[sampled.token], atol=1e-6)
    plain = torch.log_softmax(torch.tensor(logits_V, dtype=torch.float32), -1).numpy()
    np.testing.assert_allclose(sampled.plain_logp, plain[sampled.token], atol=1e-6)


@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.5, 0.9, 0.99]))
@settings(max_examples=25)
def test_top_p_keeps_what_transformers_keeps(seed, top_p):
    logits_RV = torch.tensor(
        np.random.default_rng(seed).normal(size=(4, 30)) * 3, dtype=torch.float32
    )
    ours = torch.isfinite(bend(logits_RV, np.ones(4), np.full(4, top_p)))
    theirs = torch.isfinite(TopPLogitsWarper(top_p)(None, logits_RV.clone()))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("uniform", [0.0, 0.5, LARGEST])
def test_no_uniform_chooses_what_has_no_probability(uniform):
    holes = [[-np.inf, 1.0, -np.inf, 1.0, -np.inf], [0.0, -np.inf, -np.inf, -np.inf, -np.inf]]
    sampled = draw(holes, [uniform] * 2)
    assert sampled.valid.all() and sampled.token[0] in (1, 3) and sampled.token[1] == 0
    assert np.isfinite(sampled.logp).all()


def test_a_large_vocabulary_reaches_its_last_token():
    logits = np.zeros((1, 150_000))
    assert draw(logits, [LARGEST]).token[0] == 149_999
    assert draw(logits, [0.0]).token[0] == 0
    middle = draw(logits, [0.5]).token[0]
    assert abs(middle - 75_000) <= 1, "a float32 sum over so many tokens would be off by more"


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_a_large_vocabulary_is_sampled_as_a_small_one(temperature, monkeypatch):
    """In blocks the same tokens come out, with the same log-probabilities up to rounding."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(64, 2 * sampling.LARGE + 7)) * 3
    logits[:, rng.integers(0, logits.shape[1], 5000)] = -np.inf
    uniform = rng.random(64)
    uniform[:2] = (0.0, LARGEST)
    in_blocks = draw(logits, uniform, temperature)
    monkeypatch.setattr(sampling, "LARGE", logits.shape[1] + 1)
    at_once = draw(logits, uniform, temperature)
    # The last token of all is where sums that are added up in another order may end one apart.
    np.testing.assert_array_equal(np.delete(in_blocks.token, 1), np.delete(at_once.token, 1))
    np.testing.assert_allclose(in_blocks.logp[0::2], at_once.logp[0::2], atol=2e-6)
    np.testing.assert_allclose(in_blocks.plain_logp[0::2], at_once.plain_logp[0::2], atol=2e-6)
    assert in_blocks.valid.all() and np.isfinite(in_blocks.logp).all()


def test_rows_of_a_large_vocabulary_do_not_touch_each_other():
    rng = np.random.default_rng(4)
    logits = torch.tensor(rng.normal(size=(6, sampling.LARGE)), dtype=torch.float32)
    temperature = np.array([1.0, 0.5, 0.0, 1.0, 1.0, 2.0])
    top_p = np.array([1.0, 1.0, 0.5, 0.4, 1.0, 0.7])
    uniform = rng.random(6)
    logits[4, 3] = float("nan")
    together = sample_rows(logits, temperature, top_p, uniform)
    assert together.valid.tolist() == [True, True, True, True, False, True]
    for row in (0, 1, 2, 3, 5):
        alone = sample_rows(logits[[row]], temperature[[row]], top_p[[row]], uniform[[row]])
        assert alone.token[0] == together.token[row]
        assert alone.logp[0] == together.logp[row]
        assert alone.plain_logp[0] == together.plain_logp[row]


def test_greedy_takes_the_most_likely_token_and_ignores_noise_and_top_p():
    logits = np.array([[0.0, 3.0, 1.0], [5.0, 5.0, 0.0]])
    for uniform in (0.0, LARGEST):
        sampled = draw(logits, [uniform] * 2, temperature=0.0, top_p=0.5)
        assert sampled.token.tolist() == [1, 0]
        plain = torch.log_softmax(torch.tensor(logits, dtype=torch.float32), -1).numpy()
        np.testing.assert_array_equal(sampled.logp, plain[[0, 1], [1, 0]])


def test_rows_do_not_touch_each_other():
    """A row gives the same token and the same bits whatever temperature, top-p or NaN its neighbours have."""
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(6, 50)), dtype=torch.float32)
    uniform = rng.random(6)
    temperature = np.array([1.0, 0.5, 0.0, 2.0, 1.0, 1.0])
    top_p = np.array([1.0, 0.7, 1.0, 1.0, 0.4, 1.0])
    together = sample_rows(logits, temperature, top_p, uniform)
    for row in range(6):
        alone = sample_rows(logits[[row]], temperature[[row]], top_p[[row]], uniform[[row]])
        assert alone.token[0] == together.token[row]
        assert (
            alone.logp[0] == together.logp[row] and alone.plain_logp[0] == together.plain_logp[row]
        )
    spoiled = logits.clone()
    spoiled[2, 7] = float("nan")
    again = sample_rows(spoiled, temperature, top_p, uniform)
    assert again.valid.tolist() == [True, True, False, True, True, True]
    np.testing.assert_array_equal(np.delete(again.token, 2), np.delete(together.token, 2))


@pytest.mark.parametrize("row", [[np.nan, 0, 0], [np.inf, 0, 0], [-np.inf] * 3])
def test_logits_that_are_no_distribution_are_told(row):
    assert not draw([row], [0.5]).valid[0]


def test_noise_belongs_to_its_address():
    seed = seed_of(7, "engine", 3, "task", 1, 2)
    np.testing.assert_array_equal(uniforms(seed, 5), rng_at(7, "engine", 3, "task", 1, 2).random(5))
    np.testing.assert_array_equal(uniforms(seed, 5), uniforms(seed, 50)[:5])
    assert not np.array_equal(uniforms(seed, 5), uniforms(seed + 1, 5))
    assert uniforms(1, 3).tolist() == [
        0.3035680343067586,
        0.8487087496857769,
        0.1561347780434731,
    ]  # for ever
