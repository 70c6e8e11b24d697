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
from workbench.notebook.live_run import attach

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
CURVES = ".js-plotly-plot"
STEPS_DRAWN = """index => Math.max(...[...document.querySelectorAll('.jp-CodeCell')[index].querySelectorAll('.js-plotly-plot')]
    .flatMap(plot => plot.data.filter(trace => trace.name === 'training').map(trace => trace.x.length)))"""


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
    assert output_of(page, 1).count() == 1 and curves.count() == 1, "drawn again in the same output"
    assert curves.evaluate("plot => plot.offsetWidth") > 500, "as wide as the page"
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
    output_of(page, 3).locator(CURVES).wait_for(state="visible")
    button = output_of(page, 3).locator("button.wb-stop")
    assert "running" in output_of(page, 3).inner_text(), "the run did not care about the restart"
    page.screenshot(path=tmp_path / "restarted-dark.png")
    theme(page, "Light")
    button.click()
    output_of(page, 3).locator("text=stopped").first.wait_for(state="visible")
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
    """What plotly is there for: the numbers of a step under the pointer, and a part of the curve, while it goes on."""
    place = curves.locator(".subplot.x2y2 .plot, .nsewdrag").first
    place.hover()
    curves.locator(".hoverlayer .hovertext").first.wait_for(state="visible")
    box = place.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
    page.mouse.up()
    page.wait_for_function(
        "() => document.querySelector('.js-plotly-plot').layout.xaxis.autorange === false"
    )
    zoomed = curves.evaluate("plot => plot.layout.xaxis.range")
    before = page.evaluate(STEPS_DRAWN, 1)
    page.wait_for_function(f"([index, first]) => ({STEPS_DRAWN})(index) > first", arg=[1, before])
    assert curves.evaluate("plot => plot.layout.xaxis.range") == zoomed, (
        "new steps do not undo what was zoomed"
    )


@pytest.mark.full
def test_the_curves_of_a_run_are_drawn_by_plotly_and_everything_else_stands_below(
    lab, page, tmp_path
):
    """Two outputs: the PNG that becomes a figure under the pointer, and the table, notes and warnings."""
    cells = [f"import workbench as wb\nwb.show({str(ROOT / 'tests/golden_runs/old/search')!r})"]
    write_notebook(lab.folder / "curves.ipynb", cells)
    open_notebook(lab, page, lab.folder / "curves.ipynb")
    run_cell(page, 0)
    finished(page, 0)
    outputs = output_of(page, 0)
    image = outputs.nth(0).locator("img")
    image.wait_for(state="visible")
    assert image.evaluate("image => image.complete && image.naturalWidth") > 500
    page.screenshot(path=tmp_path / "png.png")
    box = image.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    figure = outputs.nth(0)
    figure.locator(".main-svg").first.wait_for(state="visible")
    figure.locator(".nsewdrag").first.hover()
    figure.locator(".hoverlayer .hovertext").first.wait_for(state="visible")
    page.screenshot(path=tmp_path / "plotly.png")
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


# ------------------------------------------------------------------------------------------------ the credit editor


EDITOR_CELLS = [
    "import workbench as wb\nsession = wb.open_session(wb.load_config('frozenlake'), quiet=True)\n"
    "groups = wb.rollout(session, 1, group_size=4)",
    "editor = wb.credit_editor(groups, 'dr_grpo', token_texts=session.chat.token_texts)\neditor",
    "editor.edit",
    "chat = wb.talk(session, temperature=0.0)\nchat",
]


def credits(page) -> list[str]:
    """What hovering over the trained tokens of the editor says of each."""
    return page.locator(".wb-credit span[title*=advantage]").evaluate_all(
        "spans => spans.map(span => span.title)"
    )


@pytest.mark.full
def test_an_edited_reward_changes_the_credit_of_tokens_before_ones_eyes(lab, page, tmp_path):
    """Type a reward, choose an estimator that has no critic here, undo: the tokens follow, and errors are shown. Then the
    same editor, saved, without its kernel."""
    write_notebook(lab.folder / "editor.ipynb", EDITOR_CELLS)
    open_notebook(lab, page, lab.folder / "editor.ipynb")
    run_cell(page, 0)
    run_cell(page, 1)
    finished(page, 1)
    page.locator(".wb-credit span[title*=advantage]").first.wait_for(state="visible")
    before = credits(page)
    assert len(before) > 5 and not any("was" in title for title in before)
    reward = page.locator(".wb-reward-0 input")
    reward.fill("2.5")
    reward.press("Enter")
    page.locator(".wb-credit >> text=turn 0 earns +2.50").first.wait_for(state="visible")
    after = credits(page)
    assert len(after) == len(before) and all("was" in title for title in after), (
        "each says what it is and was"
    )
    assert after[0].split(" · ")[2] != before[0].split(" · ")[2]
    page.screenshot(path=tmp_path / "edited.png")
    run_cell(page, 2)
    finished(page, 2)
    assert "(0, 0): 2.5" in output_of(page, 2).inner_text(), (
        "the same edit is a value in the kernel"
    )

    page.locator(".wb-algorithm select").select_option("ppo")
    page.locator(".wb-credit >> text=ppo needs value_T").first.wait_for(state="visible")
    assert page.locator(".wb-knob-lam").count() == 1, "the settings are those of the new estimator"
    page.locator("button.wb-reset").click()
    page.wait_for_function(
        "() => !document.querySelector('.wb-credit').innerText.includes('earns')"
    )
    assert credits(page) == before
    one_can_talk_to_the_policy(page, tmp_path)
    it_is_a_picture_when_its_kernel_is_gone(lab, page, lab.folder / "editor.ipynb", tmp_path)
    assert not page.outside, f"asked another machine: {page.outside[:3]}"


def one_can_talk_to_the_policy(page, tmp_path):
    """The chat cell: what is typed is asked on Enter and on the button, and what comes is seen."""
    run_cell(page, 3)
    finished(page, 3)
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
        each.is_visible() for each in output_of(page, 3).locator("text=the task was over").all()
    ] == [True, True, False, False]
    page.screenshot(path=tmp_path / "talk.png")


def it_is_a_picture_when_its_kernel_is_gone(lab, page, path, tmp_path):
    """While the widgets are alive they alone are seen; saved, and opened again without a kernel, the picture is."""
    strips = output_of(page, 1).locator("img[alt^='credit of every sampled token']")
    assert [strip.is_visible() for strip in strips.all()] == [True, False], (
        "not the same picture twice"
    )
    page.screenshot(path=tmp_path / "live.png")
    page.evaluate(
        "async () => { await window.jupyterapp.commands.execute('docmanager:save'); const session = "
        "window.jupyterapp.shell.currentWidget.sessionContext; await session.shutdown(); }"
    )
    page.goto("about:blank")
    open_notebook(lab, page, path)
    picture = output_of(page, 1).locator("img[alt^='credit of every sampled token']")
    picture.first.wait_for(state="visible")
    assert (
        picture.count() == 1
        and picture.evaluate("image => image.complete && image.naturalWidth") > 100
    )
    tokens = output_of(page, 1).locator("span[title*=advantage]")
    assert tokens.count() > 5 and tokens.first.is_visible(), "every token, to hover over"
    page.screenshot(path=tmp_path / "reopened.png")
    said = output_of(page, 3).locator("text=the task was over")
    assert [each.is_visible() for each in said.all()] == [True, True] and page.locator(
        ".wb-talk"
    ).count() == 0
