"""What turns of an attempt were really worth: values measured by playing on from them, beside what was credited.

V_t is the mean of what is still earned from the state before turn t on, over k continuations; the measured advantage of a turn
is r_t + V_{t+1} - V_t (after the last turn nothing is left to earn but the outcome). Undiscounted.
Source: Kazemnejad et al. 2024, "VinePPO" (arXiv 2410.01679), eq. 5 and 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.types.stats import Difference, Estimate, mean_interval
from workbench.types.trajectories import Group, Trajectory
from workbench.types.view import Shown

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Branch:
    """One turn. `value`: of the state before it; `after`: of the state after it, its own reward not counted; both None where no
    continuation was scored. `credited`: by estimator, the mean advantage of its trained tokens (one that was not computed is
    absent)."""

    turn: int
    text: str
    earned: float | None  # in this turn, in the attempt
    value: Estimate | None
    after: Estimate | None
    credited: Mapping[str, float]
    continuations: Group

    @property
    def advantage(self) -> Difference | None:
        """Measured: what it earned, and what is to be earned after it less what was before it, with a 95 % interval (the half
        widths of two independent samples, added as squares; the state after the last turn is certain)."""
        if self.value is None or self.after is None or self.earned is None:
            return None
        mean = self.earned + self.after.mean - self.value.mean
        half = math.hypot(self.value.high - self.value.mean, self.after.high - self.after.mean)
        return Difference(mean, mean - half, mean + half, self.value.n)

    def contradicts(self, estimator: str) -> bool:
        """The measured interval lies on one side of zero, and the credit on the other, or at zero."""
        measured, credited = self.advantage, self.credited.get(estimator)
        if measured is None or credited is None or measured.low <= 0 <= measured.high:
            return False
        return credited * measured.mean <= 0


@dataclass(frozen=True, repr=False)
class BranchedAttempt(Shown):
    """The turns of an attempt that were branched, in order. `at`: its address in the run; `weights` in words."""

    at: str
    attempt: Trajectory
    turns: tuple[Branch, ...]
    weights: str
    k: int

    @property
    def estimators(self) -> list[str]:
        return list(dict.fromkeys(name for branch in self.turns for name in branch.credited))

    def disagreement(self, estimator: str) -> list[float]:
        """Per turn: how far apart credit and measured advantage are, each in units of its own spread over these turns, since
        estimators have scales of their own. NaN where one of them is not known, or does not vary."""
        measured = np.array(
            [
                math.nan if (found := branch.advantage) is None else found.mean
                for branch in self.turns
            ]
        )
        credited = np.array([branch.credited.get(estimator, math.nan) for branch in self.turns])
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.abs(measured / _spread(measured) - credited / _spread(credited)).tolist()

    def to_frame(self) -> pandas.DataFrame:
        """A row a turn: value and measured advantage with their intervals, and what each estimator credited. Needs pandas."""
        import pandas

        return pandas.DataFrame(
            [
                {
                    "turn": branch.turn,
                    "earned": branch.earned,
                    **_columns("value", branch.value),
                    **_columns("advantage", branch.advantage),
                    **{f"credited/{name}": value for name, value in branch.credited.items()},
                }
                for branch in self.turns
            ]
        )


def _spread(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(known**2))) if len(known) and known.any() else math.nan


def _columns(name: str, found: Estimate | Difference | None) -> dict[str, float]:
    return {
        f"{name}{end}": math.nan if found is None else getattr(found, part)
        for end, part in (("", "mean"), ("_low", "low"), ("_high", "high"))
    }


def value_of(continuations: Sequence[Trajectory], turn: int) -> Estimate | None:
    """Mean of what continuations earn from `turn` on, outcome included, with Student's 95 % interval (which is of width zero where
    all earn the same, however few they are); None where none was scored."""
    earned = [
        attempt.reward - sum(each.reward for each in attempt.turns[:turn])
        for attempt in continuations
        if attempt.reward is not None
    ]
    return mean_interval(earned) if earned else None
