"""Higher or lower: what it says, what it pays, what is held out; and how skill is told apart from form."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from workbench.extensions.real_model.higher_lower import HigherLower
from workbench.extensions.real_model.skill import grade, skill_of, waste_of
from workbench.values import Message, Observation, StopReason, Task, Trajectory, Turn
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds import ENVS, baselines, tasks

FAMILY = HigherLower()
TASK = Task("t", "higher_lower", 0, {"low": 20, "high": 34, "secret": 23})


def begun(family: HigherLower = FAMILY):
    env = family.make()
    env.reset(TASK, 0)
    return env


def share_won(act: str, count: int = 400) -> float:
    """Success of one of the family's players."""
    won = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        result = baselines.play(
            FAMILY, FAMILY.task(seed), 0, lambda env, rng=rng: getattr(FAMILY, act)(env, rng)
        )
        won.append(result.success)
    return float(np.mean(won))


def test_it_is_a_kind_of_environment():
    assert ENVS["higher_lower"] is HigherLower


def test_replies_narrow_the_range_and_the_number_ends_it():
    env = begun()
    told = [env.step(guess) for guess in ("27", "22", "23")]
    assert [result.observation.messages[0].text for result in told] == [
        "Lower. Left: 20 to 26.",
        "Higher. Left: 23 to 26.",
        "Yes, it is 23.",
    ]
    assert [result.terminated for result in told] == [False, False, True]
    with pytest.raises(EnvError):
        env.step("23")


def test_the_last_guess_is_the_last():
    env = begun(replace(FAMILY, max_turns=2))
    assert not env.step("30").truncated
    last = env.step("29")
    assert last.truncated and not last.terminated and last.info["success"] is False


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("25", "25"),
        (" I guess 25!\n", "25"),
        ("25 or 26", "25"),
        ("about twenty-five", None),
        ("", None),
        ("x" * 10_000 + "25", None),
    ],
)
def test_the_first_number_is_the_guess(text, guess):
    result = begun().step(text)
    assert result.info["moves"] == ([] if guess is None else [guess])
    assert result.info["valid_format"] is (guess is not None)
    assert bool(result.info["complaint"]) is (guess is None)
    assert (result.reward_parts["format"] == FAMILY.format_penalty) is (guess is None)


def test_a_number_that_is_not_left_rules_nothing_out():
    env = begun()
    env.step("27")
    for guess in ("27", "99", "3"):
        result = env.step(guess)
        assert result.reward < grade(20, 26, guess=20) and env.left == (20, 26)


def test_no_number_pays_less_than_any():
    for pay in ("graded", "narrowed", "found"):
        silent, wrong = (begun(replace(FAMILY, pay=pay)).step(text) for text in ("Hm", "99"))
        assert silent.reward == pytest.approx(wrong.reward - 0.1)


@pytest.mark.parametrize(
    ("pay", "rewards"),
    [
        (
            "graded",
            [grade(20, 34, guess=27), grade(20, 26, guess=22), grade(23, 26, guess=23)],
        ),
        ("narrowed", [8 / 15, 3 / 7, 1.0]),
        ("found", [0.0, 0.0, 1.0]),
    ],
)
def test_what_a_guess_earns(pay, rewards):
    env = begun(replace(FAMILY, pay=pay))
    told = [env.step(guess) for guess in ("27", "22", "23")]
    assert [result.reward for result in told] == pytest.approx(rewards)
    assert all(result.reward == sum(result.reward_parts.values()) for result in told)


def test_luck_is_no_part_of_what_is_graded():
    """Hidden elsewhere, the number pays the same for the same guess of the same range; narrowing does not."""
    for pay, alike in (("graded", True), ("narrowed", False)):
        rewards = set()
        for secret in (21, 33):
            env = HigherLower(pay=pay).make()
            env.reset(replace(TASK, payload={**TASK.payload, "secret": secret}), 0)
            rewards.add(env.step("25").reward)
        assert (len(rewards) == 1) is alike


def test_the_only_number_left_has_to_be_named():
    env = begun(replace(FAMILY, max_turns=9))
    for guess in ("22", "24"):
        env.step(guess)
    assert env.left == (23, 23)
    assert [env.step(guess).reward for guess in ("24", "23")] == [-1.0, 0.0]
    with pytest.raises(ConfigError):
        HigherLower(pay="nothing")


def test_halving_always_wins_and_luck_does_not():
    assert share_won("solver_action") == 1.0
    assert 0.15 < share_won("random_action") < 0.35
    assert 0.5 < share_won("careful_action") < 0.7


def test_no_range_is_in_both_splits():
    ranges = {
        split: {task.payload["low"] for task in tasks(FAMILY, split, 100)}
        for split in ("train", "held-out")
    }
    assert len(ranges["held-out"]) > 4
    assert not ranges["train"] & ranges["held-out"]


def test_it_goes_on_from_a_snapshot():
    env = begun()
    env.step("27")
    other = pickle.loads(pickle.dumps(FAMILY.make()))
    other.restore(env.snapshot())
    assert vars(other) | {"family": None} == vars(env) | {"family": None}
    assert other.step("22").info == env.step("22").info


def test_waste_is_zero_for_halving_and_one_for_nothing():
    assert waste_of(20, 34, guess=27) == 0
    assert waste_of(20, 33, guess=26) == waste_of(20, 33, guess=27) == 0
    assert waste_of(20, 34, guess=40) == 1
    assert 0 < waste_of(20, 34, guess=24) < waste_of(20, 34, guess=20) < 1
    assert [waste_of(20, 20, guess=guess) for guess in (20, 21)] == [0, 1]


@pytest.mark.parametrize("high", [20, 21, 22, 27, 34])
def test_a_random_number_that_is_left_earns_nothing_on_average(high):
    grades = [grade(20, high, guess=guess) for guess in range(20, high + 1)]
    assert np.mean(grades) == pytest.approx(0)
    middle = grades[(high - 20) // 2]
    assert middle == max(grades) and (middle > 0.2) is (high > 23)
    assert grade(20, high, guess=high + 1) < min(grades) + 1e-12


def test_waste_is_what_is_left_on_average_over_the_hidden_number():
    """Against the game itself, over every number that may be hidden."""
    for guess in range(20, 35):
        left = []
        for secret in range(20, 35):
            env = FAMILY.make()
            env.reset(replace(TASK, payload={**TASK.payload, "secret": secret}), 0)
            won = env.step(str(guess)).terminated
            left.append(0 if won else env.left[1] - env.left[0] + 1)
        best = (7 * 7 + 7 * 7) / 15**2
        expected = (np.mean(left) / 15 - best) / (1 - best)
        assert waste_of(20, 34, guess=guess) == pytest.approx(expected)


def test_skill_tells_form_from_halving():
    turns = (
        Turn(0, "27", moves=("27",), info={"valid_format": True, "before": [20, 34]}),
        Turn(1, "I say", info={"valid_format": False, "before": [20, 26]}),
        Turn(2, "40", moves=("40",), info={"valid_format": True, "before": [20, 26]}),
    )
    shown = Observation((Message("user", "guess"),))
    played = Trajectory(TASK, 0, 0, shown, turns, (), StopReason.ENV_TRUNCATED)
    skill = skill_of([played])
    assert skill.valid == pytest.approx(2 / 3)
    assert (skill.inside, skill.waste) == (0.5, 0.5)
    without = skill_of([replace(played, turns=turns[1:2])])
    assert (without.valid, without.inside, without.waste) == (0, None, None)
