"""The bench: every claim of every algorithm measured on every task, and the traps. One call, one report.

A claim is judged by its own words. Where all units can be enumerated the answer is exact, and an unbiased estimator may
be off by rounding only; such a claim is sampled as well where many units fit into one batch, which checks the
enumeration. Else it is sampled until the standard error is 2 % of the true gradient, and may be off by three of those.
Of a hundred unbiased estimators one or two would be further off by chance: then it is drawn anew with four times as
many units, which decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.extensions.bias.claims import CLAIMS, SCALES, Claim
from workbench.extensions.bias.lagged import LagRow, correction_rows, kl_rows, lag_faults
from workbench.extensions.bias.measure import (
    Estimator,
    Measured,
    Unit,
    demand_alone,
    enumerated,
    number_of_units,
    sampled,
    units_needed,
)
from workbench.extensions.bias.tasks import SAFE_PAYOUTS, TASKS, ExactTask, told_apart
from workbench.extensions.bias.trajectories import (
    Templates,
    end_values,
    state_values,
    templates,
    true_gradient,
    with_critic,
    with_greedy,
    wrong_values,
)
from workbench.extensions.bias.traps import (
    CURVE_SIZES,
    SignCurve,
    Trap,
    deviation_trap,
    filter_trap,
    sign_curve,
    turn_index_trap,
)
from workbench.learn.algorithms import ALGORITHMS, LossInputs
from workbench.learn.algorithms.base import needs_critic, needs_greedy, shares_of
from workbench.learn.algorithms.parts import Filter
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import masked_sum_over
from workbench.values.errors import ConfigError
from workbench.values.view import HasView

ROUNDING = 1e-9  # relative to the true gradient: what an exact result may be off by
ERROR = 0.02  # standard error that sampling goes on to, relative to the true gradient
MOST_ERRORS = 3.0  # standard errors that a sampled claim may be off by
MOST_UNITS = 20_000  # enumerated at most, where units may stand in one batch
MOST_BATCHES = 700  # ... where each unit is a batch of its own
GROUP_SIZES = (8, 4, 2)  # of which the first is taken that can be enumerated
CRITICS = {
    "perfect": state_values,
    "wrong": wrong_values,
    "told": partial(state_values, told=True),
    "told the end": end_values,
}
TOLD = ("told", "told the end")  # ... of more than the policy saw
BUDGET = 64  # trajectories that `noise` is given for


@dataclass(frozen=True)
class BiasRow:
    """One claim on one task. Gradients are by the task's parameters [D], in the order of `parameters`.

    scale      projection of the mean estimate on the true gradient, over its length: 1 is the right size
    bias       distance of the mean estimate from the true gradient, over the latter's length
    cosine     of the angle between them; None where the mean estimate is zero
    noise      standard deviation of the estimate from 64 trajectories (length of the vector), over the true length
    exact      the estimate comes from all units there are; else from sampled ones
    drawn      sampled units, 0 if none: in place of enumeration, or to check it
    error      standard error of the sampled mean (largest of a parameter), over the true length; None: not sampled
    z          largest distance of a parameter's sampled mean from the truth, in standard errors; None: not sampled
    """

    task: str
    algorithm: str
    label: str
    says: str
    why: str
    unit: str
    units: int
    exact: bool
    drawn: int
    parameters: tuple[str, ...]
    true: tuple[float, ...]
    estimate: tuple[float, ...]
    sampled: tuple[float, ...] | None
    scale: float
    bias: float
    cosine: float | None
    noise: float
    error: float | None
    z: float | None
    verdict: str
    holds: bool


@dataclass(frozen=True, repr=False)
class BiasReport(HasView):
    """What was measured. `faults` and `notes` are sentences; without a fault the bench has passed. `lagged`: gradients under a policy
    that has moved on since it sampled, and those of the KL term."""

    rows: tuple[BiasRow, ...]
    traps: tuple[Trap, ...]
    curves: tuple[SignCurve, ...]
    faults: tuple[str, ...]
    lagged: tuple[LagRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def view(self):
        from workbench.extensions.bias.view import show_bias

        return show_bias(self)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"passed": self.passed, **asdict(self)}


def bias_bench(
    *,
    tasks: Mapping[str, ExactTask] = TASKS,
    claims: Mapping[str, tuple[Claim, ...]] = CLAIMS,
    algorithms: Mapping[str, type] = ALGORITHMS,
    error: float = ERROR,
    traps: bool = True,
    lags: bool = False,
) -> BiasReport:
    """Measure what `claims` say of `algorithms`, on `tasks`; show the traps, and with `lags` what a lag and a KL term do.

    `error`: relative standard error that is sampled to (a larger one is quicker and sees less).
    An algorithm without a claim is measured as it is, and a fault. Raises ConfigError for a claim without an algorithm.
    """
    idle = sorted(claims.keys() - algorithms.keys())
    if idle:
        raise ConfigError(
            f"claims are about algorithms, but there is none named {', '.join(idle)}; the table has "
            f"{', '.join(algorithms)}"
        )
    silent = [name for name in algorithms if not claims.get(name)]
    known = {name: templates(task) for name, task in tasks.items()}
    rows = []
    for name, algorithm in algorithms.items():
        for claim in claims.get(name) or (_no_claim(name, algorithm),):
            for task in claim.tasks or tasks:
                if task in known:
                    rows.append(measured_row(known[task], name, algorithm, claim, error))
    measured_traps, curves = _traps(algorithms) if traps else ((), ())
    faults = [
        f"{name} does not say what its gradient is worth: give it a line in workbench/extensions/bias/claims.py"
        for name in silent
    ]
    faults += _row_faults(tuple(rows))
    faults += [f"trap not shown: {trap.title}" for trap in measured_traps if not trap.shown]
    lagged = (*correction_rows(), *kl_rows()) if lags else ()
    faults += lag_faults(lagged)
    return BiasReport(tuple(rows), measured_traps, curves, tuple(faults), lagged)


def _no_claim(name: str, algorithm: type) -> Claim:
    critic = "wrong" if needs_critic(algorithm()) else ""
    return Claim(name, "nothing", "", "batch", critic=critic)


def _row_faults(rows: tuple[BiasRow, ...]) -> list[str]:
    faults = [f"{row.label} on {row.task}: {row.verdict}" for row in rows if not row.holds]
    by_claim: dict[tuple[str, str], list[BiasRow]] = {}
    for row in rows:
        by_claim.setdefault((row.algorithm, row.label), []).append(row)
    for (_, label), own in by_claim.items():
        is_biased = any(row.says == "biased" for row in own)
        if is_biased and all(row.verdict == NOT_HERE for row in own):
            faults.append(f"{label} is documented as biased, but no task here shows it")
    return faults


# ------------------------------------------------------------------------------------------------ one claim


def estimator_of(algorithm: Any, claim: Claim | None = None) -> Estimator:
    """Batch -> worth of every token [T]: exactly what `algorithm.credit` gives, times what the claim puts right."""

    def estimator(batch: Batch) -> Tensor:
        credit = algorithm.credit(batch)
        worth_T = credit.advantage_T * credit.weight_T
        return worth_T if claim is None else worth_T * _correction(claim, batch)

    return estimator


def loss_estimator_of(algorithm: Any, source: Templates) -> Estimator:
    """Batch -> -N d loss / d logp of every token [T], for the loss of a step's first update as the learner sums it up:
    objective, reduction, shares and all. Times N, the batch's trajectories, because an estimate is a mean over them."""

    def estimator(batch: Batch) -> Tensor:
        credit = algorithm.credit(batch)
        share = shares_of(algorithm, batch, credit, credit.trained_T).get("policy")
        worth_T = torch.zeros(batch.num_tokens, dtype=torch.float64)
        if share is None:
            return worth_T
        at_M = share.weight_T.nonzero()[:, 0]
        logp_V = source.policy.logp_V(source.policy.logits_D)
        logp_M = logp_V[batch.token_ids_T[at_M]].requires_grad_()
        old_M = logp_M.detach()
        zero_M = torch.zeros_like(old_M)
        advantage_M = credit.advantage_T[at_M]
        segment_M = batch.segment_of_token_T[at_M]
        inputs = LossInputs(logp_M, zero_M, old_M, advantage_M, old_M, segment_M)
        loss = masked_sum_over(
            algorithm.loss(inputs).loss_M, share.weight_T[at_M], share.denominator
        )
        [gradient_M] = torch.autograd.grad(loss, logp_M)
        return worth_T.index_copy(0, at_M, -batch.num_trajectories * gradient_M)

    return estimator


