"""The HTML form survives where it is reopened: an untrusted JupyterLab, a dark theme, a page that drops every style."""

from __future__ import annotations

import re

import numpy as np
import pytest
import views_examples as examples
from views_page import Page

from workbench.look import doc, group_view, show_masks, show_tokens, trajectory_view
from workbench.look.html import shown
from workbench.look.looks import RED_BLUE, Look
from workbench.look.markup import Html, finished, tag
from workbench.values import Group, Segment, Source, Span, View

# What JupyterLab's sanitizer lets through for an untrusted notebook, as far as views use it (read in JupyterLab 4.6).
ELEMENTS = {
    "div",
    "span",
    "b",
    "table",
    "thead",
    "tbody",
    "tr",
    "td",
    "th",
    "details",
    "summary",
    "img",
    "pre",
}
ATTRIBUTES = {"style", "title", "src", "alt", "width"}
PROPERTIES = {
    "background",
    "border",
    "border-bottom",
    "border-collapse",
    "border-left",
    "border-radius",
    "border-right",
    "border-top",
    "color",
    "cursor",
    "display",
    "font",
    "font-family",
    "font-size",
    "font-style",
    "font-weight",
    "height",
    "line-height",
    "margin",
    "margin-right",
    "max-width",
    "min-width",
    "overflow-wrap",
    "overflow-x",
    "padding",
    "padding-right",
    "table-layout",
    "text-align",
    "vertical-align",
    "white-space",
    "width",
    "word-break",
}
ALLOWED_VALUES = {
    "white-space": {"normal", "pre", "nowrap", "pre-wrap", "pre-line"},
    "overflow-wrap": {"normal", "break-word"},
    "display": {"inline-block", "block", "inline"},
    "word-break": {"normal", "keep-all", "break-all"},
    "overflow-x": {"auto", "hidden", "visible", "scroll"},
}


@pytest.fixture(scope="module")
def pages() -> dict[str, Page]:
    return {name: Page(make("go on").html) for name, make in examples.VIEWS.items()}


@pytest.mark.parametrize("name", examples.VIEWS)
def test_nothing_that_a_sanitizer_removes(pages, name):
    page = pages[name]
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert {key for _, attributes in page.elements for key in attributes} <= ATTRIBUTES
    for _, style in page.styles():
        assert set(style) <= PROPERTIES
        assert all(style[key] in allowed for key, allowed in ALLOWED_VALUES.items() if key in style)


