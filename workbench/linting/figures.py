"""The figures of an evaluation, once more and by other code (R26): rates, intervals, pass@k and paired differences.

Axis letters: N tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.linting.evidence import EvaluationFacts, Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.types import Trajectory
from workbench.types.findings import Checked, Finding, Place

NEAR = 1e-6  # sums in another order
T_NEAR = 5e-4  # the t quantile of tables is good to 1e-4 of its own size
Z = 1.9599639845400545
REFERENCES = ("untrained", "random")


def check_figures(evidence: Evidence) -> Iterator[RuleResult]:
    for evaluation in evidence.evaluations:
        place, rows = Place(step=evaluation.step), list(evaluation.report.get("rows", ()))
        for row in rows:
            name = f"{row['policy']} {row['mode']}"
            side = evaluation.sides.get(f"{row['policy']}-{row['mode']}")
            yield Checked(1)
            expected = (
                of_returns(row)
                if row.get("success") is None
                else of_results(row["by_task"], int(row.get("attempts", 1)))
            )
            if side is not None and len(side) == row["n"]:
                expected |= of_attempts(side, row.get("success") is not None)
            for key, value in expected.items():
                if (
                    wrong := _differs(
                        row.get(key), value, T_NEAR if key.startswith("reward_") else NEAR
                    )
                ) is not None:
                    yield Finding(
                        f"{name}: its table says {key} = {wrong}, and its attempts give "
                        f"{_words(value)}",
                        place,
                    )
                    break
        yield from _pairs(evaluation, place)


def _differs(said: Any, expected: Any, tolerance: float = NEAR) -> str | None:
    """What the table says, where that is something else."""
    if expected is None or isinstance(expected, tuple):
        same = (
            said is None
            if expected is None
            else said is not None
            and len(said) == len(expected)
            and np.allclose(said, expected, atol=NEAR)
        )
    else:
        same = isinstance(said, (int, float)) and (
            math.isclose(said, expected, rel_tol=NEAR, abs_tol=tolerance)
            or math.isnan(said)
            and math.isnan(expected)
        )
    return None if same else _words(said)


def _words(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(f'{each:g}' for each in value[:8])}{' ...' if len(value) > 8 else ''}]"
    return "none" if value is None else f"{value:.6g}"


# ------------------------------------------------------------------------------------------------ one side


def of_attempts(side: Sequence[Sequence[Trajectory]], says: bool) -> dict[str, Any]:
    """What the attempts of one side say by themselves. What failed is no success; what was not scored pays nothing.
    `says`: the environment says whether an attempt succeeded."""
    every = [t for group in side for t in group]
    won = [[t.success is True and not t.stop_reason.is_fault for t in group] for group in side]
    paid = [
        math.fsum([*(turn.reward for turn in t.turns), t.outcome or 0.0])
        for t in every
        if t.scored
        and not t.stop_reason.is_fault
        and all(turn.reward is not None for turn in t.turns)
    ]
    read = [
        bool(turn.info["valid_format"])
        for t in every
        for turn in t.turns
        if "valid_format" in turn.info
    ]
    sampled = sum(
        len(span.token_ids)
        for t in every
        for segment in t.segments
        for span in segment.spans
        if span.logprobs is not None
    )
    by_task = {"by_task": tuple(sum(group) / len(group) for group in won)} if says else {}
    return by_task | {
        "reward": math.fsum(paid) / len(paid) if paid else math.nan,
        "turns": sum(len(t.turns) for t in every) / len(every),
        "tokens": sampled / len(every),
        "valid_format": sum(read) / len(read) if read else None,
        "faults": sum(t.stop_reason.is_fault for t in every),
    }


def of_returns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The interval of the mean return over tasks, where that is what policies are compared by."""
    known = [value for value in row.get("reward_by_task", ()) if value is not None]
    spread = len(known) > 1 and min(known) < max(
        known
    )  # without it nothing is known of other tasks
    low, high = _mean_interval(known)[1:] if spread else (None, None)
    return {"n": len(row.get("reward_by_task", ())), "reward_low": low, "reward_high": high}


def of_results(by_task: Sequence[float], attempts: int) -> dict[str, Any]:
    """What the shares of successes, task by task, say: the rate and pass@k with their intervals."""
    mean, low, high = interval(by_task, attempts)
    found: dict[str, Any] = {
        "n": len(by_task),
        "success": mean,
        "success_low": low,
        "success_high": high,
    }
    for k in (2**i for i in range(attempts.bit_length()) if attempts > 1):
        mean, low, high = interval(passes(by_task, attempts, k), attempts)
        found |= {f"pass_at_{k}": mean, f"pass_at_{k}_low": low, f"pass_at_{k}_high": high}
    return found


def passes(by_task: Sequence[float], attempts: int, k: int) -> list[float]:
    """The chance that k attempts, drawn without replacement, hold a success: one minus a product of shares."""
    return [
        1
        - math.prod(
            max(attempts - round(share * attempts) - i, 0) / (attempts - i) for i in range(k)
        )
        for share in by_task
    ]


