"""Foreign text is only ever text: in the HTML form of every view, in its text form, and in a real browser."""

from __future__ import annotations

import io
import subprocess
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from views_examples import VIEWS
from views_page import Page

from tests.counts import reduced
from tests.payloads import PAYLOADS
from workbench.look import esc, visible
from workbench.look.markup import Html, tag
from workbench.values import View

BENIGN = "go on"


def unsafe_characters(text: str) -> set[str]:
    """Characters that act or hide, which a form must not hold."""
    kinds = {c: unicodedata.category(c) for c in set(text) - {"\n"}}
    return {c for c, kind in kinds.items() if kind[0] == "C" or kind in ("Zl", "Zp")}


def faults(view: View, benign: View) -> list[str]:
    """What is wrong with a view of hostile text, compared with the same view of harmless text."""
    page, expected = Page(view.html), Page(benign.html)
    wrong = [f"new element {shape}" for shape in page.shape - expected.shape]
    wrong += page.problems + [f"left open: {name}" for name in page.open_tags]
    wrong += [
        f"character {c!r} in {form}"
        for form, text in (("html", view.html), ("text", view.text))
        for c in unsafe_characters(text)
    ]
    for name, attributes in page.elements:
        if "src" in attributes and not attributes["src"].startswith("data:image/webp;base64,"):
            wrong.append(f"{name} loads {attributes['src'][:40]}")
    known = {str(style) for style in expected.styles()}
    wrong += [
        f"new style {style}"
        for style in page.styles()
        if "url" in str(style) and str(style) not in known
    ]
    return wrong


@pytest.fixture(scope="module")
def benign() -> dict[str, View]:
    return {name: make(BENIGN) for name, make in VIEWS.items()}


@pytest.mark.parametrize("name", reduced(PAYLOADS, list(PAYLOADS)[::3]))
def test_hostile_text_adds_no_element_no_attribute_and_no_control_character(name, benign):
    for view, make in VIEWS.items():
        assert not faults(make(PAYLOADS[name]), benign[view]), view


# Three payloads are harmless in the naive view of the control: they aim at other kinds of sloppiness.
HARMFUL = {
    name: payload
    for name, payload in PAYLOADS.items()
    if name not in ("entity", "template", "backtick")
}


@pytest.mark.parametrize("payload", HARMFUL.values(), ids=HARMFUL)
def test_negative_control_a_naive_view_is_noticed(payload):
    def naive(text: str) -> View:
        return View(f"<div title=\"{text}\">{text}</div><p title='{text}'>{text}</p>", text)

    assert faults(naive(payload), naive(BENIGN))


@pytest.mark.parametrize("name", VIEWS)
def test_hostile_text_is_shown_and_not_swallowed(name):
    payload = "<b onclick=1>\x1b[1m\u202e"
    page, spelled = Page(VIEWS[name](payload).html), "<b onclick=1>␛[1m⟨U+202E⟩"
    assert spelled in page.text or name == "masks" and page.text
    assert spelled in VIEWS[name](payload).text


@given(st.text(st.characters(), max_size=40))
@settings(max_examples=200)
def test_esc_gives_nothing_but_text(text):
    page = Page(f'<i title="{esc(text)}">{esc(text)}</i>')
    assert page.shape == {("i", frozenset({"title"}))} and not page.problems and not page.open_tags
    assert page.text == page.elements[0][1]["title"] == visible(text)
    assert not unsafe_characters(esc(text))
    esc(text).encode("utf-8")  # a lone surrogate would raise here


def test_visible_spells_out_what_acts_or_hides():
    assert visible("a\x1b[31m\u202eb\r\n\tc\x7f") == "a␛[31m⟨U+202E⟩b␍\n␉c␡"
    assert visible("a\nb", newline="⏎") == "a⏎b"
    assert visible("naïve 日本 ✓ é") == "naïve 日本 ✓ é"


def test_a_tag_escapes_every_plain_string_and_keeps_markup():
    assert (
        tag("b", "<i>", Html("<i>x</i>"), None, title="\"'")
        == "<b title='&quot;&#x27;'>&lt;i&gt;<i>x</i></b>"
    )


@pytest.mark.full
def test_a_browser_runs_nothing(chromium, tmp_path, monkeypatch):
    """Every payload in every view, in a real browser; the same payloads unescaped do run, so the test can fail. Pictures
    are left empty: they are base64 whatever they show, drawing them would be most of the time, and others here draw."""
    empty = io.BytesIO()
    Image.new("RGB", (8, 8)).save(empty, "png")
    monkeypatch.setattr("workbench.look.html.png_of", lambda *_, **__: empty.getvalue())
    hostile = "".join(
        make(payload).html for payload in PAYLOADS.values() for make in VIEWS.values()
    )
    naive = "".join(
        f"<div>{payload}</div>"
        for name, payload in PAYLOADS.items()
        if name in ("script", "onerror")
    )
    for name, body, title in (("views", hostile, "calm"), ("naive", naive, "owned")):
        page = tmp_path / f"{name}.html"
        head = '<!doctype html><meta charset="utf-8"><title>calm</title>'
        page.write_text(f"{head}<body>{body}</body>", encoding="utf-8")
        done = subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--dump-dom",
                "--disable-background-networking",
                "--virtual-time-budget=1500",
                f"--user-data-dir={tmp_path / 'profile'}",
                page.as_uri(),
            ],
            capture_output=True,
            timeout=60,
        )
        assert f"<title>{title}</title>" in done.stdout.decode("utf-8", "replace"), name
