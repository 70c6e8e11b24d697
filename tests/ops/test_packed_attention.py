"""Packed attention equals the masked one of the definition, forward and backward; blocks and layout do not matter.

Torch's variable-length kernel runs on GPUs only: here a loop with its meaning stands in for it, so what is tested is what
it is asked (which keys, which lengths), not the kernel.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_data import loop_for_varlen

import workbench.learn.packing as module
from workbench.learn.packing import Part, packed_attention
from workbench.learn.varlen import varlen_attention
from workbench.values.errors import LearnerError


def states(
    total: int,
    heads: int,
    key_heads: int,
    size: int,
    dtype=torch.float64,
    value_size: int | None = None,
):
    torch.manual_seed(total)
    return [
        torch.randn(h, total, width, dtype=dtype, requires_grad=True)
        for h, width in ((heads, size), (key_heads, size), (key_heads, value_size or size))
    ]


def by_definition(query, key, value, parts, scale=None):
    """One big mask over all tokens, keys repeated for the heads that share them."""
    total, shared = query.shape[1], query.shape[0] // key.shape[0]
    mask = torch.zeros(total, total, dtype=torch.bool)
    for part in parts:
        mask[part.start : part.stop, part.prefix_start : part.prefix_stop] = True
        mask[part.start : part.stop, part.start : part.stop] = (
            torch.ones(part.stop - part.start, part.stop - part.start).tril().bool()
        )
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(shared, 0),
        value.repeat_interleave(shared, 0),
        attn_mask=mask,
        scale=scale,
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 12),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), max_size=2),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.sampled_from([1, 4, 64]),
    st.sampled_from([None, 0.3]),
    st.sampled_from([5, 2, 8]),
)
def test_equals_the_definition_forward_and_backward(
    prefix, tails, alone, heads, block, scale, value_size
):
    """`tails` share one prefix, `alone` have none. float32 inside: to 1e-5."""
    parts = [Part(0, prefix)]
    for tail in tails:
        parts.append(Part(parts[-1].stop, parts[-1].stop + tail, 0, prefix))
    for length in alone:
        parts.append(Part(parts[-1].stop, parts[-1].stop + length))
    inputs = states(parts[-1].stop, *heads, 5, value_size=value_size)
    kept, module.BLOCK = module.BLOCK, block
    try:
        out = packed_attention(*inputs, parts, scale)
        weight = torch.randn(out.shape, dtype=out.dtype)
        found = torch.autograd.grad(out, inputs, weight)
    finally:
        module.BLOCK = kept
    expected = by_definition(*inputs, parts, scale)
    assert out.dtype == torch.float64 and (out - expected).abs().max() < 1e-5
    for mine, theirs in zip(found, torch.autograd.grad(expected, inputs, weight)):
        assert mine.dtype == theirs.dtype and (mine - theirs).abs().max() < 2e-5


def test_a_shared_beginning_gets_the_sum_of_the_gradients():
    """Two trajectories on one prompt equal two whole sequences, and the prompt's gradient is the sum over both."""
    query, key, value = states(11, 2, 1, 4, torch.float32)
    shared = [Part(0, 5), Part(5, 8, 0, 5), Part(8, 11, 0, 5)]
    weight = torch.randn(2, 11, 4)
    weight[:, :5] = 0  # nothing is asked of the prompt itself
    found = torch.autograd.grad(packed_attention(query, key, value, shared), (key, value), weight)
    total = [torch.zeros_like(g) for g in found]
    for own in (slice(5, 8), slice(8, 11)):
        pick = torch.cat([torch.arange(5), torch.arange(own.start, own.stop)])
        q, k, v = (t[:, pick] for t in (query, key, value))
        parts = [Part(0, len(pick))]
        for mine, theirs in zip(
            total, torch.autograd.grad(packed_attention(q, k, v, parts), (k, v), weight[:, pick])
        ):
            mine[:, pick] += theirs
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, total))


def test_zero_gradients_stay_exactly_zero():
    """A zero-variance group must teach nothing at all, not even rounding."""
    inputs = states(9, 2, 2, 4, torch.float32)
    out = packed_attention(*inputs, [Part(0, 4), Part(4, 9, 0, 4)])
    assert not any(g.any() for g in torch.autograd.grad(out, inputs, torch.zeros_like(out)))


def test_under_autocast_the_weights_are_those_of_float32():
    inputs = [t.detach().bfloat16() for t in states(40, 2, 1, 8, torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        out = packed_attention(*inputs, [Part(0, 40)])
    exact = by_definition(*(t.double() for t in inputs), [Part(0, 40)])
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, exact.float().bfloat16()) or (out.double() - exact).abs().max() < 0.01


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 12),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), max_size=2),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.sampled_from([None, 0.3]),
)
def test_the_variable_length_kernel_is_asked_for_the_same(prefix, tails, alone, heads, scale):
    """bfloat16 in and out: within its rounding of the definition, forward and backward."""
    parts = [Part(0, prefix)]
    for tail in tails:
        parts.append(Part(parts[-1].stop, parts[-1].stop + tail, 0, prefix))
    for length in alone:
        parts.append(Part(parts[-1].stop, parts[-1].stop + length))
    inputs = [
        t.detach().bfloat16().requires_grad_()
        for t in states(parts[-1].stop, *heads, 8, torch.float32)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.varlen.varlen_attn", loop_for_varlen)
        out = varlen_attention(*inputs, parts, scale)
        weight = torch.randn(out.shape, dtype=out.dtype)
        found = torch.autograd.grad(out, inputs, weight)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    expected = by_definition(*exact, parts, scale)
    assert out.dtype == torch.bfloat16 and (out.double() - expected).abs().max() < 0.03
    for mine, theirs in zip(found, torch.autograd.grad(expected, exact, weight.double())):
        assert (mine.double() - theirs).norm() <= 0.03 * theirs.norm() + 1e-3


def test_a_kernel_that_knows_no_word_for_shared_keys_is_asked_without_it(monkeypatch):
    """As torch 2.11 has it. With the word that would be an error, and every model whose queries share keys would be padded."""
    inputs = states(6, 4, 2, 8, torch.bfloat16)

    def older(query, key, *rest, scale=None, window_size=(-1, -1)):
        given = {"scale": scale, "window_size": window_size, "enable_gqa": True}
        return loop_for_varlen(query, key, *rest, **given)

    outs = []
    for kernel in (loop_for_varlen, older):
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
        outs.append(varlen_attention(*inputs, [Part(0, 6)]))
    assert torch.equal(*outs)
    with pytest.raises(TypeError, match="enable_gqa"):
        older(*inputs, enable_gqa=True)


@pytest.mark.parametrize(("dtype", "value_size"), [(torch.float32, 8), (torch.bfloat16, 4)])
def test_what_the_variable_length_kernel_does_not_take_is_said(dtype, value_size):
    with pytest.raises(LearnerError, match="takes half precision and one head size"):
        varlen_attention(*states(5, 2, 1, 8, dtype, value_size), [Part(0, 5)])
