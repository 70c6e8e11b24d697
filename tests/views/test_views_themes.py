"""Every view in a light and a dark theme: text that reads, nothing cut off, one file that needs nothing else."""

from __future__ import annotations

import pytest
import views_examples as examples

import workbench as wb
from workbench.look.looks import CARD, INK, THEME
from workbench.look.markup import Page, tag, themed
from workbench.look.text_png import text_png
from workbench.values import View
from workbench.values.errors import DataError

# WCAG 2.1, 1.4.3: of every piece of text against the nearest background below it; of a picture nothing is known.
CONTRASTS = """() => {
    const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const parsed = (text) => text.match(/[\\d.]+/g).map((part, at) => (text.startsWith("color(srgb") && at < 3 ? 255 : 1) * part);
    const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        if (!node.textContent.trim() || !node.parentElement.getClientRects().length) continue;
        let paper = node.parentElement;
        while (paper && (parsed(getComputedStyle(paper).backgroundColor)[3] ?? 1) === 0) paper = paper.parentElement;
        const [a, b] = [parsed(getComputedStyle(node.parentElement).color), paper ? parsed(getComputedStyle(paper).backgroundColor) : [255, 255, 255]].map(light);
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) found.push([ratio.toFixed(2), node.textContent.trim().slice(0, 40), getComputedStyle(node.parentElement).color, paper && getComputedStyle(paper).backgroundColor]);
    }
    return found;
}"""


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All examples on one page."""
    path = tmp_path_factory.mktemp("themes") / "views.html"
    return Page("".join(make("word").html for make in examples.VIEWS.values()), "").save(path)


@pytest.mark.debian("chromium", "fonts-dejavu-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_reads_in_both_themes(everything, page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto(everything.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    cards = page.evaluate(
        "[...new Set([...document.body.children].map(each => getComputedStyle(each).backgroundColor))].length"
    )
    assert page.evaluate(CONTRASTS) == [] and cards == 1
    dark = (
        page.evaluate("getComputedStyle(document.body.firstElementChild).backgroundColor")
        != "rgb(255, 255, 255)"
    )
    assert dark == (scheme == "dark") and not page.outside + page.trouble


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_negative_control_pale_text_is_found(page, tmp_path):
    pale = tag(
        "div",
        tag("span", "pale", style="color:#bbbbbb"),
        style=f"background:{CARD};color:{INK}",
    )
    page.goto(Page(pale, "").save(tmp_path / "pale.html").as_uri())
    assert [text for _, text, *_ in page.evaluate(CONTRASTS)] == ["pale"]


def test_a_colour_is_said_plainly_first_for_those_who_know_no_themes():
    assert themed(f"color:{INK};padding:1px") == f"color:{INK};color:var(--w0);padding:1px"
    own = tag(
        "div", tag("span", "x", style=f"color:{INK}"), style=f"background:#fff3d6;color:{INK}"
    )
    assert f"--w0:{INK}" in own and own.count("var(") == 1, (
        "a paper of its own stays light, and what stands on it"
    )


@pytest.mark.debian("chromium", "fonts-dejavu-core")
@pytest.mark.parametrize("width", [640, pytest.param(1900, marks=pytest.mark.full)])
def test_no_view_makes_the_page_wider_than_the_window(everything, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(everything.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width


# ------------------------------------------------------------------------------------------------ one file, one picture


def test_a_view_is_saved_as_a_page_a_picture_or_a_text(tmp_path):
    view = examples.VIEWS["group"]("a")
    assert (
        view.save(tmp_path / "new" / "x.html").read_text().startswith("<!doctype html>")
        and "<script" not in view.html
    )
    assert view.save(tmp_path / "x.png").read_bytes() == view.png and view.png.startswith(
        b"\x89PNG"
    )
    assert view.save(str(tmp_path / "x.txt")).read_text() == view.text + "\n"
    view.save(tmp_path / "x.txt")  # again, over it
    with pytest.raises(
        DataError, match=r"saved as \.html, \.png, \.txt, \.svg, \.pdf; got 'x\.gif'"
    ):
        view.save(tmp_path / "x.gif")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new", "x.png", "x.txt"]


def test_a_view_without_a_picture_draws_its_text(tmp_path):
    from io import BytesIO

    from PIL import Image

    sizes = {}
    for name, text in {
        "one": "one line",
        "two": "one line\nanother",
        "many": "\n".join(f"line {n}" for n in range(200)),
        "wide": "x" * 1000,
        "none": "",
    }.items():
        image = Image.open(BytesIO(text_png(text)))
        sizes[name] = image.size
        dark = sum(count for count, colour in image.convert("L").getcolors() if colour < 128)
        assert (dark > 20) == (name != "none")
    assert sizes["two"][1] > sizes["one"][1] and sizes["many"][1] < 1100 and sizes["wide"][0] < 1500
    assert len(text_png("\n".join("word " * 30 for _ in range(60)))) < 25_000


@pytest.mark.parametrize("name", list(examples.VIEWS))
def test_every_view_has_all_three_forms(name):
    bundle = examples.VIEWS[name]("word")._repr_mimebundle_()
    assert (
        {"text/plain", "text/html", "image/png"} <= set(bundle)
        and bundle["image/png"].startswith(b"\x89PNG")
        and bundle["text/plain"].strip()
    )


@pytest.mark.parametrize("name", ["curves", "forest", "evaluation", "heat", "mismatch"])
def test_curves_and_marks_are_saved_as_a_figure_for_a_paper(tmp_path, name):
    from matplotlib.figure import Figure

    view = examples.VIEWS[name]("word")
    assert callable(view.drawer)
    view = Page(view.html, view.text)
    view.__dict__["drawer"] = lambda width=5.0: _marked(Figure(figsize=(width, 2.0)))
    svg = view.save(tmp_path / "x.svg", width=3.3, height=2.2).read_text()
    assert f'width="{3.3 * 72:g}pt" height="{2.2 * 72:g}pt"' in svg
    assert "<text" not in svg and "<path" in svg and "<dc:date>" not in svg
    pdf = view.save(tmp_path / "x.pdf", width=3.3).read_bytes()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf and b"/MediaBox [ 0 0 237.6 144 ]" in pdf
    assert view.save(tmp_path / "y.pdf", width=3.3).read_bytes() == pdf
    dark = view.save(tmp_path / "dark.svg", dark=True).read_text()
    assert THEME[CARD][1] in dark and THEME[CARD][1] not in svg


def _marked(drawing):
    drawing.add_subplot().set_title("marks", color=INK)
    return drawing


def test_a_view_without_a_figure_says_so_and_sizes_are_inches(tmp_path):
    table = examples.VIEWS["config"]("word")
    for path, more in (("x.svg", {}), ("x.pdf", {}), ("x.png", {"width": 3.3})):
        with pytest.raises(DataError, match="text, tables or tokens has no figure"):
            table.save(tmp_path / path, **more)
    with pytest.raises(DataError, match=r"width, height and dark are for \.svg, \.pdf, \.png"):
        table.save(tmp_path / "x.html", width=3.3)
    curves = examples.VIEWS["forest"]("word")
    with pytest.raises(DataError, match="are inches, 1 to 40, got 330"):
        curves.save(tmp_path / "x.pdf", width=330)
    assert not list(tmp_path.iterdir())


@pytest.mark.debian("chromium", "fonts-dejavu-core")
def test_a_view_takes_the_paper_and_ink_of_a_dark_jupyterlab(everything, page):
    page.emulate_media(color_scheme="light")
    page.goto(everything.as_uri())
    theme = (
        "--jp-layout-color1:#212121;--jp-layout-color2:#424242;--jp-content-font-color1:#ffffff;"
    )
    theme += "--jp-content-font-color2:#c0c0c0;--jp-border-color2:#616161"
    page.add_style_tag(content=f":root{{{theme}}}")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    papers = page.evaluate(
        "[...new Set([...document.body.children].map(each => getComputedStyle(each).backgroundColor))]"
    )
    assert papers[0] == "rgb(33, 33, 33)", "the light sheet in a dark page"
    assert page.evaluate(CONTRASTS) == []


def test_a_view_that_is_made_by_hand_is_saved_too(tmp_path):
    mine = View("<b>7</b>", "seven")
    assert "<b>7</b>" in wb.show(mine).save(tmp_path / "shown.html").read_text()
    assert mine.save(tmp_path / "own.txt").read_text() == "seven\n"


def test_what_a_value_shows_can_be_saved(tmp_path):
    assert wb.show(wb.load_config("bandit")).save(tmp_path / "config.html").stat().st_size > 1000
