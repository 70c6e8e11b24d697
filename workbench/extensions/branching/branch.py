"""Branch from a turn: what was it worth, measured by playing on, beside what training credited?

wb.branch(run, at="step 3 / task 2 / attempt 5", k=8)               every turn of a trajectory
wb.branch(run, at="step 3 / task 2 / attempt 5 / turn 2", k=32)     one of them
wb.branch(run, at=..., weights="now")                               under the run's newest weights

V_t is the mean of what is still earned from the state before turn t on, over k continuations; the measured advantage of a turn
is r_t + V_{t+1} - V_t (after the last turn nothing is left to earn but the outcome). Undiscounted.
Source: Kazemnejad et al. 2024, "VinePPO" (arXiv 2410.01679), eq. 5 and 6.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.basics.annotated import checked_methods
from workbench.extensions.branching.continuations import (
    continuations,
    refuse_what_cannot_be_restored,
)
from workbench.look import doc, words
from workbench.look.cells.edited import EditedStep
from workbench.look.cells.step_record import StepRecord
from workbench.look.escape import capped
from workbench.look.html import view_from
from workbench.look.looks import LILAC_INK, LILAC_PAPER, MUTED, ORANGE, PLAIN, Look
from workbench.run.store import Run, open_run
from workbench.training.reopening import reopen
from workbench.training.session import Session, open_session
from workbench.training.stored import config_of_run
from workbench.values import Group, Source, Trajectory, View, sum_of
from workbench.values.address import Address
from workbench.values.errors import DataError, WorkbenchError
from workbench.values.stats import Difference, Estimate, mean_interval
from workbench.values.view import Shown

if TYPE_CHECKING:
    import pandas

WEIGHTS = ("then", "now")
BESIDE = ("grpo", "rloo", "reinforce", "reinforce_pp")
LANE = 60  # pixels of the largest disagreement
SCALES = (
    "estimators have scales of their own: compare signs and order. Intervals: 95 %, Student's for a value; an advantage is a "
    "difference of two of them"
)


@dataclass(frozen=True, eq=False)
class Branch:
    """One turn of the trajectory that was branched.

    turn           its index
    text           what the policy wrote in it
    earned         in this turn, in the trajectory; None where it was not scored
    value          of the state before it; None where no continuation was scored
    after          of the state after it, its own reward not counted; None likewise
    credited       estimator -> the mean advantage of its trained tokens; one that was not computed is absent
    continuations  the trajectories that were played on from the state before it
    """

    turn: int
    text: str
    earned: float | None
    value: Estimate | None
    after: Estimate | None
    credited: Mapping[str, float]
    continuations: Group

    @property
    def advantage(self) -> Difference | None:
        """Measured: what it earned, and what is to be earned after it minus what was before it, with a 95 % interval (the half
        widths of two independent samples, added as squares; the state after the last turn is certain)."""
        if self.value is None or self.after is None or self.earned is None:
            return None
        mean = self.earned + self.after.mean - self.value.mean
        half = math.hypot(self.value.high - self.value.mean, self.after.high - self.after.mean)
        return Difference(mean, mean - half, mean + half, self.value.n)

    def contradicts(self, estimator: str) -> bool:
        """The measured interval lies on one side of zero, and the credit on the other, or at zero."""
        measured = self.advantage
        credited = self.credited.get(estimator)
        if measured is None or credited is None or measured.low <= 0 <= measured.high:
            return False
        return credited * measured.mean <= 0


@checked_methods
@dataclass(frozen=True, repr=False)
class BranchedTrajectory(Shown):
    """The turns of a trajectory that were branched, in order.

    at       its address in the run
    attempt  as it is stored
    turns    those that were asked for
    weights  which ones played on, in words
    k        continuations of each state
    """

    at: str
    trajectory: Trajectory
    turns: tuple[Branch, ...]
    weights: str
    k: int

    @property
    def estimators(self) -> list[str]:
        names: dict[str, None] = {}
        for branch in self.turns:
            names |= dict.fromkeys(branch.credited)
        return list(names)

    def disagreement(self, estimator: str) -> list[float]:
        """Per turn: how far apart credit and measured advantage are, each in units of its own spread over these turns, since
        estimators have scales of their own. NaN where one of them is not known, or does not vary."""
        advantages = [branch.advantage for branch in self.turns]
        measured = np.array([math.nan if known is None else known.mean for known in advantages])
        credited = np.array([branch.credited.get(estimator, math.nan) for branch in self.turns])
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.abs(measured / _spread(measured) - credited / _spread(credited)).tolist()

    def to_frame(self) -> pandas.DataFrame:
        """A row a turn: value and measured advantage with their intervals, and what each estimator credited. Needs pandas."""
        import pandas

        rows = []
        for branch in self.turns:
            row = {"turn": branch.turn, "earned": branch.earned}
            row |= _interval_columns("value", branch.value)
            row |= _interval_columns("advantage", branch.advantage)
            row |= {f"credited/{name}": value for name, value in branch.credited.items()}
            rows.append(row)
        return pandas.DataFrame(rows)

    def view(self, *, estimator: str = "") -> View:
        """You will see a row a turn: the value of the state before it and the measured advantage, with 95 % intervals, and the
        mean advantage that each estimator credited; ◆ where the sign of the credit contradicts an interval that excludes zero.
        The last column is a lane: how far `estimator` ("": the one that was trained) and the measurement are apart, each in its
        own spread."""
        names = self.estimators
        chosen = estimator or (names[0] if names else "")
        distances = self.disagreement(chosen) if chosen else [math.nan] * len(self.turns)
        apart = np.array(distances, float)
        largest = np.nanmax(apart, initial=0.0) if np.isfinite(apart).any() else 0.0
        numbers = doc.numbers("earned", "value before it", "measured advantage", *names)
        lane_column = doc.Column(f"{chosen} and measured apart" if chosen else "")
        columns = [*doc.numbers("turn"), doc.Column("wrote"), *numbers, lane_column]
        rows = [_row(branch, names, far, largest) for branch, far in zip(self.turns, apart)]
        summary = _contradictions(self)
        if largest:
            worst = self.turns[int(np.nanargmax(apart))].turn
            summary = [f"farthest apart: turn {worst}", *summary]
        reward = words.reward_words(self.trajectory)
        return view_from(
            doc.Heading(f"branched at {self.at}"),
            doc.Note(
                f"{self.k} continuations of each state; weights: {self.weights}; reward of the trajectory {reward}"
            ),
            doc.Table(columns, rows),
            doc.Note("; ".join(summary)),
            doc.Note(SCALES),
        )


def _spread(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(known**2))) if len(known) and known.any() else math.nan


def _interval_columns(name: str, interval: Estimate | Difference | None) -> dict[str, float]:
    parts = {"": "mean", "_low": "low", "_high": "high"}
    if interval is None:
        return {f"{name}{ending}": math.nan for ending in parts}
    return {f"{name}{ending}": getattr(interval, part) for ending, part in parts.items()}


def value_of(continuations: Sequence[Trajectory], turn: int) -> Estimate | None:
    """Mean of what continuations earn from `turn` on, outcome included, with Student's 95 % interval (which is of width zero where
    all earn the same, however few they are); None where none was scored."""
    earned = []
    for trajectory in continuations:
        if trajectory.reward is not None:
            earned.append(
                trajectory.reward - sum_of(before.reward for before in trajectory.turns[:turn])
            )
    return mean_interval(earned) if earned else None


# ------------------------------------------------------------------------------------------------ playing on


def branch(
    run: Run | str | os.PathLike,
    *,
    at: str | Address,
    k: int = 8,
    weights: str = "then",
    session: Session | None = None,
) -> BranchedTrajectory:
    """Measure what turns of a stored trajectory were worth: `k` continuations from the state before each, and after the last one that
    is asked for, beside what the run's own estimator and others credited them.

    `at`: a trajectory, or one of its turns. `weights`: "then", those that the step sampled with (of a checkpoint, or learned again from
    what is stored: `reopen`), or "now", the newest; a `session` brings its own. The stored turns are played again as
    they stand: the same token ids, the same seed for chance inside the environment, which goes on as it did in the trajectory. The
    same call gives the same numbers.

    Raises DataError where `at` is no trajectory, and where the environment cannot be restored, with the reason and before anything is
    sampled; StoreError where the weights cannot be had again. Source: VinePPO (arXiv 2410.01679)."""
    run = open_run(run)
    at = Address.of(at)
    _check(at, k, weights)
    record = StepRecord.of(run, at.step)
    trajectory = _trajectory_at(record, at)
    origin = "of the session that was handed in"
    if session is None:
        session, origin = _session_with(run, at.step, weights)
    refuse_what_cannot_be_restored(session.config.family, trajectory)
    settings = _collect_settings(session, at)
    count = len(trajectory.turns)
    # The whole trajectory once more: it cannot be played again, or it is as it is stored.
    continuations(trajectory, count, 1, **settings)
    asked = range(count) if at.turn is None else range(at.turn, at.turn + 1)
    states = range(asked[0], min(asked[-1] + 2, count))
    played = {turn: continuations(trajectory, turn, k, **settings) for turn in states}
    credited = _credited_turns(run, record, at, trajectory)
    branches = tuple(_branch(trajectory, turn, played, credited) for turn in asked)
    return BranchedTrajectory(str(at), trajectory, branches, origin, k)


def _check(at: Address, k: int, weights: str) -> None:
    if at.attempt is None or at.token is not None:
        raise DataError(
            f"branch from a trajectory or one of its turns, such as 'step 3 / task 2 / attempt 5 / turn 0'; got {str(at)!r}"
        )
    if weights not in WEIGHTS or k < 2:
        raise DataError(
            f"weights is 'then' or 'now' and k at least 2, for an interval; got {weights!r} and {k}"
        )


def _trajectory_at(record: StepRecord, at: Address) -> Trajectory:
    _check_number(at, "task", len(record.groups))
    group = record.groups[at.task]
    _check_number(at, "attempt", len(group))
    trajectory = group[at.attempt]
    if at.turn is not None and at.turn >= len(trajectory.turns):
        raise DataError(
            f"{at}: there is no turn {at.turn}; the trajectory has {len(trajectory.turns)}, counted from 0"
        )
    return trajectory


def _check_number(at: Address, level: str, count: int) -> None:
    number = getattr(at, level)
    if number >= count:
        raise DataError(
            f"{at}: there is no {level} {number}; they are counted from 0 to {count - 1}"
        )


def _session_with(run: Run, step: int, weights: str) -> tuple[Session, str]:
    """(a session with the weights asked for, which these are in words)."""
    if weights == "now":
        return reopen(run, quiet=True), "the newest of the run"
    config = config_of_run(run)
    before = step - 1 - config.train.staleness
    if before < 1:
        return open_session(config, quiet=True), "those that the run began with"
    return reopen(run, step=before, quiet=True), f"those that step {step} sampled with"


def _collect_settings(session: Session, at: Address) -> dict[str, Any]:
    return {
        "family": session.config.family,
        "engine": session.engine,
        "chat": session.chat,
        "config": session.config.collect,
        "address": (session.config.seed, "branch", at.step, at.task),
    }


def _branch(
    trajectory: Trajectory,
    turn: int,
    played: dict[int, Group],
    credited: dict[str, dict[int, float]],
) -> Branch:
    stored = trajectory.turns[turn]
    if turn < len(trajectory.turns) - 1:
        after = value_of(played[turn + 1].trajectories, turn + 1)
    else:
        after = value_of([trajectory], turn + 1)
        if after is not None:  # the end is certain: what is left is the outcome
            after = Estimate(after.mean, after.mean, after.mean, 1)
    credits = {name: turns[turn] for name, turns in credited.items() if turn in turns}
    value = value_of(played[turn].trajectories, turn)
    return Branch(turn, stored.text, stored.reward, value, after, credits, played[turn])


def _credited_turns(
    run: Run, record: StepRecord, at: Address, trajectory: Trajectory
) -> dict[str, dict[int, float]]:
    """By estimator, the mean advantage of each turn's tokens that the policy sampled: as it was trained first, then others."""
    turns = np.concatenate([segment.turns for segment in trajectory.segments])
    sampled = np.concatenate([segment.sources for segment in trajectory.segments]) == Source.POLICY
    means: dict[str, dict[int, float]] = {}
    for name, values in _advantages(run, record, at).items():
        use = sampled & np.isfinite(values)
        means[name] = {
            int(turn): float(values[use & (turns == turn)].mean()) for turn in np.unique(turns[use])
        }
    return means


