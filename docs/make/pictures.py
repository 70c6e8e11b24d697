"""The README's two pictures: views of a real run, as a browser paints them. `make pictures` makes them anew.

The run is the demo's (the preset `search`, 20 steps, seed 0; about two minutes of one core). Debian's chromium paints
the HTML of the views; the page is reduced to 256 colours, so that the repository stays small.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRESET = "search"
MOST_BYTES = 150_000
PAGE = (
    '<!doctype html><meta charset="utf-8">'
    '<body style="margin:0;background:#fff;font-family:DejaVu Sans,sans-serif">'
    '<div id="view" style="display:inline-block;padding:12px;max-width:{width}px">{html}</div>'
)
WIDTHS = {"tokens": 980, "run": 980}


def make_pictures(folder: Path, run_path: Path) -> list[Path]:
    """Train unless `run_path` holds the run already, paint both views into `folder`; returns the files."""
    views = views_of(run_path if run_path.exists() else _train(run_path))
    return [_write(folder / f"{name}.png", png) for name, png in paint(views).items()]


def _train(run_path: Path) -> Path:
    import workbench as wb

    wb.train_here(wb.load_config(PRESET, {"train.evaluate_every": 5}), run_path)
    return run_path


def views_of(run_path: Path) -> dict[str, Any]:
    """The tokens of one trajectory, with the credit that training used, and the curves of the run beside its baselines."""
    import workbench as wb

    run = wb.open_run(run_path)
    step = run.steps()[0]
    task, attempt = _telling_trajectory(run.groups(step))
    return {
        "tokens": wb.show(run, step=step, task=task, attempt=attempt, tokens=True),
        "run": wb.show(run),
    }


def _telling_trajectory(groups: Any) -> tuple[int, int]:
    """A trajectory that succeeded over several turns, in a group where others did not: then its tokens carry credit."""
    mixed = [
        (task, attempt)
        for task, group in enumerate(groups)
        for attempt, one in enumerate(group)
        if one.success and 2 < len(one.turns) < 5 and not all(other.success for other in group)
    ]
    return mixed[0] if mixed else (0, 0)


def paint(views: Mapping[str, Any]) -> dict[str, bytes]:
    """PNG of each view's HTML, painted by a headless chromium."""
    from playwright.sync_api import sync_playwright

    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser is None:
        raise SystemExit(
            "make pictures needs a Chromium: apt-get install chromium fonts-dejavu-core"
        )
    painted = {}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, view in views.items():
            page = chromium.new_page(viewport={"width": WIDTHS[name] + 40, "height": 800})
            page.set_content(PAGE.format(width=WIDTHS[name], html=view.html))
            painted[name] = page.locator("#view").screenshot()
        chromium.close()
    return painted


def _write(path: Path, png: bytes) -> Path:
    """The picture in 256 colours. Raises SystemExit where it is still larger than the repository should carry."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    if small.tell() > MOST_BYTES:
        raise SystemExit(
            f"{path.name} has {small.tell():,} bytes, expected at most {MOST_BYTES:,}; show less of it"
        )
    path.write_bytes(small.getvalue())
    return path
