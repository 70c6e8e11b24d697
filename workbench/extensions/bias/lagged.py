"""What a gradient is worth when the policy has moved on since its data were sampled, and what the KL term's is worth.

    corrections   the policy made 0 to 8 updates since it sampled: no correction, sampler weights, the ratios of the objectives
    kl            k1, k2, k3 in the loss and in the reward, at the first update on a batch and at later ones

Nothing is sampled to say so: every group of two trajectories that the older policy can draw is enumerated, with its probability,
and the loss that is differentiated is the package's own. Two rows are made here and are not shipped: ratios of whole
trajectories, and k1 of the policy as it is, priced under that ratio. They are exact, so that the bench can be trusted where it says that
the others are not.

An update moves the logits by a step of fixed length along the true gradient, so that lags mean the same on all tasks.

Axis letters: O outcomes · N trajectories · T tokens (flat) · M trained tokens · V token ids · D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.extensions.bias.measure import (
    Estimator,
    Unit,
    demand_alone,
    enumerated,
    sampled,
)
from workbench.extensions.bias.tasks import (
    ExactTask,
    Node,
    TaskOutcome,
    TaskTurn,
    bandit,
    lengths,
    three_turns,
)
from workbench.extensions.bias.trajectories import (
    SoftmaxPolicy,
    Templates,
    templates,
    true_gradient,
)
from workbench.learn.algorithms import ALGORITHMS, LossInputs
from workbench.learn.algorithms.base import shares_of
from workbench.learn.algorithms.objectives import CISPOObjective, ClipObjective, GSPOObjective
from workbench.learn.algorithms.parts import ReferenceKL
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import masked_sum_over

LAGS = tuple(range(9))
UPDATES = (0, 1, 2, 3)  # made on a batch before the one that is looked at
STEP = 0.15  # length of an update, in logits
ROUNDING = 1e-9  # relative to the true gradient
PAIR = Unit(2)
BUDGET = 64  # trajectories that `noise` is given for
DRAWN = 2_000  # pairs
FREE = ClipObjective(clip_low=1.0, clip_high=1e9)
UNBIASED = "unbiased"
BIASED = "biased"
SUMS = {"reduction": "seq-mean-token-sum"}


@dataclass(frozen=True)
class LagRow:
    """One correction, or one KL term, on one task, `lag` updates after its data were sampled. Gradients [D].

    kind       "correction" | "kl"
    says       what is claimed: "unbiased" | "biased"
    drift      KL(policy that sampled || policy) of a trajectory, in nats
    scale      projection of the mean estimate on the true gradient, over its length
    bias       distance of the mean estimate from the true gradient, over the latter's length
    cosine     of the angle between them; None where the mean estimate is zero
    noise      standard error of an estimate from 64 trajectories, over the true length: exact, by enumeration
    error, z   of pairs that were drawn to check the enumeration: standard error over the true length (largest of a parameter), and
               the largest distance of their mean from the enumerated one in such errors
    """

    kind: str
    task: str
    label: str
    lag: int
    says: str
    drift: float
    true: tuple[float, ...]
    estimate: tuple[float, ...]
    scale: float
    bias: float
    cosine: float | None
    noise: float
    error: float
    z: float

    @property
    def holds(self) -> bool:
        """A claim of no bias is kept; one of bias is looked at over all tasks (`lag_faults`)."""
        return self.says != UNBIASED or self.bias <= ROUNDING

    @property
    def points_back(self) -> bool:
        """Whether the mean estimate points the wrong way; one of zero points nowhere."""
        return self.cosine is not None and self.scale < 0

    @property
    def verdict(self) -> str:
        if self.bias <= ROUNDING:
            return "unbiased, exactly"
        way = ": the WRONG WAY" if self.points_back else ""
        return f"biased by {100 * self.bias:.3g} % of the true gradient{way}"


@dataclass(frozen=True)
class PolicyPair:
    """A policy and the older one that sampled: `old` has the probabilities, `now` the scores; `reference_V` logprobs by
    token id of what the KL is taken to, None: there is none."""

    old: Templates
    now: SoftmaxPolicy
    reference_V: Tensor | None = None

    @property
    def source(self) -> Templates:
        """What is enumerated: drawn by the older policy, scored by the newer."""
        return replace(self.old, policy=self.now)

    @property
    def old_V(self) -> Tensor:
        return self.old.policy.logp_V(self.old.policy.logits_D)

    @property
    def now_V(self) -> Tensor:
        return self.now.logp_V(self.now.logits_D)

    @property
    def drift(self) -> float:
        difference_V = self.old_V - self.now_V
        total_O = [float(difference_V[self.now.token_ids(o)].sum()) for o in self.old.task.outcomes]
        return float(self.old.probability_O @ np.array(total_O))


# ------------------------------------------------------------------------------------------------ policies on their way


def with_logits(task: ExactTask, logits_D: Tensor) -> ExactTask:
    """The same task under a policy with these free logits [D]."""
    nodes = []
    free = logits_D.tolist()
    for node in task.nodes:
        own = free[: len(node.logits)]
        free = free[len(node.logits) :]
        nodes.append(replace(node, logits=tuple(own)))
    return replace(task, nodes=tuple(nodes))


def path(task: ExactTask, updates: int, gradient: Callable[[ExactTask], Tensor]) -> list[ExactTask]:
    """The task under the policy as it is, and after each of so many updates of length `STEP` along its exact gradient."""
    tasks = [task]
    for _ in range(updates):
        ahead_D = gradient(tasks[-1])
        logits_D = SoftmaxPolicy(tasks[-1]).logits_D + STEP * ahead_D / ahead_D.norm()
        tasks.append(with_logits(task, logits_D))
    return tasks


def reward_gradient(task: ExactTask) -> Tensor:
    return true_gradient(templates(task), 1.0)


def kl_gradient(task: ExactTask, reference_V: Tensor) -> Tensor:
    """d KL(policy || reference) / d logits [D] of whole trajectories, by enumeration."""
    source = templates(task)
    policy = source.policy
    logp_V = policy.logp_V(policy.logits_D)
    gradient_D = torch.zeros(len(policy.logits_D), dtype=torch.float64)
    for outcome, probability in zip(task.outcomes, source.probability_O.tolist()):
        ids = policy.token_ids(outcome)
        apart = float((logp_V[ids] - reference_V[ids]).sum())
        gradient_D += probability * apart * policy.score_VD[ids].sum(0)
    return gradient_D


# ------------------------------------------------------------------------------------------------ estimators


def loss_of(algorithm: Any, pair: PolicyPair, *, recomputed: bool) -> Estimator:
    """Batch -> -N d loss / d logp of every token [T] at the newer policy. `recomputed`: old_logp is the newer policy's own, as at
    the first update on a batch that an older policy sampled; else the older one's, as at a later update."""

    def estimator(batch: Batch) -> Tensor:
        ids_T = batch.token_ids_T
        held = replace(batch, old_logp_T=pair.old_V[ids_T])
        if pair.reference_V is not None:
            held = replace(held, ref_logp_T=pair.reference_V[ids_T])
        credit = algorithm.credit(held)
        shares = shares_of(algorithm, held, credit, credit.trained_T)
        logp_T = pair.now_V[ids_T].requires_grad_()
        old_T = pair.now_V[ids_T] if recomputed else pair.old_V[ids_T]
        inputs = LossInputs(
            logp_T,
            torch.zeros_like(old_T),
            old_T,
            credit.advantage_T.double(),
            pair.old_V[ids_T],
            held.segment_of_token_T,
            held.ref_logp_T,
            credit.trained_T,
        )
        losses = algorithm.loss(inputs)
        terms = {"policy": losses.loss_M, "kl": losses.kl_loss_M}
        loss = logp_T.sum() * 0.0
        for name, share in shares.items():
            if terms.get(name) is not None:
                loss = loss + masked_sum_over(terms[name], share.weight_T, share.denominator)
        return -batch.num_trajectories * torch.autograd.grad(loss, logp_T)[0]

    return estimator


