"""The learner: credit and tokens in, better weights out, on one process or many.

    learner = Learner(policy.model, GRPO(), LearnerConfig(lr=2e-4))
    for report in learner.update(batch, credit, step=3): ...

One denominator (law 4): every process is handed the *whole* batch, works out the same deal of rows and the same count
of trained tokens, and divides its own sum by that count; the sums are added up by the gradient reduction.

Axis letters: N trajectories · S segments · T tokens of the whole batch (flat) · M trained tokens of a micro-batch.
"""
from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import (TERMS, Credit, LossInputs, Share, demand_facts, missing_facts,
                                             needs_critic, shares_of)
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.critic import Critic
from workbench.learn.distributed import Ranks
from workbench.learn.microbatch import MicroBatch, Rows, output_head, trained_logits
from workbench.learn.ops.loss import entropy_of, logprobs_of, masked_sum_over
from workbench.learn.packing import make_packable
from workbench.learn.training_state import (copied, load_optimizer, load_tensors, named_tensors, optimizer_tensors,
                                      refuse_other, trainable_names)
from workbench.learn.update_report import UpdateNumbers, UpdateReport, credit_table, figures, first_bad
from workbench.types.errors import LearnerError
from workbench.types.seeds import rng_at

STATE_FORMAT = 1
ENTROPY_ROWS = 1024  # logits to take the entropy of at once, where no gradient is asked for: bounds memory, not results


