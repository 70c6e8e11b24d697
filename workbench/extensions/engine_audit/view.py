"""Engine against trainer, drawn: the verdict, a waterfall of nats per cause, raw ratios, and the gap on the tokens.

show_mismatch(report)      `report`: what `wb.audit(...)` gave
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from workbench.look import doc, words
from workbench.look.html import shown
from workbench.look.looks import BOLD, GREEN, INK, MUTED, ORANGE, PANEL, Look, red_blue
from workbench.look.png import figure, plain, tidy
from workbench.values import View

TOKENS = 160  # of the ribbon, at most
LOUD = 0.5  # share of the scale above which a token is marked without colour too


def show_mismatch(report: Any) -> View:
    """Whether engine and trainer agree, and what the difference is made of.

    You will see the verdict and how to fix it, and which of four causes it is (staleness, weights not delivered, engine mismatch,
    re-tokenisation); the gap per sampled token with its alarm level and why it stands there;
    divergences over the whole vocabulary; the waterfall: what is left of the gap after each cause; raw ratios before
    any mask or cap; the control; and the tokens of the trajectory with the largest gap, red where the engine finds a
    token less likely than the trainer, blue where more (▼ and ▲ at the larger ones).
    """
    title = f"{'✓' if report.clean else '✗'} sampler/trainer logprob mismatch: {report.about}"
    header, *waterfall = _waterfall(report)
    picture = (
        None
        if report.ratios is None
        else doc.Picture(
            partial(_drawing, report),
            "what is left of the gap after each cause, and the histogram of raw ratios",
        )
    )
    control: list[str] = []
    if report.control is not None:
        about = f", {report.control.about}" if report.control.about else ""
        control.append(f"zero-learning-rate control {report.control.verdict}{about}")
        control += [f"  {line}" for line in report.control.lines]
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(title),
                doc.Note(report.verdict)
                if report.clean
                else doc.WarningLine(report.verdict, mark=""),
                *(doc.Note(f"  fix: {cause.mend} ({cause.evidence})") for cause in report.causes),
                None if report.attribution is None else doc.Note(str(report.attribution)),
                doc.BlankLine(),
                doc.Table((doc.Column("", look=BOLD), "", ""), _figures(report), header=False),
                doc.Note(f"alarm: {report.alarm_words}"),
                picture,
                doc.BlankLine(),
                doc.Table((header[0], *doc.numbers(*header[1:])), waterfall),
                doc.BlankLine(),
                doc.Note(_histogram_line(report)),
                *map(doc.Note, control),
                *_ribbon(report),
            )
        )
    )


def _figures(report: Any) -> list[tuple[str, str, str]]:
    gap = report.gap
    ratios = report.ratios
    whole = report.whole
    rows = [
        (
            "gap per token",
            f"mean {gap.mean:.2g}, largest {gap.largest:.2g} nats",
            f"{words.count(gap.tokens, 'sampled token')}; alarm at a mean of {report.alarm[0]:g} or "
            f"{report.alarm[1]:g} at one token",
        )
    ]
    if report.trainer is not None:
        rows.append(
            (
                "trainer's own forward pass",
                f"mean {report.trainer.mean:.2g}, largest {report.trainer.largest:.2g} nats",
                "the logprobs that training uses vs. one plain forward pass of its weights",
            )
        )
    if ratios is not None:
        rows.append(
            (
                "raw ratio",
                f"mean {ratios.mean:.6g}, {words.percent(ratios.outside)} outside [0.9, 1.1], "
                f"largest {ratios.largest:.4g}",
                "trainer / engine, before any mask, cap or clip",
            )
        )
        rows.append(
            (
                "KL, sampled tokens",
                f"{ratios.kl:.2g} nats; mean exp|gap| {ratios.mult_error:.6g}",
                "mean of r - 1 - log r",
            )
        )
    if whole is None:
        rows.append(("whole vocabulary", "not available", report.whole_missing))
    else:
        rows.append(
            (
                "whole vocabulary",
                f"KL {whole.kl:.2g} (worst {whole.kl_worst:.2g}) nats, TV {whole.tv:.2g} "
                f"(worst {whole.tv_worst:.2g})",
                f"{words.count(whole.tokens, 'token')} x {whole.vocabulary:,}; "
                f"the most likely token differs at {words.percent(whole.first_changed)}, of the top five "
                f"{whole.swapped:.2g} differ",
            )
        )
    tried = f"{words.count(report.tried, 'hypothesis', 'hypotheses')} tried"
    rows.append(
        ("compared with", "; ".join(report.known.values()) or "no other weights known", tried)
    )
    return rows


def _waterfall(report: Any) -> list[list[str]]:
    """Header and rows: what was taken, the nats that it explains, what is left."""
    first = report.steps[0].before if report.steps else report.left.mean
    rows = [
        ["mean |engine - trainer|", "nats explained", "nats left"],
        ["engine vs. a plain forward pass of the trainer's weights", "", f"{first:.3g}"],
    ]
    for step in report.steps:
        declared = " (declared: no fault)" if step.declared else ""
        rows.append(
            [f"{step.kind}{declared}: {step.words}", f"{step.nats:.3g}", f"{step.after:.3g}"]
        )
    explained = "rounding" if report.left.within(*report.alarm) else "unexplained"
    return [*rows, [explained, f"{report.left.mean:.3g}", ""]]


def _histogram_line(report: Any) -> str:
    if report.ratios is None:
        return "raw ratios: no comparable token"
    bars = [
        f"{name}: {count:,}" for name, count in zip(report.bins, report.ratios.histogram) if count
    ]
    return f"raw ratios (trainer / engine): {' · '.join(bars)}"


def _ribbon(report: Any) -> tuple[doc.Part, ...]:
    """The sampled tokens around the largest gap."""
    tokens = report.tokens
    if np.isnan(tokens.gap_M).all():
        return ()
    worst = int(np.nanargmax(np.abs(tokens.gap_M)))
    drawn = _around(tokens.trajectory_M, worst)
    scale = max(float(np.nanmax(np.abs(tokens.gap_M))), 10 * report.alarm[0])
    ids = tokens.token_M[drawn].tolist()
    texts = [f"{token} " for token in ids]
    if report.token_texts is not None:
        texts = report.token_texts(ids)
    parts: list[doc.Styled] = []
    before = None
    for index, text in zip(drawn.tolist(), texts):
        turn = int(tokens.turn_M[index])
        if turn != before:
            parts.append(doc.Styled(f" turn {turn}: ", Look(foreground=MUTED, bold=True)))
            before = turn
        parts.append(_token(text, float(tokens.gap_M[index]), scale, report.alarm[0]))
    trajectory = report.trajectories[int(tokens.trajectory_M[worst])]
    label = (
        f"sampled tokens of {trajectory.task.id}/{trajectory.attempt}, where the largest gap is "
        f"({tokens.gap_M[worst]:+.3g} nats, turn {int(tokens.turn_M[worst])}); full colour at {scale:.2g} nats, "
        f"none below {report.alarm[0]:g}"
    )
    return doc.BlankLine(), doc.Note(label), doc.TokenLine("", tuple(parts), between="")


def _around(trajectory_M: np.ndarray, worst: int) -> np.ndarray:
    """The tokens of a trajectory around one of them, as many as are drawn."""
    same = np.flatnonzero(trajectory_M == trajectory_M[worst])
    at = int(np.searchsorted(same, worst))
    low = max(0, min(at - TOKENS // 2, len(same) - TOKENS))
    return same[low : low + TOKENS]


def _token(text: str, gap: float, scale: float, alarm: float) -> doc.Styled:
    mark = "▲" if gap > 0 else "▼"
    loud = f"[{mark}{gap:+.2g}]" if abs(gap) > LOUD * scale else ""
    colours = red_blue(gap, scale) if abs(gap) > alarm else (PANEL, INK)
    return doc.Styled(text + loud, Look(*colours), title=f"engine - trainer {gap:+.3g} nats")


def _drawing(report: Any, width: float = 10.5) -> Any:
    rows = len(report.steps) + 1
    drawing = figure(width, 1.9 + 0.28 * rows)
    if width < 8:
        drawing.set_figheight(2 * drawing.get_figheight())
        one, two = drawing.subplots(2, 1)
    else:
        one, two = drawing.subplots(1, 2, width_ratios=[1.15, 1])
    _draw_waterfall(one, report)
    _draw_histogram(two, report)
    return drawing


def _draw_waterfall(axes: Any, report: Any) -> None:
    names = ["before", *(f"after {step.kind}" for step in report.steps)]
    first = report.steps[0].before if report.steps else report.left.mean
    left: list[float] = [first, *(step.after for step in report.steps)]
    alarm = report.alarm[0]
    floor = 1e-9
    tidy(axes, "What is left of the gap, nats per token (dashed: alarm)")
    for row, value in enumerate(left):
        loud = value >= alarm
        width = max(value, 2 * floor)
        axes.barh(
            row,
            width,
            left=floor,
            height=0.62,
            color=ORANGE if loud else GREEN,
            hatch="//" if loud else None,
            edgecolor="#ffffff",
        )
        axes.text(width * 1.3, row, f"{value:.2g}", va="center", fontsize=8, color=INK)
    axes.axvline(alarm, color=INK, linewidth=1.2, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlim(floor, max(10.0, 30 * max(left)))
    axes.set_yticks(range(len(names)), [plain(name) for name in names], fontsize=8.5)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _draw_histogram(axes: Any, report: Any) -> None:
    tidy(axes, f"Raw ratio trainer / engine, mean {report.ratios.mean:.4f}")
    counts = np.array(report.ratios.histogram, float)
    bars = range(len(counts))
    axes.bar(bars, counts / counts.sum(), color="#0072b2", width=0.8)
    names = [plain(name) for name in report.bins]
    axes.set_xticks(bars, names, fontsize=7, rotation=40, ha="right")
    axes.set_ylabel("share of tokens", fontsize=8, color=MUTED)
