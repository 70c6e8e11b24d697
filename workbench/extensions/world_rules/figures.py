"""The figures of an evaluation, once more and by other code (R26): rates, intervals, pass@k and paired differences.

Axis letters: N tasks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from workbench.basics.findings import Checked, Finding, NotChecked, Place
from workbench.linting.evidence import EvaluationFacts, Evidence
from workbench.linting.facts import num_sampled
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Trajectory
from workbench.worlds.baselines import BASELINES

NEAR = 1e-6  # sums in another order
T_NEAR = (
    5e-4  # runs of earlier versions took the t quantile from a table, good to 1e-4 of its own size
)
Z = 1.9599639845400545
REFERENCES = ("untrained", "random")


def check_figures(evidence: Evidence) -> Iterator[RuleResult]:
    for evaluation in evidence.evaluations:
        place = Place(step=evaluation.step)
        rows = list(evaluation.report.get("rows", ()))
        for row in rows:
            name = f"{row['policy']} {row['mode']}"
            side = evaluation.sides.get(f"{row['policy']}-{row['mode']}")
            yield Checked(1, "figures of each table, compared with each other")
            expected = (
                of_returns(row)
                if row.get("success") is None
                else of_results(row["by_task"], int(row.get("attempts", 1)))
            )
            if side is None and row["policy"] not in BASELINES:
                yield NotChecked("the trajectories", f"{name}, compared with its trajectories")
            if side is not None and len(side) == row["n"]:
                expected |= of_trajectories(side, row.get("success") is not None)
            for key, value in expected.items():
                if (
                    wrong := _differs(
                        row.get(key), value, T_NEAR if key.startswith("reward_") else NEAR
                    )
                ) is not None:
                    yield Finding(
                        f"{name}: its table says {key} = {wrong}, and its trajectories give "
                        f"{_words(value)}",
                        place,
                    )
                    break
        yield from _pairs(evaluation, place)


def _differs(reported: Any, expected: Any, tolerance: float = NEAR) -> str | None:
    """The figure of the table, in words, where it is another one."""
    if expected is None or isinstance(expected, tuple):
        same = (
            reported is None
            if expected is None
            else reported is not None
            and len(reported) == len(expected)
            and np.allclose(reported, expected, atol=NEAR)
        )
    else:
        same = isinstance(reported, (int, float)) and (
            math.isclose(reported, expected, rel_tol=NEAR, abs_tol=tolerance)
            or math.isnan(reported)
            and math.isnan(expected)
        )
    return None if same else _words(reported)


def _words(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(f'{item:g}' for item in value[:8])}{' ...' if len(value) > 8 else ''}]"
    return "none" if value is None else f"{value:.6g}"


# ------------------------------------------------------------------------------------------------ one side


def of_trajectories(side: Sequence[Sequence[Trajectory]], says: bool) -> dict[str, Any]:
    """The figures of one side, by its trajectories alone. What failed is no success; what was not scored pays nothing.
    `says`: the environment says whether a trajectory succeeded."""
    every = list(chain.from_iterable(side))
    paid = [reward for reward in map(_total_reward, every) if reward is not None]
    read: list[bool] = []
    for t in every:
        known = [turn.info for turn in t.turns if "valid_format" in turn.info]
        read += [bool(info["valid_format"]) for info in known]
    figures: dict[str, Any] = {}
    if says:
        figures["by_task"] = tuple(sum(map(_has_won, group)) / len(group) for group in side)
    return figures | {
        "reward": math.fsum(paid) / len(paid) if paid else math.nan,
        "turns": sum(len(t.turns) for t in every) / len(every),
        "tokens": sum(map(num_sampled, every)) / len(every),
        "valid_format": sum(read) / len(read) if read else None,
        "faults": sum(t.stop_reason.is_fault for t in every),
    }


def _has_won(t: Trajectory) -> bool:
    return t.success is True and not t.stop_reason.is_fault


def _total_reward(t: Trajectory) -> float | None:
    """The reward of turns and outcome; None where it was not scored."""
    rewards = [turn.reward for turn in t.turns]
    if not t.scored or t.stop_reason.is_fault or None in rewards:
        return None
    return math.fsum([*rewards, t.outcome or 0.0])


def of_returns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The interval of the mean return over tasks, where that is what policies are compared by."""
    known = [value for value in row.get("reward_by_task", ()) if value is not None]
    spread = len(known) > 1 and min(known) < max(
        known
    )  # without it nothing is known of other tasks
    low, high = _mean_interval(known)[1:] if spread else (None, None)
    return {"n": len(row.get("reward_by_task", ())), "reward_low": low, "reward_high": high}


def of_results(by_task: Sequence[float], attempts: int) -> dict[str, Any]:
    """The figures of shares of successes, task by task: the rate and pass@k with their intervals."""
    mean, low, high = interval(by_task, attempts)
    figures: dict[str, Any] = {
        "n": len(by_task),
        "success": mean,
        "success_low": low,
        "success_high": high,
    }
    for k in (2**i for i in range(attempts.bit_length()) if attempts > 1):
        mean, low, high = interval(passes(by_task, attempts, k), attempts)
        figures |= {f"pass_at_{k}": mean, f"pass_at_{k}_low": low, f"pass_at_{k}_high": high}
    return figures


def passes(by_task: Sequence[float], attempts: int, k: int) -> list[float]:
    """The chance that k trajectories, drawn without replacement, hold a success: one minus a product of shares."""
    return [_pass_at(k, round(share * attempts), attempts) for share in by_task]


def _pass_at(k: int, won: int, attempts: int) -> float:
    lost_again = (max(attempts - won - i, 0) / (attempts - i) for i in range(k))
    return 1 - math.prod(lost_again)


