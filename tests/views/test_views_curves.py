"""Views with curves in a notebook: two outputs, small, without a script, complete also where plotly is not."""
from __future__ import annotations

import base64
import json

import pytest
import views_examples as examples

from workbench.views import show_curves
from workbench.views.html import PLOTLY


@pytest.fixture
def outputs(monkeypatch):
    """What showing curves as the last line of a cell sends to the front end."""
    pytest.importorskip("IPython")
    import IPython.display

    sent: list[dict] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: sent.append(bundle))
    show_curves(examples.steps(), examples.evaluations(), title="first")._ipython_display_()
    return sent


def test_the_curves_and_below_them_the_rest(outputs):
    curves, rest = outputs
    assert set(curves) == {PLOTLY, "image/png", "text/plain"} and curves["text/plain"].startswith("first, steps 1 to 24")
    assert {trace["name"] for trace in curves[PLOTLY]["data"]} >= {"random", "solver", "held out, sampled"}
    assert "The numbers, steps 1 to 24" in rest["text/html"] and "<img" not in rest["text/html"], "not the picture twice"
    assert "held out, greedy: step 0: 0.380" in rest["text/plain"]


def test_nothing_in_it_runs_or_is_loaded_and_it_is_small(outputs):
    written = json.dumps([{kind: data for kind, data in bundle.items() if kind != "image/png"} for bundle in outputs])
    assert "<script" not in written and "http" not in written and len(written) < 60_000


def test_outside_of_a_cell_it_is_one_view_with_its_picture():
    view = show_curves(examples.steps(), examples.evaluations())
    assert set(view._repr_mimebundle_()) == {"text/plain", "text/html", "image/png"} and "data:image/png" in view.html


def test_an_exported_page_shows_the_picture_and_the_numbers(outputs):
    nbconvert = pytest.importorskip("nbconvert")
    import nbformat

    png, rest = ({**bundle, "image/png": base64.b64encode(b"\x89PNG" + end).decode()} for bundle, end in zip(outputs, (b"1", b"2")))
    cell = nbformat.v4.new_code_cell("show", outputs=[nbformat.v4.new_output("display_data", bundle)
                                                      for bundle in (png, rest)])
    page = nbconvert.HTMLExporter(embed_images=True).from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))[0]
    assert f"data:image/png;base64,{png['image/png']}" in page and "The numbers, steps 1 to 24" in page
    assert rest["image/png"] not in page, "where there is HTML it is shown, and its picture is for those who drop it"


def test_words_alone_draw_no_picture_and_what_is_looked_at_is_drawn_once(monkeypatch):
    from workbench.views import curves

    drawn, draw = [], curves.plots_png
    monkeypatch.setattr(curves, "plots_png", lambda *given: drawn.append(given) or draw(*given))
    view = show_curves(examples.steps(), examples.evaluations())
    assert "success" in view.text and str(view) == view.text and not drawn
    assert base64.b64encode(view.png).decode() in view.html and view.png is view.png and len(drawn) == 1
