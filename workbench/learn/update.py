"""One optimizer update: micro-batches pass through the models, and what their gradients then do to the weights.

One denominator (law 4): every process is handed the *whole* batch, works out the same deal of rows and the same count
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
from workbench.learn.algorithms.base import Credit, LossInputs, shares_of
from workbench.learn.batch import Batch
from workbench.learn.config import SLOWER, LearnerConfig
from workbench.learn.critic import Critic
from workbench.learn.distributed import Ranks
from workbench.learn.microbatch import MicroBatch, Rows, fits_at_once, scored, trained_logits
from workbench.learn.ops.loss import masked_sum_over
from workbench.learn.optimizer import TrainedWeights
from workbench.learn.pieces import scores_in_pieces
from workbench.learn.update_report import (
    UpdateNumbers,
    UpdateReport,
    credit_table,
    figures,
    first_bad,
)


@dataclass(frozen=True, eq=False)
class Models:
    """What updates move. `head`: the policy's output head. `bf16`: forward passes run under autocast."""

    policy: TrainedWeights
    head: nn.Module
    critic: Critic | None
    ranks: Ranks
    bf16: bool

    def gradients(self) -> dict[str, Tensor]:
        return self.policy.gradients() | (
            self.critic.gradients() if self.critic is not None else {}
        )

    def grad_norms(self) -> dict[str, float]:
        norms = {"grad_norm": self.policy.grad_norm()}
        return (
            norms
            if self.critic is None
            else norms | {"critic_grad_norm": self.critic.weights.grad_norm()}
        )

    def clear_gradients(self) -> None:
        self.policy.clear_gradients()
        if self.critic is not None:
            self.critic.weights.clear_gradients()


