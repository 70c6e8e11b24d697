"""learner.layers = "native": norms, rotations and gated activations by a kernel are torch's up to rounding, forward and backward, whatever
the shapes; a learner's step gives the same weights; what is not theirs is left to the model, and what cannot be built says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.extensions.native import kernel, layers
from workbench.extensions.native.last_layer import narrow_last_layer
from workbench.extensions.native.packed import native_packing
from workbench.learn.algorithms import GRPO
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.learn.learner import Learner
from workbench.learn.packing import Part, attending_to, is_packable, make_packable
from workbench.values.errors import LearnerError

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from learning_data import make_groups, tiny_model  # noqa: E402

NEAR = 3e-6  # of the largest number: rounding of float32
COUNTS = st.sampled_from([1, 2, 127, 128, 129, 300])
WIDTHS = st.sampled_from([1, 5, 15, 16, 17, 64, 200])
SMALL = dict(
    vocab_size=50,
    hidden_size=40,
    intermediate_size=72,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
KINDS = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=12, tie_word_embeddings=True),
}


def new_model(config, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():  # norms of ones would hide a weight that is left out
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight) * 0.3)
    return model


def drawn(seed, *shapes):
    torch.manual_seed(seed)
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def answers(function, inputs):
    """Outputs and the gradients of all inputs, under gradients that differ from number to number."""
    outs = function(*inputs)
    outs = outs if isinstance(outs, tuple) else (outs,)
    grads = [torch.cos(torch.arange(out.numel()) * 0.7).view(out.shape) for out in outs]
    return [out.detach() for out in outs] + list(torch.autograd.grad(outs, inputs, grads))


def assert_alike(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert float((one - other).abs().max()) <= NEAR * max(1.0, float(other.abs().max()))


# ------------------------------------------------------------------------------------------------ each part


@needs_compiler
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), COUNTS, WIDTHS, st.sampled_from([1e-6, 1e-5, 0.1]))
def test_a_norm_is_the_models_own(seed, rows, width, epsilon):
    own = Qwen3RMSNorm(width, epsilon)
    x, weight = drawn(seed, (rows, width), (width,))

    def theirs(x, weight):
        own.weight.data = weight.data
        return torch.func.functional_call(own, {"weight": weight}, (x,))

    assert_alike(
        answers(lambda x, weight: layers._Norm.apply(x, weight, epsilon), (x, weight)),
        answers(theirs, (x, weight)),
    )


@needs_compiler
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), COUNTS, WIDTHS)
def test_a_gate_is_silu_times_up(seed, rows, width):
    gate, up = drawn(seed, (1, rows, width), (1, rows, width))
    with torch.no_grad():
        gate[0, 0] *= 60  # saturated on both sides
    assert_alike(
        answers(layers._Gate.apply, (gate, up)),
        answers(lambda gate, up: torch.nn.functional.silu(gate) * up, (gate, up)),
    )


@needs_compiler
@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1000),
    COUNTS,
    st.sampled_from([(1, 1), (4, 2), (9, 3)]),
    st.sampled_from([2, 10, 32, 64, 80]),
    st.booleans(),
)
def test_a_rotation_is_the_models_own(seed, tokens, heads, size, token_first):
    cos, sin = drawn(seed, (1, tokens, size), (1, tokens, size))
    cos, sin = cos.detach(), sin.detach()
    if token_first:  # as a model's projections leave them
        shapes = [(1, tokens, count, size) for count in heads]
        q, k = (made.detach().transpose(1, 2).requires_grad_() for made in drawn(seed + 1, *shapes))
    else:
        q, k = drawn(seed + 1, *[(1, count, tokens, size) for count in heads])
    rotation = layers._rotation(apply_rotary_pos_emb)
    ours = answers(lambda q, k: rotation(q, k, cos, sin), (q, k))
    assert_alike(ours, answers(lambda q, k: apply_rotary_pos_emb(q, k, cos, sin), (q, k)))
    assert rotation(q, k, cos, sin)[0].grad_fn.name().startswith("_Rotation"), "by the kernel"


@needs_compiler
def test_threads_change_no_bit():
    x, weight, gate, up = drawn(0, (1000, 48), (48,), (1, 1000, 48), (1, 1000, 48))

    def all_of_it(threads):
        torch.set_num_threads(threads)
        norm = answers(lambda x, weight: layers._Norm.apply(x, weight, 1e-6), (x, weight))
        return norm + answers(layers._Gate.apply, (gate, up))

    before = torch.get_num_threads()
    try:
        assert all(map(torch.equal, all_of_it(1), all_of_it(5)))
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_a_number_that_is_not_finite_stays_in_its_row():
    x, weight, gate, up = drawn(1, (6, 20), (20,), (1, 6, 20), (1, 6, 20))
    with torch.no_grad():
        x[2, 3] = gate[0, 2, 3] = float("nan")
    normed, grad_x, _ = answers(lambda x, weight: layers._Norm.apply(x, weight, 1e-6), (x, weight))
    others = [0, 1, 3, 4, 5]
    for made in (normed, grad_x):
        assert made[2].isnan().all() and not made[others].isnan().any()
    gated = layers._Gate.apply(gate, up)
    assert gated[0, 2, 3].isnan() and int(gated.isnan().sum()) == 1


# ------------------------------------------------------------------------------------------------ a model


def functions_of(logits):
    """Names of the steps that made this."""
    names, rest = set(), [logits.grad_fn]
    seen = set()
    while rest:
        step = rest.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        names.add(step.name())
        rest += [other for other, _ in step.next_functions]
    return names


OURS = {"_NormBackward", "_GateBackward", "_RotationBackward"}


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_the_same_up_to_rounding(kind):
    plain = new_model(KINDS[kind])
    native = new_model(KINDS[kind])
    layers.native_layers(native)
    ids = torch.arange(30)[None] * 7 % 50

    def logits_and_gradients(model):
        logits = model(input_ids=ids).logits
        loss = logits.float().log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None]).sum()
        return logits, torch.autograd.grad(loss, list(model.parameters()))

    ours, our_gradients = logits_and_gradients(native)
    theirs, their_gradients = logits_and_gradients(plain)
    assert OURS <= functions_of(ours) and not OURS & functions_of(theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    for one, other in zip(our_gradients, their_gradients, strict=True):
        assert float((one - other).norm()) <= 1e-5 * max(1e-3, float(other.norm()))
    assert list(native.state_dict()) == list(plain.state_dict())


@needs_compiler
def test_two_rows_and_half_precision_go_through_the_models_own():
    plain = new_model(KINDS["qwen3"])
    native = new_model(KINDS["qwen3"])
    layers.native_layers(native)
    ids = torch.arange(40).view(2, 20) % 50
    rows = native(input_ids=ids).logits
    assert "_RotationBackward" not in functions_of(rows) and "_NormBackward" in functions_of(rows)
    torch.testing.assert_close(rows, plain(input_ids=ids).logits, rtol=0, atol=2e-5)
    with torch.autocast("cpu", torch.bfloat16):
        half = native(input_ids=ids).logits
        assert "_GateBackward" not in functions_of(half)
        torch.testing.assert_close(half, plain(input_ids=ids).logits, rtol=0, atol=2e-2)


@needs_compiler
def test_parts_that_are_not_theirs_are_left_to_the_model():
    """Gemma's norms have one more than their weight, and its gate is not silu: its rotation is as everywhere."""
    config = Gemma2Config(**SMALL, head_dim=12, hidden_activation="gelu_pytorch_tanh")
    plain = new_model(config)
    native = new_model(config)
    layers.native_layers(native)
    ids = torch.arange(20)[None] % 50
    logits = native(input_ids=ids).logits
    assert OURS & functions_of(logits) == {"_RotationBackward"}
    torch.testing.assert_close(logits, plain(input_ids=ids).logits, rtol=0, atol=2e-5)


