"""Yardsticks: played results agree with exact ones, and the order is random < solver."""
import numpy as np
import pytest

from workbench.envs import PRESETS, FrozenLake, baselines, tasks
from workbench.envs.format import format_action
from workbench.envs.frozen_lake import task_from_grid
from workbench.errors import ConfigError


def test_play_is_one_attempt_in_plain_numbers():
    family = FrozenLake(format_penalty=-0.25)
    script = iter(["what?", format_action(["Left", "Down"], think=True), format_action(["Right"], think=True)])
    attempt = baselines.play(family, task_from_grid(["P__O", "_G__", "____", "O___"]), 0, lambda env: next(script))
    assert attempt == baselines.Attempt(success=True, reward=0.75, turns=3, moves=3)


def test_play_stops_at_the_limit_on_answers():
    family = FrozenLake(max_turns=4)
    attempt = baselines.play(family, family.task(1), 0, lambda env: "nonsense")
    assert attempt == baselines.Attempt(success=False, reward=pytest.approx(-0.4), turns=4, moves=0)


@pytest.mark.parametrize("policy", ["random", "solver"])
def test_played_success_agrees_with_the_exact_value(policy):
    family = PRESETS["frozenlake-4x4-slip"]
    chosen = tasks(family, "held-out", 60)
    played = baselines.evaluate_baseline(family, chosen, policy, seed=3, attempts=6)
    exact = np.array([getattr(family, f"{policy}_value")(task) for task in chosen])
    se = np.sqrt((exact * (1 - exact)).sum() * 6) / (60 * 6)
    assert abs(played.success.mean - exact.mean()) < 4 * se + 1e-12
    assert played.success.n == 60 and len(played.attempts) == 60


def test_with_fewer_answers_than_moves_the_solver_is_only_the_best_known():
    family = FrozenLake(slip=0.2, max_turns=3)
    assert family.solver_name == "best known" and PRESETS["frozenlake-4x4-slip"].solver_name == "optimal"
    chosen = tasks(family, "train", 60)
    played = baselines.evaluate_baseline(family, chosen, "solver", attempts=4)
    exact = np.mean([family.solver_value(task) for task in chosen])
    assert played.name == "best known" and played.success.mean == pytest.approx(exact, abs=0.12)
    assert played.turns <= 3


def test_the_demo_leaves_room_between_random_and_optimal():
    family = PRESETS["frozenlake-4x4"]
    chosen = tasks(family, "held-out", 200)
    random = baselines.evaluate_baseline(family, chosen, "random")
    solver = baselines.evaluate_baseline(family, chosen, "solver")
    assert solver.success.mean == 1.0 and random.success.high < 0.35
    assert str(solver).startswith("optimal: success 1.00 [0.98, 1.00] n=200")


def test_results_are_repeatable_and_seeds_matter():
    family = PRESETS["frozenlake-4x4-slip"]
    chosen = tasks(family, "train", 20)
    one, again, other = (baselines.evaluate_baseline(family, chosen, "random", seed) for seed in (0, 0, 1))
    assert one == again and one.attempts != other.attempts


def test_any_function_is_a_policy():
    def always_up(env, rng):
        return format_action(["Up"], think=True)

    family = PRESETS["frozenlake-4x4"]
    result = baselines.evaluate_baseline(family, tasks(family, "train", 30), always_up)
    assert result.name == "always_up" and 0 < result.moves <= 10


def test_unknown_baselines_are_refused():
    with pytest.raises(ConfigError, match="solver"):
        baselines.evaluate_baseline(PRESETS["bandit"], tasks(PRESETS["bandit"], "train", 2), "oracle")
    with pytest.raises(ConfigError, match="at least one task"):
        baselines.evaluate_baseline(PRESETS["bandit"], [], "random")