def interval(values_N: Sequence[float], attempts: int) -> tuple[float, float, float]:
    """(mean, low, high): Wilson's interval by its quadratic equation, for as many results as the spread is worth."""
    n = len(values_N)
    mean = math.fsum(values_N) / len(values_N)
    spread = math.fsum((value - mean) ** 2 for value in values_N)
    count = n * 1.0
    if max(values_N) - min(values_N) > 1e-9:
        count = min(max(n * n * mean * (1 - mean) / spread, n), n * attempts)
    # The p at which (mean - p)^2 = z^2 p (1 - p) / count.
    a = 1 + Z * Z / count
    b = -(2 * mean + Z * Z / count)
    c = mean * mean
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return (
        mean,
        (-b - root) / (2 * a) if mean > 0 else 0.0,
        (-b + root) / (2 * a) if mean < 1 else 1.0,
    )


# ------------------------------------------------------------------------------------------------ two sides


def _pairs(evaluation: EvaluationFacts, place: Place) -> Iterator[RuleResult]:
    rows = {f"{row['policy']} {row['mode']}": row for row in evaluation.report.get("rows", ())}
    pairs = {(pair["a"], pair["b"]): pair for pair in evaluation.report.get("paired", ())}
    yield from _missing_pairs(rows, pairs, place)
    for (a, b), pair in pairs.items():
        one, k = _named(a)
        other, _ = _named(b)
        if one not in rows or other not in rows:
            yield Finding(
                f"the difference of {b} and {a} is of a side that the table does not have", place
            )
            continue
        yield Checked(1)
        if _played_other_tasks(evaluation, one, other):
            yield Finding(
                f"{a} and {b} are compared place by place, and did not play the same tasks", place
            )
        for key, value in difference(rows[one], rows[other], k).items():
            wrong = _differs(pair.get(key), value, T_NEAR)
            if wrong is not None:
                yield Finding(
                    f"{b} against {a}: the table says {key} = {wrong}; task by task it is "
                    f"{_words(value)}",
                    place,
                )
                break


def _missing_pairs(
    rows: Mapping[str, Any], pairs: Collection[tuple[str, str]], place: Place
) -> Iterator[Finding]:
    """Every policy stands beside the untrained one and random play, with their difference."""
    for name, row in rows.items():
        if row["policy"] in ("random", "solver") or row["success"] is None:
            continue
        for other in REFERENCES:
            mode = row["mode"] if other == "untrained" else "sampled"
            base = f"{other} {mode}"
            if other == row["policy"] or base not in rows or (base, name) in pairs:
                continue
            if rows[base]["success"] is not None:
                yield Finding(
                    f"{name} has {base} as its baseline, without their difference on the same tasks",
                    place,
                )


def _played_other_tasks(evaluation: EvaluationFacts, one: str, other: str) -> bool:
    first = evaluation.sides.get(one.replace(" ", "-"))
    second = evaluation.sides.get(other.replace(" ", "-"))
    if not first or not second:
        return False
    return [group[0].task.id for group in first] != [group[0].task.id for group in second]


def _named(words: str) -> tuple[str, int | None]:
    """("trained sampled", None) or, of pass@4, ("trained sampled", 4)."""
    name, _, k = words.partition(" pass@")
    return name, int(k) if k else None


def difference(a: Mapping[str, Any], b: Mapping[str, Any], k: int | None) -> dict[str, Any]:
    """b - a with its interval: of matched pairs of results, or of any shares, task by task (Student's t)."""
    by_success = None not in (a["success"], b["success"])
    if by_success:
        ours = _shares(a, k)
        theirs = _shares(b, k)
        if len(ours) != len(theirs):
            return {"n": None}
        gaps = [other - one for one, other in zip(ours, theirs)]
    else:
        paid = zip(a["reward_by_task"], b["reward_by_task"])
        gaps = [other - one for one, other in paid if None not in (one, other)]
    single = a.get("attempts", 1) == b.get("attempts", 1) == 1
    if by_success and single and k is None:
        return _of_matched_pairs(gaps)
    mean, low, high = _mean_interval(gaps)
    return {"difference": mean, "low": low, "high": high, "n": len(gaps)}


def _shares(row: Mapping[str, Any], k: int | None) -> Sequence[float]:
    """The share of successes by task, or of draws of k trajectories that hold one."""
    return passes(row["by_task"], row.get("attempts", 1), k) if k else row["by_task"]


def _of_matched_pairs(gaps: Sequence[float]) -> dict[str, Any]:
    n = len(gaps)
    gained = sum(gap > 0 for gap in gaps) + 1
    lost = sum(gap < 0 for gap in gaps) + 1
    centre = (gained - lost) / (n + 2)
    half = Z * math.sqrt(((gained + lost) / (n + 2) - centre**2) / (n + 2))
    return {
        "difference": math.fsum(gaps) / n,
        "low": max(centre - half, -1.0),
        "high": min(centre + half, 1.0),
        "n": n,
    }


def _mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of independent values: Student's t."""
    n = len(values)
    mean = math.fsum(values) / len(values)
    if n == 1:
        return mean, -math.inf, math.inf
    half = quantile(n - 1) * math.sqrt(
        math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n
    )
    return mean, mean - half, mean + half


def quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


R26 = Rule(
    "R26",
    "the figures of an evaluation are those of its trajectories",
    "A rate, an interval or a difference in the table is not what was played: what seems to have been learned, or to "
    "be within noise, may be neither.",
    "Count what failed as no success, cluster trajectories by task, pair by task, and compare the code of the table with "
    "the formulas that the finding names.",
    ("evaluations",),
    check_figures,
    "run",
)

RULES: tuple[Rule, ...] = (R26,)
