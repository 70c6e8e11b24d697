"""A run under way and two runs compared, as pictures: everything foreign is escaped, and nothing needs colour."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.look import diff_view, live_view
from workbench.look.live import Status, live_panels
from workbench.look.run_diff import RunDiff, RunDifference
from workbench.run.file_diff import ColumnDifference

EVIL = "<img src=x onerror=window.__xss=1>\x1b[31m\u202e</script>$"


def rows(steps: int, **more):
    return [
        {
            "step": step,
            "success": 0.4 + step / 100,
            "reward_mean": 0.1 * step,
            "reward_std_in_group": 0.2,
            "entropy": 1.0 / step,
            "grad_norm": 0.5,
            **more,
        }
        for step in range(1, steps + 1)
    ]


def evaluation(*names: str):
    return {
        "step-00000000": {
            "step": 0,
            "rows": [
                {
                    "policy": name,
                    "mode": "sampled",
                    "n": 8,
                    "success": 0.2 + i / 5,
                    "success_low": 0.1,
                    "success_high": 0.9,
                    "reward": 0.3,
                }
                for i, name in enumerate(names)
            ],
        }
    }


def test_a_run_under_way_is_one_line_and_its_curves_with_their_baselines():
    status = Status("first", "running", 7, 20, "step 8: playing", 83.0, ("update skipped",))
    view = live_view(
        status, rows(7, explained_variance=0.3), evaluation("random", "untrained", "solver")
    )
    assert view.text.splitlines()[:2] == [
        "first  [running]  step 7 of 20 · step 8: playing · 1:23",
        "! update skipped",
    ]
    assert (
        "success 0.47 (random 0.2, untrained 0.4, solver 0.6)" in view.text and view.picture is None
    )
    drawn = json.dumps(
        live_panels(rows(7, explained_variance=0.3), evaluation("random", "untrained", "solver"))
    )
    for word in (
        "success",
        "reward",
        "reward std within a group",
        "gradient norm",
        "entropy",
        "explained variance",
        "random",
        "untrained",
        "solver",
    ):
        assert word in drawn and word in view.html, word
    assert "KL" not in drawn, "there is none"


@pytest.mark.parametrize("at", [0, 12_345, 19_999])
def test_of_a_long_run_every_peak_is_still_drawn_in_a_small_picture(at):
    """One value for each pixel is not enough: a single bad step must not vanish between two others."""
    long = [
        {"step": step, "reward_mean": 5.0 if step - 1 == at else 0.5} for step in range(1, 20_001)
    ]
    [panel] = live_panels(long, {})
    [value] = [trace for trace in panel["traces"] if trace["name"] == "training"]
    assert len(json.dumps(panel)) < 60_000 and max(value["y"]) == 5.0 and min(value["y"]) == 0.5
    assert value["x"][value["y"].index(5.0)] == at + 1


def test_a_kl_that_is_always_zero_is_left_out_and_one_that_is_not_is_drawn():
    titles = [
        [panel["title"].split("(")[0] for panel in live_panels(rows(3, approx_kl=kl), {})]
        for kl in (0.0, 1e-9)
    ]
    assert "KL" not in titles[0] and "KL" in titles[1]


def test_a_run_that_has_ended_is_shown_as_show_run_shows_it_with_a_png():
    view = live_view(
        Status("first", "failed", 3, 20, "", 9.0, ("status 1: OOM",)), rows(3), evaluation("random")
    )
    assert (
        view.png.startswith(b"\x89PNG")
        and "no untrained, solver baseline" in view.text
        and "status 1: OOM" in view.text
    )
    assert (
        live_view(Status("first", "running", 0, 20, "starting"), [], {}).text
        == "first  [running]  step 0 of 20 · starting"
    )


def test_nothing_foreign_acts():
    status = Status(EVIL, "running", 1, 20, EVIL, 1.0, (EVIL,))
    view = live_view(status, rows(2), evaluation(EVIL))
    panels = json.dumps(live_panels(rows(2), evaluation(EVIL)), ensure_ascii=False)
    for text in (view.html, panels, status.view().html):
        assert (
            "<img src=x" not in text
            and "\x1b" not in text
            and "\u202e" not in text
            and "</script>" not in text
        )
    assert "\x1b" not in view.text and "\u202e" not in view.text


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(
            st.none() | st.floats(allow_nan=True, allow_infinity=True), min_size=2, max_size=2
        ),
        max_size=6,
    )
)
def test_whatever_the_numbers_are_the_picture_is_sound(values):
    """Missing, huge, tiny, negative, infinite, equal: JSON without NaN, as a browser reads it."""
    made = [{"step": i + 1, "success": a, "grad_norm": b} for i, (a, b) in enumerate(values)]
    with np.errstate(all="ignore"):
        panels = live_panels(made, {})
    json.dumps(panels, allow_nan=False)
    for panel in panels:
        assert all(len(trace["x"]) == len(trace["y"]) for trace in panel["traces"])


# ------------------------------------------------------------------------------------------------ two runs


def diff(**changes) -> RunDiff:
    table = {
        "trajectories": ("", "=", "≠"),
        "credit": ("", "=", "≠"),
        "metrics": ("", "=", "a"),
        "evaluation": ("=", "", "b"),
        "checkpoint": ("", "", "="),
    }
    first = RunDifference("settings", None, "config.json", f"{EVIL} is not 1")
    return RunDiff(
        **{
            **dict(
                a=Path("runs/a"),
                b=Path("runs/b"),
                exact=False,
                settings=((EVIL, EVIL, None),),
                steps=(0, 1, 2),
                table=table,
                differences=(first, RunDifference("credit", 2, "steps/x", EVIL)),
                digests=("0" * 64, "1" * 64),
                notes=(EVIL,),
                credit=(ColumnDifference("weight", 3, 0.5, "token 7: 1 is not 2"),),
            ),
            **changes,
        }
    )


def test_two_runs_side_by_side_say_where_they_part_in_words_and_marks():
    view = diff_view(diff(), rows(3), rows(4), evaluation("random"))
    assert view.text.startswith("different: config.json: ")
    for line in (
        "trajectories  ·=≠",
        "metrics       ·=a",
        "evaluation    =·b",
        "weight 3 0.5 token 7: 1 is not 2",
    ):
        assert line in re.sub("  +", " ", view.text) or line in view.text, view.text
    assert view.png.startswith(b"\x89PNG")
    assert (
        "\x1b" not in view.text + view.html
        and "<img src=x" not in view.html
        and "\u202e" not in view.html
    )


def test_equal_runs_say_how_sure_that_is():
    empty = dict(settings=(), differences=(), credit=(), notes=())
    assert "every hashed byte was read" in diff_view(diff(exact=True, **empty)).text
    assert (
        "--exact reads every byte" in diff_view(diff(**empty)).text
        and diff_view(diff(**empty)).picture is None
    )


@pytest.mark.parametrize("at", [0, 59, 60, 998])
def test_of_a_thousand_steps_the_one_that_differs_is_still_seen(at):
    marks = tuple("≠" if step == at else "=" for step in range(999))
    text = diff_view(diff(steps=tuple(range(999)), table={"metrics": marks})).text
    assert text.count("≠") == 2 and "17 steps a column" in text, (
        "once in the table, once in the legend"
    )


def test_a_diff_is_shown_for_what_it_is_not_for_its_class():
    """`views` must open without the rooms above them: any value with these names will do."""
    same = SimpleNamespace(**vars(diff()), equal=False, first=diff().first)
    assert diff_view(same).text == diff_view(diff()).text
