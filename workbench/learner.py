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
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn

from workbench.algorithms.base import Algorithm, Credit, LossInputs
from workbench.batch import Batch, deal
from workbench.errors import ConfigError, LearnerError
from workbench.microbatch import MicroBatch, Rows, cut, output_head, trained_logits
from workbench.ops.reduce import masked_sum_over
from workbench.ops.shift import entropy_of, logprobs_of
from workbench.seeds import rng_at
from workbench.update_report import UpdateNumbers, UpdateReport, credit_table, figures, first_bad

STATE_FORMAT = 1
ENTROPY_ROWS = 1024  # logits to take the entropy of at once, where no gradient is asked for: bounds memory, not results
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "TP")


@dataclass(frozen=True)
class LearnerConfig:
    """How weights are moved; what the loss is belongs to the algorithm."""

    lr: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_updates: int = 0          # the learning rate rises linearly over these, then stays
    max_grad_norm: float = 1.0       # gradients are scaled down to this norm; 0: never
    micro_batch_tokens: int = 4096   # padded tokens that go through the model at once: memory and speed only
    precision: str = "fp32"          # "bf16": forward pass under autocast; weights and optimizer stay float32
    num_processes: int = 1           # asserted, because several ways of starting many quietly give one
    max_bad_updates: int = 3         # updates in a row with non-finite numbers before training ends
    seed: int = 0                    # of the shuffle into minibatches

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        if self.precision not in ("fp32", "bf16"):
            raise ConfigError(f"learner.precision is 'fp32' or 'bf16', got {self.precision!r}")
        for name in ("micro_batch_tokens", "num_processes", "max_bad_updates"):
            if getattr(self, name) < 1:
                raise ConfigError(f"learner.{name} is at least 1, got {getattr(self, name)}")
        for name in ("lr", "eps", "weight_decay", "warmup_updates", "max_grad_norm"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"learner.{name} is finite and not negative, got {getattr(self, name)}")


