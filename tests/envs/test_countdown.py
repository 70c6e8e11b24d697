"""Countdown: exact values without `eval`, rewards as published, tasks that can be solved, chance as it is."""

import json
import pickle
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest

from workbench.tools.action_format import format_action
from workbench.values import Task
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at
from workbench.values.stats import wilson_interval
from workbench.worlds import PRESETS, Countdown, arithmetic, split_of, tasks
from workbench.worlds.arithmetic import judged, reachable, solve
from workbench.worlds.baselines import play

FAMILIES = ["countdown", "countdown-ragen", "countdown-small"]


def begun(family, numbers=(25, 3, 7), target=46):
    env = family.make()
    return env, env.reset(
        Task("t", "countdown", 0, {"numbers": list(numbers), "target": target}), 0
    )


def answer(expression):
    return format_action([expression], think=True)


def test_a_scripted_trajectory_as_a_transcript():
    env, observation = begun(Countdown(max_turns=3))
    assert observation.messages[0].text == (
        "Write an expression that equals the target. Use each number exactly once, with + - * / and parentheses, in at "
        "most 100 characters. You have 3 answers.\n"
        "Answer like this: <think>plan</think><answer>(1 + 2) - 3</answer>\n\n"
        "Numbers: 25, 3, 7\nTarget: 46"
    )
    wrong = env.step(answer("(25 - 3) * 7"))
    assert (
        wrong.observation.messages[0].text == "That is 154, not 46.\nNumbers: 25, 3, 7\nTarget: 46"
    )
    assert (
        wrong.reward_parts == {"format": 0.1, "value": 0.0}
        and not wrong.terminated
        and not wrong.info["success"]
    )
    right = env.step(answer("25 + 3 * 7"))
    assert (
        right.observation.messages[0].text == "Right.\n"
        and right.terminated
        and right.info["success"]
    )
    assert right.reward_parts == {"format": 0.0, "value": 0.9}  # 1.0 in all, whenever it comes
    with pytest.raises(EnvError, match="over or was never begun"):
        env.step("")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (answer("25 + 3*7"), 1.0),
        (answer("25 + 3 + 7"), 0.1),
        (answer("25 / (3 * 7)"), 0.1),
        (answer("25 + 3"), 0.0),
        (answer("25 + 3*7 + 0"), 0.0),
        (answer("46"), 0.0),
        (answer(""), 0.0),
        ("25 + 3*7", 0.0),
        ("", 0.0),
    ],
)
def test_what_one_answer_earns_as_published(text, reward):
    result = begun(Countdown())[0].step(text)
    assert (
        result.reward == reward and result.terminated and result.info["success"] == (reward == 1.0)
    )


def test_the_format_is_paid_once():
    env, _ = begun(Countdown(max_turns=10, format_reward=0.2))
    assert sum(env.step(answer("25 - 3 - 7")).reward for _ in range(10)) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("2 ** 3", "joined by"),
        ("2 // 3", "joined by"),
        ("+2 - 3", "joined by"),
        ("2(3)", "joined by"),
        ("2, 3", "Only"),
        ("2.0+3", "Only"),
        ("2_0+3", "Only"),
        ("__import__('os')", "Only"),
        ("2 + \u0663", "Only"),
        ("2/0 + 3", "exactly once"),
        ("02+3", "no expression"),
        ("2 3", "no expression"),
        ("(" * 99, "no expression"),
        ("2 + 3" * 50, "at most 100"),
        ("2 + 2", "exactly once"),
        ("2 + 3 + 3", "exactly once"),
    ],
)
def test_what_no_expression_of_the_numbers_is(expression, complaint):
    said, _, value = judged(expression, (2, 3), "+-*/")
    assert complaint in said and value is None


def test_values_are_exact():
    assert judged("1 / 3 * 3", (1, 3, 3), "+-*/") == ("", "", 1) and judged(
        "-2 + 3", (3, 2), "+-"
    ) == ("", "", 1)
    assert judged("7 / 3", (7, 3), "+-*/") == ("", "", Fraction(7, 3))
    assert judged("5 / (3 - 3)", (5, 3, 3), "+-*/") == (
        "",
        "",
        None,
    )  # of the given numbers, but without a value
    assert judged("2 * 3", (2, 3), "+-")[0]  # an operation that is not on offer


