"""Sampling from a large vocabulary, by the kernel and without it, against the same with all of it sorted: the same bits.

R rows · V vocabulary.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.engines import sampling
from workbench.extensions.native import kernel as native
from workbench.extensions.nuclei import chosen, search

WAYS = [pytest.param(True, marks=needs_compiler, id="kernel"), pytest.param(False, id="search")]

VOCABULARY = 3000
ALMOST = float(np.nextafter(1.0, 0.0))
FIELDS = ("token", "logp", "plain_logp", "valid")


def logits_of(kind: str, seed: int) -> torch.Tensor:
    """[6, VOCABULARY]"""
    rng = np.random.default_rng(seed)
    logits = torch.tensor(rng.normal(size=(6, VOCABULARY)), dtype=torch.float32)
    other = torch.zeros_like(logits)
    match kind:
        case "peaked":
            return logits * 4
        case "flat":
            return logits * 0.1
        case "ties":
            return (logits * 4).round()
        case "equal":
            return other
        case "one-hot":
            other[:, seed % VOCABULARY] = 300.0
            return other
        case "holes":
            logits[:, torch.from_numpy(rng.integers(0, VOCABULARY, VOCABULARY))] = -torch.inf
            return logits * 4
        case "bfloat16":
            return (logits * 4).bfloat16()
    raise KeyError(kind)


KINDS = ("peaked", "flat", "ties", "equal", "one-hot", "holes", "bfloat16")


def asked(seed: int, top_p: float, temperature: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(temperature, top-p, uniform numbers) of six rows; one of them is sampled at another temperature, one of the numbers
    is the largest."""
    temperature_R = np.full(6, temperature)
    temperature_R[2] = 1.0
    uniform_R = np.random.default_rng(seed + 1).random(6)
    uniform_R[:2] = 0.0, ALMOST
    return temperature_R, np.full(6, top_p), uniform_R


@pytest.fixture
def by_search(monkeypatch):
    """As where there is no compiler."""
    monkeypatch.setattr(chosen, "kernel", lambda: None)


def both(logits_RV: torch.Tensor, temperature_R, top_p_R, uniform_R, compiled=True) -> list[tuple]:
    """What is sampled and the bent log-probabilities: searched, sorted."""
    results = []
    built = chosen.kernel() if compiled else None
    assert (built is not None) or not compiled
    for is_there in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "LARGE", VOCABULARY)
            patch.setattr(chosen, "kernel", lambda: built)
            patch.setattr(sampling, "has_service", lambda name, is_there=is_there: is_there)
            sampled = sampling.sample_rows(logits_RV, temperature_R, top_p_R, uniform_R)
            bent_RV = sampling.bend(logits_RV.float(), temperature_R, top_p_R)
        results.append((sampled, bent_RV))
    return results


def expect_same_bits(results: list[tuple]) -> None:
    (searched, searched_RV), (sorted_all, sorted_RV) = results
    for name in FIELDS:
        np.testing.assert_array_equal(
            getattr(searched, name).view(np.uint8), getattr(sorted_all, name).view(np.uint8), name
        )
    assert torch.equal(searched_RV.view(torch.int32), sorted_RV.view(torch.int32))


@pytest.mark.parametrize("compiled", WAYS)
@pytest.mark.parametrize("kind", KINDS)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1e-12, 1e-6, 0.05, 0.5, 0.9, 0.95, 0.999, 1 - 1e-9, ALMOST, 1.0]),
    st.sampled_from([0.01, 0.6, 1.0, 2.0, 50.0]),
)
@settings(max_examples=12, deadline=None)
def test_the_bits_are_those_of_sorting_all(kind, compiled, seed, top_p, temperature):
    expect_same_bits(both(logits_of(kind, seed), *asked(seed, top_p, temperature), compiled))


@needs_compiler
def test_rows_with_top_p_and_without_go_together():
    temperature_R, top_p_R, uniform_R = asked(0, 0.9, 0.7)
    temperature_R[1], top_p_R[3:] = 0.0, 1.0
    for kind in KINDS:
        expect_same_bits(both(logits_of(kind, 1), temperature_R, top_p_R, uniform_R))


def test_the_comparison_sees_a_search_that_stops_too_early(monkeypatch, by_search):
    """Negative control: whatever is less likely than the first bound is cut, although the nucleus goes on."""
    monkeypatch.setattr(search, "LEAST", search.LEAST[:1])
    monkeypatch.setattr(search, "ROUNDING", -1.0)
    with pytest.raises(AssertionError):
        expect_same_bits(both(logits_of("peaked", 0), *asked(0, 0.9999, 2.0), compiled=False))


def test_the_comparison_sees_a_sum_in_another_order(monkeypatch):
    """Negative control: the kept weights summed by themselves, not where they stand in the vocabulary."""
    real = search._nuclei

    def summed_alone(logp_RV, top_p_R):
        place_RK, own_RK, _ = real(logp_RV, top_p_R)
        return place_RK, own_RK, own_RK - own_RK.logsumexp(dim=-1, keepdim=True)

    monkeypatch.setattr(search, "_nuclei", summed_alone)
    with pytest.raises(AssertionError):
        for seed in range(5):
            expect_same_bits(both(logits_of("flat", seed), *asked(seed, 0.9, 1.0), compiled=False))


def test_few_tokens_are_sorted_where_few_are_likely(monkeypatch):
    """What the search is for; of a flat row all have to be."""
    counts = []
    real = np.flatnonzero

    def noted(mask):
        counts.append(int(mask.sum()))
        return real(mask)

    monkeypatch.setattr(np, "flatnonzero", noted)
    likely_V = torch.log_softmax(logits_of("peaked", 3) * 2, dim=-1)[0].numpy()
    assert len(search._nucleus(likely_V, 0.9)) < 100
    assert sum(counts) < VOCABULARY / 10
    counts.clear()
    search._nucleus(np.full(100_000, -np.log(100_000), np.float32), 0.9)
    assert counts[-1] == 100_000


