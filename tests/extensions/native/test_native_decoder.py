"""learner.layers = "native" with learner.attention = "native": a decoder layer of a packed pass in two steps answers and teaches as its
parts do, also where a token stands many times; and it is its parts that compute where something else is asked of them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Qwen2Config, Qwen3Config

from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.extensions.native import decoder, layers
from workbench.extensions.native.packed import native_packing
from workbench.learn.packing import Part, attending_to, make_packable
from workbench.learn.recompute import recompute_layers

pytestmark = needs_compiler
SMALL = dict(
    vocab_size=50,
    hidden_size=40,
    intermediate_size=72,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
KINDS = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL),  # biases of queries, keys and values
    "qwen3": Qwen3Config(**SMALL, head_dim=12, tie_word_embeddings=True),  # norms of heads
    "wide heads": Qwen3Config(**SMALL, head_dim=32),
}
PARTS = (Part(0, 60), Part(60, 190, 0, 60), Part(190, 260, 0, 60))
POSITIONS = torch.cat([torch.arange(60), torch.arange(60, 190), torch.arange(60, 130)])[None]
MANY_TIMES = torch.arange(260)[None] * 7 % 23  # each token stands a dozen times
READ = torch.tensor([0, 5, 5, 59, 100, 101, 189, 259])
STEPS = {"_AttentionBackward", "_GatedBackward"}


def new_model(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():  # norms of ones and biases of zeros would hide one that is left out
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight) * 0.3)
    return model


def native(config):
    model = new_model(config)
    layers.native_layers(model)
    assert make_packable(model, name=native_packing())
    return model


def by_parts(model):
    """The same model with a hook on each layer's gate, which the steps would pass over."""
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        layer.mlp.gate_proj.register_forward_hook(lambda module, args, out: None)
    return model


def functions_of(made):
    names, seen, rest = set(), set(), [made.grad_fn]
    while rest:
        step = rest.pop()
        if step is not None and step not in seen:
            seen.add(step)
            names.add(step.name())
            rest += [other for other, _ in step.next_functions]
    return names


def answer(model, ids=MANY_TIMES, read=READ):
    """Logits at the read tokens, the gradients of all weights, and which functions they came through."""
    with attending_to(PARTS, read):
        logits = model(input_ids=ids, position_ids=POSITIONS, use_cache=False).logits[0, READ]
    loss = (logits.log_softmax(-1) * torch.cos(torch.arange(logits.numel()).view_as(logits))).sum()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    names = functions_of(logits)
    return [logits.detach(), *torch.autograd.grad(loss, weights)], names


def apart(one, other):
    pairs = zip(one, other, strict=True)
    return max(float((a - b).norm() / b.norm().clamp(min=1e-3)) for a, b in pairs)


