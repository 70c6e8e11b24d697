"""The weights of one update ago, worked out from what AdamW left behind: an engine may still have them."""

from __future__ import annotations

from torch import Tensor

from workbench.learn.distributed import whole
from workbench.learn.learner import Learner
from workbench.learn.optimizer import TrainedWeights


def before_last_update(learner: Learner) -> dict[str, Tensor] | None:
    """By state-dict name, in float32 exact but for rounding; None before the first update."""
    if not learner.version:
        return None
    rate = learner.updates.rate(learner.config, learner.version)
    return learner.as_plain(_before_last_step(learner.models.policy, rate))


def _before_last_step(weights: TrainedWeights, lr: float) -> dict[str, Tensor]:
    """The last step had this learning rate. AdamW's step is undone by its moments (Loshchilov & Hutter, arXiv 1711.05101), so
    no second copy is kept for it."""
    older: dict[int, Tensor] = {}
    for group in weights.optimizer.param_groups:
        for parameter in group["params"]:
            if held := weights.optimizer.state.get(parameter):
                count = float(held["step"])
                mean_decay, square_decay = group["betas"]
                mean = held["exp_avg"].double() / (1 - mean_decay**count)
                square = held["exp_avg_sq"].double() / (1 - square_decay**count)
                step = lr * mean / (square.sqrt() + group["eps"])
                old = (parameter.detach().double() + step) / (1 - lr * group["weight_decay"])
                older[id(parameter)] = old.to(parameter.dtype)
    tensors = weights.module.state_dict(keep_vars=True)
    return {name: whole(older.get(id(tensor), tensor.detach())) for name, tensor in tensors.items()}
