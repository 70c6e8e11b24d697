"""Live views where they were empty: busy cores beside server and kernel, a slow socket, a slow page, no widget at all.

The curves of one run, which this process writes, are watched in a real JupyterLab. What counts is what the page drew: as
many lines as the kernel has, and new steps as they come.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager

import pytest

from tests.lab_kit import (
    finished,
    open_notebook,
    output_of,
    run_cell,
    write_notebook,
)
from tests.slow_line import busy_cores, slow_page, slow_socket
from tests.test_live import ROWS, commit
from tests.test_train import tiny
from workbench.look.live import live_panels
from workbench.run.recording import create_run
from workbench.run.store import open_run
from workbench.training.config import to_dict

pytestmark = pytest.mark.debian("chromium", "fonts-dejavu-core")

LINE_BYTES_PER_S = (
    40_000  # of the slow socket; the script of plotly's widget has five million bytes
)
BUSY = 6  # processes on two cores
SLOWER = 6  # times, of the page's processor
HARDSHIPS = (
    ("busy cores",),
    ("slow socket",),
    ("slow page",),
    ("busy cores", "slow socket", "slow page"),
)
TIMES = 5  # of each, in the full count: 20 views

CELLS = ["import workbench as wb", "run = wb.attach('watched'); run"]
POINTS = """name => [...document.querySelectorAll('.wb-live [data-trace]')]
    .filter(line => name === null || line.dataset.trace === name).map(line => Number(line.dataset.points))"""
PICTURE = "() => document.querySelectorAll('.jp-CodeCell')[1].querySelector('img')?.src || ''"


@pytest.fixture(scope="module")
def watched_run(lab):
    """A run of which a step is committed every second, in a folder beside the notebook. Its process is this one."""
    over = threading.Event()

    def write():
        with create_run(lab.folder / "watched", to_dict(tiny(train__steps=100_000))) as run:
            run.write_evaluation("step-00000000", {"step": 0, "rows": ROWS})
            step = 0
            while step == 0 or not over.wait(1.0):
                step += 1
                commit(run, step)
                is_there.set()

    is_there = threading.Event()
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert is_there.wait(60)
    yield open_run(lab.folder / "watched")
    over.set()
    writer.join(60)


@contextmanager
def suffering(lab, page, hardships):
    """The lab to open, while it is as hard as this."""
    with ExitStack() as stack:
        if "slow socket" in hardships:
            lab = stack.enter_context(slow_socket(lab, LINE_BYTES_PER_S))
        if "busy cores" in hardships:
            stack.enter_context(busy_cores(BUSY))
        if "slow page" in hardships:
            slow_page(page, SLOWER)
        yield lab


def open_and_watch(lab, page) -> None:
    write_notebook(lab.folder / "watch.ipynb", CELLS)
    open_notebook(lab, page, lab.folder / "watch.ipynb")
    run_cell(page, 0)
    run_cell(page, 1)
    finished(page, 1)


def it_draws_every_line_and_each_new_step(page, run) -> str:
    """Wait until it does, by the widget or by the picture; returns by which."""
    lines = sum(
        len(panel["traces"]) for panel in live_panels(run.metrics_rows(), run.evaluations())
    )
    page.wait_for_function(f"() => ({POINTS})(null).length || ({PICTURE})()")
    if page.evaluate(PICTURE) and not page.evaluate(POINTS, None):
        before = page.evaluate(PICTURE)
        page.wait_for_function(f"before => ({PICTURE})() !== before", arg=before)
        assert output_of(page, 1).locator("img").is_visible()
        return "picture"
    drawn = page.evaluate(POINTS, None)
    assert len(drawn) == lines, f"{len(drawn)} of {lines} lines are drawn"
    steps = max(page.evaluate(POINTS, "training"))
    page.wait_for_function(f"steps => Math.max(...({POINTS})('training')) > steps + 1", arg=steps)
    return "widget"


# ------------------------------------------------------------------------------------------------ tests


def test_on_a_slow_line_and_a_slow_page_every_line_is_drawn_and_a_page_without_its_kernel_says_so(
    lab, page, watched_run, tmp_path
):
    """At any width without a scrollbar; after a restart of the kernel it is disconnected and says what to call."""
    with suffering(lab, page, ("slow socket", "slow page")) as slow:
        open_and_watch(slow, page)
        it_draws_every_line_and_each_new_step(page, watched_run)
        slow_page(page, 1)
        for width in (640, 1900):
            it_takes_the_width_that_is_there(page, width)
            page.screenshot(path=tmp_path / f"{width}.png")
        assert page.locator("button.wb-stop").is_visible()
        page.evaluate(
            "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
        )
        view = page.locator(".wb-live")
        view.locator("text=disconnected").wait_for(state="visible")
        assert "wb.attach('watched')" in view.inner_text() and "running" not in view.inner_text()
        assert not page.locator("button.wb-stop").is_visible(), "there is nobody to stop it"
        page.screenshot(path=tmp_path / "disconnected.png")
    assert not page.outside, f"asked another machine: {page.outside[:3]}"


def it_takes_the_width_that_is_there(page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function(
        """() => { const view = document.querySelector('.wb-live'), output = view.closest('.jp-OutputArea-output');
        return view.scrollWidth <= view.clientWidth && output.scrollWidth <= output.clientWidth
            && view.offsetWidth > 0.95 * output.clientWidth; }"""
    )


def test_without_any_widget_the_picture_is_drawn_and_renewed(lab, page, watched_run, tmp_path):
    """The widget layer that never comes up, whatever the reason."""
    page.route("**/anywidget/static/**", lambda route: route.abort())
    open_and_watch(lab, page)
    assert it_draws_every_line_and_each_new_step(page, watched_run) == "picture"
    words = output_of(page, 1).last.inner_text()
    assert "as of " in words and "wb.attach('watched')" in words
    page.screenshot(path=tmp_path / "picture.png")


@pytest.mark.full
def test_a_page_that_is_opened_again_is_drawn_again_or_says_how_old_it_is(lab, page, watched_run):
    """JupyterLab gives a page four seconds to learn of a kernel's widgets; where that is too short, words are left."""
    open_and_watch(lab, page)
    it_draws_every_line_and_each_new_step(page, watched_run)
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    for _ in range(5):
        open_notebook(lab, page, lab.folder / "watch.ipynb")
        either = page.locator(".wb-live-panel, .jp-OutputArea-output :text('as of ')")
        either.first.wait_for(state="visible")
        page.wait_for_timeout(5_000)
        if page.evaluate(POINTS, None):
            break
        assert "wb.attach('watched')" in output_of(page, 1).last.inner_text()
    assert it_draws_every_line_and_each_new_step(page, watched_run) == "widget"


@pytest.mark.full
@pytest.mark.parametrize("hardships", HARDSHIPS, ids=" and ".join)
@pytest.mark.parametrize("number", range(TIMES))
def test_twenty_of_twenty_are_drawn(lab, page, watched_run, hardships, number):
    page.set_default_timeout(300_000)
    with suffering(lab, page, hardships) as hard:
        open_and_watch(hard, page)
        drawn_by = it_draws_every_line_and_each_new_step(page, watched_run)
    print(f"drawn by the {drawn_by}")
