"""Micro-batches: the cheap way through the model equals the plain one, for every family of models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_data import VOCAB, loop_for_varlen, make_groups, tiny_model, token_logprobs

from tests.engines.engine_models import LATENT
from workbench.learn.algorithms import GRPO
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.learn.learner import Learner
from workbench.learn.microbatch import PADDING_ID, Rows, cut, output_head, trained_logits
from workbench.learn.ops.loss import logprobs_of
from workbench.learn.packing import is_packable, make_packable
from workbench.learn.varlen import varlen_attention
from workbench.values import Group, Segment
from workbench.values.errors import LearnerError

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    initializer_range=0.3,
)
FAMILIES = {
    "qwen2": ("Qwen2", COMMON),
    "qwen3": ("Qwen3", COMMON | {"head_dim": 8}),
    "llama": ("Llama", COMMON),
    "gemma": ("Gemma", COMMON | {"head_dim": 8}),
    "gemma2-softcap": (
        "Gemma2",
        COMMON | {"head_dim": 8, "final_logit_softcapping": 3.0, "sliding_window": 4},
    ),
    "mistral-window": ("Mistral", COMMON | {"sliding_window": 4}),
    # Keys of 12 numbers, values of 6; one dense layer, one of experts.
    "deepseek-latent": (
        "DeepseekV3",
        COMMON | LATENT | dict(bos_token_id=1, eos_token_id=2),
    ),
    "gpt2-dropout": (
        "GPT2",
        dict(
            vocab_size=VOCAB,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=512,
            initializer_range=0.3,
            resid_pdrop=0.3,
            embd_pdrop=0.3,
            attn_pdrop=0.3,
        ),
    ),
}


def family(name: str):
    architecture, settings = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(**settings)
    return transformers.AutoModelForCausalLM.from_config(config).float().eval()


def naive(
    model, batch: Batch, weights_T: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One segment at a time, unpadded, all logits: what everything else is measured against."""
    model.zero_grad()
    logp = []
    for low, high in zip(batch.segment_offsets[:-1].tolist(), batch.segment_offsets[1:].tolist()):
        ids = batch.token_ids_T[None, low:high]
        logp.append(token_logprobs(model(input_ids=ids).logits, ids)[0])
    logp_T = torch.cat(logp)
    torch.where(weights_T != 0, logp_T * weights_T, 0.0).sum().backward()
    return logp_T.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def cheap(model, batch: Batch, weights_T: torch.Tensor, budget: int):
    model.zero_grad()
    rows = Rows.of(batch, weights_T != 0)
    logp_T = torch.full((batch.num_tokens,), float("nan"))
    packed = is_packable(model)
    for segments in rows.cut(rows.trained_segments, budget, packed=packed):
        micro = rows.build(segments, "cpu", packed=packed)
        logp_M = logprobs_of(
            trained_logits(model, output_head(model), micro), batch.token_ids_T[micro.token_M]
        )
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


def of_one_prompt(groups: list[Group]) -> Batch:
    """The trajectories of a group begin with the same prompt, as they do in life; what follows it is their own."""

    def begun(trajectory, first):
        prompt = tuple(span for span in first.segments[0].spans[:2])
        return replace(
            trajectory,
            segments=tuple(
                Segment((*prompt, *segment.spans[2:])) if index == 0 else segment
                for index, segment in enumerate(trajectory.segments)
            ),
        )

    return Batch.from_groups(
        [Group(tuple(begun(t, group.trajectories[0]) for t in group)) for group in groups]
    )


@pytest.mark.parametrize(
    "name", ["qwen2", "qwen3", "llama", "gemma", "gpt2-dropout", "deepseek-latent"]
)
@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
@pytest.mark.parametrize("budget", [1, pytest.param(90, marks=pytest.mark.full), 10_000])
def test_packed_segments_give_the_plain_logprobs_and_gradient(name, fresh, budget):
    """Shared prompts pass once, and nothing changes: fp32 logprobs to 2e-5, gradient to 1e-5 of its norm."""
    model = family(name)
    batch = of_one_prompt(make_groups(tasks=2, attempts=3, turns=3, fresh=fresh, widest=9))
    weights_T = weights_for(batch)
    logp_T, gradient = naive(model, batch, weights_T)
    assert make_packable(model) and is_packable(model)
    found_T, found = cheap(model, batch, weights_T, budget)
    trained_T = weights_T != 0
    assert (found_T - logp_T)[trained_T].abs().max() < 2e-5 and found_T[~trained_T].isnan().all()
    assert relative_difference(gradient, found) < 1e-5


