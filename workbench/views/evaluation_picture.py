"""An evaluation as a PNG: one line per policy, the interval as a bar, the rate as a dot."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.views.curve_pictures import figure, plain, png_of, tidy

COLOURS = {"random": "#5a6775", "untrained": "#8a5fa8", "solver": "#00734f"}


def evaluation_png(rows: Sequence[Mapping[str, Any]], title: str) -> bytes:
    """Greedy rates are squares, sampled ones dots; the figures stand beside them."""
    drawing = figure(7.2, 0.9 + 0.36 * max(1, len(rows)))
    axes = drawing.add_subplot()
    tidy(axes)
    for place, row in enumerate(rows):
        colour = COLOURS.get(row["policy"], "#0072b2")
        low, value, high = row["success_low"], row["success"], row["success_high"]
        axes.plot([low, high], [place, place], color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
        axes.plot([value], [place], color=colour, marker="s" if row["mode"] == "greedy" else "o", markersize=7)
        axes.annotate(f"{100 * value:.1f} %", (1.02, place), fontsize=8.5, va="center", color="#1b2733")
    axes.set_yticks(range(len(rows)), [plain(f"{row['policy']}, {row['mode']}") for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.13)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_title(plain(title) + ", with 95 % intervals", fontsize=10, loc="left", color="#1b2733")
    return png_of(drawing)
