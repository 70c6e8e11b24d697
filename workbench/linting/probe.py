"""A learner that is asked and put back, beside the plain one (rules R13, R19).

    probe = LearnerProbe(policy.model, GRPO(), LearnerConfig())
    probe.learner(algorithm, batch, credit)        the way of training: micro-batches, packing, the algorithm's own loss
    probe.plain(recipe, attempts, credits)         each segment alone, by `workbench.plain`

Both have their own copies of the weights. A critic's head, which starts at zero and would let no gradient through, is
drawn at random, the same on either side; so is how far the reference has been left behind.

Axis letters: T tokens of the whole batch (flat) · L tokens of one segment · V vocabulary.
"""
from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from workbench.learn.adapters import adapted
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Credit, needs_critic
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.linting.evidence import Gradient
from workbench.plain.credit import AttemptCredit, Recipe
from workbench.plain.rewards import AttemptTokens
from workbench.plain.train import PlainAdamW, PlainLearner, facts, gradient, new_critic

MAX_PARAMETERS = 20_000_000  # of a policy that is tried: a few hundred tokens of it take some ten CPU-seconds
HEAD_SPREAD = 0.05           # of the critic's head: values of about one half, so that its bounds can bind
REFERENCE_SPREAD = 0.02      # of the reference's weights, relative: tenths of a nat between it and the policy
SEED = 20260731              # of that head, and of that reference
STALE = 0.01                 # a gradient that is left over from somewhere: an update has to begin without it
UPDATES = 3                  # by which the optimizer is judged: only later ones show what it remembers and forgets

Weights = dict[str, Tensor]  # by parameter name, the critic's under "critic."


class UpdatePair(NamedTuple):
    """One update: the weights that the learner was left with, and those by the definition of AdamW from the gradients
    that its optimizer was handed so far. `due`: this gradient as it should have been scaled down, for the first one."""

    learner: Weights
    plain: Weights
    handed: Weights
    due: Weights