@pytest.mark.parametrize("name", examples.VIEWS)
def test_both_colours_are_named_where_a_theme_would_shine_through(pages, name):
    styles = pages[name].styles()
    assert {"color", "background"} <= set(styles[0][1]), "the root"
    for element, style in styles:
        if element == "table":
            assert {"color", "border-collapse"} <= set(style), "JupyterLab's tables have their own"
        if element == "tr":
            assert "background" in style
        if element in ("td", "th"):
            assert "padding" in style, "JupyterLab's own is 0.5em"


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.1)."""
    if len(colour) == 4:
        colour = "#" + "".join(2 * digit for digit in colour[1:])
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", examples.VIEWS)
def test_text_stands_out_from_its_paper(pages, name):
    for element, style in pages[name].styles():
        if "color" in style and style.get("background", "0") != "0":
            assert contrast(style["color"], style["background"]) >= 4.5, (element, style)


def test_text_stands_out_on_every_step_of_red_to_blue():
    assert min(contrast(ink, paper) for paper, ink in RED_BLUE) >= 4.5
    assert contrast("#888888", "#999999") < 4.5, "the measure itself can say no"


def without_styles(view: View) -> str:
    """What a page shows that drops styles and tooltips."""
    return Page(re.sub(r" (style|title)='[^']*'", "", view.html)).text


def test_author_and_trained_are_told_without_colour():
    text = without_styles(
        show_tokens(examples.trajectory(segments=examples.rewritten()), examples.token_texts)
    )
    for mark in (
        "prompt turn 0",
        "template turn 0",
        "TRAIN turn 0, 6",
        "repeated turn 0, 6",
        "env turn 0",
        "TRAIN turn 1, 5",
    ):
        assert mark in text
    assert "segment 1 of 2" in text and "segment 2 of 2" in text


def test_outcome_and_grid_are_told_without_colour():
    text = without_styles(trajectory_view(examples.trajectory()))
    assert "✓ success" in text and "format: The tag <answer> is missing" in text and "cut:" in text
    assert "P__O" in text, "the cells carry their letters"
    assert "! fault" in without_styles(group_view(examples.group()))


def test_trained_tokens_have_a_bar_on_top_and_their_logprob_in_the_tooltip():
    page = Page(show_tokens(examples.trajectory(), examples.token_texts).html)
    titles = [a["title"] for _, a in page.elements if a.get("title", "").startswith("id ")]
    assert len(titles) == examples.trajectory().num_sampled
    assert titles[0] == "id 82 · logprob -0.1250 (probability 0.882)"
    papers = [style for _, style in page.styles() if style.get("background") == "#bfdff5"]
    assert papers and all("solid" in style["border-top"] for style in papers)
    assert not any("text-decoration" in style for _, style in page.styles())


@pytest.mark.parametrize("tokens, segments", [(32_768, 1), (32_768, 40), (300, 300)])
def test_a_long_trajectory_stays_small_and_says_what_it_hides(tokens, segments):
    each = tokens // segments
    policy = each // 2
    one = Segment(
        (
            Span(Source.PROMPT, 0, [97] * (each - policy)),
            Span(Source.POLICY, 0, [98] * policy, np.full(policy, -1.0), sampled=True),
        )
    )
    trajectory = examples.trajectory(segments=(one,) * segments)
    view = show_tokens(trajectory, examples.token_texts)
    assert len(view.html) < 700_000 and len(Page(view.html).elements) < 5_000
    assert re.search(r"[\d,]+ hidden", view.text) and re.search(r"[\d,]+ hidden", view.html)
    masks = show_masks([Group((trajectory,))])
    assert len(masks.html) < 200_000 and len(masks.text) < 10_000


def test_long_texts_and_many_turns_are_capped_with_a_notice():
    view = trajectory_view(examples.trajectory("long " * 50_000))
    assert len(view.html) < 200_000 and "characters not shown" in view.text
    one = examples.trajectory()
    turns = tuple(type(t)(i, t.text, reward=0.0) for i in range(200) for t in one.turns[:1])
    many = type(one)(one.task, 0, 0, one.first_observation, turns, one.segments, one.stop_reason)
    assert "150 turns not shown" in trajectory_view(many).text


def test_a_view_cannot_be_made_of_markup_that_was_not_escaped():
    with pytest.raises(TypeError, match="markup.tag"):
        finished("<b>x</b>", "x")
    assert finished(tag("b", "x"), "a\x1b").text == "a␛"
    assert isinstance(tag("b"), Html)


def test_figures_stay_in_one_line_and_the_words_above_them_may_break():
    columns = ["arm", *doc.numbers("γ = λ = 1, unwhitened")]
    page = shown(doc.ViewDocument((doc.Table(columns, [["ppo", "1 000"]]),))).html
    head, cell = (
        re.search(rf"<{name} style='([^']*)'>{text}", page)[1]
        for name, text in (("th", "γ"), ("td", "1 000"))
    )
    assert "white-space" not in head and "white-space:nowrap" in cell


# ------------------------------------------------------------------------------------------------ notebooks keep it


def bytes_of_more(few: View, many: View, things: int) -> float:
    """What each of the things costs that only the second view has."""
    return (len(many.html) - len(few.html)) / things


def test_a_cell_of_numbers_costs_little_more_than_its_number():
    """Hundreds of cells stand in a notebook: what they share is said by their table."""
    columns = doc.numbers("step", *(f"metric {n}" for n in range(9)))

    def cost(dense):
        few, many = (
            shown(doc.ViewDocument((doc.Table(columns, [["0.125"] * 10] * rows, dense=dense),)))
            for rows in (1, 21)
        )
        return bytes_of_more(few, many, 200)

    assert cost(dense=False) < 40 and cost(dense=True) < 14


def test_a_dense_table_is_text_in_columns_that_keeps_its_colours_and_titles():
    columns = ["who", *doc.numbers("much")]
    rows = [["a", "1"], ["long\nname", doc.Cell("-22", Look("#b2182b", "#ffffff"), title="why")]]
    page = Page(shown(doc.ViewDocument((doc.Table(columns, rows, dense=True),))).html)
    lines = ["".join(page.texts).split("\n")[n] for n in range(3)]
    assert lines == [" who        much ", " a             1 ", " long⏎name   -22 "]
    [title] = [attributes["title"] for _, attributes in page.elements if "title" in attributes]
    assert title == "why" and not page.problems


def test_neighbours_of_one_look_cost_their_text_and_title():
    def row(looks):
        tokens = tuple(doc.Styled("a", look, title="id 1") for look in looks)
        return shown(doc.ViewDocument((doc.Tokens((doc.TokenRun("TRAIN", tokens),)),)))

    same = Look("#bfdff5", "#06283f", top="3px solid #0072b2", right="1px solid #ffffff")
    other = Look("#fddbc7", "#06283f", top="3px solid #0072b2", right="1px solid #ffffff")
    alike = bytes_of_more(row([same] * 2), row([same] * 42), 40)
    apart = bytes_of_more(row([same, other]), row([same, other] * 21), 40)
    assert alike < 70 and apart > 110, "negative control: of another look each says its own"


def test_the_root_names_the_colours_that_are_used():
    plain = shown(doc.ViewDocument((doc.Heading("a"),))).html
    quiet = shown(doc.ViewDocument((doc.Heading("a"), doc.Note("b")))).html
    assert "--w1:" not in plain and "--w1:var(--jp-content-font-color2" in quiet
    for html in (plain, quiet):
        used = set(re.findall(r"var\((--w\w)", html))
        assert used == set(re.findall(r"(--w\w):", html)), "each that is used is set, and no other"


def test_where_words_may_break_a_row_says_where_its_cells_stand():
    def row(text):
        return shown(doc.ViewDocument((doc.Table(["a", "b"], [["x", text]]),))).html

    assert "vertical-align:top" in row("word " * 40) and "vertical-align:top" not in row("a word")
