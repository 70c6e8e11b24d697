"""Weights that are trained, with the AdamW that moves them: the policy's and, beside them, a critic's.

Their state is named tensors: what it takes to go on bit for bit, with no pickle in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from workbench.learn.config import LearnerConfig
from workbench.learn.distributed import Ranks, like, whole
from workbench.values.errors import LearnerError

MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW, as torch names them


def adamw(parameters: list[nn.Parameter], lr: float, config: LearnerConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters,
        lr=lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=config.fused_adamw or None,
    )


class TrainedWeights:
    """The trainable parameters of a module and their optimizer. `model` is what a pass with gradients calls: the module,
    wrapped so that its gradients cross processes (`ranks` None: as it is)."""

    def __init__(
        self, module: nn.Module, lr: float, config: LearnerConfig, ranks: Ranks | None
    ) -> None:
        self.module = self.model = module
        if ranks is not None:
            ranks.deal_out(module)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.moments = "float32"  # what a state needs to hold them
        self.optimizer = adamw(self.parameters, lr, config)
        if ranks is not None:
            self.model, self.optimizer = ranks.prepare(module, self.optimizer)

    # -------------------------------------------------------------------------------------------- one update

    def gradients(self) -> dict[str, Tensor]:
        """By parameter name; those that have one, as far as they are here."""
        return {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}

    def grad_norm(self) -> float:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return float(whole(nn.utils.get_total_norm(gradients)))

    def clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def scale_down(self, norm: float, most: float) -> None:
        """Scale gradients of this norm down to `most`; 0: never."""
        if most and norm > most:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(most / norm)

    def step(self, lr: float) -> None:
        """Move the weights by their gradients, which are gone afterwards."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.moments = "float32"
        self.clear_gradients()

    # -------------------------------------------------------------------------------------------- state

    @property
    def trainable(self) -> list[str]:
        return trainable_names(self.module)

    def reduce_moments(self, precision: str) -> None:
        """Leave of AdamW's moments what a checkpoint of this `precision` holds (train.checkpoint_moments)."""
        self.moments = precision
        if precision == "none":
            self.optimizer.state.clear()
        for entry in self.optimizer.state.values() if precision == "bfloat16" else ():
            for key in MOMENTS:
                entry[key].copy_(entry[key].bfloat16())

    def state(
        self, name: str, *, kept: bool = True, copied: bool = True
    ) -> dict[str, dict[str, Tensor]]:
        """{name: {tensor name: copy}, name of its optimizer: {"i.key": copy}}, on the CPU; tied weights once. `i`
        numbers the trainable parameters in the module's order. Not `kept`: part is taken in putting together what is
        sharded, one tensor at a time, and the result has none. Not `copied`: what is whole here is handed out itself."""
        entries = {}
        for i, entry in self.optimizer.state_dict()["state"].items():
            for key, value in entry.items():
                tensor = torch.as_tensor(value)
                reduced = key in MOMENTS and self.moments == "bfloat16"
                entries[f"{i}.{key}"] = tensor.bfloat16() if reduced else tensor
        return {
            name: _whole(named_tensors(self.module), kept, copied),
            optimizer_of(name): _whole(entries, kept, copied),
        }

    def load_state(self, name: str, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over what `state` gave. Hyperparameters are the config's, not the checkpoint's: a resumed run does what
        its config says."""
        with torch.no_grad():
            for key, tensor in named_tensors(self.module).items():
                tensor.copy_(like(tensors[name][key], tensor))
        load_optimizer(self.optimizer, self.parameters, tensors[optimizer_of(name)])


def optimizer_of(name: str) -> str:
    """Under which name the moments of these weights are kept."""
    return "optimizer" if name == "model" else f"{name}_optimizer"


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and the buffers that belong to the state, tied ones once under their first name; where there are adapters,
    what is trained: the rest is the policy's. Not copied."""
    if any(".lora_A." in name for name, _ in module.named_parameters()):
        return {name: p for name, p in module.named_parameters() if p.requires_grad}
    kept = set(module.state_dict())
    buffers = {name: b for name, b in module.named_buffers() if name in kept}
    return {**dict(module.named_parameters()), **buffers}


def trainable_names(module: nn.Module) -> list[str]:
    return [name for name, p in module.named_parameters() if p.requires_grad]


def _whole(tensors: Mapping[str, Tensor], kept: bool, copied: bool) -> dict[str, Tensor]:
    """Tensors that every process helps to put together, on the CPU, none where not `kept`; not `copied`: those that were
    never dealt out as they are."""
    held = {}
    for name, tensor in tensors.items():
        own = tensor.detach()
        complete = whole(own)
        if kept:
            held[name] = own if complete is own and not copied else complete.cpu().clone()
    return held


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    tensors: Mapping[str, Tensor],
) -> None:
    """Take over the moments of these parameters, and nothing else."""
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        # A count of steps is everybody's.
        dealt = like(tensor, parameters[int(index)]) if tensor.shape else tensor
        entries.setdefault(int(index), {})[key] = dealt.clone()
    optimizer.load_state_dict(
        {"state": entries, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def refuse_other(
    module: nn.Module, tensors: Mapping[str, Tensor], trainable: list[str], what: str
) -> None:
    """Raises LearnerError where a state belongs to another module (names, shapes, frozen layers)."""
    mine = named_tensors(module)
    odd = sorted(set(mine) ^ set(tensors))
    if not odd:
        odd = [name for name in mine if mine[name].shape != tensors[name].shape]
    if odd:
        raise LearnerError(
            f"this state belongs to another {what}: {odd[0]!r} is missing on one side or differs in "
            "shape; take the policy (and adapter) that the state was saved with, or start a new run"
        )
    if trainable != trainable_names(module):
        raise LearnerError(
            f"this state trains other parameters than this {what} does (another adapter, other frozen "
            "layers); freeze and adapt as when it was saved, or start a new run"
        )
