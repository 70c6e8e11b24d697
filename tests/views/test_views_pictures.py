"""The PNG twins: drawn for any text, the same bytes for the same value."""

from __future__ import annotations

import pytest
import views_examples as examples

from workbench.views import show_curves, show_evaluation


@pytest.mark.parametrize("payload", ["$\\frac{$", "\x00\x1b\u202e<script>", "a\ud800 日本"])
def test_pictures_of_hostile_text_are_drawn(payload):
    assert examples.VIEWS["curves"](payload).png.startswith(b"\x89PNG")
    assert examples.VIEWS["evaluation"](payload).png.startswith(b"\x89PNG")


def test_the_same_value_gives_the_same_bytes_and_another_value_others():
    one = show_curves(examples.steps(), examples.evaluations())
    assert one.png == show_curves(examples.steps(), examples.evaluations()).png
    assert one.png != show_curves(examples.steps(20), examples.evaluations()).png
    assert show_evaluation(examples.neighbours()).png == show_evaluation(examples.neighbours()).png


def test_pictures_of_next_to_nothing():
    """One step, a gap, no neighbours, a gradient of zero: no warning becomes an error, nothing is divided by zero."""
    row = {"step": 1, "success": 0.0, "grad_norm": 0.0, "entropy": None}
    assert show_curves([row]).png.startswith(b"\x89PNG")
    assert show_curves([], examples.evaluations()).png.startswith(b"\x89PNG")
