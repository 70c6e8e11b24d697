"""What warns of a collapse, step by step: the signals of a run, and its success on the fixed probe set.

signals = wb.signals(run)           a picture of them, as the last line of a cell; of a run that trains, so far
signals.series("turns")             one signal over the steps, None where it was not computed
signals.fallen()                    the first evaluation at which half of the initial success was lost
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from workbench.basics.annotated import checked_methods
from workbench.basics.evenly import evenly
from workbench.extensions.collapse.probes import ProbeRecord, probes_of
from workbench.extensions.collapse.step_signals import (
    SIGNALS,
    StepSignals,
    last_credit,
    step_signals,
)
from workbench.look import doc, words
from workbench.look.figures import LevelLine, Plot, Trace
from workbench.look.html import view_from
from workbench.look.looks import BLUE, GREEN, ORANGE, PURPLE
from workbench.look.png import curves_picture
from workbench.look.spread import MOST_STEPS
from workbench.run.store import Run, open_run
from workbench.values import View
from workbench.values.errors import DataError, nearest
from workbench.values.view import Shown

if TYPE_CHECKING:
    import pandas

COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
MOST_ROWS = 8  # of the table; `to_frame` has them all
DASHES = ("solid", "dash", "dot", "dashdot")
# Title of a panel -> its signals, with what they are called in it.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("reward and valid format", {"reward": "reward", "valid": "valid format"}),
    (
        "std inside groups (n - 1)",
        {
            "reward_spread": "std of the reward",
            "success_spread": "std of success",
            "format_spread": "std of valid format",
        },
    ),
    (
        "zero-variance groups",
        {
            "flat_won": "zero variance: all won",
            "flat_lost": "zero variance: all lost",
            "flat_same": "zero variance: all the same",
        },
    ),
    (
        "shares of replies and of tokens",
        {
            "repetition": "repeated inside a reply",
            "commonest": "the most frequent reply",
            "clipped": "clipped tokens",
        },
    ),
    ("turns", {"turns": "turns per trajectory"}),
    ("tokens", {"tokens": "tokens per trajectory"}),
    (
        "entropy and KL, nats per token",
        {"entropy": "entropy", "kl": "KL to the start", "update_kl": "KL of the update"},
    ),
    ("information of replies about their prompts, nats", {"information": "mutual information"}),
    ("retrieval of the prompt from the reply", {"retrieval": "accuracy", "chance": "chance"}),
    (
        "change of logprob in a step, nats",
        {"won_shift": "successful trajectories", "lost_shift": "failed trajectories"},
    ),
    ("gradient signal-to-noise ratio", {"snr": "signal-to-noise ratio"}),
    (
        "gradient and largest ratio",
        {"gradient": "norm of the gradient", "ratio_max": "largest ratio"},
    ),
)


@checked_methods
@dataclass(frozen=True, repr=False)
class RunSignals(Shown):
    """The signals of a run that may warn of a collapse, and its success on the fixed probe set.

    name       of the run
    steps      signals of the committed steps that were read, in order
    probes     evaluations of the trained policy, in order of steps
    committed  how many steps there are in all
    """

    name: str
    steps: tuple[StepSignals, ...]
    probes: tuple[ProbeRecord, ...]
    committed: int

    def series(self, signal: str) -> tuple[float | None, ...]:
        """One signal over the steps. DataError for a name that is none."""
        if signal not in SIGNALS:
            raise DataError(f"there is no signal {signal!r}; {nearest(signal, SIGNALS)}")
        return tuple(getattr(record, signal) for record in self.steps)

    def fallen(self) -> ProbeRecord | None:
        """The first evaluation at which half of the initial success on the probe set was lost, sampled or greedy; None
        where there is none."""
        return next((probe for probe in self.probes if probe.fell), None)

    def to_frame(self) -> pandas.DataFrame:
        """A row a step, a column a signal. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.steps, columns=("step", *SIGNALS))

    def view(self) -> View:
        """You will see success in training and on the probe set, with what an untrained policy has there; below it every
        signal that was computed, step by step; and in words whether success collapsed (fell to 50 % of its initial value or less), and when."""
        title = f"{self.name}: signals"
        if not self.steps:
            return view_from(doc.Heading(title), doc.Note("no committed step yet"))
        plots = [_success(self)]
        for panel, names in PANELS:
            lines = tuple(_lines(self, names))
            if lines:
                plots.append(Plot(panel, lines, log=panel.startswith("gradient")))
        summary = _in_words(self)
        numbers = "The numbers" + " of some steps" * (len(self.steps) > MOST_ROWS)
        return view_from(
            doc.TextPart(title),
            curves_picture(tuple(plots), title, f"{title}. {summary}"),
            doc.Fold(numbers, (_table(self),)),
            doc.Note(summary),
            doc.first_shown(len(self.steps), self.committed, "steps"),
        )


