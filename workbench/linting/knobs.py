"""Settings that do nothing (R13): each one that was set is turned, and something has to move.

Turned on attempts that are made up so that every setting has something to act on: several turns, groups that differ
much, little and not at all, attempts that were cut short, states that come back, two kinds of tasks, observations
between the actions, a policy, a reference and a sampler that disagree. What has to move is credit, or the gradient of
the loss by token; and, where there is a learner to ask, the gradient of its weights or the updates that it makes: a
setting that the algorithm heeds and the learner does not hand on is as dead as any other.

A setting at its default is not looked at: nobody asked for it. One that only your own class declares may be a name for
a plot, or act on attempts unlike any that were made up or made: that it did nothing here is a note.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Credit, LossInputs, needs_critic, shares_of
from workbench.learn.algorithms.liveness import inert_settings
from workbench.learn.algorithms.parts import SETS
from workbench.learn.algorithms.objectives import OBJECTIVES
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import ESTIMATORS, REDUCTIONS, masked_sum_over
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.types import (Group, Message, Observation, Sampling, Segment, Source, Span, StopReason, Task, Trajectory,
                             Turn)
from workbench.types.errors import ConfigError, DataError, WorkbenchError
from workbench.types.findings import NOTE, Checked, Finding, NotChecked
from workbench.types.seeds import rng_at
from workbench.types.settings import default_of

if TYPE_CHECKING:
    from workbench.linting.probe import LearnerProbe

Setting = tuple[str, ...]  # ("filter", "share")
WORDS = {"reduction": REDUCTIONS, "objective": OBJECTIVES, "kl_estimator": ESTIMATORS, "kl_in": ("loss", "reward")}
GROUPS = ("masks.advantage_mask", "masks.loss_mask")  # of switches, each of which may be set by itself
TASKS, ATTEMPTS, TURNS = 8, 5, 3
SPREADS = (0.0, 0.02, 0.3, 1.0, 3.0)  # of the rewards in a group, one after the other
DIFFERENT, FLAT = "different", "flat"  # two steps that are made up: some groups are flat, all but one are
REAL = "real"  # ... and the attempts of the step itself, the models' numbers made up as well
SAME = 1e-7  # of the largest number: what moves less has not moved; the same computation gives the same bits
TYPICAL = (16, 8)  # tasks and attempts of a step, where nothing says how many there are


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    algorithm = evidence.algorithm
    if not isinstance(algorithm, Algorithm):
        yield NotChecked(f"settings to turn: {type(algorithm).__name__} is no composition of parts")
        return
    chosen = changed_settings(algorithm)
    probe = evidence.probe if evidence.probe is not None and not evidence.probe.unable else None
    if chosen and probe is None:
        yield NotChecked("a learner to turn settings on: only credit and loss were looked at" if evidence.probe is None
                      else evidence.probe.unable)
    trial = _Trial(evidence, probe)
    yield Checked(max(len(chosen), 1))  # nothing was set: nothing can be dead
    for setting in chosen:
        yield from _of_setting(trial, algorithm, setting, _explained(evidence, algorithm))


def _of_setting(trial: _Trial, algorithm: Algorithm, setting: Setting,
                explained: Mapping[str, str]) -> Iterator[RuleResult]:
    others = list(_turned(algorithm, setting))
    name, value = ".".join(setting), _get(algorithm.settings, setting)
    if not others:
        yield NotChecked(f"another value of algorithm.{name} that {algorithm.name} would accept")
        return
    tried = ", ".join(dict.fromkeys(repr(_get(other.settings, setting)) for other in others))
    try:
        for which in (DIFFERENT, FLAT):
            differing = [other for other in others if trial.said_differs(algorithm, other, which)]
            if any(trial.trained_differs(algorithm, other, which) for other in differing):
                return
        if not differing and any(trial.said_differs(algorithm, other, REAL) for other in others):
            return
    except WorkbenchError as error:
        yield NotChecked(f"made-up attempts that {algorithm.name} can give credit for ({error})")
        return
    why = explained.get(name, "each of its switches is set by itself, or cannot act" if name in GROUPS else None)
    if not differing and why is not None:
        yield Finding(f"algorithm.{name} = {value!r} has no effect: {why}", severity=NOTE)
    elif differing:
        yield Finding(f"algorithm.{name} = {value!r} changes what credit and loss say, but not what the learner does: "
                      f"its gradient and its updates are the same with {tried}")
    elif _shipped(algorithm, setting):
        yield Finding(f"algorithm.{name} = {value!r} has no effect: with {tried} instead, credit, loss and gradients "
                      "are the same to the last digit, on attempts made up so that it should matter")
    else:
        yield Finding(f"algorithm.{name} = {value!r} had no effect here: with {tried} instead, credit, loss and "
                      "gradients are the same to the last digit. It is a setting of your own: if it acts on attempts "
                      "unlike these, or only names something, all is well", severity=NOTE)


def _shipped(algorithm: Algorithm, setting: Setting) -> bool:
    """Whether a part of this package declares the setting, so that it is known what it acts on."""
    parts = (algorithm.objective, algorithm.reference, algorithm.critic, algorithm.masks, algorithm.rewards,
             algorithm.filter)
    declaring = [type(part) for part in parts if setting[-1] in getattr(part, "__dict__", {})]
    if setting[0] in vars(algorithm.estimator.settings):
        declaring.append(algorithm.estimator.function)
    elif not declaring:
        declaring.append(Algorithm if setting[0] in {field.name for field in fields(Algorithm)} else type(algorithm))
    return declaring[-1].__module__.partition(".")[0] == "workbench"


def changed_settings(algorithm: Algorithm) -> list[Setting]:
    """The settings that do not stand at their default, nested ones by themselves."""
    usual, found = _usual(algorithm), []
    for name, value in algorithm.settings.items():
        default = usual.get(name)
        if is_dataclass(value):
            found += [(name, inner.name) for inner in fields(value)
                      if getattr(value, inner.name) != getattr(default, inner.name, inner.default)]
        elif name not in usual or value != default:
            found.append((name,))
    return found


def _usual(algorithm: Algorithm) -> Mapping[str, Any]:
    """The settings of the algorithm of this name in the table, else what its parts are by default."""
    plain = Algorithm(algorithm.name, replace(algorithm.estimator, settings=None), objective=type(algorithm.objective)())
    usual = ALGORITHMS.get(algorithm.name, plain).settings
    return usual | {f.name: default_of(f) for f in fields(algorithm) if f.name in algorithm.settings.keys() - usual.keys()}


def _get(settings: Mapping[str, Any], setting: Setting) -> Any:
    return reduce(getattr, setting[1:], settings[setting[0]])


def _with(algorithm: Algorithm, changes: Mapping[Setting, Any]) -> Algorithm:
    """With these settings changed, all of one part at once: each by itself may be refused."""
    whole = {setting[0]: value for setting, value in changes.items() if len(setting) == 1}
    nested: dict[str, dict[str, Any]] = defaultdict(dict)
    for setting, value in changes.items():
        if len(setting) == 2:
            nested[setting[0]][setting[1]] = value
    return algorithm(**whole | {name: replace(algorithm.settings[name], **inner) for name, inner in nested.items()})


def _default(algorithm: Algorithm, setting: Setting) -> Any:
    """What it is where nobody says anything; the value itself where it has to be said."""
    usual = _usual(algorithm)
    return _get(usual if setting[0] in usual else algorithm.settings, setting)


def _turned(algorithm: Algorithm, setting: Setting) -> Iterator[Algorithm]:
    """The same algorithm with other values of one setting. Where a value is refused by itself, it is tried together
    with the default of one other setting ("fixed-length" goes with a length)."""
    partners = [{}, *({other: _default(algorithm, other)} for other in changed_settings(algorithm) if other != setting)]
    for value in _values(algorithm, setting):
        for partner in partners:
            try:
                made = _with(algorithm, {setting: value, **partner})
            except (ConfigError, ValueError, TypeError):
                continue
            yield made
            break


def _values(algorithm: Algorithm, setting: Setting) -> list[Any]:
    """Others worth trying, the default first."""
    value, default = _get(algorithm.settings, setting), _default(algorithm, setting)
    options: list[Any] = [default]
    if isinstance(value, bool):
        options.append(not value)
    elif isinstance(value, int):
        options += [value + 1, 2 * value, value // 2, 1]
    elif isinstance(value, float):
        options += [value / 2, value + 0.3, value * 2, 0.0]
    elif setting[0] == "masks":
        options += SETS
    else:
        options += WORDS.get(setting[-1], ())
    return [other for n, other in enumerate(options) if other != value and other not in options[:n]]


def _explained(evidence: Evidence, algorithm: Algorithm) -> Mapping[str, str]:
    """Settings that `algorithms.liveness` knows to be inert here, and why."""
    tasks, attempts = (len(evidence.groups), max(map(len, evidence.groups))) if evidence.groups else TYPICAL
    return {name: why for name, dead, why in inert_settings(algorithm, tasks, attempts) if dead}


# ------------------------------------------------------------------------------------------------ what may move


class _Trial:
    """Made-up attempts, and what algorithms say of them; each is asked once."""

    def __init__(self, evidence: Evidence, probe: LearnerProbe | None) -> None:
        self._probe, self._known, self._evidence = probe, {}, evidence
        self._ids = np.arange(40)
        if evidence.batch is not None and evidence.batch.num_tokens:
            self._ids = evidence.batch.token_ids_T.unique().numpy()

    def _batch(self, which: str) -> Batch:
        batch, algorithm = self._evidence.batch, self._evidence.algorithm
        if which == REAL and batch is not None and batch.num_tokens:
            return self._once(("batch", which), lambda: with_facts(batch, None, algorithm))
        return self._once(("batch", which), lambda: made_up(self._ids, self._probe, flat=which == FLAT,
                                                            algorithm=algorithm))

    def said_differs(self, one: Algorithm, other: Algorithm, which: str) -> bool:
        """Whether credit, or the loss and its gradient by token, are another."""
        return _differ(*(self._once(("said", which, repr(a)), lambda a=a: effects(a, self._batch(which)))
                         for a in (one, other)))

    def trained_differs(self, one: Algorithm, other: Algorithm, which: str) -> bool:
        """Whether the learner's gradient or its updates are another; taken for granted where there is none to ask."""
        if self._probe is None:
            return True
        return any(_differ(*(self._once((how.__name__, which, repr(a)), lambda a=a: how(a, self._batch(which)))
                             for a in (one, other))) for how in (self._updates, self._gradient))

    def _updates(self, algorithm: Algorithm, batch: Batch) -> list[Tensor]:
        """How many tokens each of the learner's updates has."""
        try:
            updates = self._probe.updates(algorithm, batch, algorithm.credit(batch))
        except DataError:
            return []
        return [torch.tensor([int(used_T.sum()) for used_T in updates], dtype=torch.float64)]

    def _gradient(self, algorithm: Algorithm, batch: Batch) -> list[Tensor]:
        """Of the learner's weights."""
        try:
            found = self._probe.learner(algorithm, batch, algorithm.credit(batch), 4 * batch.num_tokens).by_name
        except DataError:
            return []
        return [found[name] for name in sorted(found)]

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]


