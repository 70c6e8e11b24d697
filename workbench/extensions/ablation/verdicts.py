"""Four verdicts on a family of paired differences: higher, lower, equal within the margin, undecided.

What is judged was declared: which differences form the family, how far apart two arms may be and still count as equal
(margin), how many seeds, after how many of them one looks (`Analysis`). Then:

    one interval    two-way random effects over seeds and tasks (`types.crossed`)
    a family        Holm on the p-values of all differences; the intervals shown hold together (Bonferroni)
    looks           each at the level that alpha spending leaves it (`looks`); a verdict that was reached stays
    few seeds       below FEW, differences of the seeds are not known to be normal and cannot be seen to be: an exact
                    sign-flip test beside the interval, which cannot come below 5 %. So they decide nothing, unless the
                    reader accepts normality by name
    undecided       says how many more seeds, or tasks, it would take to find a difference as large as the margin

A difference counts as equal when the interval that holds for the whole family lies within the margin: two one-sided
tests, at half their usual level. Sources: Holm (1979); Maurer and Bretz (2013), Holm with looks; Schuirmann (1987).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from workbench.extensions.ablation.crossed import MeanParts, detectable, parts_of
from workbench.extensions.ablation.looks import look_levels
from workbench.values.errors import ConfigError, DataError

HIGHER = "higher"
LOWER = "lower"
EQUAL = "equal within the margin"
UNDECIDED = "undecided"
FEW = 5  # below so many seeds nothing is decided
MOST_SEEDS = 100  # beyond them no advice is given
MOST_TASKS = 1 << 20


@dataclass(frozen=True)
class Analysis:
    """How a family of differences will be judged.

    margin: in the unit of the values (0.02: two points of success).
    looks: numbers of seeds, the last the planned one.
    normal: the reader accepts that differences of seeds are normal, which below five seeds nothing can show.
    alpha: the share of families with a false verdict.
    """

    margin: float
    looks: tuple[int, ...]
    normal: bool = False
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not self.margin > 0:
            raise ConfigError(
                f"margin: expected a difference above 0 below which arms count as equal, got {self.margin}"
            )
        if not 0 < self.alpha <= 0.5:
            raise ConfigError(
                f"alpha: expected the share of families with a false verdict, such as 0.05, got {self.alpha}"
            )
        look_levels(self.looks)

    @property
    def seeds(self) -> int:
        return self.looks[-1]


# ------------------------------------------------------------------------------------------------ Holm over looks


def found_at(p_LXM: np.ndarray, analysis: Analysis) -> np.ndarray:
    """Of p-values [looks so far, ..., family]: the look that finds a difference, -1 where none does; int [..., family].

    At each look Holm's steps: with k differences not found yet, the smallest p-value is compared with the level that
    alpha / k leaves to this look. What was found stays found."""
    look_XM = np.full(p_LXM.shape[1:], -1)
    family = p_LXM.shape[-1]
    levels_KL = [look_levels(analysis.looks, analysis.alpha / k) for k in range(1, family + 1)]
    for look, p_XM in enumerate(p_LXM):
        if analysis.looks[look] < FEW and not analysis.normal:
            continue
        level_K = np.array([0.0, *(levels_L[look] for levels_L in levels_KL)])
        for _ in range(family):
            left_X = (look_XM < 0).sum(axis=-1)
            new_XM = (look_XM < 0) & (p_XM <= level_K[left_X][..., None])
            if not new_XM.any():
                break
            look_XM[new_XM] = look
    return look_XM


def looked(values_XRN: np.ndarray, analysis: Analysis) -> list[MeanParts]:
    """The tables as they stood at each look that the runs in them reach."""
    return [
        parts_of(values_XRN[..., :look, :])
        for look in analysis.looks
        if look <= values_XRN.shape[-2]
    ]


def sign_flip(values_R: Sequence[float]) -> float:
    """Exact two-sided p-value of a mean of zero, for values that would be as likely with the other sign: the share of
    all 2^R signs whose sum is as far from zero. The smallest possible is 2^(1-R). DataError above 20 values."""
    values_R = np.asarray(values_R, dtype=np.float64)
    if not 1 <= len(values_R) <= 20:
        raise DataError(f"signs are flipped in all ways for 1 to 20 seeds, got {len(values_R)}")
    sums = np.array(list(product((-1.0, 1.0), repeat=len(values_R)))) @ values_R
    return float((np.abs(sums) >= abs(values_R.sum()) - 1e-12).mean())


# ------------------------------------------------------------------------------------------------ verdicts


def judged(
    tables_MRN: Sequence[np.ndarray], analysis: Analysis, row: str = "seed"
) -> list[dict[str, Any]]:
    """The verdicts on a family: one table of differences [seeds, tasks] each, all with the same seeds and tasks. As JSON
    values (`_judgement`). Judged at the last declared look that the seeds reach; later seeds are shown, not judged. `row`:
    what is repeated, in words."""
    shapes = {np.shape(table) for table in tables_MRN}
    if len(shapes) != 1:
        raise DataError(f"a family is judged on the same seeds and tasks, got {sorted(shapes)}")
    values_MRN = np.asarray(tables_MRN, dtype=np.float64)
    each_alpha = analysis.alpha / len(values_MRN)
    looks = looked(values_MRN, analysis)
    side_M = [0.0] * len(values_MRN)
    if looks:
        parts = looks[-1]
        level = look_levels(analysis.looks, each_alpha)[len(looks) - 1]
        look_M = found_at(np.stack([at_look.p_value() for at_look in looks]), analysis)
        for m, look in enumerate(look_M):
            if look >= 0:
                side_M[m] = float(np.sign(looks[look].mean_X[m]))
    else:
        parts = parts_of(values_MRN)
        level = None
    half_M = parts.half_width(each_alpha if level is None else level)
    alone_M = parts.half_width(analysis.alpha)
    judgements = []
    for m, values_RN in enumerate(values_MRN):
        numbers = _numbers(parts, m) | {"half": float(half_M[m]), "alone": float(alone_M[m])}
        judgements.append(_judgement(values_RN, numbers, analysis, level, side_M[m], row))
    return judgements


def _numbers(parts: MeanParts, index: int) -> dict[str, float]:
    return {
        "mean": float(parts.mean_X[index]),
        "p": float(parts.p_value()[index]),
        "freedom": float(parts.freedom(0.05)[index]),
        "seed": float(parts.seed_X[index]),
        "task": float(parts.task_X[index]),
        "rest": float(parts.rest_X[index]),
        "runs": parts.runs,
        "tasks": parts.tasks,
    }


def _judgement(
    values_RN: np.ndarray,
    numbers: dict[str, float],
    analysis: Analysis,
    level: float | None,
    side: float,
    row: str,
) -> dict[str, Any]:
    """What stands in a table of one difference.

    verdict, why: why it is undecided, where it is.
    mean, low, high: the interval holds for the whole family.
    alone: this difference's own interval at alpha.
    p, flip: p-values; the second of the seeds' signs, where they are few.
    each: every seed's mean.
    detectable, more_seeds, more_tasks: None where none would do, or it was not asked.

    `side`: the sign of a difference that was found, else 0.
    """
    mean = numbers["mean"]
    low = mean - numbers["half"]
    high = mean + numbers["half"]
    # Holm's later steps find more than the intervals that hold together show: those end at zero then.
    if side > 0:
        low = max(low, 0.0)
    elif side < 0:
        high = min(high, 0.0)
    few = numbers["runs"] < FEW and not analysis.normal
    within = level is not None and not few and -analysis.margin < low and high < analysis.margin
    if side:
        verdict = HIGHER if side > 0 else LOWER
    else:
        verdict = EQUAL if within else UNDECIDED
    each_R = values_RN.mean(axis=1)
    alone = numbers["alone"]
    result: dict[str, Any] = {
        "verdict": verdict,
        "why": "",
        "mean": mean,
        "low": _known(low),
        "high": _known(high),
        "p": numbers["p"],
        "alone": [_known(mean - alone), _known(mean + alone)],
        "freedom": numbers["freedom"],
        "judged_seeds": numbers["runs"],
        "each": each_R.tolist(),
        "flip": sign_flip(each_R) if len(each_R) < FEW else None,
        "detectable": None,
        "more_seeds": None,
        "more_tasks": None,
    }
    if numbers["runs"] > 1:
        sizes = [numbers[name] for name in ("seed", "task", "rest", "runs", "tasks")]
        level_found = analysis.alpha if level is None else level
        result["detectable"] = _known(detectable(*sizes, level_found))
        if verdict == UNDECIDED:
            more_seeds, more_tasks = more(*sizes, level_found, analysis.margin)
            result |= {"more_seeds": more_seeds, "more_tasks": more_tasks}
    if verdict == UNDECIDED:
        result["why"] = _why(analysis, len(each_R), few, level, row)
    return result if row == "seed" else result | {"row": row}


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _why(analysis: Analysis, seeds: int, few: bool, level: float | None, row: str) -> str:
    if few:
        return (
            f"{seeds} {row}s cannot decide: the sign-flip test cannot come below {2.0 ** (1 - seeds):.3g}; run "
            f"{FEW}, or accept by name that {row}s are normal"
        )
    if level is None:
        return f"{seeds} of {analysis.looks[0]} {row}s until the first declared look"
    if seeds < analysis.seeds:
        return f"{seeds} of {analysis.seeds} declared {row}s are there"
    return ""


def more(
    seed: float, task: float, rest: float, runs: int, tasks: int, level: float, effect: float
) -> tuple[int | None, int | None]:
    """About how many more seeds (at as many tasks), or tasks (at as many seeds), it takes until a difference of `effect`
    is found with 80 % power, if the variances are as they were seen. None: not by that alone."""

    def enough(r: int, n: int) -> bool:
        return detectable(seed, task, rest, r, n, level) <= effect

    fewest = max(runs, 2)
    enough_seeds = (r for r in range(fewest, MOST_SEEDS + 1) if enough(r, tasks))
    seeds = next(enough_seeds, None)
    more_seeds = None if seeds is None else seeds - runs
    if not enough(fewest, MOST_TASKS):
        return more_seeds, None
    low = tasks
    high = MOST_TASKS
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        if enough(fewest, middle):
            high = middle
        else:
            low = middle
    return more_seeds, high - tasks
