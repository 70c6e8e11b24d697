"""The critic: what is to be expected from here on, as a number before every token.

    own trunk (default)   a copy of the policy's trunk with a linear head, trained apart, with its own learning rate;
                          it may be told more than the policy saw (privileged.py)
    the policy's trunk    only the head is the critic's: one forward pass for both, one loss, shared hidden states

The value of what stands before token t stands at index t (invariant 3): it is read from the hidden state at t - 1, exactly
where the token's logprob is read, by the very same function. So a `ValueModel` looks like a language model with a
vocabulary of one. The head starts at zero: an untrained critic expects nothing, rather than something random.

Axis letters: N trajectories · T tokens of the whole batch (flat) · M trained tokens of a micro-batch · H hidden.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.distributed import Ranks
from workbench.learn.microbatch import MicroBatch, output_head, trained_logits
from workbench.learn.optimizer import TrainedWeights, refuse_other
from workbench.learn.privileged import Reader, with_told
from workbench.values.errors import LearnerError


class ValueModel(nn.Module):
    """A trunk and a linear head of one output. Called like a language model, it gives `logits` [B, L, 1]: values."""

    def __init__(self, trunk: nn.Module, width: int) -> None:
        super().__init__()
        parameter = next(trunk.parameters())
        self.trunk = trunk
        self.head = nn.Linear(width, 1, device=parameter.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def config(self) -> Any:
        """The trunk's: how its attention is done."""
        return self.trunk.config

    def forward(
        self, *, input_ids: Tensor, use_cache: bool = False, position_ids: Tensor | None = None
    ) -> SimpleNamespace:
        # Not every trunk takes positions.
        placed = {} if position_ids is None else {"position_ids": position_ids}
        states = self.trunk(input_ids=input_ids, use_cache=use_cache, **placed)
        return SimpleNamespace(logits=self.value_of(states.last_hidden_state))

    def value_of(self, hidden_BLH: Tensor) -> Tensor:
        """In float32 also under autocast: a value of 8 bits could not be regressed on."""
        with torch.autocast(hidden_BLH.device.type, enabled=False):
            return self.head(hidden_BLH.float())


def _sharing_copy(trunk: nn.Module) -> nn.Module:
    """A copy of what is trained; what is frozen, such as the weights below adapters, is shared."""
    return copy.deepcopy(trunk, {id(p): p for p in trunk.parameters() if not p.requires_grad})