def effects(algorithm: Algorithm, batch: Batch) -> list[Tensor]:
    """Everything that an algorithm says of a batch: credit, and by token the loss and its gradient. Facts of the batch
    take the place of a model's numbers."""
    try:
        credit = algorithm.credit(batch)
    except DataError:
        return []  # no credit at all is an effect
    count = algorithm.minibatches if credit.minibatches is None else credit.minibatches
    columns = (credit.advantage_T, credit.weight_T, credit.return_T, credit.entropy_weight_T, credit.kl_weight_T,
               credit.critic_weight_T)
    said = [torch.zeros(0) if c is None else c for c in columns] + [torch.tensor([algorithm.epochs, count]).double()]
    return said + _gradients(algorithm, batch, credit)


def _gradients(algorithm: Algorithm, batch: Batch, credit: Credit) -> list[Tensor]:
    """d(loss) / d(logprob), d(loss) / d(entropy), d(loss) / d(value) of each token that has a weight."""
    at = credit.trained_T.nonzero()[:, 0]
    if not len(at):
        return []
    rng = rng_at("lint.knobs.model")
    logp, entropy, value = (torch.tensor(rng.normal(size=len(at)) * spread + mean, requires_grad=True)
                            for mean, spread in ((-1.0, 0.3), (1.0, 0.3), (0.0, 1.0)))
    def moved(values_T: Tensor) -> Tensor:
        """Where a fact of the batch stands, as seen from the made-up model."""
        return logp.detach() + values_T[at].double() - batch.plain_logp_T[at].double()

    found = algorithm.loss(LossInputs(
        logp, entropy, moved(batch.old_logp_T), credit.advantage_T[at], moved(batch.rollout_logp_T),
        batch.segment_of_token_T[at], moved(batch.ref_logp_T), credit.weight_T[at] != 0))
    terms = {"policy": found.loss_M, "entropy": found.entropy_loss_M, "kl": found.kl_loss_M}
    shares, loss = shares_of(algorithm, batch, credit, credit.trained_T), logp.sum() * 0.0
    for name, term_M in terms.items():
        if term_M is not None and name in shares:
            loss = loss + masked_sum_over(term_M, shares[name].weight_T[at], shares[name].denominator)
    if needs_critic(algorithm) and credit.return_T is not None:
        fitted = credit.weights_of("critic")[at] != 0
        error = algorithm.value_loss(value[fitted], batch.value_T[at][fitted].double(), credit.return_T[at][fitted])
        loss = loss + error.loss.sum()
    grads = torch.autograd.grad(loss, (logp, entropy, value), allow_unused=True)
    return [torch.zeros(0) if grad is None else grad for grad in grads]


