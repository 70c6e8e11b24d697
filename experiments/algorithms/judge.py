"""From the results of all jobs to the table and the verdict. Pure functions over plain values.

Differences are paired task by task with the policy before training, or with random play, and come with their 95 %
interval: for one seed over its tasks, for all seeds together over the tasks' means. Where tasks go together (the
bandit's by the pair of names) so does the interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from workbench.look.words import points
from workbench.values.stats import Difference, clustered_difference

RISING_AT_LEAST = 5  # algorithms, on FrozenLake
ABOVE_AT_LEAST = 3  # algorithms other than plain GRPO above random play, on the Bandit
PLAIN = "grpo"  # divides by the group's standard deviation, and filters nothing
Rows = Mapping[tuple[str, str], Mapping[str, Any]]  # (policy, mode) -> a row of an evaluation


@dataclass(frozen=True)
class Check:
    """One condition. `held` is None where the algorithms that were run cannot decide it."""

    words: str
    held: bool | None
    why: str = ""


def by_policy(result: Mapping[str, Any]) -> Rows:
    return {(row["policy"], row["mode"]): row for row in result["rows"]}


def entry(start: Mapping[str, Any], seeds: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What the table says of one algorithm in one environment. `seeds`: its results by seed, failed ones too.

    Shares and differences are JSON-able mappings; `None` where no seed came to its end, or where one seed alone tells
    no spread.
    """
    ended = {seed: by_policy(result) for seed, result in seeds.items() if "failed" not in result}
    failed = {seed: result["failed"] for seed, result in seeds.items() if "failed" in result}
    return {
        "failed": {str(seed): words for seed, words in failed.items()},
        **next(
            (
                {name: result[name] for name in ("set", "algorithm")}
                for result in seeds.values()
                if "set" in result
            ),
            {"set": {}, "algorithm": {}},
        ),
        "updates": {str(seed): seeds[seed]["updates"] for seed in ended},
        "cpu_seconds": sum(sum(seeds[seed]["cpu_seconds"].values()) for seed in ended),
        **{
            mode: _compared(
                start, {seed: rows["trained", mode] for seed, rows in ended.items()}, mode
            )
            for mode in ("sampled", "greedy")
        },
    }


def _compared(
    start: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]], mode: str
) -> dict[str, Any] | None:
    if not rows:
        return None
    before, clusters = by_policy(start), start["clusters"]
    others = {
        "untrained": before["untrained", mode]["by_task"],
        "random": before["random", "sampled"]["by_task"],
    }
    together = np.mean([row["by_task"] for row in rows.values()], axis=0)
    shares = [row["success"] for row in rows.values()]
    return {
        "success": fmean(shares),
        "lowest": min(shares),
        "highest": max(shares),
        "deviation": stdev(shares) if len(shares) > 1 else None,
        "over": {
            name: asdict(clustered_difference(other, together, clusters))
            for name, other in others.items()
        },
        "seeds": {
            str(seed): {"success": row["success"]}
            | {
                name: asdict(clustered_difference(other, row["by_task"], clusters))
                for name, other in others.items()
            }
            for seed, row in rows.items()
        },
    }


# ------------------------------------------------------------------------------------------------ the verdict


def judge(
    environments: Mapping[str, Mapping[str, Mapping[str, Any]]], wanted: Sequence[str]
) -> list[Check]:
    """The conditions on the sampled success. `environments`: name -> algorithm -> `entry`; `wanted`: all algorithms
    that there are. A condition that needs more algorithms than were run is not judged."""
    checks = []
    for name, entries in environments.items():
        broken = [
            f"{algorithm}, seed {seed}: {words}"
            for algorithm, found in entries.items()
            for seed, words in found["failed"].items()
        ]
        checks.append(Check(f"{name}: every run comes to its end", not broken, "; ".join(broken)))
    if "frozenlake" in environments:
        checks += _judge_lake(environments["frozenlake"], wanted)
    if "bandit" in environments:
        checks += _judge_bandit(environments["bandit"], wanted)
    return checks


def _judge_lake(entries: Mapping[str, Mapping[str, Any]], wanted: Sequence[str]) -> list[Check]:
    fallen = []
    for algorithm, found in entries.items():
        if found["sampled"] is not None:
            each = {
                f"seed {seed}": one["untrained"] for seed, one in found["sampled"]["seeds"].items()
            }
            each |= {"all seeds": found["sampled"]["over"]["untrained"]}
            fallen += [
                f"{algorithm}, {which}: {points(rise)}"
                for which, rise in each.items()
                if fell(rise)
            ]
    risen = [
        name
        for name, found in entries.items()
        if found["sampled"] is not None and is_above(found["sampled"], "untrained")
    ]
    held = len(risen) >= RISING_AT_LEAST
    return [
        Check(
            "frozenlake: no algorithm ends below its untrained start by more than a half-width, in any seed",
            not fallen,
            "; ".join(fallen),
        ),
        Check(
            f"frozenlake: at least {RISING_AT_LEAST} end above it, the paired interval excluding 0",
            held if held or set(entries) >= set(wanted) else None,
            f"{len(risen)} of {len(entries)}: {', '.join(risen) or 'none'}",
        ),
    ]


def _judge_bandit(entries: Mapping[str, Mapping[str, Any]], wanted: Sequence[str]) -> list[Check]:
    plain = entries.get(PLAIN, {}).get("sampled")
    words = f"bandit: {PLAIN}, which divides by the group's standard deviation, rises above its start in no seed"
    if plain is None:
        checks = [
            Check(words, None if PLAIN not in entries else False, f"{PLAIN} was not run to its end")
        ]
    else:
        rises = {seed: one["untrained"]["mean"] for seed, one in plain["seeds"].items()}
        told = entries[PLAIN]["algorithm"]
        unfiltered = told["filter"]["keep"] == "all" and told["filter"]["zero_variance"] == "keep"
        is_plain = told["estimator"]["normalize_std"] and unfiltered
        checks = [
            Check(
                words,
                is_plain and all(rise <= 0 for rise in rises.values()),
                ", ".join(f"seed {seed}: {100 * rise:+.1f} points" for seed, rise in rises.items())
                if is_plain
                else f"{PLAIN} was set to do something else",
            )
        ]
    above = [
        name
        for name, found in entries.items()
        if name != PLAIN and found["sampled"] is not None and is_above(found["sampled"], "random")
    ]
    held = len(above) >= ABOVE_AT_LEAST
    return [
        *checks,
        Check(
            f"bandit: at least {ABOVE_AT_LEAST} others end above random play, the interval by pair clear of zero",
            held if held or set(entries) >= set(wanted) else None,
            f"{len(above)} of {len(set(entries) - {PLAIN})}: {', '.join(above) or 'none'}",
        ),
    ]


def is_above(compared: Mapping[str, Any], other: str) -> bool:
    """Whether the interval over all seeds lies above zero."""
    return compared["over"][other]["low"] > 0


def fell(rise: Mapping[str, Any]) -> bool:
    """Whether a difference is below zero by more than the half-width of its interval. One that knows no spread has no
    half-width, so nothing can be said."""
    return Difference(**rise).mean < -(rise["high"] - rise["low"]) / 2