def whole_ratio(pair: PolicyPair, price: Callable[[Tensor], Tensor] | None = None) -> Estimator:
    """Each token: the trajectory's return, times the ratio of the whole trajectory. Not shipped: its variance grows with every turn.
    `price`: token ids -> what each pays [T], in place of rewards."""

    def estimator(batch: Batch) -> Tensor:
        log_ratio_T = (pair.now_V - pair.old_V)[batch.token_ids_T]
        row_T = batch.trajectory_of_token_T
        empty_N = torch.zeros(batch.num_trajectories, dtype=torch.float64)
        ratio_N = empty_N.index_add(0, row_T, log_ratio_T).exp()
        worth_N = batch.reward_N.double()
        if price is not None:
            worth_N = -empty_N.index_add(0, row_T, price(batch.token_ids_T))
        return torch.where(batch.eligible_T, (worth_N * ratio_N)[row_T], 0.0)

    return estimator


def _rloo(**settings: Any) -> Any:
    return ALGORITHMS["rloo"](**SUMS, **settings)


# label -> (settings, whether old_logp is computed anew). The first three: another policy sampled, one update is made. The others: the
# ratio between the policy and the one that sampled is the objective's.
CORRECTIONS: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "no correction": ({}, True),
    "sampler weight, cap 2": ({"sampler_cap": 2.0}, True),
    "sampler weight, no cap": ({"sampler_cap": 1e9}, True),
    "clip 0.2": ({}, False),
    "clip 0.2, dual clip 3": ({"objective": ClipObjective(dual_clip=3.0)}, False),
    "ratio, no clip": ({"objective": FREE}, False),
    "GSPO": ({"objective": GSPOObjective()}, False),
    "GSPO, no clip": ({"objective": GSPOObjective(clip_low=1.0, clip_high=1e9)}, False),
    "CISPO": ({"objective": CISPOObjective()}, False),
}
WHOLE = "ratio of the whole trajectory (not shipped)"
# Exact where a trajectory is one decision.
BY_TOKEN = ("sampler weight, no cap", "ratio, no clip", "GSPO, no clip")
ONE_DECISION = ("bandit-0.1", "softmax")
PLACES = ("loss", "reward")
KL_ESTIMATORS = ("k1", "k2", "k3")
AS_IT_IS = "k1 as it is, ratio of the whole trajectory (not shipped)"


