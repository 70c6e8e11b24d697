"""A linear layer whose frozen weights are held in four bits (NF4; Dettmers et al. 2023, arXiv 2305.14314, section 3).

    layer = FourBitLinear(linear)      0.56 bytes a weight in place of 4: 4 bits each, and a float32 scale for 64 of them
    layer(x)                           x W': W' is what four bits hold of W, written out for this product and dropped again
    layer.weight                       W' as a tensor that is written out where it is used (`WrittenOut`)

There is one set of weights, W': the layer multiplies by it, state dicts name it, and a copy of the model that is to have
weights of its own (an engine's) gets it as an ordinary linear layer. So whoever samples and whoever learns have the same
weights, and an adapter that is merged is added to the weights that it was trained beside.

Packing and writing out are bitsandbytes' `quantize_4bit` and `dequantize_4bit`, on a CPU and on a GPU. Its own layer is not
used: on some CPUs that repacks its weights as it is called, and multiplies in another precision without gradients than with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import bitsandbytes.functional as packing
import torch
from torch import Tensor, nn

BLOCK = 64  # weights that share a scale
KIND = "nf4"


class FourBitLinear(nn.Linear):
    """Made from a linear layer. It is never trained and never changes, so copies that share what is frozen share it whole."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        weight = linear.weight.detach().float().contiguous()
        packed, state = packing.quantize_4bit(
            weight, blocksize=BLOCK, compress_statistics=False, quant_type=KIND
        )
        self.register_buffer("packed", packed, persistent=False)
        # As bytes: a change of the model's precision leaves scales as they are.
        self.register_buffer("scales", state.absmax.view(torch.uint8), persistent=False)
        # Counted and named like the weight of any layer, without memory of its own.
        shape = nn.Parameter(torch.empty(weight.shape, device="meta"), requires_grad=False)
        self._parameters["weight"] = shape
        bias = None
        if linear.bias is not None:
            bias = nn.Parameter(linear.bias.detach(), requires_grad=False)
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> WrittenOut:
        return WrittenOut(self)

    def merged(self, up: Tensor, down: Tensor, scale: float) -> WrittenOut:
        """W' + scale * up @ down, in float32."""
        return WrittenOut(self, (up.detach().clone(), down.detach().clone(), scale))

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """W' [out, in]."""
        state = packing.QuantState(
            self.scales.view(torch.float32),
            shape=torch.Size((self.out_features, self.in_features)),
            dtype=torch.float32,
            blocksize=BLOCK,
            quant_type=KIND,
        )
        return packing.dequantize_4bit(self.packed, state).to(dtype)

    def forward(self, input: Tensor) -> Tensor:
        product = _Product.apply(input, self)
        return product if self.bias is None else product + self.bias.to(product.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FourBitLinear:
        """Move to a device, or to a precision, which is the bias's alone: a weight without memory cannot be moved."""
        weight = self._parameters.pop("weight")
        try:
            return super()._apply(fn, recurse)
        finally:
            self._parameters["weight"] = weight

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *others: Any
    ) -> None:
        *_, errors = others
        errors.append(
            f"{prefix}weight is held in four bits and cannot be written over; load the policy without policy.base_bits"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        """This very layer where the copy shares weights (`memo` names them); else a linear layer of its own."""
        own = self._parameters["weight"]
        weight = memo.get(id(own))
        if weight is own or id(self.packed) in memo:
            return self
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        if weight is None:
            weight = nn.Parameter(self.dense(), requires_grad=False)
        linear.weight = weight
        linear.bias = copy.deepcopy(self.bias, memo)
        return linear.train(self.training)


class _Product(torch.autograd.Function):
    """x W'^T; the way back writes W' out again instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: FourBitLinear) -> Tensor:
        ctx.layer = layer
        ctx.dtype = x.dtype
        return nn.functional.linear(x, layer.dense(x.dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad @ ctx.layer.dense(grad.dtype)).to(ctx.dtype), None


class WrittenOut(torch.Tensor):
    """The weight of a layer in four bits as a float32 tensor, with an adapter added where there is one. It has shape, type and
    device; whatever else is done with it is done with all its numbers, which are written out for that and dropped again. So
    the weights of a whole model can be handed over layer by layer, and never lie there all at once."""

    def __new__(
        cls, layer: FourBitLinear, adapter: tuple[Tensor, Tensor, float] | None = None
    ) -> WrittenOut:
        made = torch.empty(layer.out_features, layer.in_features, device="meta").as_subclass(cls)
        made.layer = layer
        made.adapter = adapter
        return made

    def written(self) -> Tensor:
        """An ordinary tensor of its own."""
        dense = self.layer.dense()
        if self.adapter is None:
            return dense
        up, down, scale = self.adapter
        return dense.addmm_(up.float(), down.float(), alpha=scale)

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _OF_THE_SHAPE:
            return super().__torch_function__(func, types, args, kwargs)
        if func in _OF_ITSELF:
            return _OF_ITSELF[func](args[0])
        return func(*map(_written, args), **{name: _written(kwargs[name]) for name in kwargs})


def _written(value: Any) -> Any:
    if isinstance(value, WrittenOut):
        return value.written()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_written, value))
    return value


_TENSOR = torch.Tensor
_OF_THE_SHAPE = frozenset(
    (
        _TENSOR.shape.__get__,
        _TENSOR.dtype.__get__,
        _TENSOR.layout.__get__,
        _TENSOR.ndim.__get__,
        _TENSOR.requires_grad.__get__,
        _TENSOR.grad.__get__,
        _TENSOR.size,
        _TENSOR.dim,
        _TENSOR.numel,
        _TENSOR.element_size,
        _TENSOR.stride,
        _TENSOR.storage_offset,
        _TENSOR.is_floating_point,
        _TENSOR.__hash__,
        _TENSOR.__len__,
    )
)
_OF_ITSELF: Mapping[Any, Callable[[WrittenOut], Any]] = {
    _TENSOR.device.__get__: lambda held: held.layer.packed.device,
    # Where it lies; what reads memory from there on is stopped by the next line.
    _TENSOR.data_ptr: lambda held: held.layer.packed.data_ptr(),
    _TENSOR.is_contiguous: lambda held: False,
    _TENSOR.is_meta.__get__: lambda held: False,
    _TENSOR.detach: lambda held: held,
}