@needs_compiler
def test_the_kernel_leaves_to_others_what_is_too_near_to_tell():
    """Where rounding could decide whether a token is kept, and where a uniform number meets the edge of a token."""
    asked_of: list[float] = []

    def noted(logp_V: np.ndarray, top_p: float) -> np.ndarray:
        asked_of.append(top_p)
        return search._nucleus(logp_V, top_p)

    equal_RV = torch.full((3, 1024), -np.log(1024))
    share = float(equal_RV[0, 0].double().exp())
    near = np.array([256 * share + 1e-12, 256.5 * share, 256 * share - 1e-12])
    place_RK, _ = chosen.nuclei_of(equal_RV, near, noted)
    assert asked_of == [near[0], near[2]], "256 equal tokens reach top-p, or just not"
    assert [len(set(row)) for row in place_RK.tolist()] == [257, 257, 256]

    p_RK = torch.full((3, 1000), 0.5)
    uniform_R = torch.tensor([0.25, np.nextafter(0.25, 0), ALMOST], dtype=torch.float64)
    token_R, total_R = chosen.choose(p_RK, uniform_R)
    assert token_R.tolist() == [250, 249, 999] and total_R.tolist() == [500.0] * 3


@needs_compiler
@pytest.mark.parametrize("length", [1, 63, 64, 65, 3000])
def test_a_token_is_drawn_as_by_a_running_sum(length):
    generator = torch.Generator().manual_seed(length)
    p_RK = torch.rand(200, length, generator=generator) ** 8
    p_RK[:, ::3] = 0.0
    p_RK[:, -1] += 1e-3
    uniform_R = torch.rand(200, generator=generator, dtype=torch.float64)
    uniform_R[:3] = torch.tensor([0.0, 0.5, ALMOST])
    right_R, _, total_R = sampling.inverse_cdf(p_RK, uniform_R)
    token_R, own_total_R = chosen.choose(p_RK, uniform_R)
    assert torch.equal(token_R, right_R)
    every_other = torch.stack([uniform_R, 1 - uniform_R], dim=1)[:, 0]  # not side by side in memory
    assert torch.equal(chosen.choose(p_RK, every_other)[0], right_R)
    torch.testing.assert_close(own_total_R, total_R, rtol=1e-12, atol=0)


@pytest.mark.parametrize("tokens", [1024, 1025, 1500])
def test_the_sums_of_blocks_lead_to_the_same_token(tokens):
    """Also where the last block is a short one; and without a compiler it is the engines' own way."""
    p_RV = torch.softmax(3 * torch.randn(300, tokens, generator=torch.Generator()), -1)
    whole = tokens // sampling.BLOCK * sampling.BLOCK
    blocks_RN = p_RV[:, :whole].unflatten(1, (-1, sampling.BLOCK)).sum(-1)
    sum_RN = torch.cat([blocks_RN, p_RV[:, whole:].sum(-1, keepdim=True)], -1)
    uniform_R = torch.from_numpy(np.random.default_rng(tokens).random(300))
    uniform_R[:3] = torch.tensor([0.0, 0.5, ALMOST])
    right_R, total_R = sampling.choose_of_blocks(p_RV, sum_RN, uniform_R)
    token_R, own_total_R = chosen.choose_in_blocks(p_RV, sum_RN, uniform_R)
    assert torch.equal(token_R, right_R) and torch.equal(total_R, own_total_R)


@needs_compiler
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_row_that_is_no_distribution_is_told_and_touches_no_other(broken):
    logits_RV = logits_of("peaked", 5)
    logits_RV[3, 7] = float(broken)
    arguments = asked(5, 0.9, 1.0)
    (searched, _), (sorted_all, _) = both(logits_RV, *arguments)
    assert searched.valid.tolist() == [True, True, True, False, True, True]
    others = np.array([0, 1, 2, 4, 5])
    for name in FIELDS:
        np.testing.assert_array_equal(
            getattr(searched, name)[others], getattr(sorted_all, name)[others]
        )
    for row in others:
        (alone, _), _ = both(logits_RV[[row]], *(numbers[[row]] for numbers in arguments))
        assert alone.token[0] == searched.token[row] and alone.logp[0] == searched.logp[row]


def test_without_a_compiler_there_is_no_kernel_and_nothing_is_said(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    native.kernel.cache_clear()
    assert chosen.kernel.__wrapped__() is None
    monkeypatch.setattr(chosen, "has_service", lambda name: False)
    assert chosen.kernel.__wrapped__() is None, "nor without the extension that compiles"


def test_it_is_asked_for_a_large_vocabulary_only(monkeypatch):
    """Negative control of the others: a smaller one, and another device, are sorted as before."""
    calls = []
    for name in ("draw_in_nuclei", "cut_to_nuclei"):
        real = getattr(search, name)
        monkeypatch.setattr(
            search, name, lambda *given, real=real, name=name: calls.append(name) or real(*given)
        )
    arguments = asked(0, 0.9, 1.0)
    logits_RV = torch.zeros(6, sampling.LARGE)
    sampling.sample_rows(logits_RV[:, :-1], *arguments)
    sampling.bend(logits_RV[:, :-1], *arguments[:2])
    assert calls == []
    sampling.sample_rows(logits_RV, *arguments)
    sampling.bend(logits_RV, *arguments[:2])
    assert calls == ["draw_in_nuclei", "cut_to_nuclei"]
    assert sampling._for_large("cut_to_nuclei", logits_RV.to("meta")) is None
