"""The PNG forms: drawn for any text, the same bytes for the same value."""

from __future__ import annotations

import pytest
import views_examples as examples

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