def interval(values_N: Sequence[float], attempts: int) -> tuple[float, float, float]:
    """(mean, low, high): Wilson's interval by its quadratic equation, for as many results as the spread is worth."""
    n, mean = len(values_N), math.fsum(values_N) / len(values_N)
    spread = math.fsum((value - mean) ** 2 for value in values_N)
    count = n * 1.0
    if max(values_N) - min(values_N) > 1e-9:
        count = min(max(n * n * mean * (1 - mean) / spread, n), n * attempts)
    # The p at which (mean - p)^2 = z^2 p (1 - p) / count.
    a, b, c = 1 + Z * Z / count, -(2 * mean + Z * Z / count), mean * mean
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return (
        mean,
        (-b - root) / (2 * a) if mean > 0 else 0.0,
        (-b + root) / (2 * a) if mean < 1 else 1.0,
    )


# ------------------------------------------------------------------------------------------------ two sides


def _pairs(evaluation: EvaluationFacts, place: Place) -> Iterator[RuleResult]:
    rows = {f"{row['policy']} {row['mode']}": row for row in evaluation.report.get("rows", ())}
    said = {(pair["a"], pair["b"]): pair for pair in evaluation.report.get("paired", ())}
    for name, row in rows.items():
        if row["policy"] in ("random", "solver"):
            continue
        for other in REFERENCES:
            base = f"{other} {row['mode'] if other == 'untrained' else 'sampled'}"
            if (
                other != row["policy"]
                and base in rows
                and (base, name) not in said
                and row["success"] is not None
                and rows[base]["success"] is not None
            ):
                yield Finding(
                    f"{name} stands beside {base} without their difference on the same tasks", place
                )
    for (a, b), pair in said.items():
        (one, k), (other, _) = _named(a), _named(b)
        if one not in rows or other not in rows:
            yield Finding(
                f"the difference of {b} and {a} is of a side that the table does not have", place
            )
            continue
        yield Checked(1)
        expected = difference(rows[one], rows[other], k)
        tasks = [evaluation.sides.get(side.replace(" ", "-")) for side in (one, other)]
        if all(tasks) and [group[0].task.id for group in tasks[0]] != [
            group[0].task.id for group in tasks[1]
        ]:
            yield Finding(
                f"{a} and {b} are compared place by place, and did not play the same tasks", place
            )
        for key, value in expected.items():
            if (wrong := _differs(pair.get(key), value, T_NEAR)) is not None:
                yield Finding(
                    f"{b} against {a}: the table says {key} = {wrong}; task by task it is "
                    f"{_words(value)}",
                    place,
                )
                break


def _named(words: str) -> tuple[str, int | None]:
    """("trained sampled", None) or, of pass@4, ("trained sampled", 4)."""
    name, _, k = words.partition(" pass@")
    return name, int(k) if k else None


def difference(a: Mapping[str, Any], b: Mapping[str, Any], k: int | None) -> dict[str, Any]:
    """b - a with its interval: of matched pairs of results, or of any shares, task by task (Student's t)."""
    if a["success"] is None or b["success"] is None:
        paid = zip(a["reward_by_task"], b["reward_by_task"])
        each = [list(side) for side in zip(*(pair for pair in paid if None not in pair))]
    else:
        each = [
            passes(row["by_task"], row.get("attempts", 1), k) if k else list(row["by_task"])
            for row in (a, b)
        ]
    if len(each[0]) != len(each[1]):
        return {"n": None}
    gaps = [other - one for one, other in zip(*each)]
    n, mean = len(gaps), math.fsum(gaps) / len(gaps)
    if (
        k is None
        and a.get("attempts", 1) == b.get("attempts", 1) == 1
        and None not in (a["success"], b["success"])
    ):
        gained, lost = (sum(gap * sign > 0 for gap in gaps) + 1 for sign in (1, -1))
        centre = (gained - lost) / (n + 2)
        half = Z * math.sqrt(((gained + lost) / (n + 2) - centre**2) / (n + 2))
        return {
            "difference": mean,
            "low": max(centre - half, -1.0),
            "high": min(centre + half, 1.0),
            "n": n,
        }
    return dict(zip(("difference", "low", "high"), _mean_interval(gaps))) | {"n": n}


def _mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of independent values: Student's t."""
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return mean, -math.inf, math.inf
    half = quantile(n - 1) * math.sqrt(
        math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n
    )
    return mean, mean - half, mean + half


@lru_cache
def quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t, from its integral; with x = sqrt(freedom) tan(u) that is of a power of cos(u)."""
    angles = np.linspace(0, math.pi / 2, 20_001)
    mass = np.cos(angles) ** (freedom - 1)
    whole = np.concatenate([[0.0], np.cumsum((mass[1:] + mass[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(float(np.interp(0.95 * whole[-1], whole, angles)))


R26 = Rule(
    "R26",
    "the figures of an evaluation are those of its attempts",
    "A rate, an interval or a difference in the table is not what was played: what seems to have been learned, or to "
    "be within noise, may be neither.",
    "Count what failed as no success, cluster attempts by task, pair by task, and hold the code of the table against "
    "the formulas that the finding names.",
    ("evaluations",),
    check_figures,
    "run",
)

RULES: tuple[Rule, ...] = (R26,)
