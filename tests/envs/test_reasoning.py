"""What thoughts state, held against the true state: by hand, on demonstrations, and on states they were not about."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.make.demonstrations import LakeDemonstrator, SokobanDemonstrator
from workbench.rollouts.metrics import rollout_metrics
from workbench.tools.action_format import format_action
from workbench.values import Group, Message, Observation, StopReason, Task, Text, Trajectory, Turn
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at
from workbench.worlds import Bandit, FrozenLake, Sokoban
from workbench.worlds.frozen_lake import MOVES as LAKE_MOVES
from workbench.worlds.frozen_lake import task_from_grid
from workbench.worlds.reasoning import (
    AGREES,
    DISAGREES,
    SILENT,
    bandit_statements,
    lake_statements,
    payment,
    sokoban_statements,
    verdict,
)
from workbench.worlds.sokoban import MOVES as SOKOBAN_MOVES
from workbench.worlds.sokoban_levels import level_from_rows

LAKE = ("P__O", "_O__", "____", "O__G")
ROOM = level_from_rows(["######", "#__O##", "#_X__#", "#__P_#", "#____#", "######"])


@pytest.mark.parametrize(
    "thought, true",
    [
        ("guess", []),
        ("", []),
        ("left", []),
        ("I would rather go down and then right", []),
        ("down right :", [True]),
        ("right down : right", [True]),
        ("down :", [False]),
        ("up right : right", [False]),
        ("think : down", []),  # no bearing, and no cell after the move
        ("down right : down _", [True, True]),
        ("down right : down O", [True, False]),
        ("down right : right _ down O", [True, True, True]),
        (
            "down right : right _ down O right _ right O",
            [True] * 5,
        ),  # turned away from the hole, went on from where it was
        ("down right : right _ down _", [True, True, False]),
        (
            "down right : right down O",
            [True, True],
        ),  # the first move goes on without a word about where
        ("right _ down hole", [True, True]),
        ("Down ice.", [True]),
        ("down goal", [False]),
        ("up _", [True]),  # the edge holds: it stays on the start, which is ice
        ("I am in row 1, column 1.", [True]),
        ("I am in row 2, column 1.", [False]),
        ("You are in row 1, column 1; the goal is in row 4, column 4.", [True, True]),
        ("The goal is in row 4, column 3", [False]),
        ("a hole is in row 2, column 2", [True]),
        ("a hole is in row 9, column 9", [False]),
        ("row 1, column 1", []),
        ("I am in row 1, column", []),
        ("I am in row one, column 1", []),
    ],
)
def test_statements_about_the_lake(thought, true):
    assert lake_statements(thought, LAKE, (0, 0), LAKE_MOVES) == true


@pytest.mark.parametrize(
    "thought, true",
    [
        ("guess", []),
        ("stuck", []),
        ("up ;", [False]),
        ("up right ;", [True]),
        ("right up ; whatever", [True]),
        ("up right ; right from 3 2", [True, True]),
        ("up right ; up from 4 3", [True, True]),
        ("up right ; left from 4 3", [True, False]),
        ("down from 9 9", [False]),
        ("up right ; right from 3 2 : left 4 3 left 4 2 up 3 2 : right 3 4", [True] * 6),
        ("up right ; right from 3 2 : left 4 3 left 4 2 up 3 2 : right 3 5", [True] * 5 + [False]),
        (": left 4 2", [False]),
        (": : up 3 4", [False]),  # walking up moves no box
        (": left 4 3 : up 2 3", [True, True]),
        ("you 4 4", [True]),
        ("I 4 4", [True]),
        ("you 4 3", [False]),
        ("box 3 3, target 2 4", [True, True]),
        ("Box 2 4", [False]),
        ("wall 1 1", [True]),
        ("wall 2 2", [False]),
        ("box 3", []),
        ("box 3 x", []),
        ("box 99999999999999999999 3", []),
        ("box ² 3", []),
    ],
)
def test_statements_about_a_room(thought, true):
    """The player in row 4, column 4; the box in 3 3; the target in 2 4."""
    env = Sokoban().make()
    env.reset(Sokoban().task_of(ROOM), 0)
    assert sokoban_statements(thought, env.room, env.state, SOKOBAN_MOVES) == true


@pytest.mark.parametrize(
    "thought, true",
    [
        ("Dragon bold , Phoenix safe : bold", [True, True]),
        ("dragon risky, phoenix bold", [True, False]),
        ("Dragon safe", [False]),
        ("Dragon new , Phoenix new : new", []),
        ("bold", []),
        ("Dragon", []),
        ("", []),
        ("Griffin bold", []),
        ("the Dragon is bold", []),
    ],
)
def test_statements_about_arms(thought, true):
    assert bandit_statements(thought, ("Dragon", "Phoenix"), "Dragon") == true
    assert bandit_statements(thought, ("Dragon", "Phoenix"), "Phoenix") == [
        not each for each in true
    ]


def test_one_false_statement_is_enough():
    assert [verdict(said) for said in ([], [True, True], [True, False, True])] == [
        SILENT,
        AGREES,
        DISAGREES,
    ]
    assert [payment(said, 0.1) for said in (AGREES, DISAGREES, SILENT, "")] == [0.1, -0.1, 0.0, 0.0]


# ------------------------------------------------------------------------------------------------ what it pays


def act(thought: str, *moves: str) -> str:
    return format_action(moves, think=True, thought=thought)


PAYING = (
    (FrozenLake(), task_from_grid(LAKE), "down right : down _", "down right : down O", "Down"),
    (Sokoban(), Sokoban().task_of(ROOM), "up right ; : left 4 3", "up right ; : left 4 2", "Left"),
    (
        Bandit(),
        Task("b", "bandit", 0, {"arms": ["Baker", "Diver"], "risky": "Diver"}, {}),
        "Baker safe",
        "Baker bold",
        "Baker",
    ),
)


@pytest.mark.parametrize(
    "family, task, true, false, move", PAYING, ids=["lake", "sokoban", "bandit"]
)
def test_what_a_turn_earns_by_its_thought(family, task, true, false, move):
    """Off, nothing is paid and no part is named; on, the bonus comes on top of what the same move pays anyway."""
    for bonus in (0.0, 0.05):
        for thought, said, paid in (
            (true, AGREES, bonus),
            (false, DISAGREES, -bonus),
            ("guess", SILENT, 0.0),
        ):
            plain, env = family.make(), replace(family, reasoning_bonus=bonus).make()
            assert env.reset(task, 0) == plain.reset(task, 0)  # the prompt does not tell
            result, without = env.step(act(thought, move)), plain.step(act(thought, move))
            assert result.info["reasoning"] == without.info["reasoning"] == said
            assert (
                result.reward == pytest.approx(without.reward + paid)
                and "reasoning" not in without.reward_parts
            )
            assert result.reward_parts.get("reasoning") == (paid if bonus else None)
            assert (
                result.observation == without.observation
                and result.info["moves"] == without.info["moves"]
            )
            json.dumps(dict(result.info))


@pytest.mark.parametrize(
    "family, task, true, false, move", PAYING, ids=["lake", "sokoban", "bandit"]
)
def test_an_answer_that_cannot_be_read_is_not_praised_for_its_thought(
    family, task, true, false, move
):
    env = replace(family, reasoning_bonus=0.05).make()
    env.reset(task, 0)
    result = env.step(f"<think>{true}</think>{move}")
    assert (
        result.reward == -0.1
        and result.reward_parts["reasoning"] == 0.0
        and "reasoning" not in result.info
    )


def test_a_thought_is_about_the_state_it_was_thought_in():
    """Not about the one that the move led to: the second answer repeats what was true before the first."""
    env = FrozenLake(reasoning_bonus=0.05).make()
    env.reset(task_from_grid(LAKE), 0)
    text = act("I am in row 1, column 1", "Right")
    assert [env.step(text).info["reasoning"] for _ in range(2)] == [AGREES, DISAGREES]


@pytest.mark.parametrize("kind", [FrozenLake, Sokoban, Bandit])
def test_a_bonus_without_a_meaning_is_refused(kind):
    for bonus in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"{kind.__name__}.reasoning_bonus is at least 0"):
            kind(reasoning_bonus=bonus)
    with pytest.raises(
        ConfigError, match="pays for what stands between the think tags, but think is false"
    ):
        kind(reasoning_bonus=0.1, think=False)
    assert kind(reasoning_bonus=0.1).label == kind().label + ", reasoning +-0.1"


def test_without_thoughts_nothing_is_said_of_them():
    env = FrozenLake(think=False).make()
    env.reset(task_from_grid(LAKE), 0)
    assert "reasoning" not in env.step("<answer>Right</answer>").info


# ------------------------------------------------------------------------------------------------ demonstrations


@pytest.mark.parametrize(
    "family, demonstrator, least",
    [
        (FrozenLake(), LakeDemonstrator(guess=0.0, slip=0.0), 0.99),
        (Sokoban(), SokobanDemonstrator(guess=0.0, slip=0.0), 0.5),
    ],
)
def test_demonstrators_state_the_truth_and_the_same_words_elsewhere_are_mostly_false(
    family, demonstrator, least
):
    """Negative control: the same thoughts held against another task's first state. (Where a demonstrator is stuck it
    says so, which states nothing.)"""
    here, elsewhere = [], []
    for seed in range(40):
        env, other, rng = family.make(), family.make(), rng_at("tests.reasoning", seed)
        env.reset(family.task(seed), 0)
        other.reset(family.task(1000 + seed), 0)
        text = demonstrator.action(env, rng)
        here.append(env.step(text).info["reasoning"])
        elsewhere.append(other.step(text).info["reasoning"])
    assert DISAGREES not in here and here.count(AGREES) >= least * len(here)
    assert elsewhere.count(AGREES) < 0.35 * here.count(AGREES)


WORDS = st.lists(
    st.sampled_from(
        [
            "down",
            "Up",
            "left",
            "O",
            "_",
            "G",
            ":",
            ";",
            "from",
            "you",
            "box",
            "wall",
            "row",
            "column",
            "I",
            "goal",
            "1",
            "2",
            "3",
            "77",
            "²",
            "x",
            "\x00",
            "<think>",
        ]
    ),
    max_size=25,
)


@given(WORDS.map(" ".join))
def test_no_thought_raises_and_none_is_true_and_false_at_once(thought):
    room = Sokoban().make()
    room.reset(Sokoban().task_of(ROOM), 0)
    for found in (
        lake_statements(thought, LAKE, (0, 0), LAKE_MOVES),
        sokoban_statements(thought, room.room, room.state, SOKOBAN_MOVES),
    ):
        assert all(type(each) is bool for each in found) and verdict(found) in (
            AGREES,
            DISAGREES,
            SILENT,
        )


def test_a_megabyte_of_thought_is_read_in_part():
    room, text = Sokoban().make(), ": up 1 1 box 3 3 " * 60_000
    room.reset(Sokoban().task_of(ROOM), 0)
    began = time.process_time()
    assert 0 < len(sokoban_statements(text, room.room, room.state, SOKOBAN_MOVES)) < 1000
    assert len(lake_statements("down _ " * 150_000, LAKE, (0, 0), LAKE_MOVES)) <= 1000
    assert (
        time.process_time() - began < 5.0
    )  # linear: tenths of a second; anything quadratic takes hours


# ------------------------------------------------------------------------------------------------ the metrics


def test_metrics_tell_how_many_thoughts_state_something_and_how_many_of_those_agree():
    def a_trajectory(*said: str | None) -> Trajectory:
        turns = tuple(
            Turn(i, "x", reward=0.0, info={} if words is None else {"reasoning": words})
            for i, words in enumerate(said)
        )
        return Trajectory(
            Task("a", "b", 0, {}, {}),
            0,
            0,
            Observation((Message("user", (Text("?"),)),)),
            turns,
            (),
            StopReason.TERMINATED,
        )

    metrics = rollout_metrics([Group((a_trajectory(AGREES, SILENT, None, DISAGREES),))])
    assert (
        metrics["reasoning_stated"] == pytest.approx(2 / 3) and metrics["reasoning_agrees"] == 0.5
    )
    silent = rollout_metrics([Group((a_trajectory(SILENT),))])
    assert silent["reasoning_stated"] == 0.0 and "reasoning_agrees" not in silent
    assert not any(
        key.startswith("reasoning") for key in rollout_metrics([Group((a_trajectory(None),))])
    )