class Learner:
    """Owns a model and its optimizer. `version` counts the updates that were made; it names the weights."""

    def __init__(self, model: nn.Module, algorithm: Algorithm, config: LearnerConfig, *, own_copy: bool = True,
                 critic: CriticConfig | None = None, reference: nn.Module | None = None) -> None:
        """The model is copied, so the one handed in stays the untrained policy. `own_copy=False` saves that memory:
        then the caller must not use it any more. `critic` says how to build the critic of an algorithm that needs one
        (None: as CriticConfig has it). `reference` is what `ref_logp_T` is computed with; it is only read. Raises
        LearnerError for the wrong number of processes and for weights that are not float32 (small updates vanish in
        half precision)."""
        trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not trainable:
            raise LearnerError("the model has no parameter that requires a gradient; nothing can be trained")
        if wrong := [f"{name} is {p.dtype}" for name, p in trainable if p.dtype != torch.float32]:
            raise LearnerError(f"weights are trained in float32, but {wrong[0]}; load the policy with dtype='float32' "
                               "and set precision='bf16' for speed")
        self.algorithm, self.config, self.version = algorithm, config, 0
        self.empty_updates = self.bad_updates = 0  # so far: with nothing to train, with numbers that were not finite
        self._bad_in_a_row = 0
        # Dropout would be noise that the sampler never saw; gradients flow in eval mode all the same.
        self._bare = (copy.deepcopy(model) if own_copy else model).eval()
        packed = config.layout == "auto" and make_packable(self._bare)
        # The reference computes exactly as the policy does: two layouts differ in rounding, and a credit that divides
        # by a spread of nothing but rounding would train on it.
        self._reference = None if reference is None else _reading(reference)
        if packed and self._reference is not None and not make_packable(self._reference):
            raise LearnerError("the policy is packed end to end, the reference cannot be: with two layouts they would "
                               "differ by rounding even where they agree; set learner.layout='padded'")
        self._ranks = Ranks(next(model.parameters()).device, config.num_processes, packed=packed)
        self._accelerator = self._ranks.accelerator
        self._head = output_head(self._bare)
        self._parameters = [p for p in self._bare.parameters() if p.requires_grad]
        self._model, self._optimizer = self._ranks.prepare(self._bare, self._adamw(self._parameters, config.lr))
        self._critic: Critic | None = None
        if needs_critic(algorithm):
            self._critic = Critic(self._bare, critic or CriticConfig(), self._ranks, self._adamw,
                                  bf16=config.precision == "bf16")

    def _adamw(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=lr, betas=self.config.betas, eps=self.config.eps,
                                 weight_decay=self.config.weight_decay)

    @property
    def is_main(self) -> bool:
        """True on the one process that writes files."""
        return self._accelerator.is_main_process

    # -------------------------------------------------------------------------------------------- one step

    def facts(self, batch: Batch) -> Batch:
        """The batch with those later facts that `algorithm.requires` and that it does not have yet, under the current
        weights: call it before credit is computed. Every process calls it with the same whole batch.

        Numbers stand where `algorithm.reads_T` says (the sampled tokens of scored trajectories), NaN elsewhere. Raises
        LearnerError for a fact that nothing here can compute.
        """
        missing = missing_facts(self.algorithm, batch)
        needed_T = self.algorithm.reads_T(batch)
        made: dict[str, Tensor] = {}
        if "old_logp_T" in missing:
            made["old_logp_T"] = self.logprobs(batch, needed_T)
        if "ref_logp_T" in missing and self._reference is not None:
            made["ref_logp_T"] = self.logprobs(batch, needed_T, self._reference)
        if self._critic is not None and {"value_T", "final_value_N"} & set(missing):
            value_T, final_N = self._critic.facts(batch, needed_T, self.config.micro_batch_tokens)
            made |= {"value_T": value_T} | ({"final_value_N": final_N} if "final_value_N" in missing else {})
        if unknown := [name for name in missing if name not in made]:
            raise LearnerError(f"{self.algorithm.name} needs {', '.join(unknown)}, but this learner has nothing to "
                               "compute it with: a reference policy is handed over as Learner(reference=...)")
        return replace(batch, **made) if made else batch

    def update(self, batch: Batch, credit: Credit, *, step: int) -> list[UpdateReport]:
        """All updates of one step. Every process calls this with the same whole batch.

        An update whose loss or gradient is not finite is skipped before it touches the weights: its report says so and
        names the first bad number, and its table holds what led there. Raises LearnerError after `max_bad_updates` of
        them in a row (`error.reports` has the reports), and for a batch that differs between processes.
        """
        self._check(batch, credit)
        algorithm, trained_T = self.algorithm, credit.trained_T
        minibatches = algorithm.minibatches if credit.minibatches is None else credit.minibatches
        several = algorithm.epochs * minibatches > 1
        if several and batch.old_logp_T is None:
            # Later updates move away from the weights that sampled. The trainer's own numbers are the reference, never
            # the sampler's: the two differ by rounding, and rounding must not look like a ratio.
            batch = replace(batch, old_logp_T=self.logprobs(batch, trained_T))
        reports: list[UpdateReport] = []
        for epoch in range(algorithm.epochs):
            for used_T in self._minibatches(batch, trained_T, minibatches, step, epoch):
                report = self._one_update(batch, credit, used_T, step=step, update=len(reports))
                reports.append(report)
                if self._bad_in_a_row >= self.config.max_bad_updates:
                    error = LearnerError(f"{self._bad_in_a_row} updates in a row were not finite, the last in step "
                                         f"{step}: {report.skipped}. Lower learner.lr, or look at the stored step")
                    error.reports = reports
                    raise error
        return reports

    def logprobs(self, batch: Batch, tokens_T: Tensor, model: nn.Module | None = None) -> Tensor:
        """Logprob of the chosen tokens under the current weights, or those of another `model` [T], float32; NaN
        elsewhere. No gradient."""
        model, head = (self._bare, self._head) if model is None else (model.eval(), output_head(model))

        def of_micro(micro: MicroBatch) -> Tensor:
            logits_MV = trained_logits(model, head, micro, bf16=self.config.precision == "bf16")
            return logprobs_of(logits_MV, self._ids(batch, micro))

        return self._ranks.gathered(batch, tokens_T, self.config.micro_batch_tokens, of_micro)

    def _minibatches(self, batch: Batch, trained_T: Tensor, count: int, step: int, epoch: int) -> list[Tensor]:
        """Which tokens each update of an epoch trains [T]: trajectories, shuffled by (seed, step, epoch), dealt out."""
        if count == 1:
            return [trained_T]
        row_T = batch.trajectory_of_token_T
        rows = row_T[trained_T].unique().numpy()  # sorted, so the shuffle is a function of its address alone
        rows = torch.from_numpy(rng_at(self.config.seed, "minibatch", step, epoch).permutation(rows))
        parts = []
        for first in range(min(count, max(len(rows), 1))):
            chosen_N = torch.zeros(batch.num_trajectories, dtype=torch.bool).index_fill(0, rows[first::count], True)
            parts.append(trained_T & chosen_N[row_T])
        return parts

    # -------------------------------------------------------------------------------------------- one update

    def _one_update(self, batch: Batch, credit: Credit, used_T: Tensor, *, step: int, update: int) -> UpdateReport:
        numbers = UpdateNumbers(batch.num_tokens)
        if not bool(used_T.any()):
            self.empty_updates += 1
            why = "nothing to train: no sampled token has a weight (all unscored or filtered); weights were not touched"
            return UpdateReport({"trained_tokens": 0, **self._counts()},
                                credit_table(batch, credit, numbers, used_T, step=step, update=update), why)
        shares = shares_of(self.algorithm, batch, credit, used_T)
        micro_batches = self._ranks.micro_batches(Rows.of(batch, used_T), self.config.micro_batch_tokens)
        self._clear_gradients()
        for index, micro in enumerate(micro_batches):
            last = index + 1 == len(micro_batches)
            # Gradients cross processes once, with the last micro-batch; every process has the same number of them.
            with ExitStack() as quiet:
                for model in () if last else self._wrapped():
                    quiet.enter_context(self._accelerator.no_sync(model))
                self._forward_backward(batch, credit, micro, shares, numbers)
        if self._critic is not None:
            self._critic.exchange_gradients()
        numbers.share(self._ranks.summed)
        norms = self._gradient_norms()
        loss = sum(float(masked_sum_over(term_T, *shares[name])) for name, term_T in numbers.terms() if name in shares)
        table = credit_table(batch, credit, numbers, used_T, step=step, update=update)
        metrics = {"loss": loss, **norms, "lr": self._learning_rate(), "micro_batches": len(micro_batches),
                   **figures(batch, credit, numbers, used_T, version=self.version if update == 0 else None)}
        finite = all(map(math.isfinite, (loss, *norms.values(), metrics.get("value_loss", 0.0))))
        if not self._ranks.everywhere(finite):
            self.bad_updates += 1
            why = first_bad(batch, credit, numbers, used_T, self._gradients())
            self._clear_gradients()
            self._bad_in_a_row += 1
            finite_only = {name: value for name, value in metrics.items() if math.isfinite(value)}
            why = f"not finite (loss {loss}, gradient norm {norms['grad_norm']}): {why}; the weights were not touched"
            return UpdateReport(finite_only | self._counts(), table, why)
        self._bad_in_a_row = 0
        if self._critic is not None and norms["critic_grad_norm"] > 0.0:
            self._scale_down(self._critic.parameters, norms["critic_grad_norm"])
            self._critic.step()
        if norms["grad_norm"] == 0.0:
            # AdamW would still move the weights, by its momentum: on the strength of earlier batches, not of this one.
            self.empty_updates += 1
            why = ("nothing to learn: the gradient is exactly zero (every group flat, or every advantage?); the "
                   "policy's weights were not touched")
            return UpdateReport(metrics | self._counts(), table, why)
        self._step(norms["grad_norm"])
        return UpdateReport(metrics | self._counts(), table, None)

    def _counts(self) -> dict[str, int]:
        return {"bad_updates": self.bad_updates, "empty_updates": self.empty_updates}

    def _forward_backward(self, batch: Batch, credit: Credit, micro: MicroBatch, shares: Mapping[str, Share],
                          numbers: UpdateNumbers) -> None:
        """Add one micro-batch's share to the gradients, and write down what happened to its tokens."""
        critic = self._critic
        shared = critic is not None and critic.shares_trunk
        with critic.listening(self._head) if shared else nullcontext() as heard:
            logits_MV = trained_logits(self._model, self._head, micro, bf16=self.config.precision == "bf16")
        device, at_M = logits_MV.device, micro.token_M
        logp_M = logprobs_of(logits_MV, self._ids(batch, micro))
        if self.algorithm.entropy_coef:
            entropy_M = entropy_of(logits_MV)
        else:
            entropy_M = torch.cat([entropy_of(some) for some in logits_MV.detach().split(ENTROPY_ROWS)])

        def fact(values_T: Tensor | None) -> Tensor | None:
            return None if values_T is None else values_T[at_M].float().to(device)

        old_logp_M = logp_M.detach() if batch.old_logp_T is None else fact(batch.old_logp_T)
        result = self.algorithm.loss(LossInputs(
            logp_M, entropy_M, old_logp_M, fact(credit.advantage_T), fact(batch.rollout_logp_T),
            micro.segment_M.to(device), fact(batch.ref_logp_T), (credit.weight_T[at_M] != 0).to(device),
        ))
        # The reduction over processes takes the mean of the gradients; the denominator already counts all of them.
        world = self._accelerator.num_processes
        terms = {"policy": result.loss_M, "entropy": result.entropy_loss_M, "kl": result.kl_loss_M}
        terms = {name: term_M for name, term_M in terms.items() if name in shares and term_M is not None}
        # Of no token: zero, and yet every parameter takes part in the reduction.
        loss = logits_MV.sum() * 0.0 if not len(at_M) or not terms else sum(
            masked_sum_over(term_M, fact(shares[name].weight_T), shares[name].denominator) * world
            for name, term_M in terms.items())
        if shared:  # one graph, one backward pass: the trunk gets both gradients
            loss = loss + critic.config.value_coef * self._value_loss(critic.values_heard(heard), batch, credit, micro,
                                                                      shares, numbers)
        self._accelerator.backward(loss)
        figures = dict(result.figures) | {f"{name}_loss": term_M for name, term_M in terms.items() if name != "policy"}
        numbers.record(at_M, logp=logp_M, old_logp=old_logp_M, entropy=entropy_M, loss=result.loss_M,
                       ratio=result.ratio_M, clip_state=result.clip_state_M, figures=figures)
        if critic is not None and not shared:
            self._accelerator.backward(self._value_loss(critic.values(micro), batch, credit, micro, shares, numbers))

    def _value_loss(self, value_M: Tensor, batch: Batch, credit: Credit, micro: MicroBatch, shares: Mapping[str, Share],
                    numbers: UpdateNumbers) -> Tensor:
        """The critic's share of one micro-batch, over a count of its own tokens in the whole update."""
        def fact(values_T: Tensor) -> Tensor:
            return values_T[micro.token_M].float().to(value_M.device)

        if "critic" not in shares:  # no token of this update has a target
            return value_M.sum() * 0.0
        share = shares["critic"]
        weight_M = fact(share.weight_T)
        # A token without a target is compared with itself: a NaN would reach the gradient even at weight zero.
        target_M = torch.where(weight_M != 0, fact(credit.return_T), value_M.detach())
        result = self.algorithm.value_loss(value_M, fact(batch.value_T), target_M)
        numbers.record(micro.token_M, figures={"new_value": value_M, "value_loss": result.loss,
                                               "value_clip_fraction": result.clipped})
        return masked_sum_over(result.loss, weight_M, share.denominator) * self._accelerator.num_processes

    def _wrapped(self) -> list[nn.Module]:
        """The models whose gradients are exchanged between processes by themselves."""
        own = self._critic is not None and not self._critic.shares_trunk
        return [self._model, self._critic.model] if own else [self._model]

    def _gradient_norms(self) -> dict[str, float]:
        def norm(parameters: list[nn.Parameter]) -> float:
            return float(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))

        if self._critic is None:
            return {"grad_norm": norm(self._parameters)}
        return {"grad_norm": norm(self._parameters), "critic_grad_norm": norm(self._critic.parameters)}

    def _clear_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        if self._critic is not None:
            self._critic.clear()

    def _scale_down(self, parameters: list[nn.Parameter], norm: float) -> None:
        if self.config.max_grad_norm and norm > self.config.max_grad_norm:
            scale = self.config.max_grad_norm / norm
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)

    def _step(self, grad_norm: float) -> None:
        self._scale_down(self._parameters, grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.version += 1

    def _learning_rate(self) -> float:
        warmup = self.config.warmup_updates
        return self.config.lr * min(1.0, (self.version + 1) / warmup) if warmup else self.config.lr

    # -------------------------------------------------------------------------------------------- checks

    def _ids(self, batch: Batch, micro: MicroBatch) -> Tensor:
        return batch.token_ids_T[micro.token_M].to(micro.input_ids_BL.device)

    def _check(self, batch: Batch, credit: Credit) -> None:
        demand_facts(self.algorithm, batch)
        if len(credit.advantage_T) != batch.num_tokens or len(credit.weight_T) != batch.num_tokens:
            raise LearnerError(f"credit for {len(credit.weight_T)} tokens, but the batch has {batch.num_tokens}: it "
                               "was computed for another batch")
        moved_T = torch.stack([credit.weights_of(term) != 0 for term in ("policy", "entropy", "kl")]).any(0)
        stray_T = moved_T & ~batch.eligible_T
        if bool(stray_T.any()) and credit.widened is None:
            where = batch.describe_token(int(stray_T.nonzero()[0]))
            raise LearnerError(f"{int(stray_T.sum())} tokens have a weight but were not sampled by the policy here, "
                               f"the first: {where}. Only sampled tokens are trained; an exception must name itself in "
                               "Credit.widened")
        if self._critic is not None and credit.return_T is None:
            raise LearnerError(f"the credit of {self.algorithm.name} has no return_T, so there is nothing to fit its "
                               "critic to")
        held = (batch.token_ids_T, batch.segment_offsets, credit.advantage_T, credit.return_T,
                *(credit.weights_of(term) for term in TERMS))
        if not self._ranks.agree_on(tensor for tensor in held if tensor is not None):
            raise LearnerError("the processes were handed different batches; each must get the whole one, and the same: "
                               "collect with the same seed everywhere, or read the stored step on each")

    def _gradients(self) -> dict[str, Tensor]:
        policy = {name: p.grad for name, p in self._bare.named_parameters() if p.grad is not None}
        return policy | (self._critic.gradients() if self._critic is not None else {})

    # -------------------------------------------------------------------------------------------- weights and state

    def weights(self) -> dict[str, Tensor]:
        """The current weights by state-dict name, detached but not copied: for an engine's `sync`, which copies."""
        return {name: tensor.detach() for name, tensor in self._bare.state_dict().items()}

    def before_last_update(self) -> dict[str, Tensor] | None:
        """The weights of one update ago by state-dict name, to see whether an engine still has them; None before the
        first update. AdamW's step is undone by the moments it left behind (Loshchilov & Hutter, arXiv 1711.05101):
        exact but for rounding, and no second copy is kept for it."""
        if not self.version:
            return None
        warmup = self.config.warmup_updates
        lr = self.config.lr * (min(1.0, self.version / warmup) if warmup else 1.0)
        older: dict[int, Tensor] = {}
        for parameter in self._parameters:
            held = self._optimizer.state.get(parameter)
            if held:
                count = float(held["step"])
                mean = held["exp_avg"].double() / (1 - self.config.betas[0]**count)
                square = held["exp_avg_sq"].double() / (1 - self.config.betas[1]**count)
                step = lr * mean / (square.sqrt() + self.config.eps)
                old = (parameter.detach().double() + step) / (1 - lr * self.config.weight_decay)
                older[id(parameter)] = old.to(parameter.dtype)
        return {name: older.get(id(tensor), tensor.detach())
                for name, tensor in self._bare.state_dict(keep_vars=True).items()}

    def state(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """What it takes to go on bit for bit: {"model": {name: tensor}, "optimizer": {"i.key": tensor}}, JSON value;
        with a critic also "critic" and "critic_optimizer".

        Tensors are copies on the CPU, tied weights once. `i` numbers the trainable parameters in the model's order.
        """
        tensors = {"model": copied(named_tensors(self._bare)), "optimizer": optimizer_tensors(self._optimizer)}
        state = {
            "format": STATE_FORMAT, "version": self.version, "empty_updates": self.empty_updates,
            "bad_updates": self.bad_updates, "bad_in_a_row": self._bad_in_a_row,
            "trainable": trainable_names(self._bare),
        }
        if self._critic is None:
            return tensors, state
        critic_tensors, critic_state = self._critic.state()
        return tensors | critic_tensors, state | {"critic": critic_state}

    def load_state(self, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
        """Take over what `state` gave. Raises LearnerError, before anything is changed, for another model's state, and
        for one with a critic where none is needed or the other way round."""
        if state.get("format") != STATE_FORMAT:
            raise LearnerError(f"learner state of format {state.get('format')!r}, this program reads {STATE_FORMAT}")
        refuse_other(self._bare, tensors["model"], list(state["trainable"]), "model")
        if self._critic is not None:
            self._critic.refuse_other(tensors, state.get("critic"))
        elif "critic" in state:
            raise LearnerError(f"this state has a critic, but {self.algorithm.name} needs none: it was saved by a run "
                               "with another algorithm. Use that one, or start a new run")
        load_tensors(self._bare, tensors["model"])
        load_optimizer(self._optimizer, tensors["optimizer"])
        if self._critic is not None:
            self._critic.load_state(tensors)
        self.version, self._bad_in_a_row = int(state["version"]), int(state["bad_in_a_row"])
        self.empty_updates, self.bad_updates = int(state["empty_updates"]), int(state["bad_updates"])


def _reading(model: nn.Module) -> nn.Module:
    """A twin that shares the weights and nothing else: how it computes can be set without touching the original."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared).eval()