class Critic:
    """A value model; `weights` are those of it that are the critic's own."""

    def __init__(
        self,
        policy: nn.Module,
        config: CriticConfig,
        learner: LearnerConfig,
        ranks: Ranks,
        read: Reader | None = None,
    ) -> None:
        """`policy` is the learner's model: copied for an own trunk, else used as it is. `read`: text -> ids of what it is told
        besides (critic.sees = 'state'). Raises LearnerError for a model that does not say which part of it is the trunk."""
        trunk = getattr(policy, "base_model", policy)
        if trunk is policy:
            raise LearnerError(
                f"{type(policy).__name__} names no base_model below its output head, so a critic has no "
                "hidden states to read; use a causal language model (AutoModelForCausalLM)"
            )
        self.config = config
        self.bf16 = learner.precision == "bf16"
        self.shares_trunk = config.trunk == "policy"
        self._ranks = ranks
        self._read = read
        if (config.sees == "state") != (read is not None) or self.shares_trunk and read is not None:
            raise LearnerError(
                "critic.sees = 'state' needs a trunk of the critic's own and a reader of what it is told: "
                "Learner(critic=CriticConfig(sees='state'), read=...), text -> token ids"
            )
        if self.shares_trunk and ranks.sharded:
            raise LearnerError(
                "critic.trunk = 'policy' reads the policy's trunk by itself, and where weights are sharded only "
                "the whole model can be run; set critic.trunk = 'own', or learner.sharding = 'none'"
            )
        width = output_head(policy).weight.shape[1]
        self.bare = ValueModel(trunk if self.shares_trunk else _sharing_copy(trunk), width).eval()
        self.model: nn.Module = self.bare
        if self.shares_trunk:
            self.weights = TrainedWeights(self.bare.head, config.lr, learner, None)
        else:
            self.weights = TrainedWeights(self.bare, config.lr, learner, ranks)
            self.model = self.weights.model

    # -------------------------------------------------------------------------------------------- values

    def values(self, micro: MicroBatch) -> Tensor:
        """Values before the trained tokens of a micro-batch [M], with gradient if grad mode is on."""
        model = self.model if torch.is_grad_enabled() else self.bare
        return trained_logits(model, self.bare.head, micro, bf16=self.bf16)[:, 0]

    @contextmanager
    def listening(self, policy_head: nn.Module) -> Iterator[list[Tensor]]:
        """While open, the hidden states that the policy's head is given are written down [1, M, H]: on a shared trunk
        they are the critic's too, and no second forward pass is needed."""
        heard: list[Tensor] = []
        handle = policy_head.register_forward_hook(
            lambda module, args, output: heard.append(args[0])
        )
        try:
            yield heard
        finally:
            handle.remove()

    def values_heard(self, heard: Sequence[Tensor]) -> Tensor:
        """Values [M] from what `listening` wrote down."""
        return self.bare.value_of(heard[0]).reshape(-1)

    def reads(self, batch: Batch) -> tuple[Batch, Tensor]:
        """The batch as the critic reads it, and where each of its tokens went [T]: nowhere else, unless it is told more."""
        if self._read is None:
            return batch, torch.arange(batch.num_tokens)
        return with_told(batch, self._read)

    def used(self, batch: Batch, used_T: Tensor) -> tuple[Batch, Tensor, Tensor]:
        """The batch as the critic reads it; of its tokens, which are used in an update, and which of `batch` each of these is."""
        own, place_T = self.reads(batch)
        there_T = torch.zeros(own.num_tokens, dtype=torch.bool)
        there_T[place_T] = used_T
        old_T = torch.zeros(own.num_tokens, dtype=torch.int64)
        old_T[place_T] = torch.arange(batch.num_tokens)
        return own, there_T, old_T

    def facts(self, batch: Batch, needed_T: Tensor, budget: int) -> tuple[Tensor, Tensor]:
        """(value_T, final_value_N), float32, NaN where none is needed: before each needed token, and after the last
        token of each truncated trajectory that has such tokens. One pass for both."""
        own, place_T = self.reads(batch)
        row_T = batch.trajectory_of_token_T
        has_any_N = torch.zeros(batch.num_trajectories, dtype=torch.bool)
        has_any_N[row_T[needed_T]] = True
        cut_N = (has_any_N & batch.truncated_N).nonzero()[:, 0]
        longer, old_T, end_of_cut = own.with_a_token_after(cut_N)
        old_T = old_T[place_T]
        asked_T = torch.zeros(longer.num_tokens, dtype=torch.bool)
        asked_T[old_T] = needed_T
        asked_T[end_of_cut] = True
        value_T = self._ranks.gathered(longer, asked_T, budget, self.values, self.bare)
        final_N = torch.full((batch.num_trajectories,), torch.nan).index_copy(
            0, cut_N, value_T[end_of_cut]
        )
        return value_T[old_T], final_N

    # -------------------------------------------------------------------------------------------- weights

    def gradients(self) -> dict[str, Tensor]:
        return {f"critic.{name}": gradient for name, gradient in self.weights.gradients().items()}

    def exchange_gradients(self) -> None:
        """Mean over the processes, where nobody else does it: a head on the policy's trunk stands outside the wrapper
        that exchanges the trunk's gradients."""
        if self.shares_trunk and self._ranks.count > 1:
            for parameter in self.weights.parameters:
                parameter.grad = self._ranks.accelerator.reduce(parameter.grad, "mean")

    def state(
        self, *, kept: bool = True, copied: bool = True
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """{"critic": ..., "critic_optimizer": ...} (see `TrainedWeights.state`), and a JSON value."""
        state = {"trunk": self.config.trunk, "trainable": self.weights.trainable}
        if self.config.sees != "policy":
            state["sees"] = self.config.sees
        return self.weights.state("critic", kept=kept, copied=copied), state

    def refuse_other(
        self, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any] | None
    ) -> None:
        """Raises LearnerError for a state that has no critic, or another one. Changes nothing."""
        if state is None or "critic" not in tensors or "critic_optimizer" not in tensors:
            raise LearnerError(
                "this state has no critic, but the algorithm needs one: it was saved by a run whose "
                "algorithm had none. Start a new run, or use that run's algorithm"
            )
        for name, was in (("trunk", state["trunk"]), ("sees", state.get("sees", "policy"))):
            if was != getattr(self.config, name):
                raise LearnerError(
                    f"this state's critic has {name} {was!r}, but critic.{name} is "
                    f"{getattr(self.config, name)!r}; set it as it was, or start a new run"
                )
        refuse_other(self.weights.module, tensors["critic"], list(state["trainable"]), "critic")
