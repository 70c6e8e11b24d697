"""Runners answer every call exactly once: by a value, an error, or a missed deadline. Slow ones hold nobody up."""

import threading
from dataclasses import dataclass, field

import pytest

from workbench.values import Message, Observation, StepResult, Task
from workbench.worlds.runners import InlineRunner, ThreadRunner

TASK = Task("t", "fake", 0)


@dataclass
class FakeFamily:
    """An environment whose `step` does what the action text says; `release` lets a blocked one go on."""

    release: threading.Event = field(default_factory=threading.Event)
    made: list = field(default_factory=list)
    name: str = "fake"
    max_turns: int = 3

    def make(self):
        env = FakeEnv(self)
        self.made.append(env)
        return env


class FakeEnv:
    def __init__(self, family):
        self.family, self.actions = family, []

    def reset(self, task, dynamics_seed):
        return Observation((Message("user", f"start {dynamics_seed}"),))

    def step(self, action_text):
        self.actions.append(action_text)
        if action_text == "block":
            self.family.release.wait(timeout=30)
        elif action_text == "exit":
            raise SystemExit("bye")
        elif action_text == "unreadable":
            raise Unreadable()
        elif action_text == "wrong type":
            return "not a StepResult"
        return StepResult(Observation((Message("user", f"did {action_text}"),)), 1.0)

    def state_key(self):
        return f"after {len(self.actions)}"


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("even its text raises")


@pytest.fixture(
    params=[InlineRunner, lambda: ThreadRunner(deadline_s=20)], ids=["inline", "threads"]
)
def runner(request):
    return request.param()


def answers(runner, count):
    got = []
    while len(got) < count:
        got += runner.poll(5.0)
    return {answer.key: answer for answer in got}


def test_reset_and_step_are_answered_with_values_and_state_keys(runner):
    family = FakeFamily()
    runner.reset("a", family, TASK, 7)
    first = answers(runner, 1)["a"]
    assert (
        first.observation.messages[0].text == "start 7"
        and first.state_key == "after 0"
        and first.error is None
    )
    runner.step("a", "go")
    second = answers(runner, 1)["a"]
    assert second.result.reward == 1.0 and second.state_key == "after 1"
    assert runner.poll() == []  # answered exactly once


@pytest.mark.parametrize(
    "action, words",
    [
        ("exit", "SystemExit: bye"),
        ("unreadable", "text cannot be read"),
        ("wrong type", "StepResult from step, got str"),
    ],
)
def test_whatever_an_environment_raises_becomes_an_error_answer(runner, action, words):
    runner.reset("a", FakeFamily(), TASK, 0)
    answers(runner, 1)
    runner.step("a", action)
    answer = answers(runner, 1)["a"]
    assert words in answer.error and answer.result is None and not answer.timed_out


def test_every_trajectory_has_an_environment_of_its_own(runner):
    family = FakeFamily()
    for key in "abc":
        runner.reset(key, family, TASK, 0)
    answers(runner, 3)
    assert len({id(env) for env in family.made}) == 3


def test_a_blocked_environment_holds_nobody_up_and_its_late_answer_belongs_to_nobody():
    family, runner = FakeFamily(), ThreadRunner(deadline_s=0.2)
    for key in ("slow", "quick"):
        runner.reset(key, family, TASK, 0)
    answers(runner, 2)
    runner.step("slow", "block")
    runner.step("quick", "go")
    assert answers(runner, 1).keys() == {"quick"}  # while "slow" is still blocked
    late = answers(runner, 1)["slow"]
    assert late.timed_out and "0.2 s" in late.error
    family.release.set()  # the blocked call returns now, after it was given up
    assert runner.poll(0.3) == []


def test_a_deadline_must_be_positive():
    with pytest.raises(ValueError, match="positive"):
        ThreadRunner(deadline_s=0)
