"""Copying weights into an engine by state-dict name: all or nothing, and every wrong name is told."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from workbench.types.errors import EngineError


def cast_weights(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Change parameters and stored buffers of `model` to `dtype`, in place; ties stay ties.

    Buffers that are no part of the state (the frequencies of rotary positions) keep their type, as in a model that
    `from_pretrained` loads in half precision. `model.to(dtype)` would round them, and the angle of position 1000 would
    be off by a radian: the engine would sample from another model than the one that is trained.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set and buffer.is_floating_point():
                    setattr(module, name, buffer.to(dtype))


def lay_out_for_few_rows(model: torch.nn.Module) -> None:
    """Store the matrices of linear layers column by column, in place: shapes, names and values stay.

    A decode step brings few rows to each matrix, and torch's matrix library first arranges a row-wise one anew for every
    product; so 16 rows take 1.3 to 1.6 times as long (CPU, float32). Elsewhere nothing is changed.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if (isinstance(module, torch.nn.Linear) and id(weight) not in tables
                and weight.device.type == "cpu" and weight.dtype == torch.float32):
            weight.data = weight.data.t().contiguous().t()


def copy_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy `weights` into `model` in place, casting to the model's dtype and device.

    Names are those of `model.state_dict()`. Raises EngineError like `WeightNames.choose`, and then nothing has been
    changed.
    """
    own = model.state_dict()
    chosen = WeightNames.of(model).choose(weights)
    with torch.no_grad():
        for name, tensor in chosen.items():
            own[name].copy_(tensor)


@dataclass(frozen=True)
class WeightNames:
    """Names and shapes of a model's weights, names that share storage together: what a sync is checked against."""

    kind: str                           # class of the model
    shapes: Mapping[str, torch.Size]
    tied: tuple[tuple[str, ...], ...]   # every name is in one of them; the first of each names the tensor

    @classmethod
    def of(cls, model: torch.nn.Module) -> "WeightNames":
        own = model.state_dict()
        return cls(type(model).__name__, {name: tensor.shape for name, tensor in own.items()}, _tied(own))

    def choose(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Each tensor once, under the first of its names.

        Of names that share storage (a head tied to the embedding) one is enough; if several are given they must agree.
        Raises EngineError naming what is unknown, missing, misshapen or contradictory.
        """
        unknown = [name for name in weights if name not in self.shapes]
        if unknown:
            raise EngineError(
                f"weights hold {len(unknown)} name(s) that the engine's {self.kind} does not have: "
                f"{_some(unknown)}; it has for instance {_some(list(self.shapes))}. Unwrap the model first (a prefix "
                "such as 'module.' comes from DDP)"
            )
        shapes = [
            f"{name}: engine {tuple(self.shapes[name])}, got {tuple(tensor.shape)}"
            for name, tensor in weights.items() if tensor.shape != self.shapes[name]
        ]
        if shapes:
            raise EngineError(f"{len(shapes)} weight(s) have another shape than in the engine: {_some(shapes, '; ')}")
        chosen: dict[str, torch.Tensor] = {}
        missing, contradictions = [], []
        for names in self.tied:
            given = [name for name in names if name in weights]
            if not given:
                missing.append(" = ".join(names))
                continue
            first = weights[given[0]]
            contradictions += [f"{given[0]} and {name}" for name in given[1:] if not _same(first, weights[name])]
            chosen[names[0]] = first
        if missing:
            raise EngineError(f"weights lack {len(missing)} name(s) of the engine's {self.kind}: {_some(missing)}")
        if contradictions:
            raise EngineError(
                f"{_some(contradictions)} are one tensor in the engine (tied) but came with different values; "
                "the model that was trained has lost its tie"
            )
        return chosen


def _tied(own: Mapping[str, torch.Tensor]) -> tuple[tuple[str, ...], ...]:
    """Names grouped by the storage that they share."""
    groups: dict[tuple, list[str]] = {}
    for name, tensor in own.items():
        key = (tensor.data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
        # Tensors without elements share the null pointer without being one.
        groups.setdefault(key if tensor.numel() else (name,), []).append(name)
    return tuple(tuple(names) for names in groups.values())


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b.to(a.device))


def _some(items: list[str], separator: str = ", ") -> str:
    shown = separator.join(items[:4])
    return shown if len(items) <= 4 else f"{shown}{separator}and {len(items) - 4} more"
