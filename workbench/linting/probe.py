"""A learner that is asked and put back, beside the plain one (rules R13, R19).

    probe = LearnerProbe(policy.model, GRPO(), LearnerConfig())
    probe.learner(algorithm, batch, credit)        the way of training: micro-batches, packing, the algorithm's own loss
    probe.plain(recipe, trajectories, credits)     each segment alone, by `workbench.plain`

With several processes each holds such a probe, and all are asked at the same time (`frozen`).

A policy that is too large, or on a GPU, is asked by a small stand-in of the same architecture, where an extension makes
one (service "small_stand_in"): the learner is where its policy is, the plain side on the CPU.

Both have their own copies of the weights. A critic's head, which starts at zero and would let no gradient through, is
drawn at random, the same on either side; so is how far the reference has been left behind.

Axis letters: T tokens of the whole batch (flat) · L tokens of one segment · V vocabulary.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from workbench.basics.extensions import has_service, service
from workbench.engines.policy import num_parameters
from workbench.learn.adapters import adapted
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Credit, needs_critic
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.linting.frozen import (
    HEAD_SPREAD,
    SEED,
    FrozenLearner,
    Gradient,
    Weights,
    drawn_head,
    everybodys,
    gradient_of,
    names_of,
    norm,
    same_everywhere,
)
from workbench.plain.credit import Recipe, TrajectoryCredit
from workbench.plain.rewards import TrajectoryTokens
from workbench.plain.train import PlainAdamW, PlainLearner, facts, gradient, new_critic

MAX_PARAMETERS = (
    20_000_000  # of a policy that is tried: a few hundred tokens of it take some ten CPU-seconds
)
STAND_IN = "small_stand_in"  # of an extension
OWN_GRADIENT = "own_gradient"  # of an extension
OWN_TOKENS = 256  # that a large policy is asked about itself: a fraction of a step
STAND_IN_TOKENS = 256  # of a batch that it is asked about
REFERENCE_SPREAD = (
    0.02  # of the reference's weights, relative: tenths of a nat between it and the policy
)
UPDATES = 3  # by which the optimizer is judged: only later ones show what it remembers and forgets


_Ids = TypeVar("_Ids", Tensor, np.ndarray)


class UpdatePair(NamedTuple):
    """One update: the weights that the learner was left with, and those by the definition of AdamW from the gradients
    that its optimizer was handed so far. `due`: this gradient as it should have been scaled down, for the first one.
    `shared`: every process was handed this gradient."""

    learner: Weights
    plain: Weights
    handed: Weights
    due: Weights
    shared: bool


@dataclass(frozen=True, eq=False)
class LearnerProbe:
    """Neither `model` nor `reference` is ever written to. `config`, `critic`: as the policy is going to be trained.
    `stood_for`: why `model` is a small stand-in, "" where it is the policy itself; `device`: the learner's; `sampler`: what
    sampled, where `model` has adapters beside it that are drawn at random."""

    model: nn.Module
    algorithm: Algorithm
    config: LearnerConfig
    critic: CriticConfig = CriticConfig()
    reference: nn.Module | None = None
    stood_for: str = ""
    device: torch.device = torch.device("cpu")
    own: nn.Module | None = None  # the policy itself, where `model` stands in for it
    own_config: LearnerConfig | None = None  # ... and how it is trained
    sampler: nn.Module | None = None  # the policy without the adapters that `model` has

    @cached_property
    def unable(self) -> str | None:
        """Why nothing can be tried here, or None."""
        if not self.stood_for and (why := too_large(self.model)) is not None:
            if has_service(STAND_IN):
                why += f", and no small stand-in of its architecture ({type(self.model).__name__}) could be made"
            return why
        if (count := self.config.num_processes) > 1 and not _started(count):
            return f"the {count} processes that train together: this is one alone"
        if count > 1 and self.config.sharding == "full":
            return (
                "weights that each process holds whole: with learner.sharding = 'full' none does. With 'none' the same "
                "configuration can be asked"
            )
        return None

    @property
    def not_itself(self) -> str | None:
        """Why the policy's own weights cannot be asked for predictions, or None."""
        if self.own is not None and self.own_tokens:
            return None
        return self.stood_for or self.unable

    @property
    def own_tokens(self) -> int:
        """How many tokens the large policy itself may be asked about, without gradients; 0 where it computes in half
        precision, whose rounding hides what is looked for."""
        whole = self.own is not None and next(self.own.parameters()).dtype == torch.float32
        return OWN_TOKENS if whole else 0

    def own_gradient(self) -> tuple[str, float] | None:
        """A matrix of the large policy itself, and how far its gradient is from the slope of log-probabilities, relative to it;
        None where that cannot be asked."""
        if self.own is None or self.own_config is None or not has_service(OWN_GRADIENT):
            return None
        return service(OWN_GRADIENT, "the lint")(self.own, self.own_config)

    def known(self, ids: _Ids) -> _Ids:
        """Token ids that the model has: those of a stand-in are fewer."""
        return ids % self.model.get_input_embeddings().weight.shape[0]

    @property
    def tokens(self) -> int:
        """How many tokens of a batch are worth trying: fewer for a larger model."""
        if self.stood_for:
            return STAND_IN_TOKENS
        return max(256, min(1536, int(2e9 / num_parameters(self.model))))

    @property
    def bf16(self) -> bool:
        """Whether the learner's forward pass rounds to 8 bits."""
        return self.config.precision == "bf16"

    def learning_rate(self, name: str) -> float:
        """The learning rate of this parameter, when no warm-up holds it back."""
        return self.critic.lr if name.startswith("critic.") else self.config.lr

    # -------------------------------------------------------------------------------------------- the learner's side

    @cached_property
    def _frozen(self) -> dict[bool, FrozenLearner]:
        """By whether there is a critic."""
        return {}

    def _learner_for(self, algorithm: Algorithm) -> FrozenLearner:
        with_critic = needs_critic(algorithm)
        if with_critic not in self._frozen:
            self._frozen[with_critic] = FrozenLearner(
                copy.deepcopy(self.model).to(self.device),
                algorithm,
                self.config,
                self.critic,
                copy.deepcopy(self._other_reference).to(self.device),
            )
        return self._frozen[with_critic]

    def learner(
        self,
        algorithm: Algorithm,
        batch: Batch,
        credit: Credit,
        micro_batch_tokens: int | None = None,
    ) -> Gradient:
        """The learner's loss of the whole batch in one update, and its gradient before it is scaled down. A loss that is
        not finite is NaN, and has no gradient; one without a path to the weights has a gradient of zero."""
        frozen = self._learner_for(algorithm)
        learner = frozen.put_back(
            _one_pass(algorithm),
            max_grad_norm=0.0,
            micro_batch_tokens=micro_batch_tokens or self.config.micro_batch_tokens,
        )
        frozen.leave_stale_gradients()
        try:
            with frozen.listening() as handed:
                report = learner.update(batch, replace(credit, minibatches=1), step=1)[0]
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            return Gradient(
                0.0, {name: torch.zeros_like(weight) for name, weight in frozen.weights().items()}
            )
        coefficient = self.critic.value_coef if self.critic.trunk == "policy" else 1.0
        loss = report.metrics.get("loss", 0.0) + coefficient * report.metrics.get("value_loss", 0.0)
        if report.skipped is not None and report.skipped.startswith("not finite"):
            loss = math.nan
        gradients = {
            name: handed.get(name, torch.zeros_like(weight))
            for name, weight in frozen.weights().items()
        }
        gradients = everybodys(
            {"": torch.tensor(loss, dtype=torch.float64), **gradients}, self.config.num_processes
        )
        return Gradient(float(gradients.pop("")), gradients)

    def facts(self, algorithm: Algorithm, batch: Batch) -> Batch:
        """The batch with what the learner says of it: what `algorithm.requires`."""
        return self._learner_for(algorithm).put_back(algorithm).facts(batch)

    def logprobs(self, batch: Batch, tokens_T: Tensor) -> Tensor:
        """The logprobs that the learner takes for the old ones where a step makes several updates [T]."""
        return self._learner_for(self.algorithm).put_back(self.algorithm).logprobs(batch, tokens_T)

    def updates(self, algorithm: Algorithm, batch: Batch, credit: Credit) -> tuple[Tensor, ...]:
        """Which tokens each update of a step would train, bool [T] each, in the order of updates."""
        learner = self._learner_for(algorithm).put_back(algorithm, max_bad_updates=10**9)
        reports = learner.update(batch, credit, step=1)
        return tuple(torch.from_numpy(report.table.columns["used"].copy()) for report in reports)

    def moved(self, algorithm: Algorithm, batch: Batch, credit: Credit) -> list[UpdatePair]:
        """Real updates, by other gradients each, beside `plain.train.PlainAdamW` from the same gradients."""
        due = self._due(self.learner(algorithm, batch, credit).by_name)
        frozen = self._learner_for(algorithm)
        learner = frozen.put_back(_one_pass(algorithm))
        plain = {name: nn.Parameter(weight) for name, weight in frozen.weights().items()}
        optimizers = {critics: self._plain_optimizer(plain, critics) for critics in (False, True)}
        generator = torch.Generator().manual_seed(SEED)
        pairs = []
        sign_T = torch.ones(batch.num_tokens, dtype=credit.advantage_T.dtype)
        for _ in range(UPDATES):
            warm_up = self._warm_up(learner.version)
            signed = replace(credit, advantage_T=credit.advantage_T * sign_T, minibatches=1)
            with frozen.listening() as handed:
                before = frozen.weights()
                learner.update(batch, signed, step=1)
            for name, parameter in plain.items():
                parameter.data = before[name]
                parameter.grad = handed.get(name)
            for critics, optimizer in optimizers.items():
                optimizer.step(self.critic.lr if critics else self.config.lr * warm_up)
            pairs.append(
                UpdatePair(
                    frozen.weights(),
                    {name: parameter.detach().clone() for name, parameter in plain.items()},
                    dict(handed),
                    due,
                    same_everywhere(handed, self.config.num_processes),
                )
            )
            turned_T = torch.rand(batch.num_tokens, generator=generator) < 0.5
            sign_T = 1.0 - 2.0 * turned_T.to(sign_T.dtype)
        return pairs

    def _plain_optimizer(self, plain: Mapping[str, nn.Parameter], critics: bool) -> PlainAdamW:
        """The optimizer of the critic's weights, or of the policy's."""
        return PlainAdamW(
            [plain[name] for name in names_of(plain, critics)],
            betas=self.config.betas,
            eps=self.config.eps,
            weight_decay=self.config.weight_decay,
        )

    def _warm_up(self, version: int) -> float:
        """The share of the learning rate that is in force after so many updates."""
        if not self.config.warmup_updates:
            return 1.0
        return min(1.0, (version + 1) / self.config.warmup_updates)

    def _due(self, gradients: Mapping[str, Tensor]) -> Weights:
        """The gradients, the policy's and the critic's each scaled down to `max_grad_norm`."""
        most = self.config.max_grad_norm
        due: Weights = {}
        for critics in (False, True):
            names = names_of(gradients, critics)
            length = norm(gradients, names)
            scale = most / length if most and length > most else 1.0
            due |= {name: (gradients[name].double() * scale).float() for name in names}
        return due

    # -------------------------------------------------------------------------------------------- the plain side

    @cached_property
    def _other_reference(self) -> nn.Module:
        """The reference, its weights moved a little, the same on either side: before the first update it is the policy
        itself, and who took the one for the other would be right by chance."""
        other = copy.deepcopy(self.model if self.reference is None else self.reference).eval()
        generator = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(
                    1 + REFERENCE_SPREAD * torch.randn(parameter.shape, generator=generator)
                )
        return other

    @cached_property
    def _plain(self) -> PlainLearner:
        policy = copy.deepcopy(self.model).eval()
        critic = None
        shared = self.critic.trunk == "policy"
        if needs_critic(self.algorithm):
            weight, bias = drawn_head(policy)
            with torch.random.fork_rng(devices=[]):
                critic = new_critic(
                    policy.base_model if shared else copy.deepcopy(policy.base_model),
                    weight.shape[1],
                )
            critic["head"].load_state_dict({"weight": weight, "bias": bias})
        return PlainLearner(
            policy,
            Recipe(estimator=_no_credit),
            copy.deepcopy(self._other_reference),
            critic,
            value_coef=self.critic.value_coef if shared else 1.0,
        )

    def plain_facts(self, trajectories: Sequence[TrajectoryTokens]) -> list[TrajectoryTokens]:
        """With every fact that a model can say of them, at every token."""
        return [facts(trajectory, self._plain) for trajectory in trajectories]

    def plain(
        self,
        recipe: Recipe,
        trajectories: Sequence[TrajectoryTokens],
        credits: Sequence[TrajectoryCredit],
    ) -> Gradient:
        """The loss and its gradient from the definitions."""
        learner = self._plain
        named = {name: p for name, p in learner.policy.named_parameters() if p.requires_grad}
        if learner.critic is not None:
            own = learner.critic["head"] if self.critic.trunk == "policy" else learner.critic
            named |= {f"critic.{name}": p for name, p in own.named_parameters() if p.requires_grad}
        for parameter in named.values():
            parameter.grad = None
        learner.recipe = recipe
        return Gradient(
            gradient(trajectories, credits, learner),
            {name: gradient_of(p) for name, p in named.items()},
        )

    def predictions(self, ids_L: Tensor) -> Tensor:
        """Row i: the log-probabilities of whatever may stand at i + 1 [L - 1, V], by the plain model, float32."""
        policy = self.own or self.sampler or self._plain.policy
        ids_L = ids_L.to(next(policy.parameters()).device)
        with torch.no_grad():
            logits_LV = policy(input_ids=ids_L[None], use_cache=False).logits[0, :-1]
            return logits_LV.float().log_softmax(-1).cpu()


