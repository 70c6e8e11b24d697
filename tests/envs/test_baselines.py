"""Baselines: played results agree with exact ones, and the order is random < solver."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.exact_values import random_value, solver_value
from workbench.rollouts.evaluate import evaluate_baselines
from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError
from workbench.worlds import PRESETS, FrozenLake, baselines, tasks
from workbench.worlds.frozen_lake import FrozenLakeEnv, task_from_grid


def test_play_is_one_trajectory_in_plain_numbers():
    family = FrozenLake(format_penalty=-0.25)
    script = iter(
        ["what?", format_action(["Left", "Down"], think=True), format_action(["Right"], think=True)]
    )
    trajectory = baselines.play(
        family, task_from_grid(["P__O", "_G__", "____", "O___"]), 0, lambda env: next(script)
    )
    assert trajectory == baselines.BaselineResult(success=True, reward=0.75, turns=3, moves=3)


def test_play_stops_at_the_limit_on_answers():
    family = FrozenLake(max_turns=4)
    trajectory = baselines.play(family, family.task(1), 0, lambda env: "nonsense")
    assert trajectory == baselines.BaselineResult(
        success=False, reward=pytest.approx(-0.4), turns=4, moves=0
    )


def test_a_reward_that_could_not_be_scored_is_not_zero(monkeypatch):
    """Invariant 5: one turn without a reward, and the trajectory has none; the mean is over the others."""
    chosen = tasks(FrozenLake(), "held-out", 6)
    random, _ = evaluate_baselines(chosen, family=FrozenLake(), seed=0)
    step = FrozenLakeEnv.step

    def unscored(env, action_text):
        result = step(env, action_text)
        return (
            replace(result, reward=None) if env.rows == tuple(chosen[0].payload["grid"]) else result
        )

    rewards = [
        baselines.play(FrozenLake(), task, 0, lambda env: "nonsense").reward for task in chosen[:2]
    ]
    monkeypatch.setattr(FrozenLakeEnv, "step", unscored)
    assert [
        baselines.play(FrozenLake(), task, 0, lambda env: "nonsense").reward for task in chosen[:2]
    ] == [None, rewards[1]]
    without, _ = evaluate_baselines(chosen, family=FrozenLake(), seed=0)
    others, _ = evaluate_baselines(chosen[1:], family=FrozenLake(), seed=0)
    assert without.reward == others.reward and without.by_task == random.by_task


def test_played_success_agrees_with_the_exact_value():
    family = PRESETS["frozenlake-4x4-slip"]
    chosen = tasks(family, "held-out", 60)
    random, _ = evaluate_baselines(chosen, family=family, seed=3, attempts=6)
    solver = [evaluate_baselines(chosen, family=family, seed=seed)[1].success for seed in range(6)]
    for value, played in ((random_value, random.success), (solver_value, np.mean(solver))):
        exact = np.array([value(family, task) for task in chosen])
        se = np.sqrt((exact * (1 - exact)).sum() * 6) / (60 * 6)
        assert abs(played - exact.mean()) < 4 * se + 1e-12
    assert random.n == 60 and random.attempts == 6


def test_with_fewer_answers_than_moves_the_solver_is_only_the_best_known():
    family = FrozenLake(slip=0.2, max_turns=3)
    assert (
        family.solver_name == "best known"
        and PRESETS["frozenlake-4x4-slip"].solver_name == "optimal"
    )
    chosen = tasks(family, "train", 60)
    played = [evaluate_baselines(chosen, family=family, seed=seed)[1] for seed in range(4)]
    exact = np.mean([solver_value(family, task) for task in chosen])
    assert np.mean([score.success for score in played]) == pytest.approx(exact, abs=0.12)
    assert all(score.turns <= 3 for score in played)


def test_the_demo_leaves_room_between_random_and_optimal():
    family = PRESETS["frozenlake-4x4"]
    random, solver = evaluate_baselines(tasks(family, "held-out", 200), family=family, seed=0)
    assert solver.success == 1.0 and random.success_high < 0.35
    assert str(solver) == "solver    greedy   100.0 %  [98.1, 100.0]  n=200"


def test_results_are_repeatable_and_seeds_matter():
    family = PRESETS["frozenlake-4x4-slip"]
    chosen = tasks(family, "train", 20)
    one, again, other = (evaluate_baselines(chosen, family=family, seed=seed) for seed in (0, 0, 1))
    assert one == again and one[0].by_task != other[0].by_task


def test_any_function_can_be_played():
    family = PRESETS["frozenlake-4x4"]
    played = [
        baselines.play(family, task, 0, lambda env: format_action(["Up"], think=True))
        for task in tasks(family, "train", 30)
    ]
    assert 0 < np.mean([trajectory.moves for trajectory in played]) <= 10


def test_nothing_to_play_is_refused():
    family = PRESETS["bandit"]
    for chosen, attempts in (([], 1), (tasks(family, "train", 2), 0)):
        with pytest.raises(ConfigError, match="at least one task and one trajectory"):
            evaluate_baselines(chosen, family=family, seed=0, attempts=attempts)
