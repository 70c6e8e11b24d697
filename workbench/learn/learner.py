"""The learner: credit and tokens in, better weights out, on one process or many.

    learner = Learner(policy.model, GRPO(), LearnerConfig(lr=2e-4))
    for report in learner.update(batch, credit, step=3): ...

Axis letters: N trajectories · S segments · T tokens of the whole batch (flat) · M trained tokens of a micro-batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workbench.basics.extensions import has_service, service
from workbench.learn.adapters import adapted, merged
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import TERMS, Credit, demand_facts, missing_facts, needs_critic
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.critic import Critic
from workbench.learn.distributed import Ranks, whole
from workbench.learn.handed import HandedWeights
from workbench.learn.microbatch import MicroBatch, output_head
from workbench.learn.optimizer import TrainedWeights, refuse_other
from workbench.learn.packing import PACKED, make_packable
from workbench.learn.pieces import token_scores
from workbench.learn.privileged import Reader
from workbench.learn.recompute import recompute_layers
from workbench.learn.update import Models, Updates
from workbench.learn.update_report import UpdateReport
from workbench.values.errors import LearnerError
from workbench.values.seeds import rng_at

STATE_FORMAT = 1


class Learner:
    """Owns a model and its optimizer. `version` counts the updates that were made; it names the weights."""

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        config: LearnerConfig,
        *,
        own_copy: bool = True,
        critic: CriticConfig | None = None,
        reference: nn.Module | None = None,
        read: Reader | None = None,
    ) -> None:
        """The model is copied, so the one handed in stays the untrained policy; adapters need no copy of it.
        `own_copy=False` saves that memory: then the caller must not use it any more. `critic` says how to build the
        critic of an algorithm that needs one (None: as CriticConfig has it), `read` makes ids of what it is told. `reference` is
        what `ref_logp_T` is computed with. Raises LearnerError for another number of processes, and weights not in float32."""
        self.handed: HandedWeights | None = None
        if config.lora_rank or config.sharding == "full":
            self.handed = HandedWeights(model)
        bare = _trained(model, config, own_copy)
        self.as_plain = partial(merged, bare) if config.lora_rank else dict
        self.algorithm = algorithm
        self.config = config
        # The reference computes exactly as the policy does: two layouts differ in rounding, and a credit that divides
        # by a spread of nothing but rounding would train on it.
        self._reference = None if reference is None else _reading(reference)
        if config.layers == "native":
            native = service("native_layers", "learner.layers = 'native'")
            native(bare)
            if self._reference is not None:
                native(self._reference)
        name = PACKED
        if config.attention == "native":
            name = service("native_packing", "learner.attention = 'native'")()
        packed = config.layout == "auto" and make_packable(bare, config.precision, name)
        if (
            packed
            and self._reference is not None
            and not make_packable(self._reference, config.precision, name)
        ):
            raise LearnerError(
                "the policy is packed end to end, the reference cannot be: with two layouts they would "
                "differ by rounding even where they agree; set learner.layout='padded'"
            )
        self._ranks = _ranks(config, next(model.parameters()).device, packed=packed)
        if self._reference is not None:
            self._ranks.deal_out(self._reference)
        # The critic first: its trunk is a copy of the policy's, which may be sharded afterwards.
        values = None
        if needs_critic(algorithm):
            values = Critic(bare, critic or CriticConfig(), config, self._ranks, read)
        policy = TrainedWeights(bare, config.lr, config, self._ranks)
        bf16 = config.precision == "bf16"
        self.models = Models(policy, output_head(bare), values, self._ranks, bf16=bf16)
        self.updates = Updates(self.models)

    @property
    def is_main(self) -> bool:
        """True on the one process that writes files."""
        return self._ranks.accelerator.is_main_process

    @property
    def version(self) -> int:
        return self.updates.version

    # -------------------------------------------------------------------------------------------- one step

    def facts(self, batch: Batch) -> Batch:
        """The batch with those later facts that `algorithm.requires` and that it does not have yet, under the current
        weights: call it before credit is computed. Every process calls it with the same whole batch.

        Numbers stand where `algorithm.reads_T` says (the sampled tokens of scored trajectories), NaN elsewhere. Raises
        LearnerError for a fact that nothing here can compute.
        """
        missing = missing_facts(self.algorithm, batch)
        return self._with_facts(batch, missing) if missing else batch

    def _with_facts(self, batch: Batch, missing: Sequence[str]) -> Batch:
        needed_T = self.algorithm.reads_T(batch)
        made: dict[str, Tensor] = {}
        if "old_logp_T" in missing:
            made["old_logp_T"] = self.logprobs(batch, needed_T)
        if "ref_logp_T" in missing and self._reference is not None:
            made["ref_logp_T"] = self.logprobs(batch, needed_T, self._reference)
        if self.models.critic is not None and {"value_T", "final_value_N"} & set(missing):
            budget = self.config.micro_batch_tokens
            made["value_T"], final_N = self.models.critic.facts(batch, needed_T, budget)
            if "final_value_N" in missing:
                made["final_value_N"] = final_N
        if unknown := [name for name in missing if name not in made]:
            raise LearnerError(
                f"{self.algorithm.name} needs {', '.join(unknown)}, but this learner has nothing to "
                "compute it with: a reference policy is handed over as Learner(reference=...)"
            )
        return replace(batch, **made)

    def update(self, batch: Batch, credit: Credit, *, step: int) -> list[UpdateReport]:
        """All updates of one step. Every process calls this with the same whole batch.

        An update whose loss or gradient is not finite is skipped before it touches the weights: its report says so and
        names the first bad number, and its table holds what led there. Raises LearnerError after `max_bad_updates` of
        them in a row (`error.reports` has the reports), and for a batch that differs between processes.
        """
        algorithm = self.algorithm
        trained_T = credit.trained_T
        _check(algorithm, batch, credit, self.models)
        minibatches = algorithm.minibatches if credit.minibatches is None else credit.minibatches
        if algorithm.epochs * minibatches > 1 and batch.old_logp_T is None:
            # Later updates move away from the weights that sampled. The trainer's own numbers are the reference, never
            # the sampler's: the two differ by rounding, and rounding must not look like a ratio.
            batch = replace(batch, old_logp_T=self.logprobs(batch, trained_T))
        reports: list[UpdateReport] = []
        for epoch in range(algorithm.epochs):
            parts = [trained_T]
            if minibatches > 1:
                address = (self.config.seed, "minibatch", step, epoch)
                parts = dealt(batch, trained_T, minibatches, address)
            for used_T in parts:
                report = self.updates.make(
                    algorithm, self.config, batch, credit, used_T, step=step, update=len(reports)
                )
                reports.append(report)
                if self.updates.bad_in_a_row >= self.config.max_bad_updates:
                    raise self._too_many_bad(reports, step)
        return reports

    def _too_many_bad(self, reports: list[UpdateReport], step: int) -> LearnerError:
        error = LearnerError(
            f"{self.updates.bad_in_a_row} updates in a row were not finite, the last in step "
            f"{step}: {reports[-1].skipped}. Lower learner.lr, or look at the stored step"
        )
        error.reports = reports
        return error

    def logprobs(self, batch: Batch, tokens_T: Tensor, model: nn.Module | None = None) -> Tensor:
        """Logprob of the chosen tokens under the current weights, or those of another `model` [T], float32; NaN
        elsewhere. No gradient."""
        model = self.models.policy.module if model is None else model.eval()
        head = output_head(model)

        def of_micro(micro: MicroBatch) -> Tensor:
            ids_M = batch.token_ids_T[micro.token_M].to(micro.input_ids_BL.device)
            return token_scores(model, head, micro, ids_M, "none", bf16=self.models.bf16).logp_M

        budget = self.config.micro_batch_tokens
        return self._ranks.gathered(batch, tokens_T, budget, of_micro, model)

    # -------------------------------------------------------------------------------------------- weights and state

    def weights(self) -> dict[str, Tensor]:
        """The current weights by the policy's state-dict names, adapters merged; not copied, for an engine's `sync` copies."""
        return self.as_plain(
            {name: whole(held) for name, held in self.models.policy.module.state_dict().items()}
        )

    def saved_weights(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The policy's part of a state ("model") as weights of the policy: where it is adapters, merged with it."""
        own = self.models.policy.module.state_dict() if self.config.lora_rank else {}
        return self.as_plain({**{name: whole(held) for name, held in own.items()}, **tensors})

    def reduce_moments(self, precision: str) -> None:
        """Go on with what a checkpoint of this precision holds of AdamW (train.checkpoint_moments)."""
        self.models.policy.reduce_moments(precision)
        if self.models.critic is not None:
            self.models.critic.weights.reduce_moments(precision)

    def state(
        self, *, kept: bool = True, copied: bool = True
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """What it takes to go on bit for bit: {"model": {name: tensor}, "optimizer": {"i.key": tensor}}, JSON value;
        with a critic also "critic" and "critic_optimizer". Tensors are copies on the CPU, whole: another number of
        processes goes on with them. Every process calls it; one that is to keep none (not `kept`) gets none. Not `copied`: to be
        written at once, for an update changes them."""
        policy = self.models.policy
        critic = self.models.critic
        tensors = policy.state("model", kept=kept, copied=copied)
        state = {"format": STATE_FORMAT, **self.updates.state(), "trainable": policy.trainable}
        if critic is None:
            return tensors, state
        critic_tensors, critic_state = critic.state(kept=kept, copied=copied)
        return tensors | critic_tensors, state | {"critic": critic_state}

    def load_state(
        self,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        *,
        is_own: bool = False,
    ) -> None:
        """Take over what `state` gave. Raises LearnerError, before anything is changed, for another model's state, and
        for one with a critic where none is needed or the other way round. `is_own`: a learner of this process gave it, no
        file; then its numbers are not looked through, which takes as long as reading all of them."""
        policy = self.models.policy
        critic = self.models.critic
        if state.get("format") != STATE_FORMAT:
            raise LearnerError(
                f"learner state of format {state.get('format')!r}, this program reads {STATE_FORMAT}"
            )
        if not is_own and has_service("check_state"):
            service("check_state", "resume")(tensors, state, self.models)
        refuse_other(policy.module, tensors["model"], list(state["trainable"]), "model")
        if critic is not None:
            critic.refuse_other(tensors, state.get("critic"))
        elif "critic" in state:
            raise LearnerError(
                f"this state has a critic, but {self.algorithm.name} needs none: it was saved by a run "
                "with another algorithm. Use that one, or start a new run"
            )
        policy.load_state("model", tensors)
        if critic is not None:
            critic.weights.load_state("critic", tensors)
        self.updates.load_state(state)


def go_back(
    learner: Learner, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    """Take over the weights and optimizer of an earlier `state` under a new version, so that no two weights share a number.
    What was counted and slowed down since stays. Raises LearnerError as `load_state` does."""
    made = learner.updates
    kept = made.version + 1, made.empty, made.bad, made.slowed, made.restored
    learner.load_state(tensors, state)
    made.version, made.empty, made.bad, made.slowed, made.restored = kept
    made.bad_in_a_row = 0
    made.restored.append(made.version)


def _trained(model: nn.Module, config: LearnerConfig, own_copy: bool) -> nn.Module:
    """What is trained: the model or a copy, or a copy with adapters."""
    # Dropout would be noise that the sampler never saw; gradients flow in eval mode all the same.
    if config.lora_rank:
        bare = adapted(model, config)
    else:
        bare = (copy.deepcopy(model) if own_copy else model).eval()
    _refuse_untrainable(bare)
    if config.activation_checkpointing:
        recompute_layers(bare)
    return bare


def _ranks(config: LearnerConfig, device: torch.device, *, packed: bool) -> Ranks:
    return Ranks(
        device,
        config.num_processes,
        packed=packed,
        sharded=config.sharding == "full",
        offload=config.offload,
    )


def _refuse_untrainable(model: nn.Module) -> None:
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise LearnerError(
            "the model has no parameter that requires a gradient; nothing can be trained"
        )
    if wrong := [f"{name} is {p.dtype}" for name, p in trainable if p.dtype != torch.float32]:
        raise LearnerError(
            f"weights are trained in float32, but {wrong[0]}; load the policy with dtype='float32' and set "
            "precision='bf16' for speed; with lora_rank only adapters are trained, and the policy may be "
            "bfloat16"
        )


def _reading(model: nn.Module) -> nn.Module:
    """A copy that shares the weights and nothing else: how it computes can be set without touching the original."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared).eval()


def dealt(
    batch: Batch, trained_T: Tensor, count: int, address: tuple[int | str, ...]
) -> list[Tensor]:
    """Which tokens each of several updates of an epoch trains [T]: trajectories, shuffled, dealt out."""
    row_T = batch.trajectory_of_token_T
    # Sorted, so the shuffle is a function of its address alone.
    rows = row_T[trained_T].unique().numpy()
    rows = torch.from_numpy(rng_at(*address).permutation(rows))
    parts = []
    for first in range(min(count, max(len(rows), 1))):
        chosen_N = torch.zeros(batch.num_trajectories, dtype=torch.bool).index_fill(
            0, rows[first::count], True
        )
        parts.append(trained_T & chosen_N[row_T])
    return parts


def _check(algorithm: Algorithm, batch: Batch, credit: Credit, models: Models) -> None:
    """Raises DataError or LearnerError for credit that is not of this batch, or that would train what it must not."""
    demand_facts(algorithm, batch)
    if len(credit.advantage_T) != batch.num_tokens or len(credit.weight_T) != batch.num_tokens:
        raise LearnerError(
            f"credit for {len(credit.weight_T)} tokens, but the batch has {batch.num_tokens}: it "
            "was computed for another batch"
        )
    weighted = [credit.weights_of(term) != 0 for term in ("policy", "entropy", "kl")]
    moved_T = torch.stack(weighted).any(0)
    stray_T = moved_T & ~batch.eligible_T
    if bool(stray_T.any()) and credit.widened is None:
        where = batch.describe_token(int(stray_T.nonzero()[0]))
        raise LearnerError(
            f"{int(stray_T.sum())} tokens have a weight but were not sampled by the policy here, "
            f"the first: {where}. Only sampled tokens are trained; an exception must name itself in "
            "Credit.widened"
        )
    if models.critic is not None and credit.return_T is None:
        raise LearnerError(
            f"the credit of {algorithm.name} has no return_T, so there is nothing to fit its critic to"
        )
    if models.ranks.count > 1:
        _refuse_different_batches(models.ranks, batch, credit)


def _refuse_different_batches(ranks: Ranks, batch: Batch, credit: Credit) -> None:
    """Raises LearnerError where processes were not handed the same batch and credit."""
    held = (
        batch.token_ids_T,
        batch.segment_offsets,
        credit.advantage_T,
        credit.return_T,
        *(credit.weights_of(term) for term in TERMS),
    )
    if not ranks.agree_on(tensor for tensor in held if tensor is not None):
        raise LearnerError(
            "the processes were handed different batches; each must get the whole one, and the same: "
            "collect with the same seed everywhere, or read the stored step on each"
        )
