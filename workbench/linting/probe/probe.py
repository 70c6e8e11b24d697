"""A learner that is asked and never moves, beside a computation that shares nothing with it (rules R13, R19).

    probe = LearnerProbe(policy.model, GRPO(), LearnerConfig())
    probe.learner(algorithm, batch, credit)     the way of training: micro-batches, packing, the algorithm's own loss
    probe.plain(algorithm, batch, credit)       each segment alone through the plain model, formulas of the papers

The second side is written anew on purpose (`plain.py`). It is slow, and it is for a few groups of a small policy.

Both have their own copies of the weights. A critic's head, which starts at zero and would let no gradient through, is
drawn at random on either side, the same; so is how far the reference has been left behind.

Axis letters: T tokens of the whole batch (flat) · L tokens of one segment · N trajectories · V vocabulary.
"""
from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.learn.algorithms.base import TERMS, Algorithm, Credit, needs_critic
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.learn.update_report import UpdateReport
from workbench.linting.evidence import Gradient
from workbench.linting.probe.plain import (Facts, chosen, gradient_of, plain_terms, plain_value_loss, predictions,
                                           segments_of, share_of, values_after)
from workbench.types import CreditTable

MAX_PARAMETERS = 20_000_000  # of a policy that is tried: a few hundred tokens of it take some ten CPU-seconds
HEAD_SPREAD = 0.05           # of the critic's head: values of about one half, so that its bounds can bind
REFERENCE_SPREAD = 0.02      # of the reference's weights, relative: tenths of a nat between it and the policy
SEED = 20260731              # of that head, and of that reference


class Moved(NamedTuple):
    """Weights by parameter name, after one update: the learner's, and by the formulas of AdamW from its gradient. And the
    gradient that its optimizers were handed, beside its own scaled down to `max_grad_norm`. `later`: of the updates
    after that one, the learner's weights and those by the formulas from everything that was handed so far."""

    learner: dict[str, Tensor]
    plain: dict[str, Tensor]
    handed: dict[str, Tensor]
    due: dict[str, Tensor]
    later: tuple[tuple[dict[str, Tensor], dict[str, Tensor]], ...] = ()


class _Listening:
    """An accelerator that hands everything on and writes down what gradients are taken of."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator, self.losses = accelerator, []

    def backward(self, loss: Tensor) -> None:
        self.losses.append(float(loss.detach()))
        if loss.requires_grad:  # else it has no gradient, which is an answer, too
            self._accelerator.backward(loss)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)


class _Still(Learner):
    """The real learner up to the optimizer: it writes its gradient down, and stays where it is."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._accelerator = _Listening(self._accelerator)
        self.caught: list[dict[str, Tensor]] = []
        self.used: list[Tensor] | None = None  # a list: updates are written down there instead of being computed
        if self._critic is not None:
            self._critic.step = lambda: None

    def _gradient_norms(self) -> dict[str, float]:
        self.caught.append({name: gradient_of(p) for name, p in named_weights(self)})
        return super()._gradient_norms()

    def _scale_down(self, parameters: list[nn.Parameter], norm: float) -> None:
        pass

    def _step(self, grad_norm: float) -> None:
        """Not even the gradient is cleared: that an update begins with none is the update's own business."""

    def _one_update(self, batch: Batch, credit: Credit, used_T: Tensor, *, step: int, update: int) -> UpdateReport:
        if self.used is None:
            return super()._one_update(batch, credit, used_T, step=step, update=update)
        self.used.append(used_T)
        return UpdateReport({}, CreditTable(step, update, {}))


def named_weights(learner: Learner) -> Iterator[tuple[str, nn.Parameter]]:
    """Everything that an update may move, the critic's under "critic."."""
    critic = [] if learner._critic is None else learner._critic._own.named_parameters()
    named = [*learner._bare.named_parameters(), *((f"critic.{name}", p) for name, p in critic)]
    return ((name, p) for name, p in named if p.requires_grad)


