"""A real JupyterLab in Debian's chromium: a notebook runs from its first cell to its last, and its views are painted.

The server sees none of this user's settings and nothing outside this machine is asked for. Screenshots lie in the test's
temporary folder; the failure message names it.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import nbformat
import pytest

from tests.lab_kit import (
    CELLS,
    KERNEL_IS_IDLE,
    finished,
    open_notebook,
    output_of,
    run_cell,
    theme,
    write_notebook,
)
from tests.notebook_kit import ROOT, code_cells
from workbench.look.cells.live_run import attach

pytestmark = pytest.mark.debian("chromium", "fonts-dejavu-core")

SMALL = {"group_size": 3, "num_tasks": 2, "num_held_out": 8}
TRAINED, HOLE = (
    (0xBF, 0xDF, 0xF5),
    (0x27, 0x32, 0x3D),
)  # background of a trained token, and of a hole in the lake
OUTPUTS_OF_FIRST = (
    "() => window.jupyterapp.shell.currentWidget.content.model.cells.get(0).outputs.toJSON()"
)


def with_parameters(path: Path, **parameters):
    """The notebook as papermill would give it these parameters, without any output."""
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    notebook = parameterize_notebook(load_notebook_node(str(path)), parameters)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    return notebook


def painted(page, selector: str, shot: Path) -> dict[tuple[int, int, int], int]:
    """Pixels by colour of the first element that fits, as the browser drew it; the picture is kept in `shot`."""
    from PIL import Image

    element = page.locator(selector).first
    element.scroll_into_view_if_needed()
    picture = element.screenshot()
    shot.write_bytes(picture)
    colours = Image.open(io.BytesIO(picture)).convert("RGB").getcolors(1 << 24)
    return {colour: count for count, colour in colours}


def view_after(source: str) -> str:
    """Selector of what a cell shows, by words of its source."""
    return f'.jp-CodeCell:has(.jp-InputArea :text("{source}")) .jp-OutputArea-output > div'


# ------------------------------------------------------------------------------------------------ tests


def test_a_notebook_runs_in_jupyterlab_and_its_views_are_painted(lab, page, tmp_path):
    path = lab.folder / "01_rollout.ipynb"
    nbformat.write(with_parameters(ROOT / "notebooks/01_rollout.ipynb", **SMALL), path)
    open_notebook(lab, page, path)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(
        f"() => {{ const cells = ({CELLS})(); return cells.length > 0 && cells.every("
        "cell => cell.count !== null && cell.state !== 'running'); }"
    )
    cells = page.evaluate(CELLS)
    page.screenshot(path=tmp_path / "notebook.png")
    assert not [cell for cell in cells if "error" in cell["outputs"]], (
        f"a cell raised; see {tmp_path}/notebook.png"
    )
    assert all(cell["outputs"] for cell in cells[2:]), (
        "every cell after the parameters shows something"
    )

    tokens = painted(page, view_after("max_segments"), tmp_path / "tokens.png")
    assert tokens.get(TRAINED, 0) > 500, f"no trained token is painted; see {tmp_path}/tokens.png"
    lake = painted(page, view_after("wb.show(longest)"), tmp_path / "trajectory.png")
    assert lake.get(HOLE, 0) > 500, f"no hole is painted; see {tmp_path}/trajectory.png"
    prompt = painted(
        page, view_after("wb.show_prompt(session, observation)"), tmp_path / "prompt.png"
    )
    assert TRAINED not in prompt and len(prompt) > 10, "nothing of a prompt is trained"
    assert not page.outside, f"asked another machine: {page.outside[:3]}"


def test_a_committed_notebook_shows_its_pictures_before_anything_is_run_or_trusted(
    lab, page, tmp_path
):
    """A notebook that came with git is not trusted: JupyterLab drops styles, scripts and ids. Ours must not need them."""
    path = lab.folder / "00_tour.ipynb"
    shutil.copy(ROOT / "notebooks/00_tour.ipynb", path)
    open_notebook(lab, page, path)
    assert not any(cell["trusted"] for cell in page.evaluate(CELLS) if cell["outputs"]), (
        "or this test shows nothing"
    )
    tokens = painted(page, view_after("wb.show_tokens"), tmp_path / "tokens.png")
    assert tokens.get(TRAINED, 0) > 500, f"no trained token is painted; see {tmp_path}/tokens.png"
    lake = painted(page, view_after("worst = min"), tmp_path / "trajectory.png")
    assert lake.get(HOLE, 0) > 500, f"no hole is painted; see {tmp_path}/trajectory.png"
    page.screenshot(path=tmp_path / "tour.png")
    curves = page.locator(view_after("wait()").removesuffix(" > div") + " img").first
    assert curves.evaluate("image => image.complete && image.naturalWidth") > 500, (
        "the curves are a picture in the page"
    )


# ------------------------------------------------------------------------------------------------ a run that trains


LIVE_CELLS = [
    "import workbench as wb",
    "run = wb.train(wb.load_config('frozenlake', {'train.steps': 2000, 'train.tasks_per_step': 2, 'train.group_size': 4,\n"
    "    'evaluation.num_tasks': 8, 'train.evaluate_every': 0}), 'live'); run",
    "2 + 2",
    "again = wb.attach('live'); again",
    "again.wait(); again.status.state",
]
CURVES = ".wb-live-body"
STEPS_DRAWN = """index => Math.max(0, ...[...document.querySelectorAll('.jp-CodeCell')[index]
    .querySelectorAll('[data-trace="training"]')].map(line => Number(line.dataset.points)))"""


@pytest.fixture
def live_notebook(lab):
    """A notebook that trains and watches; its run is over when the test is, whatever became of both."""
    write_notebook(lab.folder / "live.ipynb", LIVE_CELLS)
    yield lab.folder / "live.ipynb"
    if (lab.folder / "live.process.json").exists():
        attach(lab.folder / "live").stop(kill_after_s=10)


@pytest.mark.full
def test_a_run_is_watched_live_stopped_by_its_button_and_found_again_after_a_restart(
    lab, page, live_notebook, tmp_path
):
    """One output that follows the run while the kernel is free; the run outlives the kernel; the button ends it."""
    open_notebook(lab, page, live_notebook)
    run_cell(page, 0)
    run_cell(page, 1)
    finished(page, 1)
    curves = output_of(page, 1).locator(CURVES)
    curves.wait_for(state="visible")
    first = page.evaluate(STEPS_DRAWN, 1)
    run_cell(page, 2)
    finished(page, 2)
    assert output_of(page, 2).inner_text() == "4", "another cell runs while the view is live"
    page.wait_for_function(f"([index, first]) => ({STEPS_DRAWN})(index) > first", arg=[1, first])
    assert curves.count() == 1, "drawn again in the same output"
    assert curves.evaluate("plot => plot.offsetWidth") > 500, "as wide as the page"
    assert not output_of(page, 1).nth(1).is_visible(), "the picture is hidden beside the widget"
    it_can_be_hovered_over_and_stays_zoomed(page, curves)
    page.screenshot(path=tmp_path / "live.png")
    theme(page, "Dark")
    page.screenshot(path=tmp_path / "live-dark.png")

    page.evaluate(
        "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
    )
    page.wait_for_function(KERNEL_IS_IDLE)
    run_cell(page, 0)
    run_cell(page, 3)
    finished(page, 3)
    output_of(page, 1).locator("text=disconnected").first.wait_for(state="visible")
    output_of(page, 3).locator(CURVES).wait_for(state="visible")
    button = output_of(page, 3).locator("button.wb-stop")
    assert "running" in output_of(page, 3).first.inner_text(), (
        "the run did not care about the restart"
    )
    page.screenshot(path=tmp_path / "restarted-dark.png")
    theme(page, "Light")
    button.click()
    output_of(page, 3).locator("text=stopped >> visible=true").first.wait_for(state="visible")
    run_cell(page, 4)
    finished(page, 4)
    assert "'stopped'" in output_of(page, 4).last.inner_text()
    assert output_of(page, 3).count() == 1 and button.count() == 0, (
        "the last picture takes the place of the widget"
    )
    page.screenshot(path=tmp_path / "stopped.png")
    steps = (lab.folder / "live/metrics.jsonl").read_text().count("\n")
    assert 1 <= steps < 2000
    assert not page.outside, f"asked another machine: {page.outside[:3]}"


def it_can_be_hovered_over_and_stays_zoomed(page, curves) -> None:
    """The numbers of a step under the pointer, and a part of the curve, while it goes on."""
    place = curves.locator(".wb-live-panel").first
    place.hover()
    page.locator(".wb-live-readout:has-text('success, step')").wait_for(state="visible")
    box = place.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"], steps=5)
    page.mouse.up()
    whole = page.locator(".wb-live-whole")
    whole.wait_for(state="visible")
    before = page.evaluate(STEPS_DRAWN, 1)
    page.wait_for_function(f"([index, first]) => ({STEPS_DRAWN})(index) > first", arg=[1, before])
    assert whole.is_visible(), "new steps do not undo what was zoomed"
    whole.click()
    whole.wait_for(state="hidden")


WITHOUT_A_SCROLLBAR = """() => {
    const output = document.querySelector('.jp-RenderedPlotly'), figure = output.querySelector('.main-svg');
    return output.scrollWidth <= output.clientWidth && figure.getBoundingClientRect().width > 0.9 * output.clientWidth; }"""


@pytest.mark.full
def test_the_curves_of_a_run_are_drawn_by_plotly_and_everything_else_stands_below(
    lab, page, tmp_path
):
    """Two outputs: the figure, at any width without a scrollbar, and the table, notes and warnings."""
    cells = [f"import workbench as wb\nwb.show({str(ROOT / 'tests/golden_runs/old/search')!r})"]
    write_notebook(lab.folder / "curves.ipynb", cells)
    open_notebook(lab, page, lab.folder / "curves.ipynb")
    run_cell(page, 0)
    finished(page, 0)
    outputs = output_of(page, 0)
    figure = outputs.nth(0)
    figure.locator(".main-svg").first.wait_for(state="visible")
    for width in (640, 900, 1400, 1900):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_function(WITHOUT_A_SCROLLBAR)
        page.screenshot(path=tmp_path / f"plotly-{width}.png")
    figure.locator(".nsewdrag").first.hover()
    figure.locator(".hoverlayer .hovertext").first.wait_for(state="visible")
    assert outputs.nth(1).locator("text=The numbers, steps 1 to 2").is_visible()
    outputs.nth(1).locator("summary").click()
    page.screenshot(path=tmp_path / "numbers.png", full_page=True)
    assert (
        len(json.dumps([output["data"] for output in page.evaluate(OUTPUTS_OF_FIRST)])) < 400_000
    ), "no plotly.js inside"
    assert not page.outside, f"asked another machine: {page.outside[:3]}"


# ------------------------------------------------------------------------------------------------ the navigator


@pytest.mark.full
def test_one_walks_from_the_curve_to_the_token_in_a_notebook_and_the_kernel_knows_where(
    lab, page, tmp_path
):
    """Three clicks and no typed number; then the place as a value, a place given by the kernel, and the saved notebook."""
    shutil.copytree(ROOT / "tests/golden_runs/old/window", lab.folder / "walked")
    cells = [
        "import workbench as wb\nnavigator = wb.explore('walked')\nnavigator",
        "navigator.at",
        "navigator.widget().at = 'step 2 / task 1 / attempt 3'",
    ]
    write_notebook(lab.folder / "walk.ipynb", cells)
    open_notebook(lab, page, lab.folder / "walk.ipynb")
    run_cell(page, 0)
    finished(page, 0)
    page.locator(".wb-plot").click(position={"x": 420, "y": 80})
    page.locator(".wb-step > .wb-scroll tbody tr").nth(6).click()
    page.locator(".wb-trained").nth(3).click()
    page.wait_for_selector(".wb-term tr")
    page.screenshot(path=tmp_path / "walked.png")
    run_cell(page, 1)
    finished(page, 1)
    place = " / ".join(button.inner_text() for button in page.locator(".wb-path button").all()[1:])
    assert (
        output_of(page, 1).inner_text() == repr(place)
        and place.startswith("step ")
        and " / token " in place
    )
    run_cell(page, 2)
    page.wait_for_function(
        "() => document.querySelector('.wb-path').innerText.includes('attempt 3')"
    )
    page.locator(".wb-tokens").press("n")
    page.wait_for_function("() => document.querySelector('.wb-path').innerText.includes('token')")
    place = " / ".join(button.inner_text() for button in page.locator(".wb-path button").all()[1:])
    picture = (
        f"() => ({CELLS})()[0] && JSON.stringify(({OUTPUTS_OF_FIRST})()).includes('at {place}')"
    )
    page.wait_for_function(picture)
    theme(page, "Dark")
    page.screenshot(path=tmp_path / "dark.png")
    theme(page, "Light")
    page.evaluate(
        "async () => { await window.jupyterapp.commands.execute('docmanager:save'); const session = "
        "window.jupyterapp.shell.currentWidget.sessionContext; await session.shutdown(); }"
    )
    page.goto("about:blank")
    open_notebook(lab, page, lab.folder / "walk.ipynb")
    page.screenshot(path=tmp_path / "reopened.png")
    output_of(page, 0).locator(f"text=at {place}").wait_for(state="visible")
    assert not page.outside, f"asked another machine: {page.outside[:3]}"


# ------------------------------------------------------------------------------------------------ the chat cell


TALK_CELLS = [
    "import workbench as wb\nsession = wb.open_session(wb.load_config('frozenlake'), quiet=True)",
    "chat = wb.talk(session, temperature=0.0)\nchat",
]


@pytest.mark.full
def test_one_talks_to_the_policy_and_what_was_said_is_there_without_a_kernel(lab, page, tmp_path):
    write_notebook(lab.folder / "talk.ipynb", TALK_CELLS)
    open_notebook(lab, page, lab.folder / "talk.ipynb")
    run_cell(page, 0)
    one_can_talk_to_the_policy(page, tmp_path)
    it_is_a_picture_when_its_kernel_is_gone(lab, page, lab.folder / "talk.ipynb", tmp_path)
    assert not page.outside, f"asked another machine: {page.outside[:3]}"


def one_can_talk_to_the_policy(page, tmp_path):
    """The chat cell: what is typed is asked on Enter and on the button, and what comes is seen."""
    run_cell(page, 1)
    finished(page, 1)
    box, talk = page.locator(".wb-talk-question input"), page.locator(".wb-talk")
    for number, say in (
        (7, lambda: box.press("Enter")),
        (8, lambda: page.locator("button.wb-talk-ask").click()),
    ):
        box.fill(str(number))
        say()
        page.wait_for_function(
            "count => document.querySelector('.wb-talk').innerText.split('the task was over').length > count",
            arg=number - 6,
        )
        page.wait_for_function("() => document.querySelector('button.wb-talk-stop').disabled")
    box.fill("Where is the goal?")
    box.press("Enter")
    talk.locator("text=takes no questions").wait_for(state="visible")
    assert [
        each.is_visible() for each in output_of(page, 1).locator("text=the task was over").all()
    ] == [True, True, False, False]
    page.screenshot(path=tmp_path / "talk.png")


def it_is_a_picture_when_its_kernel_is_gone(lab, page, path, tmp_path):
    """Saved, and opened again without a kernel, what was said is there, and no dead widget."""
    page.screenshot(path=tmp_path / "live.png")
    page.evaluate(
        "async () => { await window.jupyterapp.commands.execute('docmanager:save'); const session = "
        "window.jupyterapp.shell.currentWidget.sessionContext; await session.shutdown(); }"
    )
    page.goto("about:blank")
    open_notebook(lab, page, path)
    said = output_of(page, 1).locator("text=the task was over")
    said.first.wait_for(state="visible")
    assert [each.is_visible() for each in said.all()] == [True, True] and page.locator(
        ".wb-talk"
    ).count() == 0