def every_play(numbers, operations):
    """All that random play can say, with its value by Python's own exact arithmetic, each as likely as another. Written
    anew: nothing of the package is used."""
    if len(numbers) == 1:
        yield numbers[0]
        return
    for left, right in permutations(range(len(numbers)), 2):
        rest = [number for at, number in enumerate(numbers) if at not in (left, right)]
        for operation in operations:
            a, b = numbers[left], numbers[right]
            if None in (a, b) or operation == "/" and b == 0:
                value = None
            else:
                value = {"+": a + b, "-": a - b, "*": a * b, "/": Fraction(a) / b if b else None}[
                    operation
                ]
            yield from every_play([*rest, value], operations)


@pytest.mark.parametrize("preset", FAMILIES)
def test_chance_is_what_counting_all_plays_says(preset):
    family, rng = PRESETS[preset], rng_at("chance")
    chosen = [task for task in tasks(family, "held-out", 80) if len(task.payload["numbers"]) == 3]
    exact = np.mean(
        [
            np.mean(
                [
                    value == task.payload["target"]
                    for value in every_play(task.payload["numbers"], family.operations)
                ]
            )
            for task in chosen
        ]
    )
    count = 4000 // len(chosen)
    hits = sum(
        play(family, task, 0, lambda env: family.random_action(env, rng)).success
        for task in chosen
        for _ in range(count)
    )
    low, high = wilson_interval(hits, count * len(chosen))
    assert low <= exact <= high and exact > 0
    assert not low <= 3 * exact <= high  # the control: another level would be noticed


@pytest.mark.parametrize("preset", FAMILIES)
def test_all_tasks_are_solved_and_random_play_is_always_well_formed(preset):
    family, rng = PRESETS[preset], rng_at("play")
    for task in tasks(family, "held-out", 60):
        assert play(family, task, 0, lambda env: family.solver_action(env, rng)).reward == 1.0
        assert play(family, task, 0, lambda env: family.random_action(env, rng)).reward in (
            0.1,
            1.0,
        )


def test_reachable_targets_are_those_that_exact_search_finds():
    rng = rng_at("reachable")
    for operations, count in product(("+-", "+-*/"), (2, 3)):
        numbers = [int(n) for n in rng.integers(1, 20, size=count)]
        exact = [target for target in range(1, 61) if solve(tuple(numbers), target, operations)]
        assert reachable(numbers, 60, operations).tolist() == exact and exact


def test_published_filter_and_splits():
    for task in tasks(
        PRESETS["countdown-ragen"], "train", 30
    ):  # RAGEN keeps what signs alone can solve
        numbers, target = task.payload["numbers"], task.payload["target"]
        assert any(
            np.dot(signs, numbers) == target for signs in product((1, -1), repeat=len(numbers))
        )
    family = PRESETS["countdown"]
    task = family.task(5)
    shuffled = Task(
        "other", "countdown", 1, task.payload | {"numbers": task.payload["numbers"][::-1]}
    )
    assert split_of(family, task) == split_of(family, shuffled)
    assert {len(task.payload["numbers"]) for task in tasks(family, "train", 40)} == {3, 4}


def test_settings_that_cannot_be():
    with pytest.raises(ConfigError, match="exceeds most_numbers"):
        Countdown(least_numbers=4, most_numbers=3)
    with pytest.raises(ConfigError, match="operations"):
        Countdown(operations="*/")
    assert Countdown(show_rewards=True).inert_settings()[0].dead
    with pytest.raises(EnvError, match="whole numbers"):
        begun(Countdown(), target="46")


def test_snapshots_go_on_exactly():
    family = Countdown(max_turns=3, show_rewards=True)
    env, _ = begun(family)
    env.step(answer("25 + 3 + 7"))
    restored = family.make()
    restored.restore(json.loads(json.dumps(env.snapshot())))
    copies = [restored, pickle.loads(pickle.dumps(env))]
    assert len({copy.state_key() for copy in (env, *copies)}) == 1
    results = [each.step(answer("25 - 3 - 7")) for each in (env, *copies)]
    assert (
        all(result == results[0] for result in results)
        and "Reward: 0" in results[0].observation.messages[0].text
    )


def test_control_eval_by_digits_would_take_more(monkeypatch):
    """The published check looks for digits only; with it a power would pass."""
    monkeypatch.setattr(
        arithmetic, "_OPERATIONS", arithmetic._OPERATIONS | {arithmetic.ast.Pow: "*"}
    )
    assert judged("2 ** 3", (2, 3), "+-*/")[0] == ""
