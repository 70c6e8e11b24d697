"""A decoder layer of a packed pass in two steps, each with its own way back (`learner.layers = "native"` with
`learner.attention = "native"`): attention with the norm before it and the residual around it, and the gated unit likewise.

Between matrix products everything is done in one pass over memory: a residual's gradient is added where the norm's is made,
norms of queries and keys are rotated as they are made. Queries, keys and values are one product, gate and up are one.

Three things are not computed at all. Of the last layer, what nobody reads (`last_layer`). Of the first one, queries, keys and
values of the same token again: before the rotation they depend on the token alone, so each different one is computed once,
and its gradient is the sum over the places where it stands. Both are exact.

For float32 on a CPU, for layers as llama and qwen models have them: a trial compares answers and gradients of each. Whatever
else comes along (half precision, hooks on parts, adapters, sharded weights) goes through the model's own.

Axis letters: T tokens of the pass · R those that are read (all but in the last layer) · U different tokens, or all ·
W width of the hidden states · H query heads · K key/value heads · D head size · I width of the gated unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import byref
from functools import cache
from inspect import unwrap
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.extensions.native.kernel import addresses
from workbench.extensions.native.last_layer import ROTATION, TOKENS, can_narrow, decoder_layers
from workbench.extensions.native.layer_kernel import (
    Heads,
    layer_kernel,
    norm_rows,
    norm_rows_back,
    threads,
)
from workbench.extensions.native.packed import PassLayout, attend, attend_back
from workbench.extensions.native.trials import is_close
from workbench.learn.packing import Part, RunningPass, running_pass

ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED_PARTS = ("gate_proj", "up_proj", "down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("q_norm", "k_norm")
TRIED = (2, 4, 6)  # tokens that the trial reads
REPEATED = 2  # the first layer looks for tokens that are the same where they would be half as many


def fuse_layers(model: nn.Module) -> int:
    """Let the decoder layers of this model (a learner's own) compute packed passes in two steps each, those of which a
    trial finds answers and gradients unchanged. Returns how many."""
    layers = [layer for layer in decoder_layers(model) if not hasattr(layer, "by_parts")]
    fused = [layer for layer in layers if _parts_of(layer) and _agrees(layer)]
    for layer in fused:
        layer.__class__ = _fused_class(type(layer))
    embedding = model.get_input_embeddings() if fused else None
    if type(embedding) is nn.Embedding:
        embedding.__class__ = NativeEmbedding
    return len(fused)


class NativeEmbedding(nn.Embedding):
    """Says of its answer which tokens it is of, until somebody writes into it."""

    def forward(self, input: Tensor) -> Tensor:
        states = super().forward(input)
        states.of_tokens = (input, states._version)
        return states


def tokens_of(states: Tensor) -> Tensor | None:
    """The tokens of which these states are the embeddings and nothing else; None: it is not known."""
    ids, version = getattr(states, "of_tokens", (None, 0))
    return ids if version == states._version else None


class TokenRows(NamedTuple):
    """Which tokens are the same. `first_U`: where each different one stands first; `row_T`: which of them a token is;
    `token_T` and `begin_U1`: the tokens of each, one after the other."""

    first_U: Tensor
    row_T: Tensor
    token_T: Tensor
    begin_U1: Tensor

    @classmethod
    def of(cls, ids_T: Tensor) -> TokenRows:
        different_U, row_T = ids_T.unique(return_inverse=True)
        token_T = row_T.argsort(stable=True)
        begin_U1 = torch.searchsorted(row_T[token_T], torch.arange(len(different_U) + 1))
        return cls(token_T[begin_U1[:-1]], row_T, token_T, begin_U1)


class AttentionPass(NamedTuple):
    """Which tokens a step of attention is of. `read_R`: whose answers are computed (None: all); `same`: None where they
    are taken one by one."""

    layout: PassLayout
    cosine_TD: Tensor
    sine_TD: Tensor
    read_R: Tensor | None = None
    same: TokenRows | None = None

    def different(self, x_TW: Tensor) -> Tensor:
        """The rows that are projected [U, W]."""
        return x_TW if self.same is None else x_TW[self.same.first_U]

    def read(self, x_TW: Tensor) -> Tensor:
        """The rows whose answers are computed [R, W]."""
        return x_TW if self.read_R is None else x_TW[self.read_R]

    def rotation(self, of_read: bool) -> tuple[Tensor, Tensor]:
        if not of_read:
            return self.cosine_TD, self.sine_TD
        return self.read(self.cosine_TD), self.read(self.sine_TD)


class LayerShape(NamedTuple):
    """Sizes and numbers of a layer that are no weights."""

    size: int  # of a head
    scale: float
    epsilon: float
    head_epsilon: float


# ------------------------------------------------------------------------------------------ layers


@cache
def _fused_class(its_class: type[nn.Module]) -> type[nn.Module]:
    members = {"forward": _forward, "by_parts": its_class.forward}
    return type(its_class.__name__, (its_class,), members)


def _forward(self, hidden_states: Tensor, *args: Any, **others: Any) -> Any:
    now = running_pass()
    if not _can_fuse(self, now, hidden_states, others):
        return self.by_parts(hidden_states, *args, **others)
    # Only the last layer has a class of its own below this one (`narrow_last_layer`).
    narrow = hasattr(self, "whole") and now.read_M is not None and len(now.read_M) > 0
    read_R = now.read_M.unique() if narrow else None
    ids = tokens_of(hidden_states) if read_R is None else None
    hidden_TW = hidden_states.squeeze(0)
    out_RW = fused(self, hidden_TW, others["position_embeddings"], now.parts, read_R, ids)
    if read_R is None:
        return out_RW[None]
    return torch.zeros_like(hidden_states).index_copy(1, read_R, out_RW[None])


def _can_fuse(
    layer: nn.Module, now: RunningPass, hidden_states: Tensor, others: Mapping[str, Any]
) -> bool:
    return (
        can_narrow(layer, now._replace(read_M=torch.zeros(1)), hidden_states, others)
        and hidden_states.dtype is torch.float32
        and hidden_states.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and all(_is_bare(part) for part in _parts_of(layer))
    )


def _is_bare(part: nn.Module) -> bool:
    """Whether a part does nothing but what its weights say."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(part, name) for name in hooks) and all(
        type(weight) is nn.Parameter and weight.dtype is torch.float32
        for weight in part._parameters.values()
        if weight is not None
    )


