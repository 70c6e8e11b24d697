"""Branch from a turn: what was it worth, measured by playing on, beside what training credited?

wb.branch(run, at="step 3 / task 2 / attempt 5", k=8)               every turn of an attempt
wb.branch(run, at="step 3 / task 2 / attempt 5 / turn 2", k=32)     one of them
wb.branch(run, at=..., weights="now")                               under the run's newest weights
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.notebook.edited import EditedStep
from workbench.notebook.step_record import StepRecord
from workbench.rollouts.branching import continuations, refuse_what_cannot_be_restored
from workbench.run.store import Run, open_run
from workbench.types import Group, Source, Trajectory
from workbench.types.address import Address
from workbench.types.branches import Branch, BranchedAttempt, value_of
from workbench.types.errors import DataError, StoreError, WorkbenchError

if TYPE_CHECKING:
    from workbench.notebook.live_run import RunningRun
    from workbench.training.session import Session

WEIGHTS = ("then", "now")
BESIDE = ("grpo", "rloo", "reinforce", "reinforce_pp")


def branch(
    run: Run | RunningRun | str | Path,
    *,
    at: str | Address,
    k: int = 8,
    weights: str = "then",
    session: Session | None = None,
) -> BranchedAttempt:
    """Measure what turns of a stored attempt were worth: `k` continuations from the state before each, and after the last one that
    is asked for, beside what the run's own estimator and others credited them.

    `at`: an attempt, or one of its turns. `weights`: "then", those that the step sampled with (a checkpoint of the step before it,
    or the policy that the run began with), or "now", the newest; a `session` brings its own. The stored turns are played again as
    they stand: the same token ids, the same seed for chance inside the environment, which goes on as it did in the attempt. The
    same call gives the same numbers.

    Raises DataError where `at` is no attempt, and where the environment cannot be restored, with the reason and before anything is
    sampled; StoreError where the weights were not kept. Source: VinePPO (arXiv 2410.01679)."""
    run, at = open_run(run), Address.of(at)
    if at.attempt is None or at.token is not None:
        raise DataError(
            f"branch from an attempt or one of its turns, such as 'step 3 / task 2 / attempt 5 / turn 0'; got {str(at)!r}"
        )
    if weights not in WEIGHTS or k < 2:
        raise DataError(
            f"weights is 'then' or 'now' and k at least 2, for an interval; got {weights!r} and {k}"
        )
    facts = StepRecord.of(run, at.step)
    attempt = _chosen(facts, at)
    opened, said = (
        (session, "of the session that was handed in")
        if session is not None
        else _opened(run, at.step, weights)
    )
    family = opened.config.env
    refuse_what_cannot_be_restored(family, attempt)
    collecting = {
        "family": family,
        "engine": opened.engine,
        "chat": opened.chat,
        "config": opened.config.collect,
        "address": (opened.config.seed, "branch", at.step, at.task),
    }
    count = len(attempt.turns)
    continuations(
        attempt, count, 1, **collecting
    )  # the whole attempt once more: it cannot be, or it is as it is stored
    asked = range(count) if at.turn is None else range(at.turn, at.turn + 1)
    made = {
        turn: continuations(attempt, turn, k, **collecting)
        for turn in range(asked[0], min(asked[-1] + 2, count))
    }
    credited = _credited(run, facts, at, attempt)
    return BranchedAttempt(
        str(at), attempt, tuple(_branch(attempt, turn, made, credited) for turn in asked), said, k
    )


def _chosen(facts: StepRecord, at: Address) -> Trajectory:
    for level, there in (
        ("task", facts.groups),
        ("attempt", facts.groups[at.task] if at.task < len(facts.groups) else ()),
    ):
        if getattr(at, level) >= len(there):
            raise DataError(
                f"{at}: there is no {level} {getattr(at, level)}; they are counted from 0 to {len(there) - 1}"
            )
    attempt = facts.groups[at.task][at.attempt]
    if at.turn is not None and at.turn >= len(attempt.turns):
        raise DataError(
            f"{at}: there is no turn {at.turn}; the attempt has {len(attempt.turns)}, counted from 0"
        )
    return attempt


def _opened(run: Run, step: int, weights: str) -> tuple[Session, str]:
    """(a session with the weights asked for, which these are in words)."""
    from workbench.training.session import open_session, reopen
    from workbench.training.stored import config_of_run

    if weights == "now":
        return reopen(run, quiet=True), "the newest of the run"
    before = max((each for each in run.steps() if each < step), default=None)
    if before is None:
        return open_session(config_of_run(run), quiet=True), "those that the run began with"
    try:
        return reopen(run, step=before, quiet=True), f"those that step {step} sampled with"
    except WorkbenchError as error:
        raise StoreError(
            f"the weights that step {step} sampled with were not kept: {error}. Ask for weights='now', or train with "
            "train.checkpoint_every=1"
        ) from error


def _branch(
    attempt: Trajectory, turn: int, made: dict[int, Group], credited: dict[str, dict[int, float]]
) -> Branch:
    stored, last = attempt.turns[turn], turn == len(attempt.turns) - 1
    after = (
        value_of([attempt], turn + 1) if last else value_of(made[turn + 1].trajectories, turn + 1)
    )
    if last and after is not None:
        after = type(after)(
            after.mean, after.mean, after.mean, 1
        )  # the end is certain: what is left is the outcome
    return Branch(
        turn,
        stored.text,
        stored.reward,
        value_of(made[turn].trajectories, turn),
        after,
        {name: turns[turn] for name, turns in credited.items() if turn in turns},
        made[turn],
    )


def _credited(
    run: Run, facts: StepRecord, at: Address, attempt: Trajectory
) -> dict[str, dict[int, float]]:
    """By estimator, the mean advantage of each turn's tokens that the policy sampled: as it was trained first, then others."""
    turns = np.concatenate([segment.turns for segment in attempt.segments])
    sampled = np.concatenate([segment.sources for segment in attempt.segments]) == Source.POLICY
    found: dict[str, np.ndarray] = {}
    if (rows := facts.credit(at.task, at.attempt)) is not None:
        found["as trained"] = np.where(rows["weight"] != 0, rows["advantage"], np.nan)
    try:
        edited = EditedStep(run, at.step, facts.groups)
        content, arrays = edited.after(
            json.dumps({"columns": BESIDE}), facts.number(at.task, at.attempt)
        )
        found |= {
            column["name"]: arrays[f"after {number}"]
            for number, column in enumerate(content["columns"])
            if f"after {number}" in arrays
        }
    except WorkbenchError:
        pass  # the run's algorithm cannot be had here: what was trained is what is known
    means = {}
    for name, values in found.items():
        use = sampled & np.isfinite(values)
        means[name] = {
            int(turn): float(values[use & (turns == turn)].mean()) for turn in np.unique(turns[use])
        }
    return means
