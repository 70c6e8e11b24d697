"""The text form of every view, compared with a file that a person has read.

After a wanted change: UPDATE_GOLDEN=1 pytest tests/views/test_views_text.py, then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import views_examples as examples

from workbench.look import (
    config_view,
    credit_of,
    curves_view,
    demo_view,
    evaluation_view,
    group_view,
    show_counts,
    show_masks,
    show_metrics,
    show_tokens,
    trajectory_view,
)
from workbench.values import Segment, Source, Span, Trajectory, View

GOLDEN = Path(__file__).parent / "golden"


def long_tokens() -> View:
    """More tokens than there is room for."""
    spans = (
        Span(Source.PROMPT, 0, [97] * 300),
        Span(Source.POLICY, 0, [98] * 20, np.full(20, -1.0), sampled=True),
    )
    return show_tokens(
        examples.trajectory(segments=(Segment(spans),)), examples.token_texts, max_tokens=60
    )


CASES = {
    "trajectory": lambda: trajectory_view(examples.trajectory()),
    "trajectory-without-grid": lambda: trajectory_view(examples.no_grid()),
    "group": lambda: group_view(examples.group()),
    "tokens": lambda: show_tokens(examples.trajectory(), examples.token_texts),
    "tokens-rewritten-history": lambda: show_tokens(
        examples.trajectory(segments=examples.rewritten()), examples.token_texts
    ),
    "tokens-credit": lambda: show_tokens(
        examples.trajectory(), examples.token_texts, credit_of(examples.credit_table(), 1)
    ),
    "tokens-capped": long_tokens,
    "masks": lambda: show_masks([examples.group()]),
    "curves": lambda: curves_view(examples.steps(), examples.evaluations()),
    "curves-alone": lambda: curves_view(examples.steps(3)),
    "evaluation": lambda: evaluation_view(
        [*examples.baseline_rows(), examples.score("trained", "sampled", 0.55, faults=1)],
        [examples.pair()],
    ),
    "evaluation-gap": lambda: evaluation_view(
        [examples.score("trained", "sampled", 0.55)], absent={"solver": "none known"}
    ),
    "demo": lambda: demo_view(examples.demo_table()),
    "metrics": lambda: show_metrics(examples.steps(3)[2], examples.steps(3)[1]),
    "config": lambda: config_view(
        {"train": {"steps": 40, "lr": 0.001}, "env": {"slip": 0.2}, "extra": ()},
        {"train": {"steps": 20, "lr": 0.001}, "env": {"slip": 0.2}, "gone": 1},
    ),
    "credit": examples.credit_example,
    "estimators": lambda: examples.VIEWS["estimators"]("grpo"),
    "mask-switches": examples.switches,
    "retokenized": examples.retokenized,
    "lint": examples.lint_example,
    "counts": lambda: show_counts([examples.group()]),
}


@pytest.mark.parametrize("name", CASES)
def test_text_form(name):
    path, text = GOLDEN / f"{name}.txt", CASES[name]().text + "\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden file {path.name}; make it with UPDATE_GOLDEN=1 and read it"
    assert text == path.read_text(encoding="utf-8")


def test_every_golden_file_has_a_case():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


def test_an_untouched_value_gives_the_same_view_again():
    """Views are pure: same value, same bytes."""
    for name in ("trajectory", "tokens-credit", "masks", "curves", "evaluation"):
        assert CASES[name]() == CASES[name](), name


def test_an_empty_trajectory_has_every_view():
    """A fault before the first observation leaves nothing but a stop reason."""
    one = examples.no_grid()
    empty = Trajectory(
        one.task,
        0,
        0,
        type(one.first_observation)(()),
        (),
        (),
        one.stop_reason,
        error="did not start",
    )
    for view in (trajectory_view(empty), show_tokens(empty, examples.token_texts)):
        assert "did not start" in view.text or "0 tokens" in view.text
    assert show_masks([examples.Group((empty,))]).text == "no tokens to show"
    assert "1 not scored" in group_view(examples.Group((empty,))).text
