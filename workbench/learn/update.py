"""One optimizer update: micro-batches pass through the models, and what their gradients then do to the weights.

One denominator (invariant 4): every process is handed the *whole* batch, works out the same deal of rows and the same count
of trained tokens, and divides its own sum by that count; the sums are added up by the gradient reduction.

Axis letters: T tokens of the whole batch (flat) · M trained tokens of a micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Credit, LossInputs, TokenLoss, shares_of
from workbench.learn.batch import Batch
from workbench.learn.config import SLOWER, LearnerConfig
from workbench.learn.critic import Critic
from workbench.learn.distributed import Ranks
from workbench.learn.microbatch import MicroBatch, Rows
from workbench.learn.ops.loss import masked_sum_over
from workbench.learn.optimizer import TrainedWeights
from workbench.learn.pieces import token_scores
from workbench.learn.update_report import (
    UpdateNumbers,
    UpdateReport,
    credit_table,
    figures,
    first_bad,
)
from workbench.values import CreditTable, sum_of


@dataclass(frozen=True, eq=False)
class Models:
    """What updates move. `head`: the policy's output head. `bf16`: forward passes run under autocast."""

    policy: TrainedWeights
    head: nn.Module
    critic: Critic | None
    ranks: Ranks
    bf16: bool

    def gradients(self) -> dict[str, Tensor]:
        gradients = self.policy.gradients()
        if self.critic is not None:
            gradients |= self.critic.gradients()
        return gradients

    def grad_norms(self) -> dict[str, float]:
        norms = {"grad_norm": self.policy.grad_norm()}
        if self.critic is not None:
            norms["critic_grad_norm"] = self.critic.weights.grad_norm()
        return norms

    def clear_gradients(self) -> None:
        self.policy.clear_gradients()
        if self.critic is not None:
            self.critic.weights.clear_gradients()