class Learner:
    """Owns a model and its optimizer. `version` counts the updates that were made; it names the weights."""

    def __init__(self, model: nn.Module, algorithm: Algorithm, config: LearnerConfig, *, own_copy: bool = True,
                 reference: nn.Module | None = None) -> None:
        """The model is copied, so the one handed in stays the untrained policy. `own_copy=False` saves that memory:
        then the caller must not use it any more. `reference` is what `ref_logp_T` is computed with; it is read only.
        Raises LearnerError for the wrong number of processes and for weights that are not float32 (small updates
        vanish in half precision)."""
        trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not trainable:
            raise LearnerError("the model has no parameter that requires a gradient; nothing can be trained")
        if wrong := [f"{name} is {p.dtype}" for name, p in trainable if p.dtype != torch.float32]:
            raise LearnerError(f"weights are trained in float32, but {wrong[0]}; load the policy with dtype='float32' "
                               "and set precision='bf16' for speed")
        self.algorithm, self.config, self.version, self._reference = algorithm, config, 0, reference
        self.empty_updates = self.bad_updates = 0  # so far: with nothing to train, with numbers that were not finite
        self._bad_in_a_row = 0
        # Precision is ours (autocast below): accelerate's is one setting for the whole Python process.
        self._accelerator = Accelerator(
            cpu=next(model.parameters()).device.type == "cpu", mixed_precision="no", gradient_accumulation_steps=1,
            kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        )
        if self._accelerator.num_processes != config.num_processes:
            raise LearnerError(
                f"asked for {config.num_processes} processes, but this is a world of "
                f"{self._accelerator.num_processes}. Start it with `torchrun --nproc_per_node {config.num_processes} "
                "...` (`accelerate launch --cpu` quietly starts one only), or set learner.num_processes to what you "
                "start"
            )
        if (kind := self._accelerator.distributed_type.value) in SHARDED:
            raise LearnerError(f"accelerate is set to {kind}, but weights are trained whole on every process here "
                               "(DDP); take that setting out of the accelerate config or the environment")
        # Dropout would be noise that the sampler never saw; gradients flow in eval mode all the same.
        self._bare = (copy.deepcopy(model) if own_copy else model).eval()
        self._head = output_head(self._bare)
        self._parameters = [p for p in self._bare.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(self._parameters, lr=config.lr, betas=config.betas, eps=config.eps,
                                      weight_decay=config.weight_decay)
        with warnings.catch_warnings():  # what torch offers instead would exchange the buffers once more
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            self._model, self._optimizer = self._accelerator.prepare(self._bare, optimizer)
        self._model.eval()

    @property
    def is_main(self) -> bool:
        """True on the one process that writes files."""
        return self._accelerator.is_main_process

    # -------------------------------------------------------------------------------------------- one step

    def facts(self, batch: Batch) -> Batch:
        """The batch with those later facts that `algorithm.requires` and that it does not have yet, under the current
        weights: call it before credit is computed. Every process calls it with the same whole batch.

        Numbers stand at the sampled tokens of scored trajectories, NaN elsewhere. Raises LearnerError for a fact that
        nothing here can compute.
        """
        missing = [name for name in self.algorithm.requires if getattr(batch, name) is None]
        needed_T = batch.eligible_T & batch.scored_N[batch.trajectory_of_token_T]
        made: dict[str, Tensor] = {}
        if "old_logp_T" in missing:
            made["old_logp_T"] = self.logprobs(batch, needed_T)
        if "ref_logp_T" in missing and self._reference is not None:
            made["ref_logp_T"] = self.logprobs(batch, needed_T, self._reference)
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
        algorithm = self.algorithm
        trained_T = credit.weight_T != 0
        several = algorithm.epochs * algorithm.minibatches > 1
        if several and batch.old_logp_T is None:
            # Later updates move away from the weights that sampled. The trainer's own numbers are the reference, never
            # the sampler's: the two differ by rounding, and rounding must not look like a ratio.
            batch = replace(batch, old_logp_T=self.logprobs(batch, trained_T))
        reports: list[UpdateReport] = []
        for epoch in range(algorithm.epochs):
            for used_T in self._minibatches(batch, trained_T, step, epoch):
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
        rows = Rows.of(batch, tokens_T)
        logp_T = torch.zeros(batch.num_tokens)
        model, head = (self._bare, self._head) if model is None else (model.eval(), output_head(model))
        with torch.no_grad():
            for micro in self._micro_batches(rows):
                logits_MV = trained_logits(model, head, micro, bf16=self.config.precision == "bf16")
                logp_T[micro.token_M] = logprobs_of(logits_MV, self._ids(batch, micro)).cpu()
        return torch.where(tokens_T, self._summed(logp_T), torch.nan)

    def _minibatches(self, batch: Batch, trained_T: Tensor, step: int, epoch: int) -> list[Tensor]:
        """Which tokens each update of an epoch trains [T]: trajectories, shuffled by (seed, step, epoch), dealt out."""
        count = self.algorithm.minibatches
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
        trained = int(used_T.sum())
        if trained == 0:
            self.empty_updates += 1
            why = "nothing to train: no sampled token has a weight (all unscored or filtered); weights were not touched"
            return UpdateReport({"trained_tokens": 0, **self._counts()},
                                credit_table(batch, credit, numbers, used_T, step=step, update=update), why)
        rows = Rows.of(batch, used_T)
        micro_batches = self._micro_batches(rows)
        self._optimizer.zero_grad(set_to_none=True)
        for index, micro in enumerate(micro_batches):
            last = index + 1 == len(micro_batches)
            # Gradients cross processes once, with the last micro-batch; every process has the same number of them.
            with nullcontext() if last else self._accelerator.no_sync(self._model):
                self._forward_backward(batch, credit, micro, trained, numbers)
        numbers.share(self._summed)
        grad_norm = float(nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None]))
        loss = float(masked_sum_over(numbers.loss_T.double(), torch.where(used_T, credit.weight_T, 0.0), trained))
        table = credit_table(batch, credit, numbers, used_T, step=step, update=update)
        metrics = {"loss": loss, "grad_norm": grad_norm, "lr": self._learning_rate(),
                   "micro_batches": len(micro_batches),
                   **figures(batch, credit, numbers, used_T, version=self.version if update == 0 else None)}
        if not self._everywhere(math.isfinite(loss) and math.isfinite(grad_norm)):
            self.bad_updates += 1
            why = first_bad(batch, credit, numbers, used_T, self._gradients())
            self._optimizer.zero_grad(set_to_none=True)
            self._bad_in_a_row += 1
            finite_only = {name: value for name, value in metrics.items() if math.isfinite(value)}
            why = f"not finite (loss {loss}, gradient norm {grad_norm}): {why}; the weights were not touched"
            return UpdateReport(finite_only | self._counts(), table, why)
        if grad_norm == 0.0:
            # AdamW would still move the weights, by its momentum: on the strength of earlier batches, not of this one.
            self.empty_updates += 1
            why = "nothing to learn: the gradient is exactly zero (every group flat?); the weights were not touched"
            return UpdateReport(metrics | self._counts(), table, why)
        self._step(grad_norm)
        return UpdateReport(metrics | self._counts(), table, None)

    def _counts(self) -> dict[str, int]:
        return {"bad_updates": self.bad_updates, "empty_updates": self.empty_updates}

    def _forward_backward(self, batch: Batch, credit: Credit, micro: MicroBatch, trained: int,
                          numbers: UpdateNumbers) -> None:
        """Add one micro-batch's share to the gradient, and write down what happened to its tokens."""
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
            micro.segment_M.to(device), fact(batch.ref_logp_T),
        ))
        # The reduction over processes takes the mean of the gradients; the denominator already counts all of them.
        world = self._accelerator.num_processes
        if len(at_M):
            loss = masked_sum_over(result.loss_M, fact(credit.weight_T), trained) * world
        else:
            loss = logits_MV.sum()  # of nothing: zero, and yet every parameter takes part in the reduction
        self._accelerator.backward(loss)
        numbers.record(at_M, logp=logp_M, old_logp=old_logp_M, entropy=entropy_M, loss=result.loss_M,
                       ratio=result.ratio_M, clip_state=result.clip_state_M, figures=result.figures)

    def _step(self, grad_norm: float) -> None:
        self._bad_in_a_row = 0
        if self.config.max_grad_norm and grad_norm > self.config.max_grad_norm:
            scale = self.config.max_grad_norm / grad_norm
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.version += 1

    def _learning_rate(self) -> float:
        warmup = self.config.warmup_updates
        return self.config.lr * min(1.0, (self.version + 1) / warmup) if warmup else self.config.lr

    # -------------------------------------------------------------------------------------------- dealing and talking

    def _micro_batches(self, rows: Rows) -> list[MicroBatch]:
        """This process's micro-batches. Processes with fewer than others get empty ones: all must take part alike."""
        accelerator, segments = self._accelerator, rows.trained_segments
        hands = deal([int(rows.length_S[s]) for s in segments], accelerator.num_processes)
        pieces = [cut(rows.length_S, [segments[i] for i in hand], self.config.micro_batch_tokens) for hand in hands]
        mine = pieces[accelerator.process_index]
        mine = mine + [[]] * (max(len(piece) for piece in pieces) - len(mine))
        return [rows.build(segments, accelerator.device) for segments in mine]

    def _ids(self, batch: Batch, micro: MicroBatch) -> Tensor:
        return batch.token_ids_T[micro.token_M].to(micro.input_ids_BL.device)

    def _summed(self, values_T: Tensor) -> Tensor:
        """Put together what each process worked out for its own rows (zero elsewhere)."""
        if self._accelerator.num_processes == 1:
            return values_T
        return self._accelerator.reduce(values_T.to(self._accelerator.device), "sum").cpu()

    def _everywhere(self, fine: bool) -> bool:
        if self._accelerator.num_processes == 1:
            return fine
        bad = torch.tensor([0 if fine else 1], device=self._accelerator.device)
        return int(self._accelerator.reduce(bad, "sum")) == 0

    def _check(self, batch: Batch, credit: Credit) -> None:
        missing = [name for name in self.algorithm.requires if getattr(batch, name) is None]
        if missing:
            raise LearnerError(f"{self.algorithm.name} needs {', '.join(missing)}, which this batch does not have: "
                               "compute it and make a new batch with dataclasses.replace")
        if len(credit.advantage_T) != batch.num_tokens or len(credit.weight_T) != batch.num_tokens:
            raise LearnerError(f"credit for {len(credit.weight_T)} tokens, but the batch has {batch.num_tokens}: it "
                               "was computed for another batch")
        stray_T = (credit.weight_T != 0) & ~batch.eligible_T
        if bool(stray_T.any()) and credit.widened is None:
            where = batch.describe_token(int(stray_T.nonzero()[0]))
            raise LearnerError(f"{int(stray_T.sum())} tokens have a weight but were not sampled by the policy here, "
                               f"the first: {where}. Only sampled tokens are trained; an exception must name itself in "
                               "Credit.widened")
        if self._accelerator.num_processes > 1:
            digest = blake2b(digest_size=7)
            for tensor in (batch.token_ids_T, batch.segment_offsets, credit.advantage_T, credit.weight_T):
                digest.update(tensor.contiguous().numpy().tobytes())
            mine = torch.tensor([int.from_bytes(digest.digest(), "big")], device=self._accelerator.device)
            if len(self._accelerator.gather(mine).unique()) != 1:
                raise LearnerError("the processes were handed different batches; each must get the whole one, and the "
                                   "same")

    def _gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self._bare.named_parameters() if p.grad is not None}

    # -------------------------------------------------------------------------------------------- weights and state

    def weights(self) -> dict[str, Tensor]:
        """The current weights by state-dict name, detached but not copied: for an engine's `sync`, which copies."""
        return {name: tensor.detach() for name, tensor in self._bare.state_dict().items()}

    def state(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """What it takes to go on bit for bit: {"model": {name: tensor}, "optimizer": {"i.key": tensor}}, JSON value.

        Tensors are copies on the CPU, tied weights once. `i` numbers the trainable parameters in the model's order.
        """
        optimizer = self._optimizer.state_dict()
        model = {name: p.detach().cpu().clone() for name, p in self._model_tensors().items()}
        moments = {f"{i}.{key}": torch.as_tensor(value).detach().cpu().clone()
                   for i, entry in optimizer["state"].items() for key, value in entry.items()}
        return {"model": model, "optimizer": moments}, {
            "format": STATE_FORMAT, "version": self.version, "empty_updates": self.empty_updates,
            "bad_updates": self.bad_updates, "bad_in_a_row": self._bad_in_a_row,
            "trainable": [name for name, p in self._bare.named_parameters() if p.requires_grad],
        }

    def load_state(self, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
        """Take over what `state` gave. Raises LearnerError, before anything is changed, for another model's state."""
        if state.get("format") != STATE_FORMAT:
            raise LearnerError(f"learner state of format {state.get('format')!r}, this program reads {STATE_FORMAT}")
        mine, trainable = self._model_tensors(), [n for n, p in self._bare.named_parameters() if p.requires_grad]
        theirs = tensors["model"]
        if odd := sorted(set(mine) ^ set(theirs)) or [n for n in mine if mine[n].shape != theirs[n].shape]:
            raise LearnerError(f"this state belongs to another model: {odd[0]!r} is missing on one side or differs in "
                               "shape")
        if list(state["trainable"]) != trainable:
            raise LearnerError("this state trains other parameters than this model does (another adapter, other frozen "
                               "layers)")
        entries: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors["optimizer"].items():
            index, key = name.split(".", 1)
            entries.setdefault(int(index), {})[key] = tensor.clone()
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(theirs[name])
        # Hyperparameters are the config's, not the checkpoint's: a resumed run does what its config says.
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": entries, "param_groups": groups})
        self.version, self._bad_in_a_row = int(state["version"]), int(state["bad_in_a_row"])
        self.empty_updates, self.bad_updates = int(state["empty_updates"]), int(state["bad_updates"])

    def _model_tensors(self) -> dict[str, Tensor]:
        """Parameters and the buffers that belong to the state, tied ones once under their first name."""
        kept = set(self._bare.state_dict())
        buffers = {name: b for name, b in self._bare.named_buffers() if name in kept}
        return {**dict(self._bare.named_parameters()), **buffers}