def test_a_prompt_of_a_group_stands_once_in_a_packed_micro_batch():
    batch = of_one_prompt(make_groups(tasks=2, attempts=3, turns=2))
    rows = Rows.of(batch, batch.eligible_T)
    packed = rows.build(rows.trained_segments, "cpu", packed=True)
    prompts = {int(s): int(p) for s, p in zip(rows.same_prompt_S, rows.prompt_S)}
    assert len(prompts) == 2
    expected = int((rows.length_S - rows.prompt_S).sum()) + sum(prompts.values())
    assert packed.input_ids_BL.shape == packed.position_ids_BL.shape == (1, expected)
    # Every segment can be read off it: the prompt that it names, then its own part.
    for segment, part in zip(rows.trained_segments, [p for p in packed.parts if p.prefix_stop]):
        ids = torch.cat(
            [
                packed.input_ids_BL[0, part.prefix_start : part.prefix_stop],
                packed.input_ids_BL[0, part.start : part.stop],
            ]
        )
        start = int(batch.segment_offsets[segment])
        assert torch.equal(ids, batch.token_ids_T[start : start + int(rows.length_S[segment])])


@given(st.integers(0, 10_000), st.integers(1, 300), st.booleans())
@settings(max_examples=30, deadline=None)
def test_packed_micro_batches_hold_every_segment_once_within_the_budget(seed, budget, fresh):
    batch = of_one_prompt(make_groups(seed, tasks=3, attempts=3, fresh=fresh))
    rows = Rows.of(batch, batch.eligible_T)
    pieces = rows.cut(rows.trained_segments, budget, packed=True)
    assert sorted(s for piece in pieces for s in piece) == rows.trained_segments
    for piece in pieces:
        assert (
            len(piece) == 1 or rows.build(piece, "cpu", packed=True).input_ids_BL.numel() <= budget
        )


def test_a_packed_micro_batch_is_refused_by_a_model_that_would_mix_its_segments():
    batch = of_one_prompt(make_groups(tasks=1, attempts=2))
    rows, model = Rows.of(batch, batch.eligible_T), tiny_model()
    micro = rows.build(rows.trained_segments, "cpu", packed=True)
    with pytest.raises(LearnerError, match="cannot keep its segments apart"):
        trained_logits(model, output_head(model), micro)


@pytest.mark.parametrize("name", ["gemma2-softcap", "mistral-window"])
def test_models_with_attention_of_their_own_kind_are_not_packed(name):
    model = family(name)
    assert not make_packable(model) and not is_packable(model)
    assert model.config._attn_implementation in ("sdpa", "eager")  # as it was


def seeing_all_before(attention):
    """The same attention, but that every part begins with all that stands before it."""

    def wrong(q, k, v, parts, scale):
        bent = [part._replace(prefix_start=0, prefix_stop=part.start) for part in parts]
        return attention(q, k, v, bent, scale)

    return wrong


def test_negative_control_a_packed_segment_that_sees_its_neighbour_is_noticed(monkeypatch):
    """The probe says no."""
    import workbench.learn.packing as module

    straight = module.packed_attention
    monkeypatch.setattr(module, "packed_attention", seeing_all_before(straight))
    assert not make_packable(family("qwen3"))


def test_rounding_of_large_logits_is_no_difference(monkeypatch):
    """Pretrained models have log-probabilities of 40 nats and more, and more rounding; a neighbour is noticed there too."""
    import workbench.learn.packing as module

    def with_large_logits():
        model = family("qwen3")
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(200)
        return model

    probe = module._Probe(with_large_logits())
    assert float(probe.ask(packed=False, half=False)[0].abs().max()) > 200
    # Rounding that large policies have: a few times 1e-6 of the states, here added on purpose.
    straight = module.packed_attention

    def rounded(q, k, v, parts, scale):
        out = straight(q, k, v, parts, scale)
        return out * (1 + 1e-5 * torch.sin(torch.arange(out.numel()).view(out.shape) * 1.7))

    monkeypatch.setattr(module, "packed_attention", rounded)
    assert make_packable(with_large_logits())
    monkeypatch.setattr(module, "packed_attention", seeing_all_before(straight))
    assert not make_packable(with_large_logits())


@pytest.mark.parametrize("broken", ["only the gradient", "only behind the first block"])
def test_negative_control_what_the_probe_must_reach_is_noticed(broken, monkeypatch):
    """The way back, and sequences longer than one block of queries."""
    import workbench.learn.packing as module

    if broken == "only the gradient":
        straight = module._PackedAttention.backward
        monkeypatch.setattr(
            module._PackedAttention,
            "backward",
            staticmethod(lambda ctx, grad: straight(ctx, grad * 1.01)),
        )
    else:
        blocks = module._blocks
        monkeypatch.setattr(
            module,
            "_blocks",
            lambda part: (
                (first, last, seen - 1 if first == part.start + module.BLOCK else seen)
                for first, last, seen in blocks(part)
            ),
        )
    assert not make_packable(family("deepseek-latent"))


