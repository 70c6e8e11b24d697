"""The last decoder layer where its answer is read (`learner.layers = "native"` with `learner.attention = "native"`).

A trained token is predicted from one hidden state, and of the last layer nothing else is read: tools' results, prompts and
what nobody trains need its keys and values there, and neither queries nor activations. So a packed pass computes these at
the read tokens alone; the other rows of the layer's answer are zeros, which the output head never sees.

For a decoder layer as llama and qwen models have it: a trial finds whether one is.

Axis letters: T tokens of the pass · R those whose last hidden states are read · H width of the hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from workbench.extensions.native.packed import NATIVE, attention_of
from workbench.extensions.native.trials import is_close
from workbench.learn.packing import Part, RunningPass, running_pass

ROTATION = "apply_rotary_pos_emb"  # as transformers calls it in a model's own file
NEEDED = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
TRIED = (2, 4, 4, 6)  # tokens that the trial reads, of so many:
TOKENS = 7


def narrow_last_layer(model: nn.Module) -> bool:
    """Let the last decoder layer of this model (a learner's own) compute what is read, if a trial finds its answer and
    gradients unchanged; else leave it as it is and return False."""
    layer = _last_layer(model)
    if layer is None or not _is_known(layer) or not _agrees(layer):
        return False
    layer.__class__ = _narrow_class(type(layer))
    return True


def _last_layer(model: nn.Module) -> nn.Module | None:
    """The last of the one list of decoder layers; None: there is no such list, or more than one."""
    layers = decoder_layers(model)
    return layers[-1] if layers else None


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The one list of decoder layers; none where there is no such list, or more than one."""
    lists = [
        module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "layers" and isinstance(module, nn.ModuleList) and len(module)
    ]
    return list(lists[0]) if len(lists) == 1 else []


def _is_known(layer: nn.Module) -> bool:
    attention = getattr(layer, "self_attn", None)
    return (
        not hasattr(layer, "whole")
        and all(hasattr(layer, name) for name in NEEDED)
        and all(hasattr(attention, name) for name in PROJECTIONS)
        and ROTATION in getattr(unwrap(type(attention).forward), "__globals__", {})
    )


@cache
def _narrow_class(its_class: type[nn.Module]) -> type[nn.Module]:
    members = {"forward": _forward, "whole": its_class.forward}
    return type(its_class.__name__, (its_class,), members)


def _forward(self, hidden_states: Tensor, *args: Any, **others: Any) -> Any:
    now = running_pass()
    if not can_narrow(self, now, hidden_states, others):
        return self.whole(hidden_states, *args, **others)
    return narrow(self, hidden_states, others["position_embeddings"], now)


def can_narrow(
    layer: nn.Module, now: RunningPass, hidden_states: Tensor, others: Mapping[str, Any]
) -> bool:
    """Whether a decoder layer is called in a packed pass whose attention is the kernel's, and some of its answer is read."""
    return (
        now.parts is not None
        and now.read_M is not None
        and len(now.read_M) > 0
        and len(hidden_states) == 1
        and others.get("position_embeddings") is not None
        and layer.self_attn.config._attn_implementation == NATIVE
    )


def narrow(
    layer: nn.Module, hidden_1TH: Tensor, rotation: tuple[Tensor, Tensor], now: RunningPass
) -> Tensor:
    """The layer's answer at the read tokens, zeros elsewhere [1, T, H]. `rotation`: cosines and sines of all tokens."""
    read_R = now.read_M.unique()
    attention = layer.self_attn
    states_1TH = layer.input_layernorm(hidden_1TH)
    query = _by_head(attention, "q", states_1TH.index_select(1, read_R))
    key = _by_head(attention, "k", states_1TH)
    value = _by_head(attention, "v", states_1TH)
    rotate = unwrap(type(attention).forward).__globals__[ROTATION]
    cosine, sine = rotation
    query = rotate(query, query, cosine.index_select(1, read_R), sine.index_select(1, read_R))[0]
    key = rotate(key, key, cosine, sine)[0]
    heads = (states.squeeze(0) for states in (query, key, value))
    mixed = attention_of(*heads, now.parts, attention.scaling, read_R)
    mixed_1RH = mixed.transpose(0, 1).flatten(1)[None]
    out_1RH = hidden_1TH.index_select(1, read_R) + attention.o_proj(mixed_1RH)
    out_1RH = out_1RH + layer.mlp(layer.post_attention_layernorm(out_1RH))
    return torch.zeros_like(hidden_1TH).index_copy(1, read_R, out_1RH)


def _by_head(attention: nn.Module, name: str, states_1TH: Tensor) -> Tensor:
    """Queries, keys or values of each head [1, heads, T, D]."""
    states = getattr(attention, f"{name}_proj")(states_1TH)
    states = states.unflatten(-1, (-1, attention.head_dim))
    norm = getattr(attention, f"{name}_norm", None)
    return (states if norm is None else norm(states)).transpose(1, 2)


# ------------------------------------------------------------------------------------------ trial


def _agrees(layer: nn.Module) -> bool:
    """Whether it answers at the read tokens as the whole layer does, with the same gradient of its input."""
    try:
        whole = _answer(layer, narrowed=False)
        answer = _answer(layer, narrowed=True)
    except Exception:  # a layer of another kind, whatever it does with the trial's arguments
        return False
    return all(is_close(one, other) for one, other in zip(answer, whole, strict=True))


def _answer(layer: nn.Module, *, narrowed: bool) -> tuple[Tensor, Tensor]:
    """The layer's answer at the read tokens, and the gradient of its input."""
    width = layer.self_attn.q_proj.in_features
    size = layer.self_attn.head_dim
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((1, TOKENS, width), generator=generator, requires_grad=True)
    angles = torch.randn((1, TOKENS, size // 2), generator=generator).repeat(1, 1, 2)
    rotation = (angles.cos(), angles.sin())
    read_R = torch.tensor(TRIED)
    now = RunningPass([Part(0, TOKENS)], read_R)
    with torch.enable_grad():
        if narrowed:
            out = narrow(layer, hidden, rotation, now)
        else:
            out = layer(hidden, attention_mask=None, position_embeddings=rotation)
        weights = torch.randn((len(TRIED), width), generator=generator)
        total = (out[0, read_R] * weights).sum()
        gradient = torch.autograd.grad(total, hidden)[0]
    return out[0, read_R].detach(), gradient