class GradientPass:
    """The gradients of one update, over the tokens `used_T`. What happens to each token is written down in `numbers`."""

    def __init__(
        self, models: Models, algorithm: Algorithm, batch: Batch, credit: Credit, used_T: Tensor
    ) -> None:
        self.models = models
        self.algorithm = algorithm
        self.batch = batch
        self.credit = credit
        self.used_T = used_T
        self.shares = shares_of(algorithm, batch, credit, used_T)
        self.numbers = UpdateNumbers(batch.num_tokens)

    def run(self, budget: int) -> int:
        """Pass everything through the models, at most `budget` tokens at once. Returns the number of micro-batches."""
        ranks = self.models.ranks
        micro_batches = ranks.micro_batches(Rows.of(self.batch, self.used_T), budget)
        self.numbers = UpdateNumbers(self.batch.num_tokens, ranks.device)
        self.models.clear_gradients()
        for micro in self._exchanging(micro_batches, self.models.policy.model):
            self.add(micro)
        if self.models.critic is not None:
            self._add_critic(self.models.critic, micro_batches, budget)
        self.numbers.share(ranks.summed)
        return len(micro_batches)

    def _add_critic(self, critic: Critic, micro_batches: Sequence[MicroBatch], budget: int) -> None:
        """The gradients of a critic of its own trunk; those of one on the policy's are there already."""
        if critic.shares_trunk:
            return critic.exchange_gradients()
        ranks = self.models.ranks
        own, used_T, old_T = critic.used(self.batch, self.used_T)
        if own is not self.batch:  # its sequences are longer, so they are cut otherwise
            micro_batches = ranks.micro_batches(Rows.of(own, used_T), budget)
        for micro in self._exchanging(micro_batches, critic.model):
            loss = self._value_loss(critic.values(micro), old_T[micro.token_M])
            ranks.accelerator.backward(loss)

    def _exchanging(
        self, micro_batches: Sequence[MicroBatch], model: nn.Module
    ) -> Iterator[MicroBatch]:
        """One after another. Gradients of `model`, which exchanges them by itself, cross processes once, with the last; every
        process has the same number of them."""
        for index, micro in enumerate(micro_batches):
            last = index + 1 == len(micro_batches)
            with nullcontext() if last else self.models.ranks.accelerator.no_sync(model):
                yield micro

    def table(self, step: int, update: int) -> CreditTable:
        """What this update used of every token, and what became of it."""
        return credit_table(
            self.batch, self.credit, self.numbers, self.used_T, step=step, update=update
        )

    def loss(self) -> float:
        """The policy's, of the whole update."""
        return sum_of(
            float(masked_sum_over(term_T, *self.shares[name]))
            for name, term_T in self.numbers.terms()
            if name in self.shares
        )

    def add(self, micro: MicroBatch) -> None:
        """Add one micro-batch's share to the gradients of the policy, and of a critic on its trunk."""
        models = self.models
        at_M = micro.token_M
        backward = models.ranks.accelerator.backward
        critic = models.critic if models.critic is not None and models.critic.shares_trunk else None
        entropy = "gradient" if self.algorithm.entropy_coef else "value"
        listening = nullcontext() if critic is None else critic.listening(models.head)
        with listening as heard:
            ids_M = self.batch.token_ids_T[at_M].to(models.ranks.device)
            logp_M, entropy_M = token_scores(
                models.policy.model, models.head, micro, ids_M, entropy, bf16=models.bf16
            )
        inputs = self._loss_inputs(micro, logp_M, entropy_M)
        result = self.algorithm.loss(inputs)
        terms = self._terms_of(result)
        if len(at_M) and terms:
            loss = sum(self._share_of(name, term_M, at_M) for name, term_M in terms.items())
        else:  # of no token: zero, and yet every parameter takes part in the reduction
            loss = logp_M.sum() * 0.0
        if critic is not None:  # one graph, one backward pass: the trunk gets both gradients
            value_M = critic.values_heard(heard)
            loss = loss + critic.config.value_coef * self._value_loss(value_M, at_M)
        backward(loss)
        self._record(at_M, inputs, result, terms)

    def _loss_inputs(self, micro: MicroBatch, logp_M: Tensor, entropy_M: Tensor) -> LossInputs:
        batch = self.batch
        credit = self.credit
        at_M = micro.token_M
        device = self.models.ranks.device

        def fact(values_T: Tensor | None) -> Tensor | None:
            return None if values_T is None else values_T[at_M].float().to(device)

        old_logp_M = logp_M.detach() if batch.old_logp_T is None else fact(batch.old_logp_T)
        return LossInputs(
            logp_M,
            entropy_M,
            old_logp_M,
            fact(credit.advantage_T),
            fact(batch.rollout_logp_T),
            micro.segment_M.to(device),
            fact(batch.ref_logp_T),
            (credit.weight_T[at_M] != 0).to(device),
        )

    def _terms_of(self, result: TokenLoss) -> dict[str, Tensor]:
        """The terms of the policy's loss that this update has, by name, per token [M]."""
        terms = {"policy": result.loss_M, "entropy": result.entropy_loss_M, "kl": result.kl_loss_M}
        return {
            name: term_M
            for name, term_M in terms.items()
            if name in self.shares and term_M is not None
        }

    def _record(
        self, at_M: Tensor, inputs: LossInputs, result: TokenLoss, terms: Mapping[str, Tensor]
    ) -> None:
        """Write down what happened to the tokens of a micro-batch."""
        figures = dict(result.figures)
        figures |= {f"{name}_loss": term_M for name, term_M in terms.items() if name != "policy"}
        self.numbers.record(
            at_M,
            logp=inputs.logp_M,
            old_logp=inputs.old_logp_M,
            entropy=inputs.entropy_M,
            loss=result.loss_M,
            ratio=result.ratio_M,
            clip_state=result.clip_state_M,
            figures=figures,
        )

    def _value_loss(self, value_M: Tensor, at_M: Tensor) -> Tensor:
        """The critic's share of one micro-batch, over a count of its own tokens in the whole update."""

        def fact(values_T: Tensor) -> Tensor:
            return values_T[at_M].float().to(value_M.device)

        if "critic" not in self.shares:  # no token of this update has a target
            return value_M.sum() * 0.0
        # A token without a target is compared with itself: a NaN would reach the gradient even at weight zero.
        fitted_M = fact(self.shares["critic"].weight_T) != 0
        target_M = torch.where(fitted_M, fact(self.credit.return_T), value_M.detach())
        result = self.algorithm.value_loss(value_M, fact(self.batch.value_T), target_M)
        self.numbers.record(
            at_M,
            figures={
                "new_value": value_M,
                "value_loss": result.loss,
                "value_clip_fraction": result.clipped,
            },
        )
        return self._share_of("critic", result.loss, at_M)

    def _share_of(self, term: str, loss_M: Tensor, at_M: Tensor) -> Tensor:
        """What one micro-batch adds to a term. The reduction over processes takes the mean of the gradients; the
        denominator already counts all of them."""
        weight_T, denominator = self.shares[term]
        weight_M = weight_T[at_M].float().to(loss_M.device)
        return masked_sum_over(loss_M, weight_M, denominator) * self.models.ranks.count


