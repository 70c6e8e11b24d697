"""What the numbers of all steps say of a filter."""

from __future__ import annotations

from workbench.look import curves_view
from workbench.rollouts.metrics import filter_words

NAN = float("nan")


def row(kept: float, updates: float, removed: float, **more: float) -> dict[str, float]:
    return {
        "updates": updates,
        "credit_filter_kept": kept,
        "credit_filter_groups_kept": 4 * kept,
        "credit_filter_groups_left_out": 4 - 4 * kept,
        "credit_filter_groups_flat": 1.0,
        "credit_filter_std_all": 0.25,
        "credit_updates_removed_by_filter": removed,
    } | more


def test_without_a_filter_there_is_nothing_to_say():
    assert filter_words([]) == "" == filter_words([{"updates": 4, "success": 0.5}])


def test_what_is_kept_and_how_many_updates_that_took():
    words = filter_words(
        [row(0.5, 2, 2, credit_filter_std_kept=0.5), row(0.25, 1, 3, credit_filter_std_kept=0.75)]
    )
    assert words == (
        "filter: 38% of the scored trajectories kept, from 1.5 of 4.0 groups a step (1.0 had zero variance); reward std "
        "within groups (n - 1) 0.625 in what is kept, 0.25 in all; 3 updates made, 5 removed"
    )


def test_skipped_steps_and_single_updates_are_told():
    """A step in which nothing was left has no deviation of what is kept: missing, not zero."""
    words = filter_words(
        [row(0.25, 1, 3, credit_filter_std_kept=0.5), row(0.0, 0, 4, credit_filter_std_kept=NAN)]
    )
    assert "0.5 in what is kept" in words and "1 update made, 7 removed" in words
    assert (
        "1 of 2 steps had nothing left and were skipped" in words and "no clip could bind" in words
    )
    assert "no clip" not in filter_words([row(0.25, 1, 3), row(0.25, 2, 2)])
    nothing = filter_words([row(0.0, 0, 4)])
    assert "no clip" not in nothing and "nan" not in nothing


def test_curves_carry_a_remark():
    shown = curves_view([{"step": 1, "success": 0.5}], remark="filter: 25% <kept>")
    assert "filter: 25% <kept>" in shown.text and "filter: 25% &lt;kept&gt;" in shown.html
