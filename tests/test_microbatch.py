"""Micro-batches: the cheap way through the model equals the plain one, for every family of models."""
from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from learning_data import VOCAB, make_groups, tiny_model

from workbench.batch import Batch
from workbench.errors import LearnerError
from workbench.microbatch import PADDING_ID, Rows, cut, output_head, trained_logits
from workbench.ops.shift import logprobs_of, token_logprobs

COMMON = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3)
FAMILIES = {
    "qwen2": ("Qwen2", COMMON),
    "qwen3": ("Qwen3", COMMON | {"head_dim": 8}),
    "llama": ("Llama", COMMON),
    "gemma": ("Gemma", COMMON | {"head_dim": 8}),
    "gemma2-softcap": ("Gemma2", COMMON | {"head_dim": 8, "final_logit_softcapping": 3.0, "sliding_window": 4}),
    "mistral-window": ("Mistral", COMMON | {"sliding_window": 4}),
    "gpt2-dropout": ("GPT2", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=512,
                                  initializer_range=0.3, resid_pdrop=0.3, embd_pdrop=0.3, attn_pdrop=0.3)),
}


def family(name: str):
    architecture, settings = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(**settings)
    return transformers.AutoModelForCausalLM.from_config(config).float().eval()


def naive(model, batch: Batch, weights_T: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One segment at a time, unpadded, all logits: what everything else is measured against."""
    model.zero_grad()
    logp = []
    for low, high in zip(batch.segment_offsets[:-1].tolist(), batch.segment_offsets[1:].tolist()):
        ids = batch.token_ids_T[None, low:high]
        logp.append(token_logprobs(model(input_ids=ids).logits, ids)[0])
    logp_T = torch.cat(logp)
    torch.where(weights_T != 0, logp_T * weights_T, 0.0).sum().backward()
    return logp_T.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def cheap(model, batch: Batch, weights_T: torch.Tensor, budget: int, *, sort: bool = True):
    model.zero_grad()
    rows = Rows.of(batch, weights_T != 0)
    logp_T = torch.full((batch.num_tokens,), float("nan"))
    for segments in cut(rows.length_S, rows.trained_segments, budget, sort=sort):
        micro = rows.build(segments, "cpu")
        logp_M = logprobs_of(trained_logits(model, output_head(model), micro), batch.token_ids_T[micro.token_M])
        (logp_M * weights_T[micro.token_M]).sum().backward()
        logp_T[micro.token_M] = logp_M.detach()
    return logp_T, {name: p.grad.clone() for name, p in model.named_parameters()}


def relative_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    difference = torch.cat([(a[k] - b[k]).reshape(-1) for k in a]).double().norm()
    return float(difference / torch.cat([a[k].reshape(-1) for k in a]).double().norm())


def weights_for(batch: Batch) -> torch.Tensor:
    return batch.eligible_T * torch.linspace(-1.0, 1.5, batch.num_tokens)


@pytest.mark.parametrize("name", FAMILIES)
def test_logprobs_and_gradient_equal_the_plain_full_forward(name):
    """fp32: logprobs to 2e-5, gradient to 1e-5 of its norm; padding, cutting and the output head change nothing."""
    model, batch = family(name), Batch.from_groups(make_groups(tasks=2, attempts=3, turns=3))
    weights_T = weights_for(batch)
    logp_T, gradient = naive(model, batch, weights_T)
    found_T, found = cheap(model, batch, weights_T, budget=80)
    trained_T = weights_T != 0
    assert (found_T - logp_T)[trained_T].abs().max() < 2e-5
    assert found_T[~trained_T].isnan().all()
    assert relative_difference(gradient, found) < 1e-5


def test_negative_control_a_neighbouring_position_is_noticed(monkeypatch):
    """Read the logits one place further to the right, as if the shift were forgotten: the comparison above fails."""
    import workbench.microbatch as module
    monkeypatch.setattr(module, "scoring_position", lambda position: (position - 1).clamp(min=1) - 1)
    model, batch = family("qwen3"), Batch.from_groups(make_groups(tasks=2, attempts=3, turns=3))
    weights_T = weights_for(batch)
    logp_T, gradient = naive(model, batch, weights_T)
    found_T, found = cheap(model, batch, weights_T, budget=80)
    assert (found_T - logp_T)[weights_T != 0].abs().max() > 0.1 and relative_difference(gradient, found) > 0.1


def test_negative_control_dropout_would_be_noticed():
    """The families above hold because dropout is off: with it on, the same comparison is far out."""
    model, batch = family("gpt2-dropout").train(), Batch.from_groups(make_groups(tasks=2, attempts=2))
    logp_T, _ = naive(model, batch, weights_for(batch))
    again_T, _ = naive(model, batch, weights_for(batch))
    assert (again_T - logp_T)[batch.eligible_T].abs().max() > 0.1


def test_what_fills_the_padding_does_not_matter(monkeypatch):
    """Bit for bit: nothing that is trained can see it."""
    import workbench.microbatch as module
    model, batch = tiny_model(), Batch.from_groups(make_groups())
    straight = cheap(model, batch, weights_for(batch), budget=10_000)
    monkeypatch.setattr(module, "PADDING_ID", PADDING_ID + 7)
    other = cheap(model, batch, weights_for(batch), budget=10_000)
    assert torch.equal(straight[0].nan_to_num(), other[0].nan_to_num())
    assert all(torch.equal(straight[1][k], other[1][k]) for k in straight[1])


def test_a_row_ends_before_its_last_trained_token():
    batch = Batch.from_groups(make_groups(tasks=1, attempts=2))
    rows = Rows.of(batch, batch.eligible_T)
    for s in range(batch.num_segments):
        low, high = batch.segment_offsets[s:s + 2].tolist()
        assert int(rows.length_S[s]) == int(batch.eligible_T[low:high].nonzero()[-1])
    assert (rows.length_S < batch.segment_lengths_S).all()


def test_segments_without_a_trained_token_are_left_out():
    batch = Batch.from_groups(make_groups(tasks=1, attempts=3, fresh=True))
    trained_T = batch.eligible_T & (batch.segment_of_token_T != 2)
    assert Rows.of(batch, trained_T).trained_segments == [0, 1, 3, 4, 5]
    assert Rows.of(batch, torch.zeros_like(trained_T)).trained_segments == []


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200), st.booleans())
def test_cut_gives_every_segment_once_within_the_budget(lengths, budget, sort):
    length_S = torch.tensor(lengths)
    pieces = cut(length_S, range(len(lengths)), budget, sort=sort)
    assert sorted(s for piece in pieces for s in piece) == list(range(len(lengths)))
    for piece in pieces:
        assert len(piece) == 1 or len(piece) * max(lengths[s] for s in piece) <= budget


def test_sorting_by_length_saves_padding():
    lengths = torch.tensor([10, 100] * 8)

    def padded(sort: bool) -> int:
        return sum(len(piece) * int(lengths[piece].max()) for piece in cut(lengths, range(16), 400, sort=sort))

    assert (padded(True), padded(False)) == (880, 1600)


def test_an_empty_micro_batch_touches_every_parameter_with_zero():
    """A process with nothing to do takes part in the reduction all the same."""
    model, batch = tiny_model(), Batch.from_groups(make_groups())
    micro = Rows.of(batch, batch.eligible_T).build([], "cpu")
    trained_logits(model, output_head(model), micro).sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_a_head_that_is_not_the_head_is_refused():
    model, batch = tiny_model(), Batch.from_groups(make_groups())
    micro = Rows.of(batch, batch.eligible_T).build([0], "cpu")
    with pytest.raises(LearnerError, match="output head"):
        trained_logits(model, torch.nn.Linear(4, 4), micro)
    with pytest.raises(LearnerError, match="output embedding"):
        output_head(model.model)