def _differ(one: list[Tensor], other: list[Tensor]) -> bool:
    if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other)):
        return True
    for a, b in zip(one, other):
        gap = (a.double() - b.double()).nan_to_num(0.0).abs()
        if bool((a.isnan() != b.isnan()).any()):
            return True
        if gap.numel() and float(gap.max()) > SAME * max(float(b.double().nan_to_num(0.0).abs().max()), 1e-30):
            return True
    return False


# ------------------------------------------------------------------------------------------------ made-up attempts


def made_up(ids: np.ndarray, probe: LearnerProbe | None = None, *, flat: bool = False,
            algorithm: Algorithm | None = None) -> Batch:
    """Attempts on which every setting has something to act. `ids`: token ids that the policy knows. `flat`: in all
    groups but one, all earn the same. `algorithm`: whose bounds are to be in reach."""
    groups = [Group(tuple(_attempt(task, number, ids, SPREADS[0 if flat and task else task % len(SPREADS) - 1])
                          for number in range(ATTEMPTS))) for task in range(TASKS)]
    return with_facts(Batch.from_groups(groups), probe, algorithm)


def with_facts(batch: Batch, probe: LearnerProbe | None, algorithm: Algorithm | None) -> Batch:
    """The batch with numbers of models that are drawn around those of the probe's policy, which `plain_logp_T` holds;
    without one, around numbers drawn."""
    rng = rng_at("lint.knobs.facts")

    def drawn(*choices: float) -> Tensor:
        return torch.from_numpy(rng.choice(choices, batch.num_tokens)).float()

    somewhere_T = batch.position_T > 0
    logp_T, value_T = drawn(-0.4, -0.9, -1.6, -2.2), drawn(-0.5, 0.0, 0.4, 1.1)
    if probe is not None:
        logp_T = probe.logprobs(batch, somewhere_T).nan_to_num(-1.0)
    final_N = torch.from_numpy(rng.normal(size=batch.num_trajectories)).float()
    # Ratios on both sides of any bound that is in use: from 3e-4 (GSPO) to 3 (the dual clip), or what was set.
    dual = getattr(algorithm, "dual_clip", 0.0)
    furthest = max(2.3, 1.3 * float(np.log(dual)) if dual > 1 else 0.0)
    old_T = logp_T + drawn(-furthest, -1.3, -0.5, -0.25, -0.11, -1e-3, 1e-3, 0.11, 0.25, 0.5, 1.3)
    nan = torch.nan
    return replace(
        batch, plain_logp_T=logp_T, old_logp_T=torch.where(somewhere_T, old_T, nan),
        ref_logp_T=torch.where(somewhere_T, logp_T + drawn(-0.8, -0.2, 0.3, 0.6), nan),
        rollout_logp_T=torch.where(batch.eligible_T, old_T - drawn(-0.4, 0.1, 0.8, 2.5), nan),
        value_T=torch.where(somewhere_T, value_T + drawn(-1.5, -0.3, 0.2, 1.0), nan), final_value_N=final_N + 0.7)


