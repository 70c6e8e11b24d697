"""The bias bench as a PNG: mean estimates against the true gradient, and where the bandit's update points."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.views.curve_pictures import figure, plain, png_of, tidy

LOOKS = {"unbiased": ("#00734f", "o"), "scaled": ("#0072b2", "D"), "biased": ("#b84a00", "s"),
         "nothing": ("#5a6775", "v"), "right": ("#5a6775", "o")}
CURVES = {2: ("#9ccbe8", "-"), 4: ("#56a0d3", "--"), 8: ("#0072b2", "-"), 16: ("#b84a00", "-.")}
NOT_BIASED = "not biased here"  # the bench's verdict on one that is documented as biased
INK, MUTED = "#1b2733", "#525f6b"


def bias_png(rows: Sequence[Any], curves: Sequence[Any]) -> bytes:
    """Above: one panel per task, one line per estimator: the mean estimate in units of the true gradient (the line at
    1), and as a pale bar what 64 attempts spread around it. Below: one panel per payout of the safe arm."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    labels = list(dict.fromkeys(row.label for row in rows))
    payouts = list(dict.fromkeys(curve.safe_payout for curve in curves))
    above = max(1.7, 0.8 + 0.19 * len(labels)) if labels else 0.0
    below = 2.2 if payouts else 0.0
    drawing = figure(10.5, above + below)
    parts = drawing.subfigures(2, 1, height_ratios=[above, below]) if above and below else [drawing, drawing]
    if labels:
        _estimates(parts[0], rows, tasks, labels)
    if payouts:
        _signs(parts[1], curves, payouts)
    return png_of(drawing, colours=48)


def _estimates(part: Any, rows: Sequence[Any], tasks: Sequence[str], labels: Sequence[str]) -> None:
    panels = part.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks):
        tidy(axes)
        axes.axvline(1, color=INK, linewidth=1.2)
        axes.axvline(0, color=MUTED, linewidth=0.8, linestyle=":")
        for row in (row for row in rows if row.task == task):
            colour, marker = LOOKS[_look(row)]
            place = labels.index(row.label)
            axes.plot([row.scale - row.noise, row.scale + row.noise], [place, place], color=colour, linewidth=5,
                      alpha=0.25, solid_capstyle="butt")
            if row.scale < 0:
                colour, marker = "#b2182b", "X"
            axes.plot([row.scale], [place], color=colour, linestyle="none", markersize=5, marker=marker)
        axes.set_title(plain(task), fontsize=9, loc="left", color=INK)
        axes.set_xlabel("estimate / true gradient", fontsize=8, color=MUTED)
    panels[0].set_yticks(range(len(labels)), [plain(label) for label in labels], fontsize=7.5)
    panels[0].set_ylim(len(labels) - 0.4, -0.6)
    part.suptitle("Mean estimate, and pale the spread of 64 attempts.  Green ● claims no bias · ◆ a known factor · ■ biased\n"
                  "✖ points the wrong way · grey ● is documented as biased, and is not biased here", fontsize=9.5, x=0.01, ha="left", color=INK)


def _look(row: Any) -> str:
    """By what was found, not by what is claimed: an estimator may be documented as biased and have no bias here."""
    return "right" if row.verdict == NOT_BIASED else row.says


def _signs(part: Any, curves: Sequence[Any], payouts: Sequence[float]) -> None:
    panels = part.subplots(1, len(payouts), sharey=True, squeeze=False)[0]
    for axes, payout in zip(panels, payouts):
        tidy(axes)
        axes.axhspan(-10, 0, color="#b2182b", alpha=0.06, linewidth=0)
        axes.axhline(0, color=INK, linewidth=1)
        for curve in (curve for curve in curves if curve.safe_payout == payout):
            colour, dash = CURVES.get(curve.attempts, (MUTED, ":"))
            axes.plot(curve.risky_P, curve.difference_P, color=colour, linestyle=dash, linewidth=1.8,
                      label=f"G = {curve.attempts}")
        axes.set_ylim(-1.2, 0.4)
        axes.set_title(f"bandit, safe arm pays {payout:g}, divided by the deviation", fontsize=9, loc="left", color=INK)
        axes.set_xlabel("probability of the (better) risky arm; shaded: training makes it rarer", fontsize=8,
                        color=MUTED)
        if axes is panels[0]:
            axes.set_ylabel("risky minus safe advantage", fontsize=8, color=MUTED)
        axes.legend(fontsize=7.5, frameon=False, loc="lower right")