def _correction(claim: Claim, batch: Batch) -> Tensor | float:
    if claim.correction == "G/(G-1)":
        attempts = int(batch.group_of_trajectory_N.bincount().max())
        return attempts / (attempts - 1)
    return claim.gamma ** batch.turn_T.double() if claim.correction == "gamma^k" else 1.0


def measured_row(
    source: Templates, name: str, algorithm: type, claim: Claim, error: float = ERROR
) -> BiasRow:
    """One claim on one task."""
    made = algorithm(**claim.settings)
    source = _prepared(source, claim, made)
    unit = _unit(claim, len(source.probability_O))
    estimator = loss_estimator_of(made, source) if claim.whole_loss else estimator_of(made, claim)
    truth_D = true_gradient(source, claim.gamma).numpy()
    demand_alone(source, estimator, unit)
    mean = None
    is_off = False
    if _can_be_enumerated(len(source.probability_O), unit):
        mean = enumerated(source, estimator, unit)
        is_off = np.linalg.norm(mean.mean_D - truth_D) > ROUNDING * np.linalg.norm(truth_D)
    check = None
    if mean is None or (claim.says == "unbiased" and unit.alone and not is_off):
        pilot = mean or sampled(source, estimator, unit, 200, claim.label, "pilot")
        needed = units_needed(pilot.variance_D, truth_D, error, least=2_000 if unit.alone else 200)
        check = sampled(source, estimator, unit, needed, claim.label)
        if claim.says == "unbiased" and _standard_errors(check, truth_D) > MOST_ERRORS:
            check = sampled(source, estimator, unit, 4 * needed, claim.label, "again")
    return _row(source, name, claim, made, unit, truth_D, mean or check, check)


