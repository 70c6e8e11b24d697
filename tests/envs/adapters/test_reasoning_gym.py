"""reasoning-gym's data sets: every one of them makes the same question twice and scores its own answer with 1."""

import random
from collections import Counter

import numpy as np
import pytest

from tests.counts import reduced
from tests.envs.adapters.trajectories import COUNTS, all_well
from workbench.extensions.adapters.reasoning_gym import ReasoningGym
from workbench.tools.action_format import format_action
from workbench.values import Task
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at
from workbench.values.stats import wilson_interval
from workbench.worlds.baselines import known, none_known, play
from workbench.worlds.splits import tasks

gym = pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym")
SUMS = ReasoningGym("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2})
CHAINS = {
    "min_terms": 2,
    "max_terms": 4,
    "min_digits": 1,
    "max_digits": 2,
}  # experiments/chain-sum.toml
ALL = sorted(set(gym.factory.DATASETS) - {"composite"})  # composite is several of the others
QUICK = ("chain_sum", "leg_counting", "countdown", "propositional_logic", "graph_color")
NO_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


def answer(text):
    return format_action([text], think=True)


@pytest.mark.parametrize("name", reduced(ALL, QUICK))
def test_every_data_set_is_the_same_twice_and_scores_its_answer(name):
    family = ReasoningGym(name)
    task, env = family.task(3), family.make()
    assert family.task(3) == task and env.reset(task, 0).messages[0].text.startswith(
        task.payload["question"]
    )
    assert known(family) == (() if name in NO_ANSWER else ("random", "solver"))
    if name not in NO_ANSWER:
        result = env.step(family.solver_action(env, None))
        assert result.reward == 1.0 and result.info["success"] and result.terminated


@pytest.mark.parametrize("count", reduced(COUNTS, ("quick",)))
def test_many_trajectories_inline_and_in_workers_replay(count):
    groups = all_well(
        SUMS, [answer(str(number)) for number in range(0, 60, 3)], COUNTS[count], workers=False
    )
    assert {turn.reward for group in groups for t in group for turn in t.turns} >= {0.0}


def test_a_question_its_answer_and_garbage():
    env, task = SUMS.make(), SUMS.task(1)
    first = env.reset(task, 0).messages[0].text
    assert first.endswith("Answer like this: <think>plan</think><answer>the answer</answer>")
    result = env.step("no tags")
    assert result.reward == 0.0 and result.terminated and not result.info["valid_format"]
    with pytest.raises(EnvError, match="over or was never begun"):
        env.step("")
    assert none_known(ReasoningGym("rush_hour")) == {"random": "none known", "solver": "none known"}


def test_chance_is_what_an_independent_count_says():
    """Of the tasks' own answers: how often a sum drawn with Python's own generator is the same."""
    family, rng, own = ReasoningGym("chain_sum", CHAINS), rng_at("chance"), random.Random(5)

    def drawn():
        digits, value = own.randint(1, 2), None
        for _ in range(own.randint(2, 4)):
            term = own.randint(0, 9) if digits == 1 else own.randint(10, 99)
            value = term if value is None else value + own.choice((1, -1)) * term
        return value

    frequent = Counter(drawn() for _ in range(100_000))
    chosen = tasks(family, "held-out", 150)
    exact = np.mean(
        [frequent[int(family.entry(task.task_seed)[1]["answer"])] / 100_000 for task in chosen]
    )
    hits = sum(
        play(family, task, 0, lambda env: family.random_action(env, rng)).success
        for task in chosen * 15
    )
    low, high = wilson_interval(hits, 15 * len(chosen))
    assert low <= exact <= high and 0.005 < exact < 0.05
    assert not low <= 3 * exact <= high  # the control: another level would be noticed


def test_a_scorer_that_fails_leaves_the_reward_unscored(monkeypatch):
    env, task = SUMS.make(), SUMS.task(1)
    env.reset(task, 0)
    monkeypatch.setattr(type(env.dataset), "score_answer", lambda *a, **k: 1 / 0)
    result = env.step(answer("3"))
    assert result.reward is None and result.info["scorer_error"].startswith("ZeroDivisionError")
    assert result.info["success"] is False


def test_what_cannot_be():
    with pytest.raises(ConfigError, match="refuses the data set 'nothing'"):
        ReasoningGym("nothing").task(0)
    with pytest.raises(ConfigError, match="refuses the data set"):
        ReasoningGym("chain_sum", {"min_terms": -1}).task(0)
    with pytest.raises(EnvError, match="another question of seed"):
        SUMS.make().reset(Task("t", "reasoning_gym", 1, {"question": "2 + 2 ="}), 0)