def fused(
    layer: nn.Module,
    hidden_TW: Tensor,
    rotation: tuple[Tensor, Tensor],
    parts: tuple[Part, ...],
    read_R: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """The layer's answer [R, W] at the read tokens (None: all). `ids`: the tokens, where `hidden_TW` depends on nothing
    else, and its gradient is asked for by token and not by place."""
    place_R = torch.arange(len(hidden_TW)) if read_R is None else read_R
    cosine, sine = (part.squeeze(0).contiguous() for part in rotation)
    same = None if ids is None else TokenRows.of(ids.flatten())
    if same is not None and len(same.first_U) * REPEATED > len(hidden_TW):
        same = None
    where = AttentionPass(PassLayout.of(parts, place_R), cosine, sine, read_R, same)
    hidden_RW = _Attention.apply(hidden_TW, where, *_of_attention(layer))
    norm = layer.post_attention_layernorm
    weights = (getattr(layer.mlp, name).weight for name in GATED_PARTS)
    return _Gated.apply(hidden_RW, norm.variance_epsilon, norm.weight, *weights)


def _of_attention(layer: nn.Module) -> tuple[Any, ...]:
    """What `_Attention` is given of a layer: its shape and its weights."""
    attention = layer.self_attn
    inputs = [getattr(attention, name) for name in ATTENTION_PARTS[:3]]
    norms = [getattr(attention, name, None) for name in HEAD_NORMS]
    shape = LayerShape(
        attention.head_dim,
        attention.scaling,
        layer.input_layernorm.variance_epsilon,
        0.0 if norms[0] is None else norms[0].variance_epsilon,
    )
    return (
        shape,
        layer.input_layernorm.weight,
        *(linear.weight for linear in inputs),
        *(linear.bias for linear in inputs),
        *(None if norm is None else norm.weight for norm in norms),
        attention.o_proj.weight,
    )


# ------------------------------------------------------------------------------------------ steps


class _Attention(torch.autograd.Function):
    """hidden + o_proj(attention(norm(hidden))) [R, W]."""

    @staticmethod
    def forward(ctx, x, where, shape, norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, o):
        x = x.contiguous()
        normed, inverse = norm_rows(where.different(x), norm, shape.epsilon)
        made = _projected(normed, (q, k, v), (q_bias, k_bias, v_bias), where)
        turned = (
            _turned(made[0], q_norm, shape, where, of_read=True),
            _turned(made[1], k_norm, shape, where),
            made[2] if where.same is None else made[2][where.same.row_T],
        )
        by_head = [_by_head(part, shape.size) for part in turned]
        answer = [*by_head, *attend(*by_head, where.layout, shape.scale)]
        ctx.where = where
        ctx.shape = shape
        weights = (norm, q, k, v, q_norm, k_norm, o)
        ctx.save_for_backward(x, normed, inverse, *made, *answer, *weights)
        return torch.addmm(where.read(x), _mixed(answer), o.t())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, normed, inverse, *held = ctx.saved_tensors
        made = held[:3]
        answer = held[3:8]
        norm, q, k, v, q_norm, k_norm, o = held[8:]
        needed = ctx.needs_input_grad
        grad = grad.contiguous()
        of_o = grad.t() @ _mixed(answer) if needed[12] else None
        joined, of_made = _room_for(made, ctx.where)
        of_norms = _attention_back(ctx, grad @ o, made, answer, of_made, (q_norm, k_norm))
        of_normed = _projected_back(joined, of_made, (q, k, v), ctx.where)
        of_weights = _of_projections(joined, of_made, normed, ctx.where, needed[4:7])
        of_biases = [part.sum(0) if need else None for part, need in zip(of_made, needed[7:10])]
        of_x, of_norm = _with_residual(ctx.where, x, norm, inverse, of_normed, grad)
        return of_x, None, None, of_norm, *of_weights, *of_biases, *of_norms, of_o


def _mixed(answer: Sequence[Tensor]) -> Tensor:
    return answer[3].transpose(0, 1).flatten(1)


def _projected(
    normed_UW: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    where: AttentionPass,
) -> tuple[Tensor, ...]:
    """Queries of what is read, keys and values [rows, heads * D]."""
    widths = [len(weight) for weight in weights]
    if where.read_R is None:
        return _product(normed_UW, weights, biases).split(widths, 1)
    of_queries = _product(normed_UW[where.read_R], weights[:1], biases[:1])
    return of_queries, *_product(normed_UW, weights[1:], biases[1:]).split(widths[1:], 1)


def _room_for(made: Sequence[Tensor], where: AttentionPass) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Arrays for the gradients of what `_projected` made, those of one product side by side: them, and each."""
    widths = [part.shape[1] for part in made]
    if where.read_R is None:
        joined = torch.empty(len(made[1]), sum(widths))
        return joined, joined.split(widths, 1)
    joined = torch.empty(len(made[1]), sum(widths[1:]))
    return joined, (torch.empty(made[0].shape), *joined.split(widths[1:], 1))


def _attention_back(
    ctx,
    of_mixed: Tensor,
    made: Sequence[Tensor],
    answer: Sequence[Tensor],
    of_made: Sequence[Tensor],
    norms: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Fill the gradients of queries, keys and values as they were projected; returns those of the norms of heads."""
    where = ctx.where
    shape = ctx.shape
    tokens = len(where.cosine_TD)
    of_turned = [
        torch.empty(len(of_mixed), made[0].shape[1]),
        torch.empty(tokens, made[1].shape[1]),
        of_made[2] if where.same is None else torch.empty(tokens, made[2].shape[1]),
    ]
    grad, *grads = (_by_head(part, shape.size) for part in (of_mixed, *of_turned))
    attend_back(answer, grad, grads, where.layout, shape.scale)
    if where.same is not None:
        _summed(of_turned[2], of_made[2], shape, where.same)
    return [
        _turned_back(of_turned[i], made[i], of_made[i], norms[i], shape, where, of_read=i == 0)
        for i in (0, 1)
    ]


def _projected_back(
    joined: Tensor, of_made: Sequence[Tensor], weights: Sequence[Tensor], where: AttentionPass
) -> Tensor:
    """The gradient of what `_projected` was given."""
    if where.read_R is None:
        return joined @ torch.cat(tuple(weights))
    of_normed = joined @ torch.cat(tuple(weights[1:]))
    return of_normed.index_add_(0, where.read_R, of_made[0] @ weights[0])


def _of_projections(
    joined: Tensor,
    of_made: Sequence[Tensor],
    normed: Tensor,
    where: AttentionPass,
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The gradients of the weights of queries, keys and values."""
    widths = [part.shape[1] for part in of_made]
    if where.read_R is None:
        return _of_weights(joined, normed, widths, any(needed))
    of_queries = of_made[0].t() @ normed[where.read_R] if needed[0] else None
    return of_queries, *_of_weights(joined, normed, widths[1:], any(needed[1:]))


def _with_residual(
    where: AttentionPass, x: Tensor, norm: Tensor, inverse: Tensor, of_normed: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of x, by the norm and around it, and of the norm's weight."""
    is_whole = where.same is None and where.read_R is None
    around = grad if is_whole else None
    of_x, of_norm = norm_rows_back(where.different(x), norm, inverse, of_normed, around)
    if where.same is not None:
        of_x = grad.clone().index_add_(0, where.same.first_U, of_x)
    elif where.read_R is not None:
        of_x.index_add_(0, where.read_R, grad)
    return of_x, of_norm


class _Gated(torch.autograd.Function):
    """hidden + down(silu(gate) * up) of norm(hidden) [R, W]."""

    @staticmethod
    def forward(ctx, x, epsilon, norm, gate, up, down):
        x = x.contiguous()
        normed, inverse = norm_rows(x, norm, epsilon)
        both = normed @ torch.cat((gate, up)).t()
        rows = len(both)
        width = len(gate)
        gated = torch.empty(rows, width)
        numbers = addresses(*both.split(width, 1), gated)
        layer_kernel().gate_forward(*numbers, rows, width, 2 * width, threads())
        ctx.save_for_backward(x, normed, inverse, both, gated, norm, gate, up, down)
        return torch.addmm(x, gated, down.t())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, normed, inverse, both, gated, norm, gate, up, down = ctx.saved_tensors
        grad = grad.contiguous()
        needed = ctx.needs_input_grad
        of_down = grad.t() @ gated if needed[5] else None
        of_gated = grad @ down
        rows, width = of_gated.shape
        of_both = torch.empty_like(both)
        parts = (*both.split(width, 1), of_gated, *of_both.split(width, 1))
        layer_kernel().gate_backward(*addresses(*parts), rows, width, 2 * width, threads())
        of_weights = _of_weights(of_both, normed, (width, width), any(needed[3:5]))
        of_x, of_norm = norm_rows_back(x, norm, inverse, of_both @ torch.cat((gate, up)), grad)
        return of_x, None, of_norm, *of_weights, of_down


def _product(
    states_UW: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> Tensor:
    """One product by several matrices, their outputs side by side."""
    weight = torch.cat(tuple(weights))
    if biases[0] is None:
        return states_UW @ weight.t()
    return torch.addmm(torch.cat(tuple(biases)), states_UW, weight.t())


def _of_weights(
    grad: Tensor, states: Tensor, sizes: Sequence[int], needed: bool
) -> tuple[Tensor | None, ...]:
    return (grad.t() @ states).split(list(sizes)) if needed else (None,) * len(sizes)


# ------------------------------------------------------------------------------------------ calls of the kernel


def _heads(
    states: Tensor, norm: Tensor | None, shape: LayerShape, rotation: tuple[Tensor, Tensor] | None
) -> Heads:
    cosine, sine = (None, None) if rotation is None else addresses(*rotation)
    return Heads(
        numbers=states.data_ptr(),
        stride=states.stride(0),
        weight=None if norm is None else norm.data_ptr(),
        cosine=cosine,
        sine=sine,
        heads=states.shape[1] // shape.size,
        size=shape.size,
        epsilon=shape.head_epsilon,
    )


def _turned(
    states: Tensor,
    norm: Tensor | None,
    shape: LayerShape,
    where: AttentionPass,
    *,
    of_read: bool = False,
) -> Tensor:
    """Queries or keys of each token, normed where there is a norm, and rotated."""
    rotation = where.rotation(of_read)
    out = torch.empty(len(rotation[0]), states.shape[1])
    heads = _heads(states, norm, shape, rotation)
    row = None if where.same is None else where.same.row_T.data_ptr()
    to = out.data_ptr(), out.stride(0), len(out)
    layer_kernel().heads_forward(byref(heads), row, *to, threads())
    return out


def _turned_back(
    grad: Tensor,
    states: Tensor,
    of_states: Tensor,
    norm: Tensor | None,
    shape: LayerShape,
    where: AttentionPass,
    *,
    of_read: bool = False,
) -> Tensor | None:
    """Fill the gradient of what `_turned` was given; returns that of the norm's weight."""
    rotation = where.rotation(of_read)
    of_norm = None if norm is None else torch.empty_like(norm)
    heads = _heads(states, norm, shape, rotation)
    _heads_back(heads, grad, of_states, where.same, of_norm)
    return of_norm


def _summed(grad: Tensor, of_states: Tensor, shape: LayerShape, same: TokenRows) -> None:
    """Fill the gradients of each different token's values."""
    _heads_back(_heads(of_states, None, shape, None), grad, of_states, same, None)


def _heads_back(
    heads: Heads, grad: Tensor, of_states: Tensor, same: TokenRows | None, of_norm: Tensor | None
) -> None:
    token, begin = (None, None) if same is None else addresses(same.token_T, same.begin_U1)
    layer_kernel().heads_backward(
        byref(heads),
        grad.data_ptr(),
        grad.stride(0),
        token,
        begin,
        of_states.data_ptr(),
        of_states.stride(0),
        None if of_norm is None else of_norm.data_ptr(),
        len(of_states),
        threads(),
    )


def _by_head(states: Tensor, size: int) -> Tensor:
    return states.unflatten(1, (-1, size)).transpose(0, 1)


# ------------------------------------------------------------------------------------------ trial


def _parts_of(layer: nn.Module) -> list[nn.Module]:
    """The parts of a layer that is of this kind; of another kind there are none."""
    attention = getattr(layer, "self_attn", None)
    mlp = getattr(layer, "mlp", None)
    linears = [getattr(attention, name, None) for name in ATTENTION_PARTS]
    linears += [getattr(mlp, name, None) for name in GATED_PARTS]
    norms = [getattr(layer, name, None) for name in NORMS]
    of_heads = [getattr(attention, name, None) for name in HEAD_NORMS]
    if of_heads != [None, None]:
        norms += of_heads
    is_known = (
        all(type(linear) is nn.Linear for linear in linears)
        and len({linear.bias is None for linear in linears[:3]}) == 1
        and all(linear.bias is None for linear in linears[3:])
        and all(isinstance(getattr(norm, "variance_epsilon", None), float) for norm in norms)
        and ROTATION in getattr(unwrap(type(attention).forward), "__globals__", {})
    )
    return [attention, mlp, *linears, *norms] if is_known else []


def _agrees(layer: nn.Module) -> bool:
    """Whether a layer answers as its parts do, with the same gradients of its input and all its weights: all of it, some
    tokens of it, and tokens that are the same."""
    try:
        return all(_agrees_on(layer, *case) for case in ((None, None), (TRIED, None), (None, 3)))
    except Exception:  # a layer of another kind, whatever it does with the trial's arguments
        return False


def _agrees_on(layer: nn.Module, read: tuple[int, ...] | None, same: int | None) -> bool:
    table_UW, rotation, factors_TW = _drawn(layer)
    ids_T = torch.arange(TOKENS) if same is None else torch.arange(TOKENS) % same
    read_R = torch.arange(TOKENS) if read is None else torch.tensor(read)
    some_R = None if read is None else read_R
    weights = [weight for weight in layer.parameters() if weight.requires_grad]

    def answer(of: Callable[[Tensor], Tensor]) -> list[Tensor]:
        out_RW = of(table_UW[ids_T])
        total = (out_RW * factors_TW[read_R]).sum()
        return [out_RW.detach(), *torch.autograd.grad(total, [table_UW, *weights])]

    def by_parts(states_TW: Tensor) -> Tensor:
        out = layer(states_TW[None], attention_mask=None, position_embeddings=rotation)
        return out[0, read_R]

    def by_steps(states_TW: Tensor) -> Tensor:
        ids = None if same is None else ids_T
        return fused(layer, states_TW, rotation, (Part(0, TOKENS),), some_R, ids)

    with torch.enable_grad():
        pairs = zip(answer(by_steps), answer(by_parts), strict=True)
        return all(is_close(one, other) for one, other in pairs)


def _drawn(layer: nn.Module) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
    """Embeddings of a few tokens [U, W], a rotation of each place, and what the answers are weighted by [T, W]."""
    width = layer.self_attn.q_proj.in_features
    generator = torch.Generator().manual_seed(0)
    table_UW, factors_TW = torch.randn((2, TOKENS, width), generator=generator).unbind()
    half = layer.self_attn.head_dim // 2
    angles = torch.randn((1, TOKENS, half), generator=generator).repeat(1, 1, 2)
    return table_UW.requires_grad_(), (angles.cos(), angles.sin()), factors_TW
