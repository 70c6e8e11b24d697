"""The curves of two runs, one over the other: a is blue and whole, b is orange and dashed."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.views.curve_pictures import NEIGHBOUR_STYLES, OTHER_STYLE, figure, plain, png_of, tidy
from workbench.views.curves import Curve, curves_of
from workbench.views.live import LIVE_PANELS

LOOKS = ({"color": "#0072b2", "linewidth": 2.4}, {"color": "#d55e00", "linewidth": 1.4, "linestyle": (0, (4, 2))})
Named = tuple[str, Sequence[Mapping[str, Any]]]


def overlay_png(a: Named, b: Named, evaluations: Mapping[str, Any]) -> bytes | None:
    """Small multiples of every metric that either run has; None where neither has any. Where the curves lie on each
    other, the blue one looks out between the orange dashes."""
    drawn = [{curve.panel.title: curve for curve in curves_of(rows, evaluations, None, LIVE_PANELS)
              if np.nan_to_num(curve.value).any()} for _, rows in (a, b)]
    titles = list(dict.fromkeys(title for curves in drawn for title in curves))
    if not titles:
        return None
    columns = min(3, len(titles))
    rows = -(-len(titles) // columns)
    drawing = figure(3.7 * columns, 2.3 * rows + 0.5)
    handles: dict[str, Any] = {}
    for index, title in enumerate(titles):
        axes = drawing.add_subplot(rows, columns, index + 1)
        tidy(axes)
        axes.set_title(plain(title), fontsize=10, loc="left", color="#1b2733")
        for curves, (name, _), look in zip(drawn, (a, b), LOOKS):
            if title in curves:
                handles |= _levels(axes, curves[title])
                curve = curves[title]
                marker = "o" if len(curve.step) == 1 else None
                handles[name] = axes.plot(curve.step, curve.value, marker=marker, markersize=4, **look)[0]
        axes.xaxis.get_major_locator().set_params(integer=True)
        if index >= len(titles) - columns:
            axes.set_xlabel("step", fontsize=8, color="#525f6b")
    order = [a[0], b[0], *(name for name in handles if name not in (a[0], b[0]))]
    named = [name for name in order if name in handles]
    drawing.legend([handles[name] for name in named], [plain(name) for name in named], loc="outside lower center",
                   ncols=5, fontsize=8, frameon=False)
    return png_of(drawing)


def _levels(axes: Any, curve: Curve) -> dict[str, Any]:
    handles = {}
    for line in curve.lines:
        colour, dash, _ = NEIGHBOUR_STYLES.get(line.name, OTHER_STYLE)
        handles[line.name] = axes.axhline(line.value, color=colour, linestyle=dash, linewidth=1.0)
    return handles