def softmax_task(logits: Sequence[float] = (0.4, -0.3, 0.9)) -> ExactTask:
    """One token out of four, and nothing is paid: KL and its gradient are formulas."""
    words = ("a", "b", "c", "d")
    outcomes = [TaskOutcome((TaskTurn((("word", word),), 0.0, "word"),)) for word in words]
    node = Node("word", words, tuple(logits))
    return ExactTask("softmax", "one token of four", (node,), tuple(outcomes))


# ------------------------------------------------------------------------------------------------ rows


def correction_rows(lags: Sequence[int] = LAGS) -> Iterator[LagRow]:
    """Every correction on three tasks at every lag."""
    for task in (bandit(0.1), three_turns(), lengths()):
        tasks = path(task, max(lags), reward_gradient)
        old = templates(task)
        for lag in lags:
            pair = PolicyPair(old, SoftmaxPolicy(tasks[lag]))
            truth_D = reward_gradient(tasks[lag])
            for label, (settings, recomputed) in CORRECTIONS.items():
                exact = lag == 0 or (label in BY_TOKEN and task.name in ONE_DECISION)
                estimator = loss_of(_rloo(**settings), pair, recomputed=recomputed)
                says = UNBIASED if exact else BIASED
                yield _row("correction", label, lag, says, pair, truth_D, estimator)
            yield _row("correction", WHOLE, lag, UNBIASED, pair, truth_D, whole_ratio(pair))