def _advantages(run: Run, record: StepRecord, at: Address) -> dict[str, np.ndarray]:
    """By estimator, the advantages of the trajectory's tokens, NaN where a token is not trained."""
    advantages: dict[str, np.ndarray] = {}
    rows = record.credit(at.task, at.attempt)
    if rows is not None:
        advantages["as trained"] = np.where(rows["weight"] != 0, rows["advantage"], np.nan)
    try:
        edited = EditedStep(run, at.step, record.groups)
        number = record.number(at.task, at.attempt)
        content, arrays = edited.after(json.dumps({"columns": BESIDE}), number)
    except WorkbenchError:
        return (
            advantages  # the run's algorithm cannot be had here: what was trained is what is known
        )
    for index, column in enumerate(content["columns"]):
        if f"after {index}" in arrays:
            advantages[column["name"]] = arrays[f"after {index}"]
    return advantages


# ------------------------------------------------------------------------------------------------ parts of the view


def _contradictions(branched: BranchedTrajectory) -> list[str]:
    sentences = []
    for name in branched.estimators:
        turns = [str(branch.turn) for branch in branched.turns if branch.contradicts(name)]
        if turns:
            sentences.append(f"{name} contradicts what was measured in turn {', '.join(turns)}")
    return sentences or ["no credit contradicts a measured sign"]