def _prepared(source: Templates, claim: Claim, algorithm: Any) -> Templates:
    """The templates with what an algorithm needs: a critic's values, greedy play."""
    if claim.critic in TOLD:
        source = templates(told_apart(source.task))
    if claim.critic:
        source = with_critic(source, CRITICS[claim.critic](source))
    return with_greedy(source) if needs_greedy(algorithm) else source


def _unit(claim: Claim, outcomes: int) -> Unit:
    """The largest that can be enumerated; where none can be, the smallest."""
    alone = claim.looks_at != "batch"
    sizes = GROUP_SIZES
    if claim.looks_at == "attempt":
        sizes = (1,)
    elif claim.attempts:
        sizes = (claim.attempts,)
    units = [Unit(size, claim.groups, alone) for size in sizes]
    return next((unit for unit in units if _can_be_enumerated(outcomes, unit)), units[-1])


def _can_be_enumerated(outcomes: int, unit: Unit) -> bool:
    return number_of_units(outcomes, unit) <= (MOST_UNITS if unit.alone else MOST_BATCHES)


def _row(
    source: Templates,
    name: str,
    claim: Claim,
    algorithm: Any,
    unit: Unit,
    truth_D: np.ndarray,
    measured: Measured,
    check: Measured | None,
) -> BiasRow:
    length = float(np.linalg.norm(truth_D))
    mean_D = measured.mean_D
    size = float(np.linalg.norm(mean_D))
    along = float(mean_D @ truth_D)
    row = BiasRow(
        task=source.task.name,
        algorithm=name,
        label=claim.label,
        says=claim.says,
        why=claim.why,
        unit=str(unit),
        units=measured.units,
        exact=measured.exact,
        drawn=0,
        parameters=source.task.parameters,
        true=tuple(truth_D.tolist()),
        estimate=tuple(mean_D.tolist()),
        sampled=None,
        scale=along / length**2,
        bias=float(np.linalg.norm(mean_D - truth_D)) / length,
        cosine=along / (size * length) if size > ROUNDING * length else None,
        noise=float(np.sqrt(measured.variance_D.sum() * unit.size / BUDGET)) / length,
        error=None,
        z=None,
        verdict="",
        holds=False,
    )
    if check is not None:
        row = replace(
            row,
            drawn=check.units,
            sampled=tuple(check.mean_D.tolist()),
            error=float(check.error_D.max()) / length,
            z=_standard_errors(check, truth_D),
        )
    scale = SCALES[claim.scale](algorithm, unit.attempts) if claim.scale else None
    verdict, holds = _verdict(row, scale)
    return replace(row, verdict=verdict, holds=holds)


