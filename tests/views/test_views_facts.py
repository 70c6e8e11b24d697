"""What views say is true: numbers, masks, baselines, pictures."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import numpy as np
import pytest
import views_examples as examples
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from views_page import Page

from workbench.look import (
    curves_view,
    evaluation_view,
    group_view,
    show_masks,
    show_tokens,
    trajectory_view,
)
from workbench.look.curves import curves_of, running_mean
from workbench.look.grid import find_grid
from workbench.look.looks import RED_BLUE, red_blue
from workbench.look.png import palette_png
from workbench.look.tokens import AGAIN, ENV, PROMPT, SCAFFOLD, TRAINED, kinds_of
from workbench.look.trajectory import pieces
from workbench.look.words import SPARKS, aligned, alike, sparkline
from workbench.values import Group, Segment, Source, Span, StopReason, Turn
from workbench.values.errors import DataError

SOURCES = st.sampled_from(Source)


def test_views_import_neither_torch_nor_transformers_and_pictures_only_when_drawn():
    code = (
        "import sys, workbench.look as v; [getattr(v, n) for n in v.__all__]; "
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'plotly', 'IPython') if m in sys.modules])"
    )
    root = examples.__file__.rsplit("tests", 1)[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------ tokens


@given(st.lists(st.tuples(SOURCES, st.booleans(), st.integers(0, 4)), max_size=8))
def test_a_token_is_marked_trained_exactly_where_it_is_eligible(plan):
    spans = [
        Span(
            source,
            0,
            [97] * n,
            np.full(n, -1.0) if source is Source.POLICY and sampled else None,
            sampled=source is Source.POLICY and sampled,
        )
        for source, sampled, n in plan
    ]
    segment = Segment(tuple(spans))
    kind_T = kinds_of(segment)
    assert ((kind_T == TRAINED) == segment.eligible).all()
    for kind, source in ((PROMPT, Source.PROMPT), (SCAFFOLD, Source.SCAFFOLD), (ENV, Source.ENV)):
        assert ((kind_T == kind) == (segment.sources == source)).all()
    assert ((kind_T == AGAIN) == ((segment.sources == Source.POLICY) & ~segment.eligible)).all()


@given(st.lists(st.tuples(SOURCES, st.integers(1, 5)), min_size=1, max_size=8), st.integers(0, 100))
def test_every_token_is_either_shown_or_counted_as_hidden(plan, room):
    spans = tuple(Span(source, 0, [97] * n) for source, n in plan)
    total = sum(n for _, n in plan)
    text = show_tokens(
        examples.trajectory(segments=(Segment(spans),)), examples.token_texts, max_tokens=room
    ).text
    shown = sum(
        line.partition("|")[2].count("a") for line in text.split("\n") if line.startswith("[")
    )
    hidden = int(text.split(" shown, ")[1].split()[0].replace(",", "")) if " shown, " in text else 0
    assert shown + hidden == total


def test_credit_must_fit_the_tokens():
    with pytest.raises(DataError, match="one value per token"):
        show_tokens(examples.trajectory(), examples.token_texts, np.ones(3))


def test_weight_zero_is_not_shown_as_trained():
    credit = {"weight": np.zeros(len(Segment(examples.spans())))}
    text = show_tokens(examples.trajectory(), examples.token_texts, credit).text
    assert "[TRAIN" not in text and "[weight0 turn 0, 6|" in text


def test_red_is_below_zero_blue_above_and_white_only_zero():
    assert red_blue(-2.0, 2.0) == RED_BLUE[0] and red_blue(2.0, 2.0) == RED_BLUE[6]
    assert red_blue(0.0, 2.0) == RED_BLUE[3] and red_blue(float("nan"), 1.0) == RED_BLUE[3]
    assert red_blue(1e-9, 2.0) == RED_BLUE[4] and red_blue(-1e-9, 2.0) == RED_BLUE[2]


# ------------------------------------------------------------------------------------------------ trajectories


TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a", "\n", "<"]), max_size=12
)


@given(TEXTS.map("".join))
def test_the_parts_of_a_text_are_the_whole_text(text):
    assert "".join(part for _, part in pieces(text)) == text


def test_thought_and_answer_are_told_apart():
    assert pieces("<think>a</think> b <answer>c</answer>") == [
        ("think", "<think>a</think>"),
        ("plain", " b "),
        ("answer", "<answer>c</answer>"),
    ]
    assert pieces("x<think>cut") == [("plain", "x"), ("think", "<think>cut")]


@pytest.mark.parametrize(
    "text, rows",
    [
        ("P _ _\nO G _", 2),
        ("say\nP_\n_G\nso", 2),
        ("P G", 0),
        ("GO\nGO GO", 0),
        ("P _\n_ _ G", 0),
        ("P x\n_ G", 0),
        ("", 0),
    ],
)
def test_a_grid_is_found_only_where_there_is_one(text, rows):
    found = find_grid(text)
    assert (len(found.cells) if found else 0) == rows


def test_a_grid_of_the_real_environment_is_drawn():
    from workbench.worlds.frozen_lake import FrozenLake

    family = FrozenLake()
    task = family.task(3)
    found = find_grid(family.make().reset(task, 0).messages[-1].text)
    assert ["".join(row) for row in found.cells] == task.payload["grid"]


def sokoban_trajectory(preset):
    """Two turns at the keyboard's side of a real environment: a solver's, cut to one move, then the rest."""
    from dataclasses import replace

    from workbench.worlds import PRESETS

    family = PRESETS[preset]
    task = family.task(11)
    env = family.make()
    first = env.reset(task, 0)
    turns = []
    for index, one in enumerate((replace(family, max_moves_per_action=1, max_turns=40), family)):
        action = one.solver_action(env, None)
        result = env.step(action)
        turns.append(
            Turn(
                index,
                action,
                "stop",
                tuple(result.info["moves"]),
                (),
                result.observation.messages,
                result.reward,
                result.reward_parts,
                None,
                result.info,
            )
        )
    return replace(
        examples.trajectory(), task=task, first_observation=first, turns=tuple(turns)
    ), env


def page_says(view, words):
    """True where html and text both say so, False where neither does."""
    said = {words in Page(view.html).text, words in view.text}
    assert len(said) == 1
    return said.pop()


SOKOBAN_MEANINGS = {"wall", "floor", "target", "box", "you"}


@pytest.mark.parametrize(
    "preset", ["sokoban-6x6", "sokoban-6x6-coordinates", "sokoban-6x6-symbols", "sokoban-8x8-2"]
)
def test_sokoban_is_drawn_cell_by_cell_and_the_text_says_the_same(preset):
    """Every state, the first one too where the policy reads coordinates only: html cells, text and the game agree."""
    trajectory, env = sokoban_trajectory(preset)
    view = trajectory_view(trajectory)
    states = [trajectory.task.metadata["state"], *(turn.info["state"] for turn in trajectory.turns)]
    drawn = [state.partition("\n(")[0] for state in states]
    assert len(set(drawn)) == 3 and drawn[-1] == env.draw()
    # Nobody is told that the policy saw a grid where it did not.
    assert page_says(view, "told to the policy as coordinates") == (
        preset == "sokoban-6x6-coordinates"
    )
    symbols = env.family.symbols
    page = Page(view.html)
    tables = re.findall(r"<table[^>]*>(?:(?!<table).)*?</table>", view.html, re.DOTALL)
    grids = [
        "\n".join(
            " ".join(re.findall(r"<td [^>]*title=[^>]*>(.)", row)) for row in table.split("<tr")[1:]
        )
        for table in tables
    ]
    assert [grid for grid in grids if grid.strip()] == drawn
    for state in drawn:
        assert all(line in view.text for line in state.split("\n"))
        assert find_grid(state).tiles[symbols[0]].meaning == "wall"
    assert all(meaning in page.text for meaning in SOKOBAN_MEANINGS) and "hole" not in page.text
    assert view.picture is None  # a trajectory has no picture besides its table, whatever the game
    group = group_view(Group((trajectory,)))
    assert ("wall" in group.html) == (preset != "sokoban-6x6-coordinates")


def test_each_game_is_recognised_and_none_is_taken_for_another():
    from workbench.look.grid import LAKE_TILES, SOKOBAN_OTHER_TILES, SOKOBAN_TILES
    from workbench.worlds import PRESETS

    expected = {
        "frozenlake-4x4": LAKE_TILES,
        "sokoban-6x6": SOKOBAN_TILES,
        "sokoban-8x8-2": SOKOBAN_TILES,
        "sokoban-6x6-symbols": SOKOBAN_OTHER_TILES,
    }
    for name, tiles in expected.items():
        for seed in range(40):
            found = find_grid(
                PRESETS[name].make().reset(PRESETS[name].task(seed), 0).messages[-1].text
            )
            assert found.tiles is tiles and len(found.cells) == PRESETS[name].size
    assert find_grid("You 3 4\nBox 5 4\nTarget 5 5\nWall 2 3, 3 3") is None


def test_unscored_trajectories_stand_outside_of_mean_and_deviation():
    good, bad = examples.trajectory(), examples.trajectory(attempt=1, success=False)
    broken = examples.trajectory(attempt=2, stop=StopReason.ENV_ERROR, error="x")
    text = group_view(Group((good, bad, broken))).text
    # Rewards 0.9 and -0.1: mean 0.4, sample deviation 0.707; a zero for the broken one would give 0.27 and 0.55.
    assert "reward mean +0.40, std (n - 1) 0.71" in text and "1 not scored" in text


def test_a_zero_variance_group_is_called_that():
    assert (
        "Zero-variance group"
        in group_view(Group((examples.trajectory(), examples.trajectory(attempt=1)))).text
    )
    assert "Zero-variance group" not in group_view(examples.group()).text


# ------------------------------------------------------------------------------------------------ masks


def read_png(data: bytes) -> tuple[np.ndarray, bytes]:
    """Pixels and palette of an indexed PNG."""
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.mode == "P"
        return np.asarray(picture), bytes(picture.getpalette())


@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 99))
def test_a_png_holds_the_pixels_it_was_made_of(height, width, seed):
    pixels = np.random.default_rng(seed).integers(0, 3, (height, width))
    read, palette = read_png(palette_png(pixels, ("#000000", "#ff0000", "#0000ff")))
    assert (read == pixels).all() and palette[:9] == bytes([0, 0, 0, 255, 0, 0, 0, 0, 255])


def test_paper_is_left_out_of_a_picture_of_pixels():
    """On a dark page it is dark."""
    data = palette_png(np.array([[0, 1], [1, 0]]), ("#ffffff", "#ff0000"))
    with Image.open(io.BytesIO(data)) as picture:
        pixels = np.asarray(picture.convert("RGBA"))
    assert pixels[..., 3].tolist() == [[0, 255], [255, 0]]


def test_a_png_refuses_what_it_cannot_hold():
    with pytest.raises(DataError, match="indices"):
        palette_png(np.array([[3]]), ("#000000",))
    with pytest.raises(DataError, match="rows, columns"):
        palette_png(np.zeros((0, 3)), ("#000000",))


def test_one_trained_token_is_seen_however_long_the_sequence():
    spans = (
        Span(Source.PROMPT, 0, [97] * 20_000),
        Span(Source.POLICY, 0, [98], [-1.0], sampled=True),
        Span(Source.ENV, 0, [97] * 12_000),
    )
    view = show_masks([Group((examples.trajectory(segments=(Segment(spans),)),))])
    pixels, _ = read_png(view.png)
    assert (pixels == TRAINED).any() and "#" in view.text.split("|")[1]
    assert "1 trained" in view.text


# ------------------------------------------------------------------------------------------------ numbers


def test_a_running_mean_leaves_out_what_is_missing():
    value = np.array([1.0, np.nan, 3.0, 5.0])
    assert np.allclose(running_mean(value, 2), [1.0, 1.0, 3.0, 4.0])
    assert np.isnan(running_mean(np.array([np.nan]), 2)).all()


def test_sparklines_rise_and_show_gaps():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == SPARKS
    assert (
        sparkline([1.0, float("nan"), 2.0]) == "▁ █"
        and sparkline([]) == ""
        and sparkline([float("nan")]) == ""
    )


def test_numbers_that_are_compared_have_the_same_decimals():
    assert alike([0.362, -0.0125, 0.0354]) == ["0.362", "-0.013", "0.035"]
    assert alike([0.0021, 0.00061, None]) == ["0.00210", "0.00061", "—"]
    assert alike([31.0, 0.5]) == ["31.000", "0.500"] and alike([0.0, 0.0]) == ["0.000", "0.000"]
    assert alike([2e-9, 1e-9]) == ["2e-09", "1e-09"], "decimals would be zeros"
    assert alike([None, float("nan")]) == ["—", "—"] and alike([]) == []


def test_columns_are_aligned_by_what_a_terminal_shows():
    assert aligned([["日本", "1"], ["a", "10"]], right=(1,)) == "日本   1\na     10"


def test_curves_read_a_data_frame_like_the_run_folder_gives():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(examples.steps()).set_index("step")
    assert (
        curves_view(frame, examples.evaluations()).text
        == curves_view(examples.steps(), examples.evaluations()).text
    )


def test_the_untrained_policy_is_step_zero_and_its_repeats_are_no_points():
    success = curves_of(examples.steps(), examples.evaluations(), None)[0]
    assert [(p.step, p.mode) for p in success.points] == [
        (0, "greedy"),
        (0, "sampled"),
        (24, "greedy"),
        (24, "sampled"),
    ]
    assert [(line.name, line.value) for line in success.lines] == [
        ("random", 0.21),
        ("untrained", 0.30),
        ("solver", 0.93),
    ]


def test_curves_without_baselines_say_so():
    assert "no random, untrained, solver baseline" in curves_view(examples.steps()).text
    assert "does not say whether" not in curves_view(examples.steps(), examples.evaluations()).text
    assert curves_view([]).text.endswith("no steps yet")


def test_a_row_without_a_step_is_refused():
    with pytest.raises(DataError, match="'step'"):
        curves_view([{"success": 0.5}])


def test_curves_live_in_plotly_too():
    pytest.importorskip("plotly")
    drawing = curves_view(examples.steps(), examples.evaluations()).figure
    assert {"random", "untrained", "solver", "held out, sampled"} <= {
        trace.name for trace in drawing.data
    }


def test_no_rate_is_shown_without_its_interval():
    row = {
        key: value
        for key, value in examples.score("trained", "sampled", 0.5).items()
        if key != "success_low"
    }
    with pytest.raises(DataError, match="success_low.*invariant 12"):
        evaluation_view([*examples.baseline_rows(), row])


def test_pass_at_k_stands_beside_its_interval_where_there_were_several_trajectories():
    several = examples.score(
        "trained",
        "sampled",
        0.5,
        attempts=4,
        pass_at_1=0.5,
        pass_at_1_low=0.41,
        pass_at_1_high=0.59,
        pass_at_4=0.8,
        pass_at_4_low=0.711,
        pass_at_4_high=0.889,
    )
    view = evaluation_view([*examples.baseline_rows(), several])
    for form in (view.text, Page(view.html).text):
        for words in ("pass@1", "pass@4", "80.0 % [71.1, 88.9]", "512 x 4"):
            assert words in form
    assert (
        "pass@"
        not in evaluation_view(
            [*examples.baseline_rows(), examples.score("trained", "sampled", 0.5)]
        ).text
    )
    with pytest.raises(
        DataError, match="pass@4 of 'trained' comes without pass_at_4_low.*invariant 12"
    ):
        evaluation_view([{key: value for key, value in several.items() if key != "pass_at_4_low"}])


@pytest.mark.parametrize("name", ["random", "untrained", "solver"])
def test_a_missing_baseline_leaves_a_visible_gap(name):
    rows = [row for row in examples.baseline_rows() if row["policy"] != name]
    view = evaluation_view([*rows, examples.score("trained", "sampled", 0.5)])
    for form in (view.text, Page(view.html).text):
        assert f"{name}: not measured" in form
    full = evaluation_view(examples.baseline_rows())
    assert "not measured" not in full.text


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
@example(0.999, 1.0, 1.0)
def test_an_interval_bar_is_always_as_wide_as_its_scale(a, b, c):
    from workbench.look.evaluation import BAR, interval_bar

    low, value, high = sorted([a, b, c])
    widths = [
        width for width, _ in interval_bar(value, low, high, "#000000").stretches if width > 0
    ]
    assert sum(widths) == BAR
