"""How far apart the trajectories of each group are, over a whole run: what a comparison within groups can learn from.

spread = wb.group_spread(run)       a picture of every group of every step, as the last line of a cell
spread.first_flat                   the first step at which a group was flat
spread.to_frame()                   a row a group, in pandas
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workbench.basics.annotated import checked_methods
from workbench.basics.evenly import evenly
from workbench.look import doc, words
from workbench.look.figures import Plot, Trace
from workbench.look.html import view_from
from workbench.look.looks import BLUE, GREEN, GREY
from workbench.look.png import curves_picture
from workbench.run.outcomes import outcomes_of
from workbench.run.store import Run, open_run
from workbench.values import View
from workbench.values.spreads import SIDES, flat_side
from workbench.values.view import Shown

if TYPE_CHECKING:
    import pandas

MOST_STEPS = 500  # read of a longer run, evenly chosen; all of 1,000 take seconds
LOOKS = {
    "": (BLUE, "solid"),
    "all won": (GREEN, "dash"),
    "all lost": ("#d55e00", "dot"),
    "all the same": (GREY, "dashdot"),
}


class GroupSpread(NamedTuple):
    """One group of one step.

    step    of the run
    task    of the step, counted from 0
    scored  trajectories that were scored
    mean    of their rewards, NaN where there are none
    std     of their rewards, the sample one (n - 1), NaN below two
    side    on which the group is flat, as `flat_side` says
    """

    step: int
    task: int
    scored: int
    mean: float
    std: float
    side: str

    @classmethod
    def of(
        cls, step: int, task: int, outcomes: Sequence[tuple[float | None, bool | None]]
    ) -> GroupSpread:
        rewards = [reward for reward, _ in outcomes if reward is not None]
        mean = float(np.mean(rewards)) if rewards else float("nan")
        std = float(np.std(rewards, ddof=1)) if len(rewards) > 1 else float("nan")
        return cls(step, task, len(rewards), mean, std, flat_side(outcomes))


@checked_methods
@dataclass(frozen=True, repr=False)
class RunSpread(Shown):
    """Every group of the steps that were read, in order.

    name    of the run
    groups  of all steps that were read
    steps   that the run has in all
    """

    name: str
    groups: tuple[GroupSpread, ...]
    steps: int

    def at(self, step: int) -> tuple[GroupSpread, ...]:
        return tuple(group for group in self.groups if group.step == step)

    @property
    def read(self) -> list[int]:
        """The steps that were read."""
        return sorted({group.step for group in self.groups})

    def shares(self, side: str) -> list[float]:
        """Per step that was read: the share of its groups that are flat on this side; "" of those that are not flat."""
        return [float(np.mean(self._is_on(side, step))) for step in self.read]

    def _is_on(self, side: str, step: int) -> list[bool]:
        return [group.side == side for group in self.at(step)]

    @property
    def first_flat(self) -> GroupSpread | None:
        """The first zero-variance group; None where all groups differ."""
        return next((group for group in self.groups if group.side), None)

    @property
    def all_flat(self) -> int | None:
        """The first step at which every group was flat: nothing to compare, nothing learned."""
        for step in self.read:
            if all(group.side for group in self.at(step)):
                return step
        return None

    def to_frame(self) -> pandas.DataFrame:
        """A row a group: step, task, scored, mean, std, side. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.groups, columns=GroupSpread._fields)

    def view(self) -> View:
        """You will see two panels: the standard deviation of the rewards in every group of every step, with its mean over
        the step; and the share of groups that differ, or are flat, by side."""
        title = f"{self.name}: reward std of every group"
        if not self.read:
            return view_from(doc.Heading(title), doc.Note("no committed step yet"))
        shares = [_share_line(self, side) for side in ("", *SIDES) if any(self.shares(side))]
        plots = (
            Plot("std (n - 1) of the rewards in each group", (_group_dots(self), _mean_line(self))),
            Plot("share of groups", tuple(shares)),
        )
        summary = _in_words(self)
        return view_from(
            doc.TextPart(title),
            curves_picture(plots, title, f"{title}. {summary}"),
            doc.Fold("The numbers", (_table(self),)),
            doc.Note(summary),
            doc.first_shown(len(self.read), self.steps, "steps"),
        )


def group_spread(run: Run | str | os.PathLike, *, most: int = MOST_STEPS) -> RunSpread:
    """Mean, spread and flat side of every group of a run's committed steps; of more than `most`, of so many evenly chosen.

    A comparison within groups (GRPO and its kin) learns nothing from a group whose trajectories all earned the same: all won is
    too easy, all lost too hard. Raises StoreError for what is no run, and for a step that is damaged."""
    run = open_run(run)
    steps = run.steps()
    groups: list[GroupSpread] = []
    for step in evenly(steps, most):
        groups += _groups_of_step(run, step)
    return RunSpread(run.name, tuple(groups), len(steps))


@lru_cache(maxsize=4096)
def _groups_of_step(run: Run, step: int) -> tuple[GroupSpread, ...]:
    by_task = enumerate(outcomes_of(run, step))
    return tuple(GroupSpread.of(step, task, outcomes) for task, outcomes in by_task)


# ------------------------------------------------------------------------------------------------ parts of the view


def _group_dots(spread: RunSpread) -> Trace:
    known = [group for group in spread.groups if np.isfinite(group.std)]
    steps = np.array([group.step for group in known], float)
    stds = np.array([group.std for group in known])
    return Trace("a group", steps, stds, "#9ccbe8", width=0.0, marker=".")


def _known_stds(spread: RunSpread, step: int) -> np.ndarray:
    stds = np.array([group.std for group in spread.at(step)])
    return stds[np.isfinite(stds)]


def _mean_line(spread: RunSpread) -> Trace:
    means = []
    for step in spread.read:
        stds = _known_stds(spread, step)
        means.append(np.mean(stds) if len(stds) else np.nan)
    return Trace("mean of the step", np.array(spread.read, float), np.array(means, float), BLUE)


def _share_line(spread: RunSpread, side: str) -> Trace:
    name = f"zero variance: {side}" if side else "rewards differ"
    colour, dash = LOOKS[side]
    steps = np.array(spread.read, float)
    return Trace(name, steps, np.array(spread.shares(side)), colour, dash)


def _in_words(spread: RunSpread) -> str:
    first = spread.first_flat
    if first is None:
        return f"no zero-variance group among {words.count(len(spread.groups), 'group')}"
    sides = [group.side for group in spread.at(first.step) if group.side]
    counts = ", ".join(f"{sides.count(side)} {side}" for side in SIDES if side in sides)
    begin = f"first zero-variance groups at step {first.step} ({counts})"
    if spread.all_flat is None:
        return f"{begin}; at no step all groups"
    return f"{begin}; all groups at step {spread.all_flat}"


def _table(spread: RunSpread) -> doc.Table:
    rows = []
    for step in spread.read:
        sides = [group.side for group in spread.at(step)]
        stds = _known_stds(spread, step)
        mean = words.fixed(float(stds.mean()) if len(stds) else None, 3)
        rows.append([str(step), str(len(sides)), mean, *(str(sides.count(side)) for side in SIDES)])
    return doc.Table([*doc.numbers("step", "groups", "mean std (n - 1)", *SIDES)], rows)