def _row(branch: Branch, names: list[str], apart: float, largest: float) -> list[str | doc.Cell]:
    return [
        str(branch.turn),
        capped(branch.text.replace("\n", " "), 60),
        words.signed(branch.earned),
        _interval_words(branch.value),
        _interval_words(branch.advantage),
        *(_credit_cell(branch, name) for name in names),
        _lane_cell(branch, names, apart, largest),
    ]


def _credit_cell(branch: Branch, name: str) -> str | doc.Cell:
    value = words.signed(branch.credited.get(name))
    if branch.contradicts(name):
        return doc.Cell(f"{value} ◆", Look(LILAC_PAPER, LILAC_INK))
    return doc.Cell(value, PLAIN)


def _lane_cell(branch: Branch, names: list[str], apart: float, largest: float) -> doc.Cell:
    if not np.isfinite(apart):
        return doc.Cell("—", parts=())
    distance = words.fixed(apart, 1)
    if not largest:
        return doc.Cell(distance, parts=())
    colour = ORANGE if any(map(branch.contradicts, names)) else MUTED
    bar = doc.Bar(((int(LANE * apart / largest), colour),), 9)
    return doc.Cell(distance, parts=(bar, f" {distance}"))


def _interval_words(interval: Estimate | Difference | None) -> str:
    if interval is None:
        return "—"
    low = words.signed(interval.low)
    high = words.signed(interval.high)
    return f"{words.signed(interval.mean)} [{low}, {high}]"