def _standard_errors(measured: Measured, truth_D: np.ndarray) -> float:
    """The largest distance of a mean from the truth, in standard errors. Where nothing varies, rounding is no
    distance."""
    off_D = np.abs(measured.mean_D - truth_D)
    rounding = ROUNDING * float(np.linalg.norm(truth_D))
    errors_D = off_D / np.maximum(measured.error_D, 1e-300)
    return float(np.max(np.where(off_D <= rounding, 0.0, errors_D)))


NOT_HERE = "not biased here"


def _verdict(row: BiasRow, expected: float | None) -> tuple[str, bool]:
    """What was found, and whether the claim survives it; `expected`: the scale of a scaled one."""
    if row.says == "unbiased":
        if row.exact and row.bias > ROUNDING:
            off = f"{100 * row.bias:.3g} % of the true gradient"
            return f"NOT unbiased: off by {off}, exactly", False
        if row.z is not None and row.z > MOST_ERRORS:
            return f"NOT unbiased: off by {row.z:.1f} standard errors", False
        if row.exact:
            return "unbiased, exactly", True
        return f"unbiased within {row.z:.1f} standard errors", True
    if row.says == "scaled":
        turned = 1 if row.cosine is None else 1 - row.cosine
        if abs(row.scale / expected - 1) + turned <= ROUNDING:
            return f"times {expected:.4g}, same direction", True
        measured = f"it is times {row.scale:.4g}, cosine {row.cosine}"
        return f"NOT the gradient times {expected:.4g}: {measured}", False
    if row.says == "nothing":
        return "measured; nothing was claimed", True
    is_certain = row.bias > ROUNDING if row.exact else row.z > MOST_ERRORS
    if not is_certain:
        return NOT_HERE, True
    return ("biased: the WRONG WAY" if row.scale < 0 else "biased, as it says"), True


# ------------------------------------------------------------------------------------------------ the traps


def _traps(algorithms: Mapping[str, type]) -> tuple[tuple[Trap, ...], tuple[SignCurve, ...]]:
    grpo = algorithms.get("grpo", ALGORITHMS["grpo"])
    undivided_grpo = grpo(estimator={"normalize_std": False})
    divided = estimator_of(grpo())
    undivided = estimator_of(undivided_grpo)
    honest = estimator_of(undivided_grpo, Claim("", "unbiased", "", correction="G/(G-1)"))
    quarter = Filter(keep="top_share", share=0.25)
    filtered = estimator_of(grpo(filter=quarter, estimator={"normalize_std": False}))
    sizes = product(SAFE_PAYOUTS, CURVE_SIZES)
    curves = tuple(sign_curve(divided, safe, attempts) for safe, attempts in sizes)
    traps = (
        turn_index_trap(honest),
        deviation_trap(divided, undivided, curves),
        filter_trap(filtered, undivided),
    )
    return traps, curves