@dataclass(frozen=True, eq=False)
class LearnerProbe:
    """See `workbench.linting.evidence.LearnerProbe`. Neither `model` nor `reference` is ever written to."""

    model: nn.Module
    algorithm: Algorithm
    config: LearnerConfig
    critic: CriticConfig = CriticConfig()
    reference: nn.Module | None = None

    @cached_property
    def unable(self) -> str | None:
        """Why nothing can be tried here, or None."""
        count = sum(p.numel() for p in self.model.parameters())
        if count > MAX_PARAMETERS:
            return (f"a policy that is small enough to be tried segment by segment on a CPU: this one has {count:,} "
                    f"parameters, of at most {MAX_PARAMETERS:,}")
        if next(self.model.parameters()).device.type != "cpu":
            return "a policy on the CPU to try settings on (policy.device)"
        if self.config.num_processes > 1:
            return "a single process: gradients are compared in runs of one"
        return None

    @property
    def tokens(self) -> int:
        """How many tokens of a batch are worth trying: fewer for a larger model."""
        return max(256, min(1536, int(2e9 / sum(p.numel() for p in self.model.parameters()))))

    @property
    def bf16(self) -> bool:
        """Whether the learner's forward pass rounds to 8 bits."""
        return self.config.precision == "bf16"

    def learning_rate(self, name: str) -> float:
        """Of this parameter, when no warm-up holds it back."""
        return self.critic.lr if name.startswith("critic.") else self.config.lr

    # -------------------------------------------------------------------------------------------- the learner's side

    @cached_property
    def _learners(self) -> dict[bool, _Still]:
        """By whether there is a critic."""
        return {}

    def _make(self, kind: type[Learner], algorithm: Algorithm, config: LearnerConfig) -> Learner:
        with torch.random.fork_rng(devices=[]):  # a new linear layer draws from the process's own generator
            made = kind(self.model, algorithm, config, critic=self.critic, reference=self._other_reference)
        if made._critic is not None:
            _draw_head(made._critic.bare.head)
        return made

    def _still(self, algorithm: Algorithm, micro_batch_tokens: int | None = None) -> _Still:
        has_critic = needs_critic(algorithm)
        if has_critic not in self._learners:
            self._learners[has_critic] = self._make(_Still, algorithm, self.config)
        still = self._learners[has_critic]
        still.algorithm, still.caught, still.used, still._bad_in_a_row = algorithm, [], None, 0
        still._accelerator.losses.clear()
        still.config = replace(self.config, micro_batch_tokens=micro_batch_tokens or self.config.micro_batch_tokens)
        return still

    def learner(self, algorithm: Algorithm, batch: Batch, credit: Credit,
                micro_batch_tokens: int | None = None) -> Gradient:
        """What the learner back-propagates of the whole batch in one update, and the gradient that it gets, before it
        is scaled down."""
        still = self._still(_one_pass(algorithm), micro_batch_tokens)
        still.update(batch, replace(credit, minibatches=1), step=1)
        caught = still.caught[0] if still.caught else {name: torch.zeros_like(p) for name, p in named_weights(still)}
        return Gradient(sum(still._accelerator.losses), caught)

    def facts(self, algorithm: Algorithm, batch: Batch) -> Batch:
        """The batch with what the learner says of it: what `algorithm.requires`."""
        return self._still(algorithm).facts(batch)

    def logprobs(self, batch: Batch, tokens_T: Tensor) -> Tensor:
        """What the learner takes for the old logprobs where a step makes several updates [T]."""
        return self._still(self.algorithm).logprobs(batch, tokens_T)

    def updates(self, algorithm: Algorithm, batch: Batch, credit: Credit) -> tuple[Tensor, ...]:
        """Which tokens each update of a step would train, bool [T] each, in the order of updates."""
        still = self._still(algorithm)
        still.used = []
        known = batch if batch.old_logp_T is not None else replace(batch, old_logp_T=batch.rollout_logp_T)
        still.update(known, credit, step=1)
        return tuple(still.used)

    def moved(self, algorithm: Algorithm, batch: Batch, credit: Credit) -> Moved:
        """Real updates, on yet another copy of the weights, and what the definition of AdamW makes of their gradients
        (Loshchilov and Hutter 2019, arXiv 1711.05101: at the first update both moments are the gradient's own)."""
        gradient = self.learner(algorithm, batch, credit)
        moving = self._make(Learner, _one_pass(algorithm), self.config)
        before = {name: p.detach().clone() for name, p in named_weights(moving)}
        handed: dict[str, Tensor] = {}
        _overhear(moving, handed)
        moving.update(batch, replace(credit, minibatches=1), step=1)
        after = {name: p.detach().clone() for name, p in named_weights(moving)}
        expected, due = {}, {}
        for critics in (False, True):
            names = [name for name in before if name.startswith("critic.") is critics]
            norm = math.sqrt(sum(float(gradient.by_name[name].double().square().sum()) for name in names))
            most, lr = self.config.max_grad_norm, self.critic.lr if critics else self.config.lr
            scale = most / norm if most and norm > most else 1.0
            if not critics and self.config.warmup_updates:
                lr *= 1.0 / self.config.warmup_updates
            for name in names:
                g, w = gradient.by_name[name].double() * scale, before[name].double()
                due[name] = g.float()
                step = g / (g.abs() + self.config.eps) if norm > 0 else torch.zeros_like(g)
                decay = lr * self.config.weight_decay if norm > 0 else 0.0
                expected[name] = (w * (1 - decay) - lr * step).float()
        first = dict(handed)
        return Moved(after, expected, first, due, self._moved_on(moving, handed, batch, credit))

    def _moved_on(self, moving: Learner, handed: dict[str, Tensor], batch: Batch,
                  credit: Credit) -> tuple[tuple[dict[str, Tensor], dict[str, Tensor]], ...]:
        """Two more updates, by other gradients, after one that was `handed`. Only then do the two averages of the
        gradient, what they forget and how they are corrected for their beginning show (Kingma and Ba 2015, algorithm 1,
        with the decay of Loshchilov and Hutter)."""
        beta, beta_of_squares = self.config.betas
        mean = {name: (1 - beta) * g.double() for name, g in handed.items()}
        square = {name: (1 - beta_of_squares) * g.double()**2 for name, g in handed.items()}
        count = dict.fromkeys(handed, 1)
        generator, pairs = torch.Generator().manual_seed(SEED), []
        for _ in range(2):
            handed.clear()
            before = {name: p.detach().clone() for name, p in named_weights(moving)}
            sign_T = 1.0 - 2.0 * (torch.rand(batch.num_tokens, generator=generator) < 0.5).to(credit.advantage_T.dtype)
            warm = min(1.0, (moving.version + 1) / self.config.warmup_updates) if self.config.warmup_updates else 1.0
            moving.update(batch, replace(credit, advantage_T=credit.advantage_T * sign_T, minibatches=1), step=1)
            expected = {}
            for name, weight in before.items():
                w = weight.double()
                if name in handed:
                    g = handed[name].double()
                    count[name] = n = count.get(name, 0) + 1
                    mean[name] = beta * mean.get(name, 0.0) + (1 - beta) * g
                    square[name] = beta_of_squares * square.get(name, 0.0) + (1 - beta_of_squares) * g**2
                    lr = self.critic.lr if name.startswith("critic.") else self.config.lr * warm
                    down = (square[name] / (1 - beta_of_squares**n)).sqrt() + self.config.eps
                    w = w * (1 - lr * self.config.weight_decay) - lr * mean[name] / (1 - beta**n) / down
                expected[name] = w.float()
            pairs.append(({name: p.detach().clone() for name, p in named_weights(moving)}, expected))
        return tuple(pairs)

    # -------------------------------------------------------------------------------------------- the plain side

    @cached_property
    def _plain_model(self) -> nn.Module:
        return copy.deepcopy(self.model).eval()

    @cached_property
    def _other_reference(self) -> nn.Module:
        """The reference, its weights moved a little, the same on either side: before the first update it is the policy
        itself, and who took the one for the other would be right by chance."""
        other = copy.deepcopy(self.model if self.reference is None else self.reference).eval()
        generator = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1 + REFERENCE_SPREAD * torch.randn(parameter.shape, generator=generator))
        return other

    @cached_property
    def _plain_reference(self) -> nn.Module:
        return copy.deepcopy(self._other_reference)

    @cached_property
    def _plain_critic(self) -> tuple[nn.Module, nn.Linear]:
        """(trunk, head). On the policy's trunk, the trunk is the plain model's own."""
        shared = self.critic.trunk == "policy"
        trunk = self._plain_model.base_model if shared else copy.deepcopy(self.model.base_model).eval()
        with torch.random.fork_rng(devices=[]):
            head = nn.Linear(self.model.get_output_embeddings().weight.shape[1], 1)
        _draw_head(head)
        return trunk, head

    def plain_logprobs(self, batch: Batch, model: nn.Module | None = None) -> Tensor:
        """Logprob of every token [T], float32; NaN at the first of each segment, which nothing predicts."""
        rows = []
        with torch.no_grad():
            for _, here in segments_of(batch):
                ids_L = batch.token_ids_T[here]
                row_L = chosen(predictions(model or self._plain_model, ids_L), ids_L)
                rows += [row_L.new_full((1,), torch.nan), row_L]
        return torch.cat(rows)

    def predictions(self, ids_L: Tensor) -> Tensor:
        """Row i: the log-probabilities of whatever may stand at i + 1 [L - 1, V], by the plain model, float32."""
        with torch.no_grad():
            return predictions(self._plain_model, ids_L)

    def plain_facts(self, batch: Batch) -> dict[str, Tensor]:
        """Every fact that a model can say of a batch, at every token: {"old_logp_T", "ref_logp_T"}, and with a critic
        {"value_T", "final_value_N"}; NaN where there is none."""
        found = {"old_logp_T": self.plain_logprobs(batch)}
        found["ref_logp_T"] = self.plain_logprobs(batch, self._plain_reference)
        if not needs_critic(self.algorithm):
            return found
        trunk, head = self._plain_critic
        values, final_N = [], torch.full((batch.num_trajectories,), torch.nan)
        with torch.no_grad():
            for n, here in segments_of(batch):
                after_L = values_after(trunk, head, batch.token_ids_T[here])
                values.append(torch.cat([after_L.new_full((1,), torch.nan), after_L[:-1]]))
                final_N[n] = after_L[-1]  # of its last segment, in the end
        return found | {"value_T": torch.cat(values), "final_value_N": final_N}

    def plain(self, algorithm: Algorithm, batch: Batch, credit: Credit) -> Gradient:
        """The same loss and gradient from the definitions: segment by segment, one denominator for each term."""
        named = dict(self._plain_model.named_parameters())
        if needs_critic(algorithm):
            trunk, head = self._plain_critic
            own = head if self.critic.trunk == "policy" else nn.ModuleDict({"trunk": trunk, "head": head})
            named |= {f"critic.{name}": p for name, p in own.named_parameters()}
        named = {name: p for name, p in named.items() if p.requires_grad}
        for parameter in named.values():
            parameter.grad = None
        shares = {term: share_of(algorithm, batch, credit.weights_of(term), term) for term in TERMS}
        total = 0.0
        for _, here in segments_of(batch):
            if not any(bool((share_T[here] != 0).any()) for share_T in shares.values()):
                continue
            loss = self._segment_loss(algorithm, batch, credit, shares, here)
            loss.backward()
            total += float(loss.detach())
        return Gradient(total, {name: gradient_of(p) for name, p in named.items()})

    def _segment_loss(self, algorithm: Algorithm, batch: Batch, credit: Credit, shares: dict[str, Tensor],
                      here: slice) -> Tensor:
        """What one segment adds to the loss. Row i of what the model says is about token i + 1."""
        ids_L = batch.token_ids_T[here]
        rows_LV = predictions(self._plain_model, ids_L)
        first = rows_LV.new_full((1,), torch.nan)
        logp_L = torch.cat([first, chosen(rows_LV, ids_L)])
        entropy_L = torch.cat([first, -(rows_LV.exp() * rows_LV).nan_to_num(0.0).sum(-1)])
        facts = Facts.of(batch, credit, here, logp_L, entropy_L)
        terms = plain_terms(algorithm, facts)
        loss = rows_LV.sum() * 0.0
        for name, term_L in terms.items():
            weight_L = shares[name][here].to(term_L.dtype)
            used_L = weight_L != 0
            loss = loss + (term_L[used_L] * weight_L[used_L]).sum()
        used_L = shares["critic"][here] != 0
        if needs_critic(algorithm) and bool(used_L.any()):
            trunk, head = self._plain_critic
            after_L = values_after(trunk, head, ids_L)
            value_L = torch.cat([first, after_L[:-1]])[used_L]
            error_L = plain_value_loss(algorithm, value_L, batch.value_T[here][used_L].float(),
                                       credit.return_T[here][used_L].float())
            count = self.critic.value_coef if self.critic.trunk == "policy" else 1.0
            loss = loss + count * (error_L * shares["critic"][here][used_L].to(error_L.dtype)).sum()
        return loss