class GradientPass:
    """The gradients of one update, over the tokens `used_T`. What happens to each token is written down in `numbers`."""

    def __init__(
        self, models: Models, algorithm: Algorithm, batch: Batch, credit: Credit, used_T: Tensor
    ) -> None:
        self.models, self.algorithm, self.batch, self.credit, self.used_T = (
            models,
            algorithm,
            batch,
            credit,
            used_T,
        )
        self.shares = shares_of(algorithm, batch, credit, used_T)
        self.numbers = UpdateNumbers(batch.num_tokens)

    def run(self, budget: int) -> int:
        """Pass everything through the models, at most `budget` tokens at once. Returns the number of micro-batches."""
        ranks, critic = self.models.ranks, self.models.critic
        micro_batches = ranks.micro_batches(Rows.of(self.batch, self.used_T), budget)
        self.numbers = UpdateNumbers(self.batch.num_tokens, ranks.device)
        self.models.clear_gradients()
        for micro in self._exchanging(micro_batches, self.models.policy.model):
            self.add(micro)
        if critic is not None:
            self._add_critic(critic, micro_batches, budget)
        self.numbers.share(ranks.summed)
        return len(micro_batches)

    def _add_critic(self, critic: Critic, micro_batches: Sequence[MicroBatch], budget: int) -> None:
        """The gradients of a critic of its own trunk; those of one on the policy's are there already."""
        if critic.shares_trunk:
            return critic.exchange_gradients()
        ranks = self.models.ranks
        own, used_T, old_T = critic.used(
            self.batch, self.used_T
        )  # its sequences may be longer, and then are cut otherwise
        theirs = (
            micro_batches
            if own is self.batch
            else ranks.micro_batches(Rows.of(own, used_T), budget)
        )
        for micro in self._exchanging(theirs, critic.model):
            ranks.accelerator.backward(self._value_loss(critic.values(micro), old_T[micro.token_M]))

    def _exchanging(
        self, micro_batches: Sequence[MicroBatch], model: nn.Module
    ) -> Iterator[MicroBatch]:
        """One after another. Gradients of `model`, which exchanges them by itself, cross processes once, with the last; every
        process has the same number of them."""
        for index, micro in enumerate(micro_batches):
            last = index + 1 == len(micro_batches)
            with nullcontext() if last else self.models.ranks.accelerator.no_sync(model):
                yield micro

    def loss(self) -> float:
        """The policy's, of the whole update."""
        return sum(
            float(masked_sum_over(term_T, *self.shares[name]))
            for name, term_T in self.numbers.terms()
            if name in self.shares
        )

    def add(self, micro: MicroBatch) -> None:
        """Add one micro-batch's share to the gradients of the policy, and of a critic on its trunk."""
        models, batch, credit, critic = self.models, self.batch, self.credit, self.models.critic
        shared, entropy = (
            critic is not None and critic.shares_trunk,
            "gradient" if self.algorithm.entropy_coef else "value",
        )
        device, at_M, backward = (
            models.ranks.device,
            micro.token_M,
            models.ranks.accelerator.backward,
        )
        passed, ids_M = (
            (models.policy.model, models.head, micro),
            batch.token_ids_T[at_M].to(device),
        )
        with critic.listening(models.head) if shared else nullcontext() as heard:
            if fits_at_once(models.head, micro):
                logp_M, entropy_M = scored(
                    trained_logits(*passed, bf16=models.bf16), ids_M, entropy
                )
            else:
                logp_M, entropy_M = scores_in_pieces(*passed, ids_M, entropy, bf16=models.bf16)

        def fact(values_T: Tensor | None) -> Tensor | None:
            return None if values_T is None else values_T[at_M].float().to(device)

        old_logp_M = logp_M.detach() if batch.old_logp_T is None else fact(batch.old_logp_T)
        result = self.algorithm.loss(
            LossInputs(
                logp_M,
                entropy_M,
                old_logp_M,
                fact(credit.advantage_T),
                fact(batch.rollout_logp_T),
                micro.segment_M.to(device),
                fact(batch.ref_logp_T),
                (credit.weight_T[at_M] != 0).to(device),
            )
        )
        terms = {"policy": result.loss_M, "entropy": result.entropy_loss_M, "kl": result.kl_loss_M}
        terms = {
            name: term_M
            for name, term_M in terms.items()
            if name in self.shares and term_M is not None
        }
        # Of no token: zero, and yet every parameter takes part in the reduction.
        loss = (
            logp_M.sum() * 0.0
            if not len(at_M) or not terms
            else sum(self._share_of(name, term_M, at_M) for name, term_M in terms.items())
        )
        if shared:  # one graph, one backward pass: the trunk gets both gradients
            loss = loss + critic.config.value_coef * self._value_loss(
                critic.values_heard(heard), at_M
            )
        backward(loss)
        noted = dict(result.figures) | {
            f"{name}_loss": term_M for name, term_M in terms.items() if name != "policy"
        }
        self.numbers.record(
            at_M,
            logp=logp_M,
            old_logp=old_logp_M,
            entropy=entropy_M,
            loss=result.loss_M,
            ratio=result.ratio_M,
            clip_state=result.clip_state_M,
            figures=noted,
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
    """Makes the updates of a learner, and counts them. `version`: those that moved the policy; `empty`: with nothing to
    train; `bad`: with numbers that were not finite, `bad_in_a_row` since the last good one."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self.version = self.empty = self.bad = self.bad_in_a_row = 0
        self.slowed: list[
            int
        ] = []  # versions after which the learning rate is a tenth of what it was
        self.restored: list[
            int
        ] = []  # versions that no update made: an earlier state under a new number

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
        made = GradientPass(self.models, algorithm, batch, credit, used_T)
        if not bool(used_T.any()):
            self.empty += 1
            why = "nothing to train: no sampled token has a weight (all unscored or filtered); weights were not touched"
            return UpdateReport(
                {"trained_tokens": 0, **self._counts()},
                credit_table(batch, credit, made.numbers, used_T, step=step, update=update),
                why,
            )
        micro_batches = made.run(config.micro_batch_tokens)
        norms, loss = self.models.grad_norms(), made.loss()
        table = credit_table(batch, credit, made.numbers, used_T, step=step, update=update)
        metrics = {
            "loss": loss,
            **norms,
            "lr": self.rate(config, self.version + 1),
            "micro_batches": micro_batches,
            **figures(
                batch, credit, made.numbers, used_T, version=self.version if update == 0 else None
            ),
        }
        finite = all(map(math.isfinite, (loss, *norms.values(), metrics.get("value_loss", 0.0))))
        if self.models.ranks.everywhere(finite):
            skipped = self._step(config, norms)
        else:
            skipped = (
                f"not finite (loss {loss}, gradient norm {norms['grad_norm']}): {self._refuse(made)}; the "
                "weights were not touched"
            )
            metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return UpdateReport(metrics | self._counts(), table, skipped)

    def _refuse(self, made: GradientPass) -> str:
        """Drop the gradients; in words, what was wrong with them."""
        self.bad += 1
        self.bad_in_a_row += 1
        why = first_bad(made.batch, made.credit, made.numbers, made.used_T, self.models.gradients())
        self.models.clear_gradients()
        return why

    def _step(self, config: LearnerConfig, norms: dict[str, float]) -> str | None:
        """Move the weights by sound gradients; why the policy's were not moved, where they were not."""
        policy, critic = self.models.policy, self.models.critic
        self.bad_in_a_row = 0
        if critic is not None and norms["critic_grad_norm"] > 0.0:
            critic.weights.scale_down(norms["critic_grad_norm"], config.max_grad_norm)
            critic.weights.step(critic.config.lr)
        if norms["grad_norm"] == 0.0:
            # AdamW would still move the weights, by its momentum: on the strength of earlier batches, not of this one.
            self.empty += 1
            return (
                "nothing to learn: the gradient is exactly zero (every group flat, or every advantage?); the "
                "policy's weights were not touched"
            )
        policy.scale_down(norms["grad_norm"], config.max_grad_norm)
        policy.step(self.rate(config, self.version + 1))
        self.version += 1
        return None

    def state(self) -> dict[str, Any]:
        """What is counted, as JSON values; what alarms did only where they did something."""
        found = {
            "version": self.version,
            "empty_updates": self.empty,
            "bad_updates": self.bad,
            "bad_in_a_row": self.bad_in_a_row,
        }
        return found | {
            name: [*held]
            for name, held in (("slowed", self.slowed), ("restored", self.restored))
            if held
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.version, self.bad_in_a_row = int(state["version"]), int(state["bad_in_a_row"])
        self.empty, self.bad = int(state["empty_updates"]), int(state["bad_updates"])
        self.slowed, self.restored = [*state.get("slowed", ())], [*state.get("restored", ())]

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
