"""Pictures: panels of curves by matplotlib (PNG, SVG, PDF), strips of tokens by Pillow. Both are imported on first use."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from workbench.look import doc
from workbench.look.escape import visible
from workbench.look.figures import LevelLine, Plot, Trace, lines_of_names, plotly_figure
from workbench.look.looks import CARD, INK, MUTED, THEME
from workbench.values.errors import DataError

DASHES = {
    "solid": "-",
    "dash": (0, (4, 3)),
    "dashdot": (0, (6, 2, 1, 2)),
    "dot": (0, (1, 1.6)),
    "longdash": (0, (8, 3)),
    "longdashdot": (0, (8, 2, 1, 2)),
}

WIDTH = 11.1  # inches
NARROWEST = 2.4  # inches of a panel beside another
GRID = "#e3e7eb"
LEGEND_COLUMNS = 4
COLOURS = 24  # of a PNG
DOTS = 100  # an inch of a PNG
FEW_DOTS = (
    72  # of one that stands in for curves that can be zoomed: 800 pixels, GitHub shows few more
)
# Of a figure on a dark page.
DARK = {colour: dark for colour, (_, dark) in THEME.items()} | {
    "#000000": THEME[INK][1],
    "#06283f": THEME[INK][1],
    GRID: "#2b333a",
}


def palette_png(pixels_YX: np.ndarray, palette: Sequence[str]) -> bytes:
    """A picture [rows, columns] of indices into `palette` ("#rrggbb"), as the bytes of an indexed PNG."""
    from PIL import Image

    pixels_YX = np.asarray(pixels_YX)
    if pixels_YX.ndim != 2 or not pixels_YX.size:
        raise DataError(f"a picture is [rows, columns] and not empty, got shape {pixels_YX.shape}")
    if pixels_YX.min() < 0 or pixels_YX.max() >= len(palette) or len(palette) > 256:
        raise DataError(
            f"pixels must be indices into {len(palette)} colours (at most 256), got "
            f"{pixels_YX.min()}..{pixels_YX.max()}"
        )
    picture = Image.fromarray(pixels_YX.astype(np.uint8), "P")
    out = io.BytesIO()
    picture.putpalette(b"".join(bytes.fromhex(colour.removeprefix("#")) for colour in palette))
    # Paper is left out: what lies below the picture is seen, be it light or dark.
    picture.save(out, "png", transparency=bytes(255 * (colour != CARD) for colour in palette))
    return out.getvalue()


# ------------------------------------------------------------------------------------------------ figures


def figure(width: float, height: float, layout: str | None = "constrained") -> Any:
    """A matplotlib figure with white paper, drawn without pyplot: no global state, no window."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # matplotlib reads the settings of the folder one stands in; a stranger's would have TeX run, of his own words.
    if matplotlib.matplotlib_fname() == "matplotlibrc":
        matplotlib.rcParams["text.usetex"] = False
    drawing = Figure(figsize=(width, height), dpi=DOTS, facecolor="#ffffff", layout=layout)
    FigureCanvasAgg(drawing)
    return drawing


def png_of(drawing: Any, dots: int = DOTS) -> bytes:
    """The same figure gives the same bytes: no date, no version inside. A palette of few colours, because saved
    notebooks carry these pictures, and no difference is seen in lines and text. They are spread over the colours there
    are: cut by how often they occur, the few pixels of a marker would lose theirs."""
    from PIL import Image

    drawing.set_dpi(dots)
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the text form has it in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawing.canvas.draw()
    size = drawing.canvas.get_width_height()
    picture = Image.frombuffer(
        "RGBA", size, drawing.canvas.buffer_rgba(), "raw", "RGBA", 0, 1
    ).convert("RGB")
    many = picture.quantize(256, dither=Image.Dither.NONE).convert("RGB")
    few = many.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    out = io.BytesIO()
    few.save(out, "png", optimize=True)
    return out.getvalue()


