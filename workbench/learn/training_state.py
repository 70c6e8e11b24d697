"""Weights and optimizer as named tensors and back: what it takes to go on bit for bit, with no pickle in between."""
from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from workbench.types.errors import LearnerError


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and the buffers that belong to the state, tied ones once under their first name. Not copied."""
    kept = set(module.state_dict())
    buffers = {name: b for name, b in module.named_buffers() if name in kept}
    return {**dict(module.named_parameters()), **buffers}


def trainable_names(module: nn.Module) -> list[str]:
    return [name for name, p in module.named_parameters() if p.requires_grad]


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same names with copies on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """{"i.key": copy}, where `i` numbers the optimizer's parameters in their order."""
    return {f"{i}.{key}": torch.as_tensor(value).detach().cpu().clone()
            for i, entry in optimizer.state_dict()["state"].items() for key, value in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Take over the moments. Hyperparameters are the config's, not the checkpoint's: a resumed run does what its config
    says."""
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        entries.setdefault(int(index), {})[key] = tensor.clone()
    optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in named_tensors(module).items():
            tensor.copy_(tensors[name])


def refuse_other(module: nn.Module, tensors: Mapping[str, Tensor], trainable: list[str], what: str) -> None:
    """Raises LearnerError where a state belongs to another module (names, shapes, frozen layers)."""
    mine = named_tensors(module)
    if odd := sorted(set(mine) ^ set(tensors)) or [n for n in mine if mine[n].shape != tensors[n].shape]:
        raise LearnerError(f"this state belongs to another {what}: {odd[0]!r} is missing on one side or differs in "
                           "shape; take the policy (and adapter) that the state was saved with, or start a new run")
    if trainable != trainable_names(module):
        raise LearnerError(f"this state trains other parameters than this {what} does (another adapter, other frozen "
                           "layers); freeze and adapt as when it was saved, or start a new run")
