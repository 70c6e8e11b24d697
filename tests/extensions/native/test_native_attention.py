"""learner.attention = "native": attention of packed segments by a kernel is `packed_attention` up to rounding, forward and backward,
whatever the lengths, heads and layouts; a learner's step gives the same weights; what cannot be built says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.extensions.native import kernel, packed
from workbench.learn.algorithms import GRPO
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.learn.learner import Learner
from workbench.learn.packing import Part, is_packable, make_packable, packed_attention
from workbench.values.errors import LearnerError

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from learning_data import make_groups, tiny_model  # noqa: E402

HEADS = [(1, 1), (2, 2), (4, 2), (9, 3), (3, 1), (7, 1)]


def states(seed, total, heads, size, value_size, token_first=False):
    """Queries, keys and values [heads, total, size], and what their output's gradient is."""
    torch.manual_seed(seed)
    shapes = [(heads[0], size), (heads[1], size), (heads[1], value_size), (heads[0], value_size)]
    if token_first:  # as a model's projections leave them
        made = [torch.randn(total, count, width).transpose(0, 1) for count, width in shapes]
    else:
        made = [torch.randn(count, total, width) for count, width in shapes]
    return [tensor.requires_grad_() for tensor in made[:3]], made[3]


def answers(attention, inputs, grad, parts, scale=None):
    """(output, gradients of queries, keys and values)."""
    out = attention(*inputs, parts, scale)
    return out.detach(), *torch.autograd.grad(out, inputs, grad)


def trees(prompts, tails, gap=0):
    """Groups of sequences end to end: of each a prompt, and what follows it; `gap` tokens behind each belong to none."""
    parts = []
    end = 0
    for prompt in prompts:
        first = end
        if prompt:
            parts.append(Part(first, first + prompt))
        end += prompt
        for tail in tails:
            shared = (first, first + prompt) if prompt else (0, 0)
            parts.append(Part(end, end + tail, *shared))
            end += tail + gap
    return parts, end


def worst(one, other):
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def rounding(inputs, grad, parts, scale=None):
    """What float32 may differ by: this much of the largest number of each answer."""
    exact = answers(packed_attention, inputs, grad, parts, scale)
    return 2e-6 * max(1.0, *(float(answer.abs().max()) for answer in exact)), exact


@needs_compiler
@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.sampled_from([0, 1, 5, 63, 64, 65, 130]), min_size=1, max_size=3),
    st.lists(st.integers(1, 140), min_size=1, max_size=4),
    st.sampled_from([0, 0, 3]),
    st.sampled_from(HEADS),
    st.sampled_from([(32, 32), (64, 64), (16, 16), (5, 5), (12, 20), (40, 8)]),
    st.sampled_from([None, 0.3]),
    st.booleans(),
)
def test_it_is_packed_attention_forward_and_backward(
    seed, prompts, tails, gap, heads, sizes, scale, token_first
):
    """Random lengths around the borders of tiles and blocks, shared prompts or none, tokens in no part, heads that share
    keys, sizes that fill no vector, either layout of memory."""
    parts, total = trees(prompts, tails, gap)
    inputs, grad = states(seed, total, heads, *sizes, token_first)
    near, exact = rounding(inputs, grad, parts, scale)
    own = answers(packed.native_attention, inputs, grad, parts, scale)
    assert worst(own, exact) < near


@needs_compiler
@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.sampled_from([0, 1, 63, 65]), min_size=1, max_size=2),
    st.lists(st.integers(1, 140), min_size=1, max_size=3),
    st.sampled_from([(1, 1), (4, 2), (9, 3)]),
    st.sampled_from([0.02, 0.3, 1.0]),
)
def test_of_some_tokens_it_is_what_it_is_of_all(seed, prompts, tails, heads, share):
    """Every output that is asked for, and the gradients that these alone cause."""
    parts, total = trees(prompts, tails, gap=1)
    (query, key, value), grad = states(seed, total, heads, 24, 24, token_first=True)
    place = (torch.rand(total) < share).nonzero()[:, 0]
    asked = torch.zeros(total, 1)
    asked[place] = 1.0
    near, whole = rounding([query, key, value], grad * asked, parts)
    some = query.detach()[:, place].requires_grad_()
    out = packed.attention_of(some, key, value, parts, place_Q=place)
    made = torch.autograd.grad(out, (some, key, value), grad[:, place])
    expected = [whole[0][:, place], whole[1][:, place], *whole[2:]]
    if len(place):
        assert worst([out.detach(), *made], expected) < near
    else:
        assert not any(tensor.any() for tensor in made)


@needs_compiler
@pytest.mark.parametrize("wrong", ["sees a neighbour", "misses its prompt", "one key too far"])
def test_control_another_border_is_noticed(wrong):
    parts, total = trees([20], [70, 9, 33])
    inputs, grad = states(0, total, (4, 2), 16, 16)
    near, exact = rounding(inputs, grad, parts)
    bent = {
        "sees a neighbour": [*parts[:2], parts[2]._replace(prefix_stop=21), parts[3]],
        "misses its prompt": [
            *parts[:2],
            parts[2]._replace(prefix_start=0, prefix_stop=0),
            parts[3],
        ],
        "one key too far": [*parts[:1], parts[1]._replace(prefix_start=1), *parts[2:]],
    }[wrong]
    assert worst(answers(packed.native_attention, inputs, grad, bent), exact) > 100 * near


