"""A real learner with weights of its own, put back to where it stood before whatever is asked next (rules R13, R19).

Where several processes train together, each has one, and all are asked the same at the same time: what each of them was
handed is added up here as the exchange of gradients does it, so that all of them get the same answer and none waits for
another. Whether the exchange itself took place is another rule's question (R32).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from workbench.basics.tensors import Tensor, nn, torch
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.config import CriticConfig, LearnerConfig

if TYPE_CHECKING:
    from workbench.learn.learner import Learner

HEAD_SPREAD = 0.05  # of the critic's head: values of about one half, so that its bounds can bind
SEED = 20260731  # of that head, and of the reference
STALE = 0.01  # a gradient that is left over from somewhere: an update has to begin without it

Weights = dict[str, Tensor]  # by parameter name, the critic's under "critic."


class Gradient(NamedTuple):
    """The loss of one update and its gradient."""

    loss: float
    by_name: Mapping[str, Tensor]  # by parameter: float32, before it is scaled down


class FrozenLearner:
    """The real learner, put back to where it stood before whatever is asked next. `model` becomes its own."""

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        config: LearnerConfig,
        critic: CriticConfig,
        reference: nn.Module,
    ) -> None:
        from workbench.learn.learner import Learner

        self._model = model
        self._config = config
        with torch.random.fork_rng(
            devices=[]
        ):  # a new linear layer draws from the process's own generator
            self._learner = Learner(
                self._model, algorithm, config, own_copy=False, critic=critic, reference=reference
            )
        tensors, state = self._learner.state()
        for name, drawn in (
            zip(("weight", "bias"), drawn_head(self._model)) if "critic" in tensors else ()
        ):
            tensors["critic"][name if critic.trunk == "policy" else f"head.{name}"] = drawn
        self._tensors = tensors
        self._state = state

    def put_back(self, algorithm: Algorithm, **settings: float) -> Learner:
        """The learner as it was, for this algorithm, with these settings changed."""
        self._learner.load_state(self._tensors, self._state, is_own=True)
        self._learner.algorithm = algorithm
        self._learner.config = replace(self._config, **settings)
        return self._learner

    @property
    def names(self) -> list[str]:
        """The names of everything that an update may move."""
        critic = self._state.get("critic", {"trainable": []})
        return [*self._state["trainable"], *(f"critic.{name}" for name in critic["trainable"])]

    def weights(self) -> Weights:
        """Copies of everything that an update may move."""
        tensors, _ = self._learner.state()
        known = tensors["model"] | {
            f"critic.{name}": tensor for name, tensor in tensors.get("critic", {}).items()
        }
        return {name: known[name] for name in self.names}

    def leave_stale_gradients(self) -> None:
        for parameter in self._model.parameters():
            parameter.grad = torch.full_like(parameter, STALE)

    @contextmanager
    def listening(self) -> Iterator[Weights]:
        """While open, the gradients that the learner's optimizers are handed are written down, by name."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        policy = {id(parameter): name for name, parameter in self._model.named_parameters()}
        critics = [name for name in self.names if name.startswith("critic.")]
        handed: Weights = {}

        def listen(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
            groups = (group["params"] for group in optimizer.param_groups)
            parameters = list(chain.from_iterable(groups))
            names = critics
            if id(parameters[0]) in policy:
                names = [policy[id(parameter)] for parameter in parameters]
            handed.update({name: gradient_of(p) for name, p in zip(names, parameters)})

        hook = register_optimizer_step_pre_hook(listen)
        try:
            yield handed
        finally:
            hook.remove()


def gradient_of(parameter: nn.Parameter) -> Tensor:
    return (
        torch.zeros_like(parameter, device="cpu")
        if parameter.grad is None
        else parameter.grad.detach().to("cpu", torch.float32, copy=True)
    )


def drawn_head(policy: nn.Module) -> tuple[Tensor, Tensor]:
    """(weight, bias) of a critic's head on this policy."""
    generator = torch.Generator().manual_seed(SEED)
    width = policy.get_output_embeddings().weight.shape[1]
    return HEAD_SPREAD * torch.randn((1, width), generator=generator), HEAD_SPREAD * torch.randn(
        (1,), generator=generator
    )


def everybodys(tensors: Mapping[str, Tensor], processes: int) -> Weights:
    """The mean over all processes, the same bits in each: what an exchange of gradients makes of them. Every process calls it
    with the same names."""
    means = {name: tensor.clone() for name, tensor in tensors.items()}
    for name in sorted(means) if processes > 1 else ():
        torch.distributed.all_reduce(means[name])
        means[name] /= processes
    return means


def same_everywhere(tensors: Mapping[str, Tensor], processes: int) -> bool:
    """Whether every process holds these bits. Every process calls it."""
    from workbench.engines.digests import digests

    if processes == 1:
        return True
    held: list[dict[str, str]] = [{}] * processes
    torch.distributed.all_gather_object(held, digests(tensors))
    return all(other == held[0] for other in held)


def squares(values: Tensor) -> float:
    return float(values.double().square().sum())


def names_of(tensors: Mapping[str, Tensor], critic: bool) -> list[str]:
    """The names of the critic's parameters, or of the policy's."""
    return [name for name in tensors if name.startswith("critic.") is critic]


def norm(tensors: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """The norm of several tensors together."""
    return math.sqrt(sum(squares(tensors[name]) for name in names))


def handed_otherwise(
    handed: Mapping[str, Tensor], due: Mapping[str, Tensor], critic: bool
) -> str | None:
    """Say what is wrong with the gradient that the policy's or the critic's optimizer was handed, or None."""
    names = names_of(due, critic)
    if not names or not any(float(due[name].abs().max()) for name in names):
        return None
    if lost := [name for name in names if name not in handed]:
        return f"the optimizer has no part in {lost[0]} (and {len(lost) - 1} others), which has a gradient"
    gap = math.sqrt(sum(squares(handed[name] - due[name]) for name in names))
    expected = norm(due, names)
    if gap <= 1e-4 * expected:
        return None
    return (
        f"the {'critic' if critic else 'policy'}'s optimizer was handed a gradient of norm {norm(handed, names):.4g}; the "
        f"one of this update, scaled down as learner.max_grad_norm says, has {expected:.4g}"
    )
