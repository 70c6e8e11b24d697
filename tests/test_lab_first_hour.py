"""The first hour in a real JupyterLab: a notebook of twenty cells, as somebody new would write them, one after the other.

No cell raises, no cell shows nothing, and nothing that a cell shows is one colour. How long the first picture took is
printed (`pytest -rP`), not judged: a busy machine is no fault.
"""

from __future__ import annotations

import io
import time

import pytest
from PIL import Image

from tests.lab_kit import CELLS, finished, open_notebook, run_cell, write_notebook

pytestmark = [pytest.mark.full, pytest.mark.debian("chromium", "fonts-dejavu-core")]

SMALL = "{'train.steps': 3, 'train.tasks_per_step': 4, 'train.group_size': 4, 'evaluation.num_tasks': 8, 'train.checkpoint_every': 1}"
TURNS = [
    f"import workbench as wb\nsmall = {SMALL}\nconfig = wb.load_config('frozenlake', small)\nconfig",
    "session = wb.open_session(config)\ngroup = wb.rollout(session, 1)[0]\ngroup",
    "wb.show_tokens(group[0], session.chat.token_texts)",
    "run = wb.train(config, 'first')\nrun",
    "run.wait()",
    "wb.attach('first')",
    "wb.explore(run)",
    "wb.group_spread(run)",
    "wb.signals(run)",
    "wb.lint(run)",
    "wb.evaluate(run)",
    "wb.paired(run)",
    "second = wb.train(wb.load_config('frozenlake', small | {'algorithm.kind': 'rloo'}), 'second').wait()\nsecond",
    "wb.compare_runs(run, second)",
    "wb.explore([run, second])",
    "wb.edit_step(run, 3, algorithm='reinforce')",
    "wb.runs('.')",
    "wb.search([run, second], text='Left')",
    "wb.check_env('frozenlake')",
    "wb.branch(run, at='step 2 / task 1 / attempt 0 / turn 0')",
]


def test_twenty_cells_raise_nothing_and_each_shows_something(lab, page, tmp_path):
    write_notebook(lab.folder / "hour.ipynb", TURNS)
    open_notebook(lab, page, lab.folder / "hour.ipynb")
    began, empty, walls = time.monotonic(), [], []
    for number, source in enumerate(TURNS):
        run_cell(page, number)
        finished(page, number)
        output = page.locator(".jp-CodeCell").nth(number).locator(".jp-OutputArea").first
        output.scroll_into_view_if_needed()
        assert "error" not in page.evaluate(CELLS)[number]["outputs"], (
            f"cell {number} raised:\n{source}\n{output.inner_text()[:1500]}"
        )
        page.wait_for_timeout(1000)
        shot = tmp_path / f"{number:02}.png"
        output.screenshot(path=shot)
        colours = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB").getcolors(1 << 24)
        if len(colours) < 3 or not output.inner_text().strip():
            empty.append(f"{number}: {source} ({shot})")
        walls.append(f"{time.monotonic() - began:6.1f} s  {source.splitlines()[-1][:60]}")
    print("\n".join(walls))
    assert not empty, "nothing to see after: " + "; ".join(empty)
    assert not page.outside, f"asked another machine: {page.outside[:3]}"
