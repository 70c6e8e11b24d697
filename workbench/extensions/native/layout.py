"""A Hugging Face model's weights as `step.cpp` is handed them: addresses and shapes, nothing is copied.

A model is read by its parts, not by its name: norms by the root of the mean square, queries, keys and values by three
matrices, a gated unit by three more, and nothing else that has weights. What its numbers are is then compared (`fused`).
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int64, c_void_p

import torch
from torch import Tensor, nn

from workbench.values.errors import EngineError

STEADY = ("default", "linear", "llama3", "yarn")  # rotations that no length of a sequence changes


class Norm(Structure):
    _fields_ = [("weight", c_void_p), ("epsilon", c_float)]


class Matrix(Structure):
    _fields_ = [
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("by_inputs", c_int64),
    ]


class Layer(Structure):
    _fields_ = [
        *((name, Norm) for name in ("before_attention", "before_mlp", "of_queries", "of_keys")),
        *((name, Matrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        ("scale", c_float),
    ]


class Model(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("layers", "width", "heads", "kv_heads", "size", "inner")),
        ("layer", POINTER(Layer)),
        ("embedding", c_void_p),
        ("last", Norm),
        ("head", Matrix),
        ("half", c_int64),
    ]


class Pass(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("tokens", "kept", "longest")),
        *((name, c_void_p) for name in ("id", "slot", "position", "shared")),
        *((name, c_void_p) for name in ("cosine", "sine")),
        ("keys", POINTER(c_void_p)),
        ("values", POINTER(c_void_p)),
        ("slot_stride", c_int64),
        ("head_stride", c_int64),
        ("work", c_void_p),
        ("logits", c_void_p),
    ]


class WeightReader:
    """Reads one model, and remembers which of its weights it has read."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen: set[int] = set()
        self._dtype = model.dtype
        if self._dtype not in (torch.float32, torch.bfloat16):
            raise EngineError(f"its weights are {self._dtype}, not float32 or bfloat16")

    def read(self) -> Model:
        """Raises EngineError, or AttributeError with the part that is not there, for a model that is not of this kind."""
        body = self._model.model
        _refuse_settings(self._model.config)
        read_layers = [self._layer(layer) for layer in body.layers]
        first = read_layers[0]
        size = body.layers[0].self_attn.head_dim
        made = Model(
            layers=len(read_layers),
            width=first.query.inputs,
            heads=first.query.outputs // size,
            kv_heads=first.key.outputs // size,
            size=size,
            inner=first.gate.outputs,
            layer=(Layer * len(read_layers))(*read_layers),
            embedding=self._address(body.embed_tokens.weight),
            last=self._norm(body.norm),
            head=self._matrix(self._model.lm_head),
            half=self._dtype == torch.bfloat16,
        )
        for layer in read_layers:
            _check_shapes(layer, made)
        others = [name for name, p in self._model.named_parameters() if id(p) not in self._seen]
        if others:
            raise EngineError(f"it has weights that the kernel does not use, such as {others[0]}")
        return made

    def _layer(self, layer: nn.Module) -> Layer:
        attention = layer.self_attn
        mlp = layer.mlp
        return Layer(
            before_attention=self._norm(layer.input_layernorm),
            before_mlp=self._norm(layer.post_attention_layernorm),
            of_queries=self._norm(getattr(attention, "q_norm", None)),
            of_keys=self._norm(getattr(attention, "k_norm", None)),
            query=self._matrix(attention.q_proj),
            key=self._matrix(attention.k_proj),
            value=self._matrix(attention.v_proj),
            output=self._matrix(attention.o_proj),
            gate=self._matrix(mlp.gate_proj),
            up=self._matrix(mlp.up_proj),
            down=self._matrix(mlp.down_proj),
            scale=attention.scaling,
        )

    def _norm(self, norm: nn.Module | None) -> Norm:
        if norm is None:
            return Norm(None, 0.0)
        return Norm(self._address(norm.weight), norm.variance_epsilon)

    def _matrix(self, linear: nn.Module) -> Matrix:
        if type(linear) is not nn.Linear:
            raise EngineError(f"it has a {type(linear).__name__} where a plain matrix is expected")
        weight = linear.weight
        bias = None if linear.bias is None else self._address(linear.bias)
        by_inputs = not weight.is_contiguous() and weight.dtype == torch.float32
        self._note(weight.t() if by_inputs else weight, weight)
        return Matrix(weight.data_ptr(), bias, *weight.shape, by_inputs)

    def _address(self, weight: Tensor) -> int:
        self._note(weight, weight)
        return weight.data_ptr()

    def _note(self, laid_out: Tensor, weight: Tensor) -> None:
        if weight.dtype != self._dtype or not laid_out.is_contiguous():
            raise EngineError(
                f"one of its weights is {weight.dtype} beside {self._dtype}, or not laid out side by side"
            )
        self._seen.add(id(weight))


def _refuse_settings(config) -> None:
    """What a probe of some hundred tokens would not see."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None) is not None:
        raise EngineError("some of its layers look back through a window")
    rotation = (config.rope_parameters or {}).get("rope_type", "default")
    if rotation not in STEADY:
        raise EngineError(
            f"its positions turn otherwise in long sequences (rope_type {rotation!r})"
        )


def _check_shapes(layer: Layer, model: Model) -> None:
    """Every matrix has the shape that the kernel takes it to have."""
    queries = model.heads * model.size
    states = model.kv_heads * model.size
    expected = dict(
        query=(queries, model.width),
        key=(states, model.width),
        value=(states, model.width),
        output=(model.width, queries),
        gate=(model.inner, model.width),
        up=(model.inner, model.width),
        down=(model.width, model.inner),
    )
    for name, shape in expected.items():
        matrix = getattr(layer, name)
        if (matrix.outputs, matrix.inputs) != shape:
            raise EngineError(f"its {name} matrix is not {shape[0]} x {shape[1]}")
    if model.heads % model.kv_heads or bool(layer.of_queries.weight) != bool(layer.of_keys.weight):
        raise EngineError("its heads do not share keys evenly")


def rotations(model: nn.Module, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions 0 .. count-1, each [count, head size], as the model makes them."""
    positions_1T = torch.arange(count)[None]
    like = torch.zeros(1, dtype=torch.float32)
    cosine, sine = model.model.rotary_emb(like, positions_1T)
    return cosine[0].contiguous(), sine[0].contiguous()
