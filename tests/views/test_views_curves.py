"""Views with curves in a notebook: two outputs, small, without a script, complete also where plotly is not."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import views_examples as examples
from test_views_html import contrast

from workbench.look import curves_view, png
from workbench.look.figures import Plot, Trace, plotly_figure
from workbench.look.html import PLOTLY
from workbench.look.looks import BLUE, ORANGE
from workbench.look.png import plots_drawing


@pytest.fixture
def outputs(monkeypatch):
    """What showing curves as the last line of a cell sends to the front end."""
    pytest.importorskip("IPython")
    import IPython.display

    sent: list[dict] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: sent.append(bundle))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    curves_view(examples.steps(), examples.evaluations(), title="first")._ipython_display_()
    return sent


def test_the_curves_and_below_them_the_rest(outputs):
    curves, rest = outputs
    assert set(curves) == {PLOTLY, "image/png", "text/plain"} and curves["text/plain"].startswith(
        "first, steps 1 to 24"
    )
    assert {trace["name"] for trace in curves[PLOTLY]["data"]} >= {
        "random",
        "solver",
        "held out, sampled",
    }
    assert "The numbers, steps 1 to 24" in rest["text/html"] and "<img" not in rest["text/html"], (
        "not the picture twice"
    )
    assert "held out, greedy: step 0: 0.380" in rest["text/plain"]


@pytest.mark.parametrize("progress", [None, "batch"])
def test_an_open_lab_draws_plotly_at_the_width_that_is_there_and_is_sent_no_png(
    monkeypatch, progress
):
    """It shows a PNG 1,221 pixels wide, with a scrollbar, until somebody points at it."""
    pytest.importorskip("plotly")
    import IPython.display

    sent: list[dict] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: sent.append(bundle))
    monkeypatch.setenv("JPY_SESSION_NAME", "/x.ipynb")
    monkeypatch.delenv("WORKBENCH_PROGRESS", raising=False)
    if progress is not None:
        monkeypatch.setenv("WORKBENCH_PROGRESS", progress)
    curves_view(examples.steps(), examples.evaluations())._ipython_display_()
    assert ("image/png" in sent[0]) == (progress is not None)
    layout = sent[0][PLOTLY]["layout"]
    assert layout["autosize"] and "width" not in layout


def test_nothing_in_it_runs_or_is_loaded_and_it_is_small(outputs):
    written = json.dumps(
        [{kind: data for kind, data in bundle.items() if kind != "image/png"} for bundle in outputs]
    )
    assert "<script" not in written and "http" not in written and len(written) < 60_000


def test_outside_of_a_cell_it_is_one_view_with_its_picture():
    view = curves_view(examples.steps(), examples.evaluations())
    assert (
        set(view._repr_mimebundle_()) == {"text/plain", "text/html", "image/png"}
        and "data:image/webp" in view.html
    )


def test_an_exported_page_shows_the_picture_and_the_numbers(outputs):
    nbconvert = pytest.importorskip("nbconvert")
    import nbformat

    png, rest = (
        {**bundle, "image/png": base64.b64encode(b"\x89PNG" + end).decode()}
        for bundle, end in zip(outputs, (b"1", b"2"))
    )
    cell = nbformat.v4.new_code_cell(
        "show", outputs=[nbformat.v4.new_output("display_data", bundle) for bundle in (png, rest)]
    )
    page = nbconvert.HTMLExporter(embed_images=True).from_notebook_node(
        nbformat.v4.new_notebook(cells=[cell])
    )[0]
    assert (
        f"data:image/png;base64,{png['image/png']}" in page and "The numbers, steps 1 to 24" in page
    )
    assert rest["image/png"] not in page, (
        "where there is HTML it is shown, and its picture is for those who drop it"
    )


def test_words_alone_draw_no_picture_and_what_is_looked_at_is_drawn_once(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        png,
        "plots_drawing",
        lambda *given, **more: drawn.append(given) or plots_drawing(*given, **more),
    )
    view = curves_view(examples.steps(), examples.evaluations())
    assert "success" in view.text and str(view) == view.text and not drawn
    assert "data:image/webp" in view.html and view.png is view.png and len(drawn) == 1


# ------------------------------------------------------------------------------------------------ which line is which


def panels(*names: str, colour: str = BLUE) -> list[Plot]:
    return [
        Plot(f"panel of {name}", (Trace(name, np.arange(3.0), np.arange(3.0), colour),))
        for name in names
    ]


def test_lines_that_look_the_same_are_named_above_their_own_panel():
    """One legend with two blue lines in it would tell nobody which of them a panel shows."""
    figure = plotly_figure(panels("reward", "turns"), "a run")
    assert not figure["layout"]["showlegend"]
    titles = [each["text"] for each in figure["layout"]["annotations"]]
    assert [
        ("reward" in text.split("<br>")[1], "turns" in text.split("<br>")[1]) for text in titles
    ] == [(True, False), (False, True)]


def test_negative_control_the_same_lines_in_every_panel_have_one_legend():
    figure = plotly_figure([*panels("a"), *panels("a"), *panels("b", colour=ORANGE)], "a run")
    assert figure["layout"]["showlegend"]
    assert [trace["name"] for trace in figure["data"] if trace["showlegend"]] == ["a", "b"]
    assert not any("<br>" in each["text"] for each in figure["layout"]["annotations"])


def test_a_picture_has_as_many_legends_as_are_needed(monkeypatch):
    from matplotlib.axes import Axes

    made = []
    monkeypatch.setattr(Axes, "legend", lambda *args, **_: made.append([*args[2]]))
    plots_drawing(panels("reward", "turns"), "a run")
    assert made == [["reward"], ["turns"]]
    made.clear()
    plots_drawing([*panels("a"), *panels("b", colour=ORANGE)], "a run")
    assert not made


def test_plotly_lets_the_page_through_and_its_ink_reads_on_light_and_dark_paper():
    figure = curves_view(
        examples.steps(), examples.evaluations(), title="first"
    )._document.picture.figure
    layout = figure["layout"]
    assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
    axis = layout["template"]["layout"]["xaxis"]
    colours = {layout["font"]["color"], axis["linecolor"]}
    for trace in figure["data"]:
        colours |= {trace[part]["color"] for part in ("line", "marker") if part in trace}
    assert len(colours) > 5
    for colour in colours - {"rgba(0,114,178,0.55)"}:
        for paper in ("#ffffff", "#212121"):
            assert contrast(colour, paper) >= 2.8, (colour, paper)
    assert contrast("#06283f", "#212121") < 1.5, "the ink that a white paper has"
    inked = "<span style='color:var(--jp-content-font-color1,"
    titles = [layout["title"]["text"], *(each["text"] for each in layout["annotations"])]
    assert all(text.startswith(inked) for text in [*titles, axis["tickprefix"]])
