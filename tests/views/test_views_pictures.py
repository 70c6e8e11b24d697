"""The PNG forms: drawn for any text, the same bytes for the same value."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import views_examples as examples
from PIL import Image

from workbench.look import curves_view, evaluation_view


@pytest.mark.parametrize("payload", ["$\\frac{$", "\x00\x1b\u202e<script>", "a\ud800 日本"])
def test_pictures_of_hostile_text_are_drawn(payload):
    assert examples.VIEWS["curves"](payload).png.startswith(b"\x89PNG")
    assert examples.VIEWS["evaluation"](payload).png.startswith(b"\x89PNG")


def test_the_same_value_gives_the_same_bytes_and_another_value_others():
    one = curves_view(examples.steps(), examples.evaluations())
    assert one.png == curves_view(examples.steps(), examples.evaluations()).png
    assert one.png != curves_view(examples.steps(20), examples.evaluations()).png
    assert (
        evaluation_view(examples.baseline_rows()).png
        == evaluation_view(examples.baseline_rows()).png
    )


def test_pictures_of_next_to_nothing():
    """One step, a gap, no baselines, a gradient of zero: no warning becomes an error, nothing is divided by zero."""
    row = {"step": 1, "success": 0.0, "grad_norm": 0.0, "entropy": None}
    assert curves_view([row]).png.startswith(b"\x89PNG")
    assert curves_view([], examples.evaluations()).png.startswith(b"\x89PNG")


PICTURE = """async () => {
    const shown = document.querySelector('img');
    await shown.decode();
    const { top, left, width, height } = shown.getBoundingClientRect();
    return { x: left, y: top + window.scrollY, width, height };
}"""


@pytest.mark.debian("chromium", "fonts-dejavu-core")
@pytest.mark.parametrize("where", ["light", "dark lab", "dark page"])
def test_a_drawing_has_the_paper_of_its_card_and_ink_that_reads_on_it(page, tmp_path, where):
    page.emulate_media(color_scheme="dark" if where == "dark page" else "light")
    page.goto(examples.VIEWS["curves"]("word").save(tmp_path / "curves.html").as_uri())
    if where == "dark lab":
        theme = (
            "--jp-layout-color1:#212121;--jp-content-font-color1:#fff;--jp-shadow-base-lightness:32"
        )
        page.add_style_tag(content=f":root{{{theme}}}")
    taken = page.screenshot(clip=page.evaluate(PICTURE), full_page=True)
    pixels = np.asarray(Image.open(BytesIO(taken)).convert("L"), int)
    card = page.evaluate("getComputedStyle(document.body.firstElementChild).backgroundColor")
    paper = int(np.bincount(pixels.ravel()).argmax())
    assert abs(paper - int(np.mean([int(part) for part in card[4:-1].split(",")]))) <= 1, card
    assert (paper > 250) == (where == "light")
    lowest, highest = np.percentile(pixels, [0.2, 99.8])
    assert (lowest < 120) if where == "light" else (highest > 150), "ink"
