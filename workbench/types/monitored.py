"""What warns of a collapse, step by step: the signals of a run, and its success on the fixed probe set.

found = wb.signals(run)             a picture of them, as the last line of a cell
found.series("turns")               one signal over the steps, None where it was not computed
found.fallen()                      the first evaluation at which half of the start's success was lost
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.types.errors import DataError, nearest
from workbench.types.stats import task_difference
from workbench.types.view import Shown

if TYPE_CHECKING:
    import pandas

LOST = 0.5  # of the start's success on the probe set: with an interval clear of zero, a collapse
SIDES = ("untrained", "trained")


class StepSignals(NamedTuple):
    """One step before its update. None: not computed, which is not zero (law 5).

    Of attempts: `success`, `reward`, `turns`, `tokens` are means; `valid` the share of turns in the right format;
    `reward_spread`, `success_spread` and `format_spread` the mean over groups of the standard deviation inside a group
    (population form) of the reward, of success, and of an attempt's share of valid turns. `flat_won`, `flat_lost`,
    `flat_same`: shares of groups whose attempts all earned the same, by side. Of replies: `repetition` is the mean
    share of four-word pieces that came before in the same reply, `commonest` the share of the step's commonest reply.

    Of the updates, as the learner wrote them: `entropy`, `kl` (to the start, where the algorithm has a reference),
    `update_kl` (of the old policy to the new), `clipped` (share of tokens), `ratio_max`, `gradient` (norm). `won_shift`,
    `lost_shift`: by how many nats a token of positive (negative) advantage became likelier before the step's last update,
    mean; a step of one update has neither. That won tokens become unlikelier is lazy likelihood displacement (arXiv
    2512.04220). `information`, `retrieval` and its `chance`: how much replies say about their prompts; `snr`: signal over
    noise of the step's gradient; where `train.information_every` measures them.
    """

    step: int
    success: float | None
    reward: float | None
    turns: float | None
    tokens: float | None
    valid: float | None
    reward_spread: float | None
    success_spread: float | None
    format_spread: float | None
    flat_won: float | None
    flat_lost: float | None
    flat_same: float | None
    repetition: float | None
    commonest: float | None
    entropy: float | None
    kl: float | None
    update_kl: float | None
    clipped: float | None
    ratio_max: float | None
    gradient: float | None
    won_shift: float | None
    lost_shift: float | None
    information: float | None
    retrieval: float | None
    chance: float | None
    snr: float | None


SIGNALS = StepSignals._fields[1:]


class ProbeRecord(NamedTuple):
    """Success on the held-out tasks after a step, in one mode; `change`: less that of the untrained policy on the same
    tasks, with its paired 95 % interval."""

    step: int
    mode: str
    success: float
    change: float
    low: float
    high: float

    @property
    def fell(self) -> bool:
        """Half of the start's success or more is lost, and the interval is clear of zero."""
        return self.change <= -LOST * (self.success - self.change) and self.high < 0


@dataclass(frozen=True, repr=False)
class RunSignals(Shown):
    """The signals of the committed steps that were read, in order, of `committed` in all; `probes`: evaluations of the
    trained policy, in order of steps."""

    name: str
    steps: tuple[StepSignals, ...]
    probes: tuple[ProbeRecord, ...]
    committed: int

    def series(self, signal: str) -> tuple[float | None, ...]:
        """One signal over the steps. DataError for a name that is none."""
        if signal not in SIGNALS:
            raise DataError(f"there is no signal {signal!r}; {nearest(signal, SIGNALS)}")
        return tuple(getattr(each, signal) for each in self.steps)

    def fallen(self) -> ProbeRecord | None:
        """The first evaluation at which half of the start's success on the probe set was lost, sampled or greedy; None
        where there is none."""
        return next((probe for probe in self.probes if probe.fell), None)

    def to_frame(self) -> pandas.DataFrame:
        """A row a step, a column a signal. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.steps, columns=StepSignals._fields)


def probes_of(reports: Mapping[str, Mapping[str, Any]]) -> tuple[ProbeRecord, ...]:
    """From the evaluations of a run (`run.evaluations()`), those of the trained policy beside the untrained one."""
    found = []
    for report in sorted(reports.values(), key=lambda each: each.get("step", 0)):
        rows = {(row["policy"], row["mode"]): row for row in report.get("rows", ())}
        for mode in ("sampled", "greedy"):
            pair = [rows.get((policy, mode), {}).get("by_task") for policy in SIDES]
            if all(pair) and len(pair[0]) == len(pair[1]):
                change, success = task_difference(*pair), rows["trained", mode]["success"]
                found.append(
                    ProbeRecord(
                        report.get("step", 0), mode, success, change.mean, change.low, change.high
                    )
                )
    return tuple(found)