def kl_rows(updates: Sequence[int] = UPDATES) -> Iterator[LagRow]:
    """k1, k2 and k3, in the loss and in the reward, where nothing else is paid. The true gradient is that of -KL."""
    for task, shift in ((softmax_task(), (-0.6, 0.8, -0.8)), (_unpaid(lengths()), (0.7, -0.9))):
        policy = SoftmaxPolicy(task)
        reference_D = policy.logits_D + torch.tensor(shift, dtype=torch.float64)
        reference_V = policy.logp_V(reference_D)
        tasks = path(task, max(updates), lambda there: -kl_gradient(there, reference_V))
        for lag in updates:
            pair = PolicyPair(templates(task), SoftmaxPolicy(tasks[lag]), reference_V)
            truth_D = -kl_gradient(tasks[lag], reference_V)
            for label, says, estimator in _kl_estimators(pair, lag):
                yield _row("kl", label, lag, says, pair, truth_D, estimator)


def _kl_estimators(pair: PolicyPair, lag: int) -> Iterator[tuple[str, str, Estimator]]:
    """(label, what is claimed, estimator) of every KL term."""
    for place in PLACES:
        for name in KL_ESTIMATORS:
            term = ReferenceKL(kl_coef=1.0, kl_estimator=name, kl_in=place)
            exact = (name, place) == ("k1", "reward") or (
                (name, place) == ("k2", "loss") and pair.old.task.name in ONE_DECISION
            )
            says = UNBIASED if exact and lag == 0 else BIASED
            algorithm = _rloo(reference=term, objective=FREE)
            yield f"{name} in the {place}", says, loss_of(algorithm, pair, recomputed=False)

    def price(ids_T: Tensor) -> Tensor:
        return (pair.now_V - pair.reference_V)[ids_T]

    yield AS_IT_IS, UNBIASED, whole_ratio(pair, price)


def _unpaid(task: ExactTask) -> ExactTask:
    outcomes = []
    for outcome in task.outcomes:
        steps = tuple(replace(step, reward=0.0) for step in outcome.steps)
        outcomes.append(replace(outcome, steps=steps))
    return replace(task, outcomes=tuple(outcomes))


def _row(
    kind: str,
    label: str,
    lag: int,
    says: str,
    pair: PolicyPair,
    truth: Tensor,
    estimator: Estimator,
) -> LagRow:
    source = pair.source
    truth_D = truth.numpy()
    demand_alone(source, estimator, PAIR)
    mean = enumerated(source, estimator, PAIR)
    check = sampled(source, estimator, PAIR, DRAWN, "lagged", kind, label, lag)
    length = float(np.linalg.norm(truth_D))
    size = float(np.linalg.norm(mean.mean_D))
    along = float(mean.mean_D @ truth_D)
    off_D = np.abs(check.mean_D - mean.mean_D)
    off_D = np.where(off_D <= ROUNDING * length, 0.0, off_D)
    return LagRow(
        kind,
        source.task.name,
        label,
        lag,
        says,
        pair.drift,
        tuple(truth_D.tolist()),
        tuple(mean.mean_D.tolist()),
        along / length**2,
        float(np.linalg.norm(mean.mean_D - truth_D)) / length,
        along / (size * length) if size > ROUNDING * length else None,
        float(np.sqrt(mean.variance_D.sum() * PAIR.size / BUDGET)) / length,
        float(check.error_D.max()) / length,
        float(np.max(off_D / np.maximum(check.error_D, 1e-300))),
    )


def lag_faults(rows: Sequence[LagRow]) -> list[str]:
    """Claims that do not hold: bias where none is claimed, none anywhere where it is, and an enumeration that draws disagree with."""
    faults = []
    biased: dict[tuple[str, str], bool] = {}
    for row in rows:
        where = f"{row.label} on {row.task}, {row.lag} updates later"
        if not row.holds:
            faults.append(f"{where}: NOT unbiased, {row.verdict}")
        if row.z > 6:
            faults.append(
                f"{where}: drawn pairs are {row.z:.1f} standard errors from the enumeration"
            )
        if row.says == BIASED:
            key = (row.kind, row.label)
            biased[key] = biased.get(key, False) or row.bias > ROUNDING
    faults += [
        f"{label} is documented as biased, but no row shows it"
        for (_, label), is_so in biased.items()
        if not is_so
    ]
    return faults
