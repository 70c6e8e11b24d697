"""What a checkpoint says of weights and of AdamW's moments, looked at before any of it is taken over.

A seal says that nobody damaged a file, not who wrote it: anybody can make one. Names and shapes of weights are compared by
the learner itself (`learn/optimizer.py`); here are types, numbers, and all that an optimizer would believe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workbench.learn.optimizer import MOMENTS, TrainedWeights, named_tensors, optimizer_of
from workbench.learn.update import Models
from workbench.values.errors import LearnerError

STEP = "step"  # AdamW's count of updates of a parameter, as torch names it
MOST_STEPS = 1e15
MOMENT_TYPES = (torch.float32, torch.bfloat16)  # train.checkpoint_moments
CURE = "Take the checkpoint from a copy of the run, or move its folder away: then the run goes on from the one before"


def check_state(
    tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], models: Models
) -> None:
    """Raises LearnerError for a state that no learner of these models could have saved, as far as it can be told. `tensors`,
    `state`: as `Learner.state` gives them."""
    for name in ("slowed", "restored"):
        if not all(type(version) is int for version in state.get(name, ())):
            raise _refused(f"{name!r} of its state", "versions", state[name])
    critic = state.get("critic")
    if critic is not None and not {"trunk", "trainable"} <= set(critic):
        raise _refused("the critic of its state", "its trunk and trained layers", critic)
    _check_part("model", models.policy, tensors)
    if models.critic is not None and "critic" in tensors:
        _check_part("critic", models.critic.weights, tensors)


def _check_part(
    name: str, weights: TrainedWeights, tensors: Mapping[str, Mapping[str, Tensor]]
) -> None:
    for part in (name, optimizer_of(name)):
        if part not in tensors:
            raise _refused(f"{part}.safetensors", "a file", "none")
    if _is_another(weights, tensors[name]):
        return  # the learner says whose it is
    for key, own in named_tensors(weights.module).items():
        if key in tensors[name]:
            is_trained = isinstance(own, nn.Parameter)
            _check_tensor(f"{name} {key}", tensors[name][key], (own.dtype,), is_trained)
    _check_moments(optimizer_of(name), weights, tensors[optimizer_of(name)])


def _is_another(weights: TrainedWeights, given: Mapping[str, Tensor]) -> bool:
    """Whether these are the weights of another model: a shape is another one, or no name is the same."""
    own = named_tensors(weights.module)
    common = own.keys() & given.keys()
    return not common or any(given[key].shape != own[key].shape for key in common)


def _check_moments(name: str, weights: TrainedWeights, tensors: Mapping[str, Tensor]) -> None:
    """A parameter has all of its moments or none: none before its first update."""
    unknown = set(tensors)
    for index, parameter in enumerate(weights.parameters):
        keys = {key: f"{index}.{key}" for key in (STEP, *MOMENTS)}
        present = unknown.intersection(keys.values())
        if not present:
            continue
        if missing := sorted(set(keys.values()) - present):
            raise _refused(f"{name} {missing[0]}", f"a tensor beside {min(present)}", "none")
        unknown -= present
        for key, entry in keys.items():
            tensor = tensors[entry]
            shape = torch.Size() if key == STEP else parameter.shape
            if tensor.shape != shape:
                raise _refused(f"{name} {entry}", f"the shape {[*shape]}", [*tensor.shape])
            types = (torch.float32,) if key == STEP else MOMENT_TYPES
            _check_tensor(f"{name} {entry}", tensor, types, True)
            if key != MOMENTS[0] and bool((tensor < 0).any()):
                raise _refused(f"{name} {entry}", "nothing below 0", f"{float(tensor.min()):g}")
        if tensors[keys[STEP]] > MOST_STEPS:
            raise _refused(f"{name} {keys[STEP]}", "a count", f"{float(tensors[keys[STEP]]):g}")
    if unknown:
        count = len(weights.parameters)
        raise _refused(f"{name} {min(unknown)}", f"moments of {count} parameters", "one more")


def _check_tensor(what: str, tensor: Tensor, types: tuple[torch.dtype, ...], finite: bool) -> None:
    if tensor.dtype not in types:
        raise _refused(what, " or ".join(map(str, types)), tensor.dtype)
    if finite and not bool(torch.isfinite(tensor).all()):
        raise _refused(what, "finite numbers", "some that are not")


def _refused(what: str, expected: str, got: object) -> LearnerError:
    return LearnerError(
        f"this checkpoint is none that a run saves: {what[:200]!r}: expected {expected}, got {got!s:.80}. {CURE}"
    )
