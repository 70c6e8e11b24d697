"""What stands between the matrix products of decoder layers by `layers.cpp` (`learner.layers = "native"`): norms, rotations
and gated activations, forward and backward, on as many threads as torch has.

For float32 on a CPU; anything else that comes along (half precision under autocast, several rows at a rotation) goes through
the model's own. Numbers and gradients are torch's up to rounding; the number of threads changes no bit of them.

Axis letters: T tokens · H heads · D head size · W width of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import unwrap
from types import FunctionType

import torch
from torch import Tensor, nn

from workbench.extensions.native.decoder import fuse_layers
from workbench.extensions.native.kernel import addresses
from workbench.extensions.native.last_layer import ROTATION, narrow_last_layer
from workbench.extensions.native.layer_kernel import (
    layer_kernel,
    norm_rows,
    norm_rows_back,
    threads,
)
from workbench.extensions.native.scores import score_by_kernel
from workbench.extensions.native.trials import is_close
from workbench.values.errors import EngineError, LearnerError

PROBE_TOKENS = 7
MODEL_TOLERANCE = 3e-4  # of log-probabilities and gradients of a whole model
TORCH = "learner.layers = 'torch' needs no compiler"


def native_layers(model: nn.Module) -> None:
    """Let this model (a learner's own) compute norms, rotations and gated activations by the kernel, those that a trial
    finds equal. Raises LearnerError where it cannot be built, nothing of the model is equal, or the whole is not."""
    device = next(model.parameters()).device.type
    if device != "cpu":
        raise LearnerError(
            f"learner.layers = 'native' is a kernel for CPUs and the model is on {device!r}; set learner.layers = 'torch'"
        )
    try:
        layer_kernel()
    except EngineError as error:
        raise LearnerError(
            f"learner.layers = 'native' cannot be used here: {error}. {TORCH}"
        ) from error
    before = _answer(model)
    natives = {module: _native_class(module) for module in model.modules()}
    for module, native in natives.items():
        if native is not None:
            module.__class__ = native
    if not any(natives.values()):
        raise LearnerError(
            f"learner.layers = 'native' knows nothing of {type(model).__name__}: no norm, rotation or gated activation as "
            "in llama and qwen models; set learner.layers = 'torch'"
        )
    narrow_last_layer(model)
    fuse_layers(model)
    score_by_kernel(model)
    apart = _apart(before, _answer(model))
    if apart > MODEL_TOLERANCE:
        raise LearnerError(
            f"learner.layers = 'native' computes {type(model).__name__} otherwise than torch (by {apart:.2g}); set "
            "learner.layers = 'torch'"
        )


# ------------------------------------------------------------------------------------------ modules


def _native_class(module: nn.Module) -> type[nn.Module] | None:
    """The class that computes as this module does, by the kernel; None: there is none."""
    its_class = type(module)
    if hasattr(its_class, "plain"):  # it does already
        return its_class
    if its_class.__name__.endswith("RMSNorm") and _is_norm(module):
        return _with_forward(its_class, _norm_forward)
    if _is_gated(module):
        return _with_forward(its_class, _gated_forward)
    forward = unwrap(its_class.forward)
    rotated = getattr(forward, "__globals__", {}).get(ROTATION)
    if rotated is None or ROTATION not in forward.__code__.co_names or not _is_rotation(rotated):
        return None
    return _rotating_class(its_class)


@cache
def _with_forward(its_class: type[nn.Module], forward: Callable) -> type[nn.Module]:
    return type(its_class.__name__, (its_class,), {"forward": forward, "plain": its_class.forward})


@cache
def _rotating_class(its_class: type[nn.Module]) -> type[nn.Module]:
    """The same class with the same lines of `forward`, in which the rotation's name means the kernel's."""
    forward = unwrap(its_class.forward)
    own = forward.__globals__[ROTATION]
    rotating = FunctionType(
        forward.__code__,
        {**forward.__globals__, ROTATION: _rotation(own)},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    rotating.__kwdefaults__ = forward.__kwdefaults__
    return _with_forward(its_class, rotating)


def _norm_forward(self, hidden_states: Tensor) -> Tensor:
    if not _is_float(hidden_states, self.weight):
        return self.plain(hidden_states)
    return _Norm.apply(hidden_states, self.weight, self.variance_epsilon)


def _gated_forward(self, x: Tensor) -> Tensor:
    gate = self.gate_proj(x)
    up = self.up_proj(x)
    if not _is_float(gate, up):
        return self.down_proj(self.act_fn(gate) * up)
    return self.down_proj(_Gate.apply(gate, up))


def _rotation(own: Callable) -> Callable:
    def rotated(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        if not _can_rotate(q, k, cos, sin, unsqueeze_dim):
            return own(q, k, cos, sin, unsqueeze_dim)
        return _Rotation.apply(q, cos, sin), _Rotation.apply(k, cos, sin)

    return rotated


def _can_rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, dim: int) -> bool:
    return (
        dim == 1
        and q.ndim == k.ndim == 4
        and cos.shape == sin.shape == (1, q.shape[2], q.shape[3])
        and q.shape[0] == k.shape[0] == 1
        and q.shape[3] % 2 == 0
        and q.stride(3) == k.stride(3) == 1
        and _is_float(q, k, cos, sin)
    )


def _is_float(*tensors: Tensor) -> bool:
    return all(t.dtype is torch.float32 and t.device.type == "cpu" for t in tensors)


# ------------------------------------------------------------------------------------------ trials


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", None)
    if not isinstance(weight, Tensor) or weight.ndim != 1 or not isinstance(epsilon, float):
        return False
    x = _numbers(PROBE_TOKENS, len(weight))
    with torch.no_grad():
        return is_close(_Norm.apply(x, weight.float(), epsilon), module(x))


def _is_gated(module: nn.Module) -> bool:
    if not all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        return False
    linear = module.gate_proj
    width = getattr(linear, "in_features", None)
    if width is None:
        return False
    x = _numbers(PROBE_TOKENS, width)
    with torch.no_grad():
        return is_close(_gated_forward(module, x), module(x))


@cache
def _is_rotation(own: Callable) -> bool:
    size = 6
    q = _numbers(1, 2, PROBE_TOKENS, size)
    k = _numbers(1, 1, PROBE_TOKENS, size)
    cos = _numbers(1, PROBE_TOKENS, size)
    sin = _numbers(1, PROBE_TOKENS, size).flip(1)
    try:
        theirs = own(q, k, cos, sin)
    except Exception:  # another function of that name
        return False
    ours = (_Rotation.apply(q, cos, sin), _Rotation.apply(k, cos, sin))
    return all(is_close(one, other) for one, other in zip(ours, theirs, strict=True))


def _numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator)


def _answer(model: nn.Module) -> list[Tensor]:
    """Log-probabilities of a few tokens, and the gradients of the embedded tokens and of all vectors among the weights."""
    embedding = model.get_input_embeddings().weight
    ids_T = torch.arange(PROBE_TOKENS) * 7919 % len(embedding)
    with torch.enable_grad():
        states = embedding[ids_T].detach().float().requires_grad_()
        logits_TV = model(inputs_embeds=states[None], use_cache=False).logits[0]
        logp_TV = logits_TV.float().log_softmax(-1)
        vectors = [
            weight for weight in model.parameters() if weight.ndim == 1 and weight.requires_grad
        ]
        total = logp_TV[:-1].gather(1, ids_T[1:, None]).sum()
        gradients = torch.autograd.grad(total, [states, *vectors], allow_unused=True)
    return [logp_TV.detach(), *(grad for grad in gradients if grad is not None)]


def _apart(one: list[Tensor], other: list[Tensor]) -> float:
    distances = [
        float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in zip(one, other, strict=True)
    ]
    return max(distances)


# ------------------------------------------------------------------------------------------ calls of the kernel


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, epsilon):
        x = x.contiguous()
        out, inverse = norm_rows(x, weight, epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return *norm_rows_back(*ctx.saved_tensors, grad.contiguous()), None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        gate = gate.contiguous()
        up = up.contiguous()
        out = torch.empty_like(gate)
        layer_kernel().gate_forward(*addresses(gate, up, out), *_rows(gate), threads())
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        grad = grad.contiguous()
        made = (torch.empty_like(gate), torch.empty_like(gate))
        layer_kernel().gate_backward(*addresses(gate, up, grad, *made), *_rows(gate), threads())
        return made


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, cosine, sine):
        cosine = cosine.contiguous()
        sine = sine.contiguous()
        ctx.save_for_backward(cosine, sine)
        return _rotated(states, cosine, sine, back=False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        grad = grad if grad.stride(3) == 1 else grad.contiguous()
        return _rotated(grad, *ctx.saved_tensors, back=True), None, None


def _rotated(states: Tensor, cosine: Tensor, sine: Tensor, *, back: bool) -> Tensor:
    _, heads, tokens, size = states.shape
    out = torch.empty_like(states)  # laid out alike
    out = out if out.stride(3) == 1 else torch.empty(states.shape)
    strides = (*states.stride()[1:3], *out.stride()[1:3])
    numbers = addresses(states, out, cosine, sine)
    layer_kernel().rotate(*numbers, heads, tokens, size, *strides, int(back), threads())
    return out


def _rows(states: Tensor) -> tuple[int, int, int]:
    """How many rows, how wide, and how far from one to the next."""
    width = states.shape[-1]
    return states.numel() // width, width, width