@needs_compiler
def test_a_model_with_none_of_them_is_refused():
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
    with pytest.raises(LearnerError, match="knows nothing of GPT2LMHeadModel.*'torch'"):
        layers.native_layers(new_model(config))


@needs_compiler
@pytest.mark.parametrize("wrong", ["_Norm", "_Gate", "_Rotation"])
def test_control_a_wrong_way_back_is_refused(wrong, monkeypatch):
    """Forward they agree, so each is taken; the trial of the whole model looks at its gradients."""
    function = getattr(layers, wrong)
    way = function.backward

    def bent(ctx, grad):
        made = way(ctx, grad)
        if isinstance(made, tuple):
            return tuple(None if one is None else one * 1.01 for one in made)
        return made * 1.01

    monkeypatch.setattr(function, "backward", staticmethod(bent))
    with pytest.raises(LearnerError, match="computes Qwen3ForCausalLM otherwise than torch"):
        layers.native_layers(new_model(KINDS["qwen3"]))


# ------------------------------------------------------------------------------------------------ the last layer

PACKED = [Part(0, 6), Part(6, 20, 0, 6), Part(20, 23, 0, 6)]
POSITIONS = torch.cat([torch.arange(6), torch.arange(6, 20), torch.arange(6, 9)])[None]


def packable(config):
    """A model of which the kernel computes layers and attention, and the rows of its last activations, pass by pass."""
    model = new_model(config)
    layers.native_layers(model)
    assert make_packable(model, name=native_packing())
    rows = []
    model.model.layers[-1].mlp.register_forward_hook(
        lambda module, args, out: rows.append(out.shape[1])
    )
    return model, rows


