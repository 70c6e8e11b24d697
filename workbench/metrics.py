"""The numbers of a step that can be read off its trajectories alone; the learner adds its own."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from workbench.types import Group, StopReason, trajectories_of


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, success, spread within groups, lengths and stop reasons of one step; every key is a plain number. What
    could not be computed (no attempt was scored, the environment says nothing of success or format) is absent, not zero
    (law 5).

    `reward_std_within` is the mean over groups of the standard deviation inside a group (population form): the signal
    that group baselines live on, and the first to fall in an echo trap (RAGEN, arXiv 2504.20073, section 4).
    `flat_groups` is the share of groups in which all scored rewards are equal: they teach nothing.
    `reasoning_stated` is the share of thoughts that state something the environment could check, `reasoning_agrees` the
    share of those in which all of it was true (the environment's `info["reasoning"]`).
    """
    trajectories = trajectories_of(groups)
    rewards = np.array([t.reward for t in trajectories if t.reward is not None])
    per_group = [np.array([t.reward for t in group if t.reward is not None]) for group in groups]
    spreads = [float(rewards_G.std()) for rewards_G in per_group if len(rewards_G)]
    stops = Counter(t.stop_reason for t in trajectories)
    valid = [turn.info["valid_format"] for t in trajectories for turn in t.turns if "valid_format" in turn.info]
    said = [turn.info["reasoning"] for t in trajectories for turn in t.turns if "reasoning" in turn.info]
    stated = [words for words in said if words != "not stated"]
    cut = [turn.finish == "length" for t in trajectories for turn in t.turns]
    knows = any(t.success is not None for t in trajectories)
    values = {
        "reward_mean": rewards,
        "reward_std": [rewards.std()] if len(rewards) else [],
        "reward_std_within": spreads,
        "flat_groups": [spread == 0.0 for spread in spreads],
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
    return metrics | {f"stop_{reason.value}": stops[reason] / len(trajectories) for reason in StopReason}
