"""The six trainings whose every number is frozen, and the three that are stored as run folders of their own policy.

Each is a preset with overrides. They are small (4 tasks, 8 trajectories, 3 steps: 1 to 6 CPU-seconds each) and chosen so
that together they enter most of a step: a single update and several, a critic, a reference, both layouts, tools,
rewritten histories, evaluations and checkpoints in the middle of a run, a run with the lint and runs without.

If a setting is renamed, rename it here: the recorded numbers stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded"  # NAME.json, one for each of RUNS and of STORED that is not in RUNS
OLD = HERE / "old"  # NAME/, run folders as commit bca8911 wrote them, and policy/
# Relative to the root of the repository, so that a stored run names no folder of the machine that it was made on.
SMALL_POLICY = "tests/golden_runs/old/policy"


class Settings(NamedTuple):
    """What `load_config` is called with."""

    preset: str
    overrides: Mapping[str, Any]


_BATCH = {
    "train.steps": 3,
    "train.tasks_per_step": 4,
    "train.group_size": 8,
    "train.checkpoint_every": 2,
    "evaluation.num_tasks": 8,
    "policy.device": "cpu",
}
_NO_LINT = {"lint.mode": "off"}

RUNS: dict[str, Settings] = {
    # One update a step, groups normalised by their deviation, an evaluation in the middle, the lint on.
    "frozenlake": Settings("frozenlake", {**_BATCH, "seed": 1, "train.evaluate_every": 2}),
    # A critic with its own trunk and optimizer; four updates a step, so that ratios move and are clipped.
    "frozenlake-ppo": Settings("frozenlake-ppo", {**_BATCH, **_NO_LINT, "seed": 2}),
    # A reference (KL in the loss), an entropy term, a warm-up, padded rows in several micro-batches.
    "bandit": Settings(
        "bandit",
        {
            **_BATCH,
            **_NO_LINT,
            "seed": 3,
            "train.evaluate_every": 0,
            "algorithm.reference.kl_coef": 0.05,
            "algorithm.entropy_coef": 0.01,
            "learner.warmup_updates": 4,
            "learner.layout": "padded",
            "learner.micro_batch_tokens": 1024,
        },
    ),
    # Tools; four updates a step.
    "search": Settings("search", {**_BATCH, **_NO_LINT, "seed": 4}),
    # Long trajectories with step rewards; several packed micro-batches.
    "sokoban": Settings(
        "sokoban",
        {
            **_BATCH,
            **_NO_LINT,
            "seed": 5,
            "train.evaluate_every": 0,
            "learner.micro_batch_tokens": 2048,
        },
    ),
    # Histories that are rewritten: several segments per trajectory, earlier turns shown again.
    "window": Settings(
        "frozenlake",
        {
            **_BATCH,
            **_NO_LINT,
            "seed": 6,
            "train.evaluate_every": 0,
            "collect.history": "window",
            "collect.window": 1,
        },
    ),
}

_SMALL = {
    "policy.name": SMALL_POLICY,
    "train.tasks_per_step": 4,
    "train.group_size": 4,
    "learner.lr": 1e-3,
}
# Of a policy with 34,368 weights: its checkpoints are small enough to be kept in the repository.
SMALL_RUNS: dict[str, Settings] = {
    "small-frozenlake": Settings(
        "frozenlake", {**_BATCH, **_SMALL, "seed": 7, "train.steps": 4, "train.evaluate_every": 2}
    ),
    "small-ppo": Settings("frozenlake-ppo", {**_BATCH, **_SMALL, "seed": 8}),
}
ALL: dict[str, Settings] = {**RUNS, **SMALL_RUNS}
