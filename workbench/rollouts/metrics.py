"""The numbers of a step that can be read off its trajectories alone (the learner adds its own), and what the numbers of
all steps say of a filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from workbench.values import Group, StopReason, Trajectory, Turn, trajectories_of
from workbench.values.spreads import ROUNDING


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, success, spread within groups, lengths and stop reasons of one step; every key is a plain number. What
    could not be computed (no trajectory was scored, the environment says nothing of success or format) is absent, not zero
    (invariant 5).

    `reward_std_in_group` is the mean over groups of the standard deviation inside a group (n - 1, as GRPO divides by, over
    groups with two scored trajectories): the signal that group baselines live on, and the first to fall in an echo trap
    (RAGEN, arXiv 2504.20073, section 4). `reward_std_within` is the same in the population form (n, over groups with one
    scored trajectory): what older runs have, and views draw where there is nothing else.
    `flat_groups` is the share of groups in which all scored rewards are equal (up to rounding): they teach nothing.
    Every metric is in docs/reference/metrics.md.
    `reasoning_stated` is the share of thoughts that state something the environment could check, `reasoning_agrees` the
    share of those in which all of it was true (the environment's `info["reasoning"]`).
    """
    trajectories = trajectories_of(groups)
    turns = list(chain.from_iterable(t.turns for t in trajectories))
    knows = any(t.success is not None for t in trajectories)
    values = {
        **_values_of_rewards(groups, trajectories),
        "success": [bool(t.success) for t in trajectories] if knows else [],
        "turns": [len(t.turns) for t in trajectories],
        "sampled_tokens": [t.num_sampled for t in trajectories],
        **_values_of_turns(turns),
        "unscored": [sum(t.reward is None for t in trajectories)],
        "segments": [len(t.segments) for t in trajectories],
    }
    metrics = {name: float(np.mean(numbers)) for name, numbers in values.items() if len(numbers)}
    stops = Counter(t.stop_reason for t in trajectories)
    for reason in StopReason:
        metrics[f"stop_{reason.value}"] = stops[reason] / len(trajectories)
    return metrics


def _values_of_rewards(
    groups: Sequence[Group], trajectories: Sequence[Trajectory]
) -> dict[str, Sequence[float]]:
    rewards = np.array([t.reward for t in trajectories if t.reward is not None])
    spreads = []
    population_spreads = []
    flat = []
    for group in groups:
        rewards_G = np.array([t.reward for t in group if t.reward is not None])
        if len(rewards_G):
            population_spreads.append(float(rewards_G.std()))
            flat.append(np.ptp(rewards_G) <= ROUNDING * np.abs(rewards_G).max())
        if len(rewards_G) > 1:
            spreads.append(float(rewards_G.std(ddof=1)))
    return {
        "reward_mean": rewards,
        "reward_std": [rewards.std()] if len(rewards) else [],
        "reward_std_within": population_spreads,
        "reward_std_in_group": spreads,
        "flat_groups": flat,
    }


def _values_of_turns(turns: Sequence[Turn]) -> dict[str, Sequence[float]]:
    verdicts = [turn.info["reasoning"] for turn in turns if "reasoning" in turn.info]
    stated = [verdict for verdict in verdicts if verdict != "not stated"]
    forgiven = [bool(turn.info.get("forgiven")) for turn in turns]
    return {
        "forgiven": forgiven if any(forgiven) else [],
        "valid_format": [
            turn.info["valid_format"] for turn in turns if "valid_format" in turn.info
        ],
        "reasoning_stated": [len(stated) / len(verdicts)] if verdicts else [],
        "reasoning_agrees": [verdict == "agrees" for verdict in stated],
        "turns_cut": [turn.finish == "length" for turn in turns],
    }


def fault_share(row: Mapping[str, float]) -> float:
    """Of a step's row of metrics: the share of its trajectories that a fault ended."""
    return sum(row.get(f"stop_{reason.value}") or 0.0 for reason in StopReason if reason.is_fault)


def filter_words(rows: Sequence[Mapping[str, float]]) -> str:
    """What a filter did in a run, in one line, from the metrics of its steps; "" where none acted.

    A comparison of two filters is one of two numbers of updates as well, unless these are equal: so they are told.
    """
    rows = [row for row in rows if _has(row, "credit_filter_kept")]
    if not rows:
        return ""

    def mean(name: str) -> float:
        known = [row[name] for row in rows if _has(row, name)]
        return float(np.mean(known)) if known else float("nan")

    groups = mean("credit_filter_groups_kept") + mean("credit_filter_groups_left_out")
    removed = sum(row.get("credit_updates_removed_by_filter", 0.0) for row in rows)
    made = sum(row["updates"] for row in rows)
    empty = sum(row["credit_filter_kept"] == 0 for row in rows)
    words = [
        f"filter: {mean('credit_filter_kept'):.0%} of the scored trajectories kept, from "
        f"{mean('credit_filter_groups_kept'):.1f} of {groups:.1f} groups a step "
        f"({mean('credit_filter_groups_flat'):.1f} had zero variance)"
    ]
    if not np.isnan(mean("credit_filter_std_kept")):
        words.append(
            f"reward std within groups (n - 1) {mean('credit_filter_std_kept'):.3g} in what is kept, "
            f"{mean('credit_filter_std_all'):.3g} in all"
        )
    words.append(f"{made:.0f} {'update' if made == 1 else 'updates'} made, {removed:.0f} removed")
    if empty:
        words.append(f"{empty} of {len(rows)} steps had nothing left and were skipped")
    if made and all(row["updates"] <= 1 for row in rows):
        words.append(
            "never more than one update a step, so that the ratio was 1 and no clip could bind"
        )
    return "; ".join(words)


def _has(row: Mapping[str, float], name: str) -> bool:
    return name in row and row[name] == row[name]  # NaN equals nothing
