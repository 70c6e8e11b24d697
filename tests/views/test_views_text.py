"""The text form of every view, compared with a file that a person has read.

After a wanted change: UPDATE_GOLDEN=1 pytest tests/views/test_views_text.py, then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import views_examples as examples

from workbench.types import Segment, Source, Span, Trajectory, View
from workbench.views import (
    credit_of,
    show_config,
    show_counts,
    show_curves,
    show_demo,
    show_evaluation,
    show_group,
    show_masks,
    show_metrics,
    show_tokens,
    show_trajectory,
)

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
    "trajectory": lambda: show_trajectory(examples.trajectory()),
    "trajectory-without-grid": lambda: show_trajectory(examples.no_grid()),
    "group": lambda: show_group(examples.group()),
    "tokens": lambda: show_tokens(examples.trajectory(), examples.token_texts),
    "tokens-rewritten-history": lambda: show_tokens(
        examples.trajectory(segments=examples.rewritten()), examples.token_texts
    ),
    "tokens-credit": lambda: show_tokens(
        examples.trajectory(), examples.token_texts, credit_of(examples.credit_table(), 1)
    ),
    "tokens-capped": long_tokens,
    "masks": lambda: show_masks([examples.group()]),
    "curves": lambda: show_curves(examples.steps(), examples.evaluations()),
    "curves-alone": lambda: show_curves(examples.steps(3)),
    "evaluation": lambda: show_evaluation(
        [*examples.neighbours(), examples.score("trained", "sampled", 0.55, faults=1)],
        [examples.pair()],
    ),
    "evaluation-gap": lambda: show_evaluation(
        [examples.score("trained", "sampled", 0.55)], absent={"solver": "none known"}
    ),
    "demo": lambda: show_demo(examples.demo_table()),
    "metrics": lambda: show_metrics(examples.steps(3)[2], examples.steps(3)[1]),
    "config": lambda: show_config(
        {"train": {"steps": 40, "lr": 0.001}, "env": {"slip": 0.2}, "extra": ()},
        {"train": {"steps": 20, "lr": 0.001}, "env": {"slip": 0.2}, "gone": 1},
    ),
    "progress": examples.progress_view,
    "credit": examples.credit_view,
    "estimators": lambda: examples.VIEWS["estimators"]("grpo"),
    "mask-switches": examples.switches,
    "retokenized": examples.retokenized,
    "lint": examples.lint_view,
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
    for view in (show_trajectory(empty), show_tokens(empty, examples.token_texts)):
        assert "did not start" in view.text or "0 tokens" in view.text
    assert show_masks([examples.Group((empty,))]).text == "no tokens to show"
    assert "1 not scored" in show_group(examples.Group((empty,))).text
