"""Pictures of measurements: from docs/evidence/data/*.json, a point a run. `python -m docs.make plots` draws them anew.

A picture carries the digest of the data it was drawn from (`drawn_from`), so that a test sees where data and picture differ.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from docs.make.evidence import read
from workbench.extensions.ablation.views.arms import ARM_LOOKS
from workbench.look.figures import LevelLine, Plot, Trace
from workbench.look.png import plots_drawing, png_of

Result = Mapping[str, Any]
DIGEST = "drawn from"  # the text chunk of the PNG that holds it


def discovery_plots(result: Result) -> list[Plot]:
    """Success at three hops after training, over their share in training: greedy and sampled, a point a run, and the level of
    each start that was trained with more than one share."""
    by_start: dict[str, list[Result]] = {}
    for row in result["runs"]:
        by_start.setdefault(row["start"], []).append(row)
    axes = {
        name: rows for name, rows in by_start.items() if len({row["share"] for row in rows}) > 2
    }
    plots = []
    for mode in ("greedy", "sampled"):
        traces, levels = [], []
        for (colour, dash), marker, (name, rows) in zip(ARM_LOOKS, "os.", axes.items()):
            x, y = np.array([(row["share"], 100 * row[mode]["success"]) for row in rows]).T
            traces.append(Trace(name, x, y, colour, width=0, marker=marker))
            levels.append(
                LevelLine(
                    f"{name}, before", 100 * result["starts"][name][mode]["success"], colour, dash
                )
            )
        plots.append(
            Plot(
                f"three hops, {mode}, success %",
                tuple(traces),
                tuple(levels),
                x_label="share of three-hop questions in training",
            )
        )
    return plots


PLOTS: Mapping[str, tuple[str, Callable[[Result], list[Plot]]]] = {
    "discovery-shares": ("discovery", discovery_plots)
}


def draw(folder: Path, data: Path) -> list[Path]:
    """Draw every picture of `PLOTS` into `folder`; returns the files."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    paths = []
    for name, (source, plots_of) in PLOTS.items():
        result = read(data / f"{source}.json")["result"]
        said = PngInfo()
        said.add_text(DIGEST, digest(result))
        paths.append(folder / f"{name}.png")
        Image.open(io.BytesIO(png_of(plots_drawing(plots_of(result), columns=2)))).save(
            paths[-1], "PNG", optimize=True, pnginfo=said
        )
    return paths


def digest(result: Result) -> str:
    """Of what a picture is drawn from."""
    return sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def drawn_from(path: Path) -> str | None:
    """The digest that a picture carries."""
    from PIL import Image

    with Image.open(path) as picture:
        return picture.text.get(DIGEST)