def scores(model, read=None, scored=(0, 5, 5, 9, 22)):
    """Logits of the scored tokens, of a pass of which `read` is said to be read, and the gradients of all weights."""
    scored = torch.tensor(scored)
    ids = torch.arange(23)[None] * 7 % 50
    with attending_to(PACKED, read):
        logits = model(input_ids=ids, position_ids=POSITIONS, use_cache=False).logits[0, scored]
    loss = logits.log_softmax(-1)[:, 3].sum()
    return [logits.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def distance(one, other):
    return max(
        float((a - b).norm() / b.norm().clamp(min=1e-3)) for a, b in zip(one, other, strict=True)
    )


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_layer_is_computed_where_it_is_read(kind):
    model, rows = packable(KINDS[kind])
    all_of_it = scores(model)
    some = scores(model, torch.tensor([0, 5, 5, 9, 22]))
    assert rows == [23, 4], "a token that is read twice is computed once"
    assert distance(some, all_of_it) < 1e-5


@needs_compiler
def test_control_a_token_that_is_not_said_to_be_read_is_zeros():
    model, _ = packable(KINDS["qwen3"])
    assert distance(scores(model, torch.tensor([0, 5, 9])), scores(model)) > 0.01


@needs_compiler
def test_outside_of_a_packed_pass_the_last_layer_is_whole():
    model, rows = packable(KINDS["llama"])
    model(input_ids=torch.arange(12)[None])
    with attending_to(None, torch.tensor([3])):
        model(input_ids=torch.arange(12)[None])
    with attending_to(PACKED, torch.zeros(0, dtype=torch.int64)):
        model(input_ids=torch.arange(23)[None], position_ids=POSITIONS, use_cache=False)
    assert rows == [12, 12, 23]


@needs_compiler
def test_a_last_layer_of_another_kind_stays_as_it_is():
    """Gemma's norms its branches behind them, too; a wrong way back is noticed by the trial of the layer."""
    gemma = new_model(Gemma2Config(**SMALL, head_dim=12))
    assert not narrow_last_layer(gemma)
    gpt = new_model(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=32))
    assert not narrow_last_layer(gpt)
    own = new_model(KINDS["qwen3"])
    assert narrow_last_layer(own) and not narrow_last_layer(own), "once is enough"


@needs_compiler
def test_control_a_layer_that_does_more_is_left_whole():
    model = new_model(KINDS["llama"])
    layer = model.model.layers[-1]

    class Scaled(type(layer)):
        def forward(self, *args, **others):
            return 1.001 * super().forward(*args, **others)

    layer.__class__ = Scaled
    assert not narrow_last_layer(model) and type(layer) is Scaled


# ------------------------------------------------------------------------------------------------ a learner


def learner_of(layers, **others):
    config = LearnerConfig(
        lr=1e-3,
        eps=1e-3,
        layers=layers,
        **{name: value for name, value in others.items() if name != "reference"},
    )
    if "reference" not in others:
        return Learner(tiny_model(), GRPO(), config)
    algorithm = GRPO(reference={"kl_coef": 0.1})
    return Learner(tiny_model(), algorithm, config, reference=tiny_model())


@needs_compiler
@pytest.mark.parametrize(
    "others",
    [
        {},
        dict(attention="native", micro_batch_tokens=30),
        dict(attention="native", activation_checkpointing=True),
        dict(attention="native", lora_rank=2, lora_targets=("q_proj", "down_proj")),
        dict(attention="native", reference=True),
        dict(attention="native", precision="bf16"),
        dict(layout="padded"),
        dict(activation_checkpointing=True),
        dict(lora_rank=2, lora_targets=("q_proj", "gate_proj")),
        dict(reference=True),
        dict(precision="bf16"),
    ],
    ids=str,
)
def test_a_step_of_a_learner_gives_the_same_weights(others):
    batch = Batch.from_groups(make_groups(tasks=2, attempts=3, turns=3, widest=9))
    near = 3e-4 if others.get("precision") else 1e-6  # where everything around it rounds to bf16
    ways = [learner_of(way, **others) for way in ("torch", "native")]
    for learner in ways:
        own = learner.facts(batch)
        credit = learner.algorithm.credit(own)
        reports = learner.update(own, credit, step=1) + learner.update(own, credit, step=2)
        assert [report.skipped for report in reports] == [None, None]
    first, second = ways
    assert is_packable(first.models.policy.module) == is_packable(second.models.policy.module)
    start = tiny_model().state_dict()
    for name, weight in first.weights().items():
        torch.testing.assert_close(second.weights()[name], weight, rtol=0, atol=near)
    assert any(float((first.weights()[name] - start[name]).abs().max()) > 1e-4 for name in start)


@needs_compiler
def test_the_policy_that_was_handed_in_stays_as_it_was():
    model = tiny_model()
    kinds = [type(module) for module in model.modules()]
    learner = Learner(model, GRPO(), LearnerConfig(layers="native"))
    assert kinds == [type(module) for module in model.modules()]
    own = [type(module) for module in learner.models.policy.module.modules()]
    assert own != kinds and all(map(issubclass, own, kinds))


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernel.kernel.cache_clear()
    try:
        with pytest.raises(LearnerError, match="no C\\+\\+ compiler.*learner.layers = 'torch'"):
            learner_of("native")
    finally:
        kernel.kernel.cache_clear()
    learner_of("torch")
