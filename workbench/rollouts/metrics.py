"""The numbers of a step that can be read off its trajectories alone (the learner adds its own), and what the numbers of
all steps say of a filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from workbench.types import Group, StopReason, trajectories_of

ROUNDING = 1e-9  # as in learn/ops/group.py, which needs torch; a test holds them together


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, success, spread within groups, lengths and stop reasons of one step; every key is a plain number. What
    could not be computed (no attempt was scored, the environment says nothing of success or format) is absent, not zero
    (law 5).

    `reward_std_within` is the mean over groups of the standard deviation inside a group (population form): the signal
    that group baselines live on, and the first to fall in an echo trap (RAGEN, arXiv 2504.20073, section 4).
    `flat_groups` is the share of groups in which all scored rewards are equal (up to rounding): they teach nothing.
    `reasoning_stated` is the share of thoughts that state something the environment could check, `reasoning_agrees` the
    share of those in which all of it was true (the environment's `info["reasoning"]`).
    """
    trajectories = trajectories_of(groups)
    rewards = np.array([t.reward for t in trajectories if t.reward is not None])
    per_group = [np.array([t.reward for t in group if t.reward is not None]) for group in groups]
    spreads = [float(rewards_G.std()) for rewards_G in per_group if len(rewards_G)]
    stops = Counter(t.stop_reason for t in trajectories)
    valid = [
        turn.info["valid_format"]
        for t in trajectories
        for turn in t.turns
        if "valid_format" in turn.info
    ]
    said = [
        turn.info["reasoning"] for t in trajectories for turn in t.turns if "reasoning" in turn.info
    ]
    stated = [words for words in said if words != "not stated"]
    cut = [turn.finish == "length" for t in trajectories for turn in t.turns]
    knows = any(t.success is not None for t in trajectories)
    values = {
        "reward_mean": rewards,
        "reward_std": [rewards.std()] if len(rewards) else [],
        "reward_std_within": spreads,
        "flat_groups": [
            np.ptp(some) <= ROUNDING * np.abs(some).max() for some in per_group if len(some)
        ],
        "success": [bool(t.success) for t in trajectories] if knows else [],
        "turns": [len(t.turns) for t in trajectories],
        "sampled_tokens": [t.num_sampled for t in trajectories],
        "valid_format": valid,
        "reasoning_stated": [len(stated) / len(said)] if said else [],
        "reasoning_agrees": [words == "agrees" for words in stated],
        "turns_cut": cut,
        "unscored": [sum(t.reward is None for t in trajectories)],
        "segments": [len(t.segments) for t in trajectories],
    }
    metrics = {name: float(np.mean(some)) for name, some in values.items() if len(some)}
    return metrics | {
        f"stop_{reason.value}": stops[reason] / len(trajectories) for reason in StopReason
    }


def fault_share(row: Mapping[str, float]) -> float:
    """Of a step's row of metrics: the share of its attempts that a fault ended."""
    return sum(row.get(f"stop_{reason.value}") or 0.0 for reason in StopReason if reason.is_fault)


def filter_words(rows: Sequence[Mapping[str, float]]) -> str:
    """What a filter did in a run, in one line, from the metrics of its steps; "" where none acted.

    A comparison of two filters is one of two numbers of updates as well, unless these are equal: so they are told.
    """
    rows = [
        row
        for row in rows
        if row.get("credit_filter_kept", np.nan) == row.get("credit_filter_kept", np.nan)
    ]
    if not rows:
        return ""

    def mean(name: str) -> float:
        found = [row[name] for row in rows if row.get(name, np.nan) == row.get(name, np.nan)]
        return float(np.mean(found)) if found else float("nan")

    groups = mean("credit_filter_groups_kept") + mean("credit_filter_groups_left_out")
    removed = sum(row.get("credit_updates_removed_by_filter", 0.0) for row in rows)
    made, empty = (
        sum(row["updates"] for row in rows),
        sum(row["credit_filter_kept"] == 0 for row in rows),
    )
    words = [
        f"filter: {mean('credit_filter_kept'):.0%} of the scored attempts kept, from "
        f"{mean('credit_filter_groups_kept'):.1f} of {groups:.1f} groups a step "
        f"({mean('credit_filter_groups_flat'):.1f} were flat)"
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
