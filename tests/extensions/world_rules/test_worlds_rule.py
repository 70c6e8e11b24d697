"""R30: an environment does what it says. The shipped ones do; one that is made wrong is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import pytest

from workbench.basics.findings import Answer
from workbench.linting import Evidence, all_rules, check
from workbench.values import Message, Observation
from workbench.worlds import PRESETS, Bandit, Countdown, FrozenLake, WorldQA
from workbench.worlds.answer_rewards import AnswerRewards
from workbench.worlds.arithmetic import solve
from workbench.worlds.bandit import BanditEnv
from workbench.worlds.countdown import CountdownEnv
from workbench.worlds.frozen_lake import GOAL, HOLE, FrozenLakeEnv
from workbench.worlds.tool_env import CallSettings
from workbench.worlds.world_qa import WorldEnv

RULES = all_rules()

MORE = {
    "rag": WorldQA(context="rag"),
    "closed": WorldQA(context="closed"),
    "f1": WorldQA(rewards=AnswerRewards("f1")),
    "agent-r1": WorldQA(rewards=AnswerRewards(rule="agent-r1")),
    "tags": WorldQA(calls=CallSettings(format="tags", think=True)),
}
SLIPPERY = PRESETS["frozenlake-4x4-slip"]


def ask(family) -> Answer:
    return check(Evidence(family=family), [RULES["R30"]])["R30"]


@pytest.mark.parametrize("name", [*PRESETS, *MORE])
def test_the_shipped_environments_are_clean(name):
    answer = ask((dict(PRESETS) | MORE)[name])
    assert answer.status == "passed" and answer.looked > 20, answer.findings


@dataclass(frozen=True)
class WithOptions(FrozenLake):
    """A setting that cannot be hashed, as the adapters' options are."""

    options: Mapping[str, str] = field(default_factory=lambda: {"any": "thing"})


def test_settings_that_cannot_be_hashed_are_looked_at():
    slippery = WithOptions(slip=0.2)
    assert ask(slippery).status == "passed" and ask(slippery).looked > 20
    assert ask(
        of(slippery, SharedDice)
    ).errors  # of other settings it is told apart by what its repr says


def of(family, env_type):
    """The family with environments of another type."""

    @dataclass(frozen=True)
    class Changed(type(family)):
        def make(self):
            return env_type(self)

    return Changed(**{each.name: getattr(family, each.name) for each in fields(family)})


class SharedDice(FrozenLakeEnv):
    def reset(self, task, dynamics_seed):
        return super().reset(task, task.task_seed)


class SharedPayout(BanditEnv):
    def reset(self, task, dynamics_seed):
        return super().reset(task, task.task_seed)


class Mirrored(FrozenLakeEnv):
    def _move(self, intended):
        return super()._move((intended + 2) % 4)


class HolesWin(FrozenLakeEnv):
    def _won(self):
        return self._cell() == HOLE


class GoalCosts(FrozenLakeEnv):
    def _move(self, intended):
        return super()._move(intended) | {"goal": -1.0 if self._cell() == GOAL else 0.0}


class LimitIsTheEnd(FrozenLakeEnv):
    def step(self, action_text):
        result = super().step(action_text)
        return replace(result, terminated=result.terminated or result.truncated, truncated=False)


class Stale(FrozenLakeEnv):
    def _state_words(self):
        return (
            f"{self.rows and ' '.join(self.rows[0])}" if self.moves_used else super()._state_words()
        )


class MoreIsPromised(FrozenLakeEnv):
    def reset(self, task, dynamics_seed):
        first = super().reset(task, dynamics_seed).messages[0].text
        return Observation((Message("user", first.replace("3 moves in all", "9 moves in all")),))


class PartsDoNotSum(FrozenLakeEnv):
    def step(self, action_text):
        result = super().step(action_text)
        return replace(result, reward=result.reward - 0.5)


class GarbageWins(FrozenLakeEnv):
    def step(self, action_text):
        result = super().step(action_text)
        return (
            result
            if result.info["valid_format"]
            else replace(result, terminated=True, info=dict(result.info) | {"success": True})
        )


@pytest.mark.parametrize(
    "family, env_type, words",
    [
        (SLIPPERY, SharedDice, "slip = 0.2 declares chance"),
        (Bandit(), SharedPayout, "risky_chance = 0.25 declares chance"),
        (FrozenLake(), Mirrored, "best-known solver succeeds at none"),
        (FrozenLake(), HolesWin, "success"),
        (FrozenLake(), GoalCosts, "success and reward disagree"),
        (FrozenLake(max_moves=4), LimitIsTheEnd, "a limit is truncated"),
        (
            FrozenLake(max_moves=3, max_turns=4),
            MoreIsPromised,
            "the first prompt speaks of 4 and 9",
        ),
        (FrozenLake(), Stale, "while its state is"),
        (FrozenLake(), PartsDoNotSum, "its parts"),
        (FrozenLake(), GarbageWins, "succeeds at 6 of 6 tasks"),
    ],
)
def test_an_environment_that_is_made_wrong_is_named(family, env_type, words):
    assert any(words in finding.what for finding in ask(of(family, env_type)).errors), ask(
        of(family, env_type)
    ).findings


class Generous(WorldEnv):
    def step(self, action_text):
        result = super().step(action_text)
        known = self.task.payload["answers"][0] in action_text
        return replace(
            result,
            info=dict(result.info) | ({"success": known} if "success" in result.info else {}),
        )


def test_a_gold_answer_among_guesses_is_not_right():
    assert any("counts as right" in finding.what for finding in ask(of(WorldQA(), Generous)).errors)


class Solved(CountdownEnv):
    def reset(self, task, dynamics_seed):
        first = super().reset(task, dynamics_seed)
        solution = solve(tuple(sorted(self.numbers)), self.target, self.family.operations)
        return Observation((Message("user", f"For example {solution}.\n{first.messages[0].text}"),))


def test_an_example_that_solves_the_task_at_hand_is_named():
    assert any(
        "what the best-known solver writes" in finding.what
        for finding in ask(of(Countdown(), Solved)).errors
    )


def test_one_that_is_not_the_same_twice_is_not_played():
    class Other(FrozenLake):
        deterministic = False

    assert ask(Other()).status == "not checked"


def test_a_family_without_solver_or_success_is_played_as_far_as_it_goes():
    class Silent:
        name, max_turns = "silent", 3

        def task(self, task_seed):
            return PRESETS["bandit"].task(task_seed)

        def make(self):
            return self

        def reset(self, task, dynamics_seed):
            return Observation((Message("user", f"Say {task.id}."),))

        def step(self, action_text):
            from workbench.values import StepResult

            return StepResult(Observation((Message("user", "Thanks."),)), 0.5)

    assert not ask(Silent()).errors