def signals(run: Run | str | os.PathLike, *, most: int = MOST_STEPS) -> RunSignals:
    """The signals of a run's committed steps; of more than `most`, of so many evenly chosen. And its success on the
    held-out tasks, beside the untrained policy's.

    They are the numbers of the training itself: a function of what is stored of a step, of nothing else.
    Raises StoreError for what is no run, and for a step that is damaged."""
    run = open_run(run)
    steps = run.steps()
    read = tuple(_signals_of_step(run, step) for step in evenly(steps, most))
    return RunSignals(run.name, read, probes_of(run.evaluations()), len(steps))


@lru_cache(maxsize=4096)
def _signals_of_step(run: Run, step: int) -> StepSignals:
    return step_signals(step, run.groups(step), run.metrics_line(step), last_credit(run, step))


# ------------------------------------------------------------------------------------------------ parts of the view


def _success(signals: RunSignals) -> Plot:
    traces = list(_lines(signals, {"success": "training"}))
    levels = []
    for number, mode in enumerate(("sampled", "greedy"), 1):
        own = [probe for probe in signals.probes if probe.mode == mode and probe.step]
        if own:
            colour = COLOURS[number]
            dash = DASHES[number]
            steps = np.array([probe.step for probe in own], float)
            success = np.array([probe.success for probe in own], float)
            traces.append(Trace(f"probe set, {mode}", steps, success, colour, dash, marker="o"))
            untrained = own[0].success - own[0].change
            levels.append(LevelLine(f"untrained, {mode}", untrained, colour, dash))
    return Plot("success", tuple(traces), tuple(levels))


def _lines(signals: RunSignals, names: Mapping[str, str]) -> Iterator[Trace]:
    steps = np.array([record.step for record in signals.steps], float)
    for number, (signal, name) in enumerate(names.items()):
        values = np.array(signals.series(signal), float)
        if np.isfinite(values).any():
            yield Trace(name, steps, values, COLOURS[number], DASHES[number])


def _in_words(signals: RunSignals) -> str:
    fell = signals.fallen()
    if fell is not None:
        return (
            f"collapse: success fell to 50 % of its initial value or less by step {fell.step}: {fell.mode} {100 * fell.success:.0f} %, "
            f"{100 * fell.change:+.0f} points [{100 * fell.low:+.0f}, {100 * fell.high:+.0f}]"
        )
    if not signals.probes:
        return "the probe set was not evaluated: set train.evaluate_every"
    return "no collapse: success stayed above 50 % of its initial value"


def _table(signals: RunSignals) -> doc.Table:
    names = ["success"]
    for _, panel in PANELS:
        names += panel
    known = [name for name in names if set(signals.series(name)) != {None}]
    rows = []
    for number in evenly(range(len(signals.steps)), MOST_ROWS):
        record = signals.steps[number]
        values = [words.fixed(getattr(record, name), 3) for name in known]
        rows.append([str(record.step), *values])
    return doc.Table([*doc.numbers("step", *(name.replace("_", " ") for name in known))], rows)