class FrozenLearner:
    """The real learner with weights of its own, put back to where it stood before whatever is asked next."""

    def __init__(self, model: nn.Module, algorithm: Algorithm, config: LearnerConfig, critic: CriticConfig,
                 reference: nn.Module) -> None:
        self._model, self._config = copy.deepcopy(model), config
        with torch.random.fork_rng(devices=[]):  # a new linear layer draws from the process's own generator
            self._learner = Learner(self._model, algorithm, config, own_copy=False, critic=critic, reference=reference)
        tensors, state = self._learner.state()
        for name, drawn in zip(("weight", "bias"), drawn_head(self._model)) if "critic" in tensors else ():
            tensors["critic"][name if critic.trunk == "policy" else f"head.{name}"] = drawn
        self._tensors, self._state = tensors, state

    def put_back(self, algorithm: Algorithm, **settings: float) -> Learner:
        """The learner as it was, for this algorithm, with these settings changed."""
        self._learner.load_state(self._tensors, self._state)
        self._learner.algorithm, self._learner.config = algorithm, replace(self._config, **settings)
        return self._learner

    @property
    def names(self) -> list[str]:
        """Of everything that an update may move."""
        critic = self._state.get("critic", {"trainable": []})
        return [*self._state["trainable"], *(f"critic.{name}" for name in critic["trainable"])]

    def weights(self) -> Weights:
        """Copies of everything that an update may move."""
        tensors, _ = self._learner.state()
        known = tensors["model"] | {f"critic.{name}": tensor for name, tensor in tensors.get("critic", {}).items()}
        return {name: known[name] for name in self.names}

    def leave_stale_gradients(self) -> None:
        for parameter in self._model.parameters():
            parameter.grad = torch.full_like(parameter, STALE)

    @contextmanager
    def listening(self) -> Iterator[Weights]:
        """While open, the gradients that the learner's optimizers are handed are written down, by name."""
        policy = {id(parameter): name for name, parameter in self._model.named_parameters()}
        critics = [name for name in self.names if name.startswith("critic.")]
        handed: Weights = {}

        def listen(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            names = [policy[id(p)] for p in parameters] if id(parameters[0]) in policy else critics
            handed.update({name: gradient_of(p) for name, p in zip(names, parameters)})

        hook = register_optimizer_step_pre_hook(listen)
        try:
            yield handed
        finally:
            hook.remove()


@dataclass(frozen=True, eq=False)
class LearnerProbe:
    """Neither `model` nor `reference` is ever written to. `config`, `critic`: as the policy is going to be trained."""

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
    def _frozen(self) -> dict[bool, FrozenLearner]:
        """By whether there is a critic."""
        return {}

    def _learner_for(self, algorithm: Algorithm) -> FrozenLearner:
        with_critic = needs_critic(algorithm)
        if with_critic not in self._frozen:
            self._frozen[with_critic] = FrozenLearner(self.model, algorithm, self.config, self.critic, self._other_reference)
        return self._frozen[with_critic]

    def learner(self, algorithm: Algorithm, batch: Batch, credit: Credit,
                micro_batch_tokens: int | None = None) -> Gradient:
        """The learner's loss of the whole batch in one update, and its gradient before it is scaled down. A loss that is
        not finite is NaN, and has no gradient; one without a path to the weights has a gradient of zero."""
        frozen = self._learner_for(algorithm)
        learner = frozen.put_back(_one_pass(algorithm), max_grad_norm=0.0,
                                  micro_batch_tokens=micro_batch_tokens or self.config.micro_batch_tokens)
        frozen.leave_stale_gradients()
        try:
            with frozen.listening() as handed:
                report = learner.update(batch, replace(credit, minibatches=1), step=1)[0]
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            return Gradient(0.0, {name: torch.zeros_like(weight) for name, weight in frozen.weights().items()})
        coefficient = self.critic.value_coef if self.critic.trunk == "policy" else 1.0
        loss = report.metrics.get("loss", 0.0) + coefficient * report.metrics.get("value_loss", 0.0)
        if report.skipped is not None and report.skipped.startswith("not finite"):
            loss = math.nan
        return Gradient(loss, {name: handed.get(name, torch.zeros_like(weight)) for name, weight in frozen.weights().items()})

    def facts(self, algorithm: Algorithm, batch: Batch) -> Batch:
        """The batch with what the learner says of it: what `algorithm.requires`."""
        return self._learner_for(algorithm).put_back(algorithm).facts(batch)

    def logprobs(self, batch: Batch, tokens_T: Tensor) -> Tensor:
        """What the learner takes for the old logprobs where a step makes several updates [T]."""
        return self._learner_for(self.algorithm).put_back(self.algorithm).logprobs(batch, tokens_T)

    def updates(self, algorithm: Algorithm, batch: Batch, credit: Credit) -> tuple[Tensor, ...]:
        """Which tokens each update of a step would train, bool [T] each, in the order of updates."""
        learner = self._learner_for(algorithm).put_back(algorithm, max_bad_updates=10**9)
        reports = learner.update(batch, credit, step=1)
        return tuple(torch.from_numpy(report.table.columns["used"].copy()) for report in reports)

    def moved(self, algorithm: Algorithm, batch: Batch, credit: Credit) -> list[UpdatePair]:
        """Real updates, by other gradients each, beside `plain.train.PlainAdamW` from the same gradients."""
        due, frozen = self._due(self.learner(algorithm, batch, credit).by_name), self._learner_for(algorithm)
        learner = frozen.put_back(_one_pass(algorithm))
        plain = {name: nn.Parameter(weight) for name, weight in frozen.weights().items()}
        settings = {"betas": self.config.betas, "eps": self.config.eps, "weight_decay": self.config.weight_decay}
        optimizers = {critics: PlainAdamW([p for name, p in plain.items() if name.startswith("critic.") is critics],
                                          **settings) for critics in (False, True)}
        generator, found = torch.Generator().manual_seed(SEED), []
        sign_T = torch.ones(batch.num_tokens, dtype=credit.advantage_T.dtype)
        for _ in range(UPDATES):
            warm = min(1.0, (learner.version + 1) / self.config.warmup_updates) if self.config.warmup_updates else 1.0
            with frozen.listening() as handed:
                before = frozen.weights()
                learner.update(batch, replace(credit, advantage_T=credit.advantage_T * sign_T, minibatches=1), step=1)
            for name, parameter in plain.items():
                parameter.data, parameter.grad = before[name], handed.get(name)
            for critics, optimizer in optimizers.items():
                optimizer.step(self.critic.lr if critics else self.config.lr * warm)
            found.append(UpdatePair(frozen.weights(), {name: p.detach().clone() for name, p in plain.items()},
                                     dict(handed), due))
            sign_T = 1.0 - 2.0 * (torch.rand(batch.num_tokens, generator=generator) < 0.5).to(sign_T.dtype)
        return found

    def _due(self, gradients: Mapping[str, Tensor]) -> Weights:
        """The gradients, the policy's and the critic's each scaled down to `max_grad_norm`."""
        due: Weights = {}
        for critics in (False, True):
            own = {name: g.double() for name, g in gradients.items() if name.startswith("critic.") is critics}
            norm, most = math.sqrt(sum(float(g.square().sum()) for g in own.values())), self.config.max_grad_norm
            due |= {name: (g * (most / norm if most and norm > most else 1.0)).float() for name, g in own.items()}
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
                parameter.mul_(1 + REFERENCE_SPREAD * torch.randn(parameter.shape, generator=generator))
        return other

    @cached_property
    def _plain(self) -> PlainLearner:
        policy, critic = copy.deepcopy(self.model).eval(), None
        shared = self.critic.trunk == "policy"
        if needs_critic(self.algorithm):
            weight, bias = drawn_head(policy)
            with torch.random.fork_rng(devices=[]):
                critic = new_critic(policy.base_model if shared else copy.deepcopy(policy.base_model), weight.shape[1])
            critic["head"].load_state_dict({"weight": weight, "bias": bias})
        return PlainLearner(policy, Recipe(estimator=_nothing), copy.deepcopy(self._other_reference), critic,
                            value_coef=self.critic.value_coef if shared else 1.0)

    def plain_facts(self, attempts: Sequence[AttemptTokens]) -> list[AttemptTokens]:
        """With every fact that a model can say of them, at every token."""
        return [facts(attempt, self._plain) for attempt in attempts]

    def plain(self, recipe: Recipe, attempts: Sequence[AttemptTokens], credits: Sequence[AttemptCredit]) -> Gradient:
        """The loss and its gradient from the definitions."""
        learner = self._plain
        named = {name: p for name, p in learner.policy.named_parameters() if p.requires_grad}
        if learner.critic is not None:
            own = learner.critic["head"] if self.critic.trunk == "policy" else learner.critic
            named |= {f"critic.{name}": p for name, p in own.named_parameters() if p.requires_grad}
        for parameter in named.values():
            parameter.grad = None
        learner.recipe = recipe
        return Gradient(gradient(attempts, credits, learner), {name: gradient_of(p) for name, p in named.items()})

    def predictions(self, ids_L: Tensor) -> Tensor:
        """Row i: the log-probabilities of whatever may stand at i + 1 [L - 1, V], by the plain model, float32."""
        with torch.no_grad():
            logits_LV = self._plain.policy(input_ids=ids_L[None], use_cache=False).logits[0, :-1]
            return logits_LV.float().log_softmax(-1)


def gradient_of(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().float().clone()


def drawn_head(policy: nn.Module) -> tuple[Tensor, Tensor]:
    """(weight, bias) of a critic's head on this policy."""
    generator = torch.Generator().manual_seed(SEED)
    width = policy.get_output_embeddings().weight.shape[1]
    return HEAD_SPREAD * torch.randn((1, width), generator=generator), HEAD_SPREAD * torch.randn((1,), generator=generator)


def _one_pass(algorithm: Algorithm) -> Algorithm:
    return replace(algorithm, epochs=1) if is_dataclass(algorithm) and algorithm.epochs != 1 else algorithm


def _nothing(lines: Sequence, **settings: float) -> None:
    """Where only losses are asked for, credit is given."""


def probe_of(model: nn.Module, algorithm: Algorithm, config: LearnerConfig, critic: CriticConfig | None = None,
             reference: nn.Module | None = None) -> LearnerProbe:
    """A probe of this policy, set as it is going to be trained. Nothing is copied before it is asked something."""
    if config.lora_rank:
        model, config = adapted(model, config, spread=HEAD_SPREAD), replace(config, lora_rank=0)
    return LearnerProbe(model, algorithm, config, critic or CriticConfig(), reference)