class Updates:
    """Makes the updates of a learner, and counts them.

    version         those that moved the policy
    empty           those with nothing to train
    bad             those with numbers that were not finite
    bad_in_a_row    of these, those since the last good one
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self.version = self.empty = self.bad = self.bad_in_a_row = 0
        # Versions after which the learning rate is a tenth of what it was.
        self.slowed: list[int] = []
        # Versions that no update made: an earlier state under a new number.
        self.restored: list[int] = []

    def make(
        self,
        algorithm: Algorithm,
        config: LearnerConfig,
        batch: Batch,
        credit: Credit,
        used_T: Tensor,
        *,
        step: int,
        update: int,
    ) -> UpdateReport:
        """One update over the tokens `used_T`. It is skipped, before it touches the weights, where there is nothing to
        train or a number is not finite: the report says so."""
        gradients = GradientPass(self.models, algorithm, batch, credit, used_T)
        if not bool(used_T.any()):
            return self._nothing_to_train(gradients, step, update)
        micro_batches = gradients.run(config.micro_batch_tokens)
        norms = self.models.grad_norms()
        loss = gradients.loss()
        numbers = gradients.numbers
        table = gradients.table(step, update)
        first_version = self.version if update == 0 else None
        metrics = {
            "loss": loss,
            **norms,
            "lr": self.rate(config, self.version + 1),
            "micro_batches": micro_batches,
            **figures(batch, credit, numbers, used_T, version=first_version),
        }
        finite = all(map(math.isfinite, (loss, *norms.values(), metrics.get("value_loss", 0.0))))
        if self.models.ranks.everywhere(finite):
            skipped = self._step(config, norms)
        else:
            reason = self._refuse(gradients)
            skipped = (
                f"not finite (loss {loss}, gradient norm {norms['grad_norm']}): {reason}; the "
                "weights were not touched"
            )
            metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return UpdateReport(metrics | self._counts(), table, skipped)

    def _nothing_to_train(self, gradients: GradientPass, step: int, update: int) -> UpdateReport:
        self.empty += 1
        return UpdateReport(
            {"trained_tokens": 0, **self._counts()},
            gradients.table(step, update),
            "nothing to train: no sampled token has a weight (all unscored or filtered); weights were not touched",
        )

    def _refuse(self, gradients: GradientPass) -> str:
        """Drop the gradients; in words, what was wrong with them."""
        self.bad += 1
        self.bad_in_a_row += 1
        reason = first_bad(
            gradients.batch,
            gradients.credit,
            gradients.numbers,
            gradients.used_T,
            self.models.gradients(),
        )
        self.models.clear_gradients()
        return reason

    def _step(self, config: LearnerConfig, norms: dict[str, float]) -> str | None:
        """Move the weights by sound gradients; why the policy's were not moved, where they were not."""
        policy = self.models.policy
        critic = self.models.critic
        self.bad_in_a_row = 0
        if critic is not None and norms["critic_grad_norm"] > 0.0:
            critic.weights.scale_down(norms["critic_grad_norm"], config.max_grad_norm)
            critic.weights.step(critic.config.lr)
        if norms["grad_norm"] == 0.0:
            # AdamW would still move the weights, by its momentum: on the strength of earlier batches, not of this one.
            self.empty += 1
            return (
                "nothing to learn: the gradient is exactly zero (zero-variance groups only, or every advantage?); the "
                "policy's weights were not touched"
            )
        policy.scale_down(norms["grad_norm"], config.max_grad_norm)
        policy.step(self.rate(config, self.version + 1))
        self.version += 1
        return None

    def state(self) -> dict[str, Any]:
        """What is counted, as JSON values; what alarms did only where they did something."""
        state: dict[str, Any] = {
            "version": self.version,
            "empty_updates": self.empty,
            "bad_updates": self.bad,
            "bad_in_a_row": self.bad_in_a_row,
        }
        if self.slowed:
            state["slowed"] = [*self.slowed]
        if self.restored:
            state["restored"] = [*self.restored]
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.version = int(state["version"])
        self.bad_in_a_row = int(state["bad_in_a_row"])
        self.empty = int(state["empty_updates"])
        self.bad = int(state["bad_updates"])
        self.slowed = [*state.get("slowed", ())]
        self.restored = [*state.get("restored", ())]

    def rate(self, config: LearnerConfig, version: int) -> float:
        """The policy's learning rate in the update that makes this version."""
        return rate_of(config, version) * SLOWER ** sum(version > after for after in self.slowed)

    def _counts(self) -> dict[str, int]:
        return {"bad_updates": self.bad, "empty_updates": self.empty}


def rate_of(config: LearnerConfig, update: int) -> float:
    """The policy's learning rate in the `update`-th update that moves it, counted from 1, before any alarm lowered it."""
    return (
        config.lr * min(1.0, update / config.warmup_updates) if config.warmup_updates else config.lr
    )