def _overhear(learner: Learner, handed: dict[str, Tensor]) -> None:
    """Write down the gradients that its optimizers are handed, when they are."""
    names = {id(parameter): name for name, parameter in named_weights(learner)}

    def listen(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                handed[names.get(id(parameter), "a weight of nobody's")] = gradient_of(parameter)

    for owner in (learner, learner._critic):
        if owner is not None:
            optimizer = owner._optimizer
            getattr(optimizer, "optimizer", optimizer).register_step_pre_hook(listen)


def _one_pass(algorithm: Algorithm) -> Algorithm:
    return replace(algorithm, epochs=1) if is_dataclass(algorithm) and algorithm.epochs != 1 else algorithm


@torch.no_grad()
def _draw_head(head: nn.Linear) -> None:
    generator = torch.Generator().manual_seed(SEED)
    head.weight.copy_(HEAD_SPREAD * torch.randn(head.weight.shape, generator=generator))
    head.bias.copy_(HEAD_SPREAD * torch.randn(head.bias.shape, generator=generator))


def probe_of(model: nn.Module, algorithm: Algorithm, config: LearnerConfig, critic: CriticConfig | None = None,
             reference: nn.Module | None = None) -> LearnerProbe:
    """A probe of this policy, set as it is going to be trained. Nothing is copied before it is asked something."""
    return LearnerProbe(model, algorithm, config, critic or CriticConfig(), reference)