def _started(processes: int) -> bool:
    """Whether so many processes were started together."""
    group = torch.distributed
    return group.is_available() and group.is_initialized() and group.get_world_size() == processes


def _one_pass(algorithm: Algorithm) -> Algorithm:
    return (
        replace(algorithm, epochs=1)
        if is_dataclass(algorithm) and algorithm.epochs != 1
        else algorithm
    )


def _no_credit(lines: Sequence, **settings: float) -> None:
    """Where only losses are asked for, credit is given."""


def too_large(model: nn.Module) -> str | None:
    """Why a policy cannot be tried segment by segment on the CPU, or None."""
    count = num_parameters(model)
    if count > MAX_PARAMETERS:
        return (
            f"a policy that is small enough to be tried segment by segment on a CPU: this one has {count:,} "
            f"parameters, of at most {MAX_PARAMETERS:,}"
        )
    if next(model.parameters()).device.type != "cpu":
        return "a policy on the CPU to try settings on (policy.device)"
    return None


def _of_any_layer(targets: Sequence[str]) -> tuple[str, ...]:
    """Names of adapted layers without their numbers ("18.self_attn.q_proj"): a stand-in has fewer."""
    return tuple(dict.fromkeys(re.sub(r"^.*\b\d+\.", "", target) for target in targets))


def probe_of(
    model: nn.Module,
    algorithm: Algorithm,
    config: LearnerConfig,
    critic: CriticConfig | None = None,
    reference: nn.Module | None = None,
) -> LearnerProbe:
    """A probe of this policy, set as it is going to be trained. Nothing is copied before it is asked something."""
    device = next(model.parameters()).device
    stood_for = too_large(model) or ""
    own = None
    own_config = config
    if stood_for and has_service(STAND_IN):
        stand_in = service(STAND_IN, "the lint")(model)
        if stand_in is None:
            stood_for = ""
        else:
            own = model
            model = stand_in
            reference = None
            config = replace(config, lora_targets=_of_any_layer(config.lora_targets))
    else:
        stood_for = ""
    sampler = None
    if config.lora_rank:
        sampler = model
        model = adapted(model, config, spread=HEAD_SPREAD)
        config = replace(config, lora_rank=0)
    critic = critic or CriticConfig()
    return LearnerProbe(
        model, algorithm, config, critic, reference, stood_for, device, own, own_config, sampler
    )