@pytest.mark.parametrize(
    ("kernel", "agrees"),
    [("as it is", True), ("sees the neighbours", False), ("wrong way back", False)],
)
def test_the_probe_in_half_precision(kernel, agrees, monkeypatch):
    """On a GPU packed passes must be as near to float32 as plain ones in half precision; a loop stands in for the kernel."""
    import workbench.learn.packing as module

    def bent(query, key, value, parts, scale):
        if kernel == "sees the neighbours":
            parts = [part._replace(prefix_start=0, prefix_stop=part.start) for part in parts]
        out = varlen_attention(query, key, value, parts, scale)
        return out * 1.1 - (out * 0.1).detach() if kernel == "wrong way back" else out

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", loop_for_varlen)
    monkeypatch.setattr(module, "packed_attention", bent)
    model = family("qwen3")
    model.set_attn_implementation(module.PACKED)
    assert module._agrees(model, bf16=True) == agrees
    monkeypatch.setattr(module, "packed_attention", varlen_attention)
    model.set_attn_implementation("sdpa")
    assert not make_packable(model), "float32 is not what the kernel takes: the rows are padded"


@pytest.mark.parametrize("layout", ["auto", "padded"])
def test_a_model_of_latent_attention_is_trained(layout):
    """Two updates, packed and padded: the same weights, up to rounding."""
    batch = of_one_prompt(make_groups(tasks=2, attempts=3, turns=2))
    algorithm = GRPO()
    config, model = LearnerConfig(lr=1e-3, eps=1e-3, layout=layout), family("deepseek-latent")
    learner = Learner(model, algorithm, config, own_copy=False)
    assert is_packable(model) == (layout == "auto")
    plain = Learner(
        family("deepseek-latent"), algorithm, replace(config, layout="padded", micro_batch_tokens=1)
    )
    for step in (1, 2):
        for each in (learner, plain):
            assert each.update(batch, algorithm.credit(batch), step=step)
    moved, still = learner.weights(), family("deepseek-latent").state_dict()
    assert any(not torch.equal(moved[name], still[name]) for name in moved)
    for name, weight in plain.weights().items():
        torch.testing.assert_close(moved[name], weight, rtol=0, atol=1e-5)


def test_outside_of_a_packed_pass_a_packable_model_attends_as_ever():
    """Padding on the left, with its mask: bit for bit what transformers' own attention gives."""
    model, ids_BL = family("qwen3"), torch.arange(24).view(2, 12) % VOCAB
    mask_BL = torch.ones_like(ids_BL)
    mask_BL[1, :5] = 0
    with torch.no_grad():
        before = model(input_ids=ids_BL, attention_mask=mask_BL).logits
        assert make_packable(model)
        assert torch.equal(model(input_ids=ids_BL, attention_mask=mask_BL).logits, before)


def test_negative_control_a_neighbouring_position_is_noticed(monkeypatch):
    """Read the logits one place further to the right, as if the shift were forgotten: the comparison above fails."""
    import workbench.learn.microbatch as module

    monkeypatch.setattr(
        module, "scoring_position", lambda position: (position - 1).clamp(min=1) - 1
    )
    model, batch = family("qwen3"), Batch.from_groups(make_groups(tasks=2, attempts=3, turns=3))
    weights_T = weights_for(batch)
    logp_T, gradient = naive(model, batch, weights_T)
    found_T, found = cheap(model, batch, weights_T, budget=80)
    assert (found_T - logp_T)[weights_T != 0].abs().max() > 0.1 and relative_difference(
        gradient, found
    ) > 0.1


def test_negative_control_dropout_would_be_noticed():
    """The families above hold because dropout is off: with it on, the same comparison is far out."""
    model, batch = (
        family("gpt2-dropout").train(),
        Batch.from_groups(make_groups(tasks=2, attempts=2)),
    )
    logp_T, _ = naive(model, batch, weights_for(batch))
    again_T, _ = naive(model, batch, weights_for(batch))
    assert (again_T - logp_T)[batch.eligible_T].abs().max() > 0.1


def test_what_fills_the_padding_does_not_matter(monkeypatch):
    """Bit for bit: nothing that is trained can see it."""
    import workbench.learn.microbatch as module

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
        low, high = batch.segment_offsets[s : s + 2].tolist()
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
        return sum(
            len(piece) * int(lengths[piece].max())
            for piece in cut(lengths, range(16), 400, sort=sort)
        )

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