@pytest.mark.parametrize("read", [None, READ], ids=["all read", "some read"])
@pytest.mark.parametrize("ids", [MANY_TIMES, torch.arange(260)[None] * 7 % 50], ids=["23", "50"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_answers_and_teaches_as_its_parts_do(kind, ids, read):
    model = native(KINDS[kind])
    ours, names = answer(model, ids, read)
    theirs, their_names = answer(by_parts(model), ids, read)
    assert STEPS <= names and "_NativeAttentionBackward" not in names
    assert not STEPS & their_names and "_NativeAttentionBackward" in their_names
    assert apart(ours, theirs) < 1e-5


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_token_that_stands_many_times_is_computed_once(kind, monkeypatch):
    model = native(KINDS[kind])
    products = []
    real = decoder._product

    def noted(states, weights, biases):
        products.append((len(states), len(weights)))
        return real(states, weights, biases)

    monkeypatch.setattr(decoder, "_product", noted)
    once, _ = answer(model)
    assert products == [(23, 3), (260, 3), (7, 1), (260, 2)]
    monkeypatch.setattr(
        decoder, "REPEATED", 261
    )  # a token would have to stand more often than there are places
    each, _ = answer(model)
    assert products[4:] == [(260, 3), (260, 3), (7, 1), (260, 2)]
    assert apart(once, each) < 1e-5


def test_control_other_tokens_taken_for_the_same_are_noticed(monkeypatch):
    model = native(KINDS["qwen3"])
    right, _ = answer(model)
    real = decoder.TokenRows.of
    monkeypatch.setattr(decoder.TokenRows, "of", lambda ids: real(ids // 2))
    assert apart(answer(model)[0], right) > 0.01


def test_embeddings_that_were_written_into_are_taken_one_by_one():
    model = native(KINDS["llama"])
    states = model.model.embed_tokens(MANY_TIMES)
    assert torch.equal(decoder.tokens_of(states), MANY_TIMES)
    assert decoder.tokens_of(states * 2.0) is None
    states[0, 3] += 1.0
    assert decoder.tokens_of(states) is None


def test_threads_change_no_bit():
    before = torch.get_num_threads()

    def steps(threads):
        """Products by torch may be shared out otherwise; what the kernel makes of the same numbers is not."""
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        shape = decoder.LayerShape(12, 0.3, 1e-6, 1e-6)
        layout = decoder.PassLayout.of(PARTS, torch.arange(260))
        same = decoder.TokenRows.of(MANY_TIMES[0])
        cosine, sine = torch.randn(2, 260, 12).unbind()
        grad, states = torch.randn(2, 260, 48).unbind()
        norm = torch.randn(12)
        made = []
        for where in (
            decoder.AttentionPass(layout, cosine, sine),
            decoder.AttentionPass(layout, cosine, sine, None, same),
        ):
            rows = states if where.same is None else states[same.first_U]
            of_rows = torch.empty_like(rows)
            made.append(decoder._turned(rows, norm, shape, where))
            made.append(decoder._turned_back(grad, rows, of_rows, norm, shape, where))
            made.append(of_rows)
        return made

    try:
        assert all(map(torch.equal, steps(1), steps(3)))
    finally:
        torch.set_num_threads(before)


def test_a_layer_is_changed_once():
    assert decoder.fuse_layers(native(KINDS["llama"])) == 0


def test_frozen_weights_get_no_gradient_and_the_others_the_same():
    model = native(KINDS["qwen2"])
    names = ("q_proj.weight", "v_proj.bias", "gate_proj.weight", "up_proj.weight", "o_proj.weight")
    right = dict(zip(dict(model.named_parameters()), answer(model)[0][1:]))
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.endswith(names))
    kept = [grad for name, grad in right.items() if not name.endswith(names)]
    found, functions = answer(model)
    assert STEPS <= functions and len(kept) == len(found) - 1 < len(right)
    assert apart(found[1:], kept) < 1e-6


def test_a_layer_that_is_computed_once_more_gives_the_same():
    model = native(KINDS["qwen3"])
    right, _ = answer(model)
    recompute_layers(model)
    assert all(map(torch.equal, answer(model)[0], right))


def test_half_precision_and_no_packed_pass_go_through_the_parts():
    model = native(KINDS["llama"])
    plain = model(input_ids=MANY_TIMES, use_cache=False).logits
    with attending_to(PARTS, READ), torch.autocast("cpu", torch.bfloat16):
        half = model(input_ids=MANY_TIMES, position_ids=POSITIONS, use_cache=False).logits
    assert not STEPS & (functions_of(plain) | functions_of(half))


@pytest.mark.parametrize(
    "config",
    [LlamaConfig(**SMALL, attention_bias=True), Gemma2Config(**SMALL, head_dim=12)],
    ids=["a bias behind attention", "norms behind, too"],
)
def test_a_layer_of_another_kind_is_left_to_its_parts(config):
    model = new_model(config)
    layers.native_layers(model)
    assert not any(hasattr(layer, "by_parts") for layer in model.model.layers)
    assert type(model.get_input_embeddings()) is not decoder.NativeEmbedding


@pytest.mark.parametrize("step", ["_Attention", "_Gated"])
@pytest.mark.parametrize("at", [0, 3, 5])
def test_control_a_wrong_way_back_is_not_taken(step, at, monkeypatch):
    """Its answers agree; one of its gradients is a hundredth too large: that of the input, or of a weight."""
    function = getattr(decoder, step)
    way = function.backward

    def bent(ctx, grad):
        made = list(way(ctx, grad))
        made[at] = made[at] * 1.01
        return tuple(made)

    monkeypatch.setattr(function, "backward", staticmethod(bent))
    assert decoder.fuse_layers(new_model(KINDS["qwen3"])) == 0


def test_a_layer_with_another_activation_is_left_to_its_parts():
    model = new_model(LlamaConfig(**SMALL, hidden_act="gelu"))
    assert isinstance(model.model.layers[0].mlp.act_fn, nn.Module)
    assert decoder.fuse_layers(model) == 0