def figure_file(
    draw: Callable[..., Any], kind: str, width: float | None, height: float | None, dark: bool
) -> bytes:
    """A figure for a paper: svg (letters as outlines), pdf (fonts embedded) or png (300 dots an inch). Sizes in inches;
    None: as on a screen. The same figure gives the same bytes."""
    import matplotlib

    for inches in (width, height):
        if inches is not None and not 1 <= inches <= 40:
            raise DataError(f"width and height are inches, 1 to 40, got {inches}")
    drawing = draw() if width is None else draw(width=width)
    if height is not None:
        drawing.set_figheight(height)
    if dark:
        _darken(drawing)
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    sink = io.BytesIO()
    fonts = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "workbench"}
    with matplotlib.rc_context(fonts), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawing.savefig(sink, format=kind, dpi=300, metadata=undated.get(kind), facecolor="auto")
    return sink.getvalue()


def _darken(drawing: Any) -> None:
    """Paper, ink, grid and the darkest lines as they are on a dark page."""
    from matplotlib.colors import to_hex

    for part in drawing.findobj():
        for name in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            known = getattr(part, f"get_{name}", lambda: None)()
            if not isinstance(known, str | tuple):
                continue
            opaque = to_hex(known, keep_alpha=True).removesuffix("ff")
            if opaque in DARK:
                getattr(part, f"set_{name}")(DARK[opaque])


def plain(text: str) -> str:
    """Text that matplotlib draws as it is: a `$` would start a formula, and a bad formula raises."""
    return visible(text, newline=" ").replace("$", r"\$")


def tidy(axes: Any, title: str = "", x_label: str = "", pad: float = 6.0) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", labelsize=8, colors=MUTED)
    axes.set_title(plain(title), fontsize=10, loc="left", color=INK, pad=pad)
    axes.set_xlabel(plain(x_label), fontsize=8, color=MUTED)


def curves_picture(
    plots: Sequence[Plot], title: str, told: str, *, columns: int = 3
) -> doc.Picture:
    """The panels as part of a page, `told` in words where there are no pictures."""
    return doc.Picture(
        partial(plots_drawing, plots, title, columns=columns),
        told,
        figure=plotly_figure(plots, title),
    )