@needs_compiler
def test_threads_change_no_bit():
    parts, total = trees([30, 7], [90, 12, 40])
    inputs, grad = states(1, total, (9, 3), 32, 32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = answers(packed.native_attention, inputs, grad, parts)
        torch.set_num_threads(5)
        together = answers(packed.native_attention, inputs, grad, parts)
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, alone, together))


@needs_compiler
def test_large_scores_and_numbers_that_are_not_finite():
    """Weights that are one key's alone; and a NaN stays in the sequence that has it."""
    parts, total = trees([0, 0], [70])
    inputs, grad = states(2, total, (2, 1), 16, 16)
    with torch.no_grad():
        inputs[0] *= 60
    near, exact = rounding(inputs, grad, parts)
    assert worst(answers(packed.native_attention, inputs, grad, parts), exact) < 20 * near
    with torch.no_grad():
        inputs[2][:, 3] = float("nan")
    out, *gradients = answers(packed.native_attention, inputs, grad, parts)
    assert out[:, 5:70].isnan().all() and not out[:, 70:].isnan().any()
    assert not any(gradient[:, 70:].isnan().any() for gradient in gradients)


def test_trees_are_what_looks_at_the_same_tokens():
    parts, total = trees([4, 0, 3], [2, 5])
    _, begins = packed._trees(tuple(parts))
    assert begins.tolist() == [0, 3, 4, 5, 8]
    # A prompt that is a piece of another sequence, and one that nobody trains.
    odd = (Part(0, 10), Part(10, 12, 20, 23), Part(12, 15, 2, 5), Part(15, 18, 22, 25))
    ordered, begins = packed._trees(odd)
    assert begins.tolist() == [0, 2, 4] and ordered[:, 0].tolist() == [0, 12, 10, 15]


# ------------------------------------------------------------------------------------------------ a model, a learner


def learner_of(attention, **others):
    config = LearnerConfig(lr=1e-3, eps=1e-3, attention=attention, **others)
    return Learner(tiny_model(), GRPO(), config)


@needs_compiler
@pytest.mark.parametrize(
    "others", [{}, dict(micro_batch_tokens=30), dict(precision="bf16")], ids=str
)
def test_a_step_of_a_learner_gives_the_same_weights(others):
    batch = Batch.from_groups(make_groups(tasks=2, attempts=3, turns=3, widest=9))
    near = 5e-5 if others.get("precision") else 1e-6  # where everything around it rounds to bf16
    ways = [learner_of(attention, **others) for attention in ("torch", "native")]
    for learner in ways:
        credit = learner.algorithm.credit(batch)
        reports = learner.update(batch, credit, step=1) + learner.update(batch, credit, step=2)
        assert [report.skipped for report in reports] == [None, None]
    first, second = ways
    assert second.models.policy.module.config._attn_implementation == packed.NATIVE
    start = tiny_model().state_dict()
    for name, weight in first.weights().items():
        torch.testing.assert_close(second.weights()[name], weight, rtol=0, atol=near)
    assert any(float((first.weights()[name] - start[name]).abs().max()) > 1e-4 for name in start)


@needs_compiler
@pytest.mark.parametrize("wrong", ["the way back", "the neighbour"])
def test_control_the_probe_finds_a_wrong_kernel(wrong, monkeypatch):
    """What packs a model tries it first: a model whose answers would be others gets padded rows."""
    straight = packed._NativeAttention
    if wrong == "the way back":
        way = straight.backward
        monkeypatch.setattr(
            straight, "backward", staticmethod(lambda ctx, grad: way(ctx, grad * 1.01))
        )
    else:
        way = packed._trees

        def bent(parts):
            return way(tuple(p._replace(prefix_start=0, prefix_stop=p.start) for p in parts))

        monkeypatch.setattr(packed, "_trees", bent)
    model = tiny_model()
    assert not make_packable(model, "fp32", packed.native_packing()) and not is_packable(model)


@needs_compiler
def test_outside_of_a_packed_pass_a_model_attends_as_ever():
    model = tiny_model()
    ids = torch.arange(20)[None] % 50
    with torch.no_grad():
        before = model(input_ids=ids).logits
        assert make_packable(model, "fp32", packed.native_packing())
        assert torch.equal(model(input_ids=ids).logits, before)


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernel.kernel.cache_clear()
    try:
        with pytest.raises(LearnerError, match="no C\\+\\+ compiler.*learner.attention = 'torch'"):
            learner_of("native")
    finally:
        kernel.kernel.cache_clear()
    learner_of("torch")


def test_padded_rows_do_not_ask_it():
    def dead(**settings):
        return {one.name: one.why for one in LearnerConfig(**settings).inert_settings() if one.dead}

    assert "layout = 'auto'" in dead(attention="native", layout="padded")["attention"]
    assert "attention" not in dead(attention="native") and "attention" not in dead(layout="padded")
