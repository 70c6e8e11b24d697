"""The signals of a run as a page of small curves: what the probe set says, and what may have warned of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workbench.types import View
from workbench.types.evenly import evenly
from workbench.types.monitored import RunSignals
from workbench.views import doc, words
from workbench.views.figures import LevelLine, Plot, Trace
from workbench.views.html import shown
from workbench.views.looks import BLUE, GREEN, ORANGE, PURPLE
from workbench.views.png import curves_picture

COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
MOST_ROWS = 8  # of the table; `to_frame` has them all
DASHES = ("solid", "dash", "dot", "dashdot")
# Title of a panel -> its signals, with what they are called in it.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("reward and valid format", {"reward": "reward", "valid": "valid format"}),
    (
        "spread inside groups",
        {
            "reward_spread": "spread of the reward",
            "success_spread": "spread of success",
            "format_spread": "spread of format",
        },
    ),
    (
        "flat groups",
        {
            "flat_won": "flat: all won",
            "flat_lost": "flat: all lost",
            "flat_same": "flat: all the same",
        },
    ),
    (
        "shares of replies and of tokens",
        {
            "repetition": "repeated inside a reply",
            "commonest": "the commonest reply",
            "clipped": "clipped tokens",
        },
    ),
    ("turns", {"turns": "turns an attempt"}),
    ("tokens", {"tokens": "tokens an attempt"}),
    (
        "entropy and KL, nats a token",
        {"entropy": "entropy", "kl": "KL to the start", "update_kl": "KL of the update"},
    ),
    ("replies about their prompts, nats", {"information": "mutual information"}),
    ("replies that tell their prompt", {"retrieval": "retrieval", "chance": "chance"}),
    (
        "change of logprob in a step, nats",
        {"won_shift": "of what was won", "lost_shift": "of what was lost"},
    ),
    ("signal over noise of the gradient", {"snr": "signal over noise"}),
    (
        "gradient and largest ratio",
        {"gradient": "norm of the gradient", "ratio_max": "largest ratio"},
    ),
)


def show_signals(found: RunSignals) -> View:
    """You will see success in training and on the probe set, with what an untrained policy has there; below it every
    signal that was computed, step by step; and in words whether half of the start's success was lost, and when."""
    title = f"{found.name}: signals"
    if not found.steps:
        return shown(doc.ViewDocument((doc.Heading(title), doc.Note("no committed step yet"))))
    panels = [
        Plot(panel, tuple(_lines(found, names)), log=panel.startswith("gradient"))
        for panel, names in PANELS
    ]
    plots = (_success(found), *(plot for plot in panels if plot.traces))
    said = _words(found)
    picture = curves_picture(plots, title, f"{title}. {said}")
    numbers = "The numbers" + " of some steps" * (len(found.steps) > MOST_ROWS)
    return shown(
        doc.ViewDocument(
            (
                doc.TextPart(title),
                picture,
                doc.Fold(numbers, (_table(found),)),
                doc.Note(said),
                doc.first_shown(len(found.steps), found.committed, "steps"),
            )
        )
    )


def _success(found: RunSignals) -> Plot:
    traces, levels = list(_lines(found, {"success": "training"})), []
    for number, mode in enumerate(("sampled", "greedy"), 1):
        own = [probe for probe in found.probes if probe.mode == mode and probe.step]
        if own:
            colour, dash = COLOURS[number], DASHES[number]
            steps, success = (
                np.array(values, float)
                for values in zip(*((each.step, each.success) for each in own))
            )
            traces.append(Trace(f"probe set, {mode}", steps, success, colour, dash, marker="o"))
            levels.append(
                LevelLine(f"untrained, {mode}", own[0].success - own[0].change, colour, dash)
            )
    return Plot("success", tuple(traces), tuple(levels))


def _lines(found: RunSignals, names: dict[str, str]) -> Iterator[Trace]:
    steps = np.array([each.step for each in found.steps], float)
    for number, (signal, name) in enumerate(names.items()):
        values = np.array(found.series(signal), float)
        if np.isfinite(values).any():
            yield Trace(name, steps, values, COLOURS[number], DASHES[number])


def _words(found: RunSignals) -> str:
    fell = found.fallen()
    if fell is not None:
        return (
            f"half of the start's success was lost by step {fell.step}: {fell.mode} {100 * fell.success:.0f} %, "
            f"{100 * fell.change:+.0f} points [{100 * fell.low:+.0f}, {100 * fell.high:+.0f}]"
        )
    if not found.probes:
        return "the probe set was not looked at: set train.evaluate_every"
    return "at no evaluation was half of the start's success lost"


def _table(found: RunSignals) -> doc.Table:
    known = [
        name
        for panel in ({"success": "success"}, *(names for _, names in PANELS))
        for name in panel
        if any(value is not None for value in found.series(name))
    ]
    shown_steps = [found.steps[number] for number in evenly(range(len(found.steps)), MOST_ROWS)]
    rows = [
        [str(each.step), *(words.fixed(getattr(each, name), 3) for name in known)]
        for each in shown_steps
    ]
    return doc.Table([*doc.numbers("step", *(name.replace("_", " ") for name in known))], rows)