def _attempt(task: int, number: int, ids: np.ndarray, spread: float) -> Trajectory:
    rng = rng_at("lint.knobs", task, number)
    count = 1 + int(rng.integers(TURNS))

    def words(low: int, high: int) -> np.ndarray:
        return rng.choice(ids, int(rng.integers(low, high + 1)))

    spans = [Span(Source.PROMPT, 0, np.resize(ids, 4 + task % 2))]
    for turn in range(count):
        mine = words(1, 5)
        spans += [Span(Source.POLICY, turn, mine, -rng.random(len(mine)), policy_version=0, sampling=Sampling(),
                       sampled=True),
                  Span(Source.ENV, turn, words(1, 4))]
    paid = rng.normal(size=count) * spread + (0.2 if spread else 0.2 / count)
    turns = tuple(Turn(k, "", reward=round(float(paid[k]), 6) if spread else 0.5 / count,
                       state_key=f"state {int(rng.integers(2))}") for k in range(count))
    stops = (StopReason.TERMINATED, StopReason.CONTEXT_FULL, StopReason.MAX_TURNS, StopReason.ENV_TRUNCATED)
    made = Task(f"made-up/{task}", "made-up", task, metadata={"tag": f"kind {task % 2}"})
    return Trajectory(made, number, number, Observation((Message("user", "made up"),)), turns, (Segment(tuple(spans)),),
                      stops[int(rng.integers(4))])


RULES: tuple[Rule, ...] = (
    Rule(
        "R13", "every setting that was set does something",
        means="A setting was asked for and has no effect: the run is not the experiment that its configuration names, "
              "and a comparison of two values of it compares noise.",
        mend="Find out where the setting gets lost between configuration, credit, loss and learner. If it cannot act "
             "here, remove it.",
        needs=("algorithm",), check=_check, when="start",
        threads=("NeMo-RL#3792", "rllm#916"),
    ),
)
