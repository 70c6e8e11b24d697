"""learner.layers = "native": logprobs, entropies and their gradients from the output head on are torch's up to rounding, whatever
the shapes, kept or computed once more; a head that the kernel is not for goes through torch."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForCausalLM, Gemma2Config

from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.extensions.native import scores
from workbench.extensions.native.scores import NativeHead, score_by_kernel
from workbench.learn.algorithms import GRPO
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.learn.learner import Learner
from workbench.learn.microbatch import Rows, TokenScores, output_head, scored, trained_logits
from workbench.learn.pieces import token_scores

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from learning_data import make_groups, tiny_model  # noqa: E402

NEAR = 3e-6  # of the largest number: rounding of float32
TOKENS = st.sampled_from([1, 2, 7, 33])
WORDS = st.sampled_from([2, 15, 16, 17, 50, 300])
ENTROPY = ["none", "value", "gradient"]


def numbers_of(seed, tokens, words, width=9, scale=1.0):
    """Hidden states, weights of a head, ids and the factors of a sum."""
    torch.manual_seed(seed)
    states = (scale * torch.randn(tokens, width)).requires_grad_()
    weight = torch.randn(words, width).requires_grad_()
    return states, weight, torch.randint(0, words, (tokens,)), torch.randn(2, tokens)


def by_kernel(states, weight, ids, entropy):
    head = NativeHead(states.shape[1], len(weight), bias=False)
    head.weight = nn.Parameter(weight.detach().clone())
    made = head.token_scores(states, ids, entropy)
    return made, (states, head.weight)


def by_torch(states, weight, ids, entropy):
    return scored(states @ weight.T, ids, entropy), (states, weight)


def by_torch_exactly(states, weight, ids, entropy):
    """In double precision."""
    states, weight = states.double(), weight.double()
    logits = states @ weight.T
    logp = logits.log_softmax(-1)
    of_ids = logp.gather(1, ids[:, None])[:, 0]
    return TokenScores(of_ids, -(logp.exp() * logp).sum(-1)), (states, weight)


def answer(way, seed, tokens, words, entropy, scale=1.0):
    """Scores and the gradients of a sum of them."""
    states, weight, ids, factors = numbers_of(seed, tokens, words, scale=scale)
    made, inputs = way(states, weight, ids, entropy)
    total = (factors[0] * made.logp_M).sum()
    if entropy == "gradient":
        total = total + (factors[1] * made.entropy_M).sum()
    given_back = torch.autograd.grad(total, inputs)
    return [x.detach() for x in (*made, *given_back) if x is not None], made


def assert_alike(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert float((one - other).abs().max()) <= NEAR * max(1.0, float(other.abs().max()))


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1000),
    TOKENS,
    WORDS,
    st.sampled_from(ENTROPY),
    st.sampled_from([0.0, 1.0, 30.0]),
)
def test_scores_and_gradients_are_those_of_torch(seed, tokens, words, entropy, scale):
    """No farther from double precision than torch's are: large logits cost both of them digits."""
    ours, made = answer(by_kernel, seed, tokens, words, entropy, scale)
    theirs, _ = answer(by_torch, seed, tokens, words, entropy, scale)
    exact, _ = answer(by_torch_exactly, seed, tokens, words, entropy, scale)
    exact = exact[:1] + exact[2:] if entropy == "none" else exact
    for one, other, right in zip(ours, theirs, exact, strict=True):
        near = NEAR * max(1.0, float(right.abs().max()))
        assert float((one - right).abs().max()) <= 2 * float((other - right).abs().max()) + near
    assert (made.entropy_M is None) == (entropy == "none")
    if entropy != "none":
        assert made.entropy_M.requires_grad == (entropy == "gradient")


@needs_compiler
@pytest.mark.parametrize("entropy", ENTROPY)
def test_pieces_change_nothing_but_rounding_and_threads_no_bit(monkeypatch, entropy):
    whole, _ = answer(by_kernel, 3, 33, 50, entropy)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(5)
        assert all(map(torch.equal, whole, answer(by_kernel, 3, 33, 50, entropy)[0]))
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(scores, "AT_ONCE", 4 * 50)
    assert_alike(answer(by_kernel, 3, 33, 50, entropy)[0], whole)


@needs_compiler
def test_a_second_way_back_gives_the_same_gradients():
    """The first one writes into the logits that were kept."""
    states, weight, ids, factors = numbers_of(0, 7, 50)
    made, inputs = by_kernel(states, weight, ids, "gradient")
    total = (factors[0] * made.logp_M).sum() + (factors[1] * made.entropy_M).sum()
    first = torch.autograd.grad(total, inputs, retain_graph=True)
    assert_alike(torch.autograd.grad(total, inputs), first)


@needs_compiler
def test_without_gradient_nothing_is_kept_and_frozen_weights_get_none():
    states, weight, ids, _ = numbers_of(0, 7, 50)
    head = NativeHead(9, 50, bias=False)
    head.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    head.token_scores(states, ids, "none").logp_M.sum().backward()
    assert head.weight.grad is None and states.grad is not None
    with torch.no_grad():
        assert not head.token_scores(states, ids, "value").logp_M.requires_grad