def plots_drawing(
    plots: Sequence[Plot], title: str = "", *, columns: int = 3, width: float | None = None
) -> Any:
    """Small multiples with one legend below them, or, where two names look the same, one above each, as a matplotlib
    figure. Places are given in inches: matplotlib's own layout draws everything twice, which is most of a second.
    `width`: of the figure, in inches; where it is narrow, fewer panels stand side by side."""
    columns = min(columns, len(plots))
    if width is not None:
        columns = max(1, min(columns, int(width / NARROWEST)))
    rows = -(-len(plots) // columns)
    wide = WIDTH / max(columns, 2) if width is None else width / columns
    own = lines_of_names(plots)
    names = {} if own else dict.fromkeys(part.name for plot in plots for part in plot.parts)
    entry = 0.6 + 0.075 * max(
        map(len, names), default=0
    )  # inches of a name in the legend, with its line
    side_by_side = max(1, min(LEGEND_COLUMNS, int(wide * columns / entry)))
    above = 0.45 if title else 0.2
    below = 0.45 + 0.22 * -(-len(names) // side_by_side)
    tall = 2.6 + 0.16 * own
    width = wide * columns
    height = above + tall * rows + below
    drawing = figure(width, height, layout=None)
    handles: dict[str, Any] = {}
    for index, plot in enumerate(plots):
        left = wide * (index % columns) + 0.62
        bottom = below + tall * (rows - 1 - index // columns) + 0.12
        axes = drawing.add_axes(
            (
                left / width,
                bottom / height,
                (wide - 0.74) / width,
                (tall - 0.6 - 0.16 * own) / height,
            )
        )
        handles |= _draw_plot(axes, plot, is_last=index >= len(plots) - columns, own=own > 0)
    if title:
        drawing.suptitle(
            plain(title),
            fontsize=11,
            x=0.01,
            y=1 - 0.1 / height,
            ha="left",
            va="top",
            fontweight="bold",
            color=INK,
        )
    drawing.legend(
        [handles[name] for name in names],
        [plain(name) for name in names],
        loc="lower center",
        ncols=side_by_side,
        fontsize=8,
        frameon=False,
    )
    return drawing


def _draw_plot(axes: Any, plot: Plot, is_last: bool, own: bool) -> dict[str, Any]:
    """One panel, with a legend of its own where `own` says so; returns what a legend names."""
    tidy(
        axes,
        plot.title,
        plot.x_label if is_last else "",
        pad=6 + 11.5 * own * -(-len(plot.parts) // 2),
    )
    handles = {level.name: _draw_level(axes, level) for level in plot.levels}
    for trace in plot.traces:
        handles[trace.name] = draw_trace(axes, trace)
    if plot.ticks:
        axes.set_xticks([at for at, _ in plot.ticks], [plain(name) for _, name in plot.ticks])
    elif plot.log_x:
        axes.set_xscale("log")
    else:
        axes.xaxis.get_major_locator().set_params(integer=plot.x_label == "step")
    if plot.is_log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:.2g}" if high < 10 * low else "")
    if own:
        axes.legend(
            handles.values(),
            map(plain, handles),
            loc="lower left",
            bbox_to_anchor=(-0.02, 1.0),
            ncols=2,
            fontsize=7,
            frameon=False,
            borderpad=0,
            labelspacing=0.25,
            columnspacing=1.0,
            handlelength=2.7,
        )
    return handles


def _draw_level(axes: Any, level: LevelLine) -> Any:
    if np.isfinite(level.low):
        axes.axhspan(level.low, level.high, color=level.colour, alpha=0.10, linewidth=0)
    return axes.axhline(
        level.value, color=level.colour, linestyle=DASHES[level.dash], linewidth=1.4
    )


def draw_trace(axes: Any, trace: Trace) -> Any:
    """The line or points of a trace, with its band or bars; returns what a legend names."""
    known = np.zeros(len(trace.x), bool) if trace.low is None else np.isfinite(trace.low)
    if known.any():
        axes.fill_between(
            trace.x[known],
            trace.low[known],
            trace.high[known],
            color=trace.colour,
            alpha=0.10,
            linewidth=0,
        )
    look = {
        "color": trace.colour,
        "marker": trace.marker or ("." if len(trace.x) == 1 else None),
        "markersize": 4.5,
        "linestyle": DASHES[trace.dash] if trace.width else "none",
        "linewidth": trace.width,
        "markerfacecolor": "#ffffff" if trace.marker == "s" else trace.colour,
    }
    if not (trace.bars and known.any()):
        return axes.plot(trace.x, trace.y, **look)[0]
    sizes = np.where(known, [trace.y - trace.low, trace.high - trace.y], 0.0)
    return axes.errorbar(trace.x, trace.y, yerr=sizes, capsize=2, elinewidth=1, **look)


# ------------------------------------------------------------------------------------------------ rows


@dataclass(frozen=True)
class RowMark:
    """A value in row number `place`, on a pale bar from `low` to `high`."""

    place: int
    value: float
    low: float
    high: float
    colour: str
    marker: str


def draw_rows(axes: Any, names: Sequence[str], marks: Sequence[RowMark]) -> None:
    """Named rows from above, with what is marked in them."""
    for mark in marks:
        axes.plot(
            [mark.low, mark.high],
            [mark.place] * 2,
            color=mark.colour,
            linewidth=6,
            alpha=0.3,
            solid_capstyle="butt",
        )
        axes.plot(
            [mark.value],
            [mark.place],
            color=mark.colour,
            marker=mark.marker,
            markersize=6,
            linestyle="none",
        )
    axes.set_yticks(range(len(names)), [plain(name) for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