@needs_compiler
def test_what_is_not_finite_stays_in_its_row_and_what_is_impossible_has_no_part():
    states, weight, ids, _ = numbers_of(1, 6, 50)
    with torch.no_grad():
        states[2, 3] = math.nan
    made, inputs = by_kernel(states, weight, ids, "gradient")
    grad_states, _ = torch.autograd.grad((made.logp_M + made.entropy_M).sum(), inputs)
    others = [0, 1, 3, 4, 5]
    for numbers in (made.logp_M, made.entropy_M, grad_states):
        assert numbers[2].isnan().all() and not numbers[others].isnan().any()
    logits = torch.tensor([[2.0, 1.0, -math.inf]])
    log_sum, logp, entropy = torch.empty(3, 1).unbind()
    chosen = torch.tensor([1])
    numbers = [held.data_ptr() for held in (logits, chosen, log_sum, logp, entropy)]
    scores._kernel().score_forward(*numbers, 1, 3, 1)
    expected = scored(torch.tensor([[2.0, 1.0]]), torch.tensor([1]), "value")
    torch.testing.assert_close(logp, expected.logp_M)
    torch.testing.assert_close(entropy, expected.entropy_M)


@needs_compiler
@pytest.mark.parametrize("wrong", [-1, 50])
def test_an_id_beyond_the_vocabulary_is_refused(wrong):
    states, weight, ids, _ = numbers_of(1, 6, 50)
    ids[3] = wrong
    with pytest.raises(IndexError, match="not of the 50"):
        by_kernel(states, weight, ids, "none")


# ------------------------------------------------------------------------------------------------ a model, a learner


def micro_and_ids(batch):
    rows = Rows.of(batch, batch.eligible_T)
    micro = rows.build(rows.trained_segments, "cpu")
    return micro, batch.token_ids_T[micro.token_M]


@needs_compiler
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("entropy", ENTROPY)
def test_a_model_says_and_teaches_the_same(monkeypatch, tied, entropy):
    batch = Batch.from_groups(make_groups())
    micro, ids_M = micro_and_ids(batch)
    found = []
    for kernel in (False, True):
        model = tiny_model()
        if tied:
            model.lm_head.weight = model.model.embed_tokens.weight
        names = list(model.state_dict())
        if kernel:
            assert score_by_kernel(model)
            monkeypatch.setattr(NativeHead, "forward", None)  # no logits are asked for
            monkeypatch.setattr("workbench.learn.pieces._ends_with_its_head", lambda *_: True)
        made = token_scores(model, output_head(model), micro, ids_M, entropy, bf16=False)
        total = (made.logp_M * torch.linspace(-1, 1, len(ids_M))).sum()
        if entropy == "gradient":
            total = total + made.entropy_M.square().sum()
        gradients = torch.autograd.grad(total, list(model.parameters()))
        found.append([x.detach() for x in (*made, *gradients) if x is not None])
        assert list(model.state_dict()) == names
    assert_alike(found[1], found[0])


@needs_compiler
@pytest.mark.parametrize("epochs", [1, 2])
def test_an_update_of_a_learner_is_the_same(monkeypatch, epochs):
    """With old logprobs that are computed once more, and the entropy in the loss."""
    batch = Batch.from_groups(make_groups())
    algorithm = GRPO(entropy_coef=0.01, epochs=epochs)
    calls = []
    forward = scores._Scores.forward
    monkeypatch.setattr(
        scores._Scores,
        "forward",
        staticmethod(lambda ctx, *given: calls.append(len(given[0])) or forward(ctx, *given)),
    )
    weights = []
    for layers in ("torch", "native"):
        learner = Learner(tiny_model(), algorithm, LearnerConfig(lr=1e-3, layers=layers))
        reports = learner.update(batch, algorithm.credit(batch), step=1)
        assert all(report.skipped is None for report in reports)
        weights.append(learner.weights())
        assert (layers == "native") == isinstance(learner.models.head, NativeHead) == bool(calls)
    assert sum(calls) >= epochs * int(batch.eligible_T.sum())
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=5e-5, rtol=0)


def test_a_model_that_bends_its_logits_goes_through_torch():
    config = Gemma2Config(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=0.5,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    batch = Batch.from_groups(make_groups())
    micro, ids_M = micro_and_ids(batch)
    head = output_head(model)
    plain = scored(trained_logits(model, head, micro), ids_M, "value")
    head.__class__ = NativeHead
    made = token_scores(model, head, micro, ids_M, "value", bf16=False)
    assert torch.equal(made.logp_M, plain.logp_M) and torch.equal(made.entropy_M, plain.entropy_M)


@needs_compiler
@pytest.mark.parametrize("other", ["a bias", "half precision", "of another class"])
def test_another_head_is_left_as_it_is(other):
    model = tiny_model()
    width, words = model.config.hidden_size, model.config.vocab_size
    if other == "a bias":
        model.lm_head = nn.Linear(width, words)
    elif other == "half precision":
        model.lm_head.bfloat16()
    else:
        model.lm_head = type("Head", (nn.Linear,), {})(width, words, bias=False)
    assert not score_by_kernel(model) and not isinstance(model.lm_head, NativeHead)


@needs_compiler
def test_a_head_that_became_another_one_goes_through_torch():
    model = tiny_model()
    assert score_by_kernel(model)
    assert (
        model.lm_head.token_scores(torch.randn(2, 8).double(), torch.zeros(2).long(), "none")
        is None
    )
    model.lm_head.double()
    assert model.lm_head.token_scores(torch.randn(2, 8), torch.zeros(2).long(), "none") is None


@needs_compiler
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_control_a_kernel_that_computes_otherwise_is_not_taken(monkeypatch, way):
    own = getattr(scores._Scores, way)

    def bent(ctx, *given):
        made = own(ctx, *given)
        return (made[0] * 1.001, *made[1:])

    monkeypatch.setattr(scores._Scores, way, staticmethod(bent))
    model = tiny_model()
    assert not score_by_kernel(model) and not isinstance(model.lm_head, NativeHead)
