"""Rewards that are known only after a trajectory: computed while others play, retried, unscored where they fail."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest

from data.make.tiny_tokenizer import build_tokenizer
from tests.envs.guessing import Guess, Guessing
from workbench.chat import ChatFormat
from workbench.engines.scripted import ScriptedEngine
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.rollouts.evaluate import evaluate_baselines
from workbench.values import Observation, StopReason, Task, Trajectory, Turn
from workbench.values.errors import EnvError
from workbench.worlds import tasks as env_tasks
from workbench.worlds.scoring import with_score


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(["Name a number below 17. Noted."] * 5)


@dataclass(frozen=True)
class Judged(Guessing):
    """A judge pays the length of the action; each way of failing happens to one trajectory."""

    name: ClassVar[str] = "judged"
    score_deadline_s: ClassVar[float] = 0.5
    score_retries: ClassVar[int] = 1
    tries: ClassVar[dict] = {}
    overlapped: ClassVar[threading.Event] = threading.Event()

    def random_action(self, env, rng):
        return "1"

    def score(self, trajectory):
        self.tries[trajectory.attempt] = self.tries.get(trajectory.attempt, 0) + 1
        if trajectory.attempt == 1:
            raise RuntimeError("the judge is not in")
        if trajectory.attempt == 2 and self.tries[2] == 1:
            raise RuntimeError("not yet")
        if trajectory.attempt == 3:
            time.sleep(1.5)
        if trajectory.attempt == 4:
            return None
        return {"judge": float(len(trajectory.turns[-1].text)), "success": True}


class Awaited(Judged):
    async def score(self, trajectory):
        await asyncio.sleep(1e6 if trajectory.attempt == 3 else 0.01)
        return 0.0 if trajectory.attempt == 3 else super().score(trajectory)


def gathered(tokenizer, family, group_size=6, on_done=None):
    chat = ChatFormat.from_tokenizer(tokenizer)
    engine = ScriptedEngine(
        lambda request: [*tokenizer.encode("1", add_special_tokens=False), min(chat.stop_ids)]
    )
    [group] = collect(
        env_tasks(family, "train", 1),
        family=family,
        engine=engine,
        chat=chat,
        config=CollectConfig(),
        group_size=group_size,
        address=(0, "test", 1),
        on_done=on_done,
    )
    return group


@pytest.mark.parametrize("family", [Judged, Awaited])
def test_scores_are_outcomes_and_what_fails_is_unscored_with_its_reason(tokenizer, family):
    family.tries.clear()
    done = []
    group = gathered(tokenizer, family(), on_done=done.append)
    paid, refused, retried, late, silent, last = group
    assert (
        paid.outcome_parts == {"judge": 1.0}
        and paid.success is True
        and paid.stop_reason is StopReason.TERMINATED
    )
    assert paid.reward == paid.turns[0].reward + 1.0 == retried.reward == last.reward
    assert (
        "RuntimeError: the judge is not in (test_scores_after.py:" in refused.error
        and "(tried 2 times)" in refused.error
        and family.tries[1] == 2
    )
    assert "nothing within 0.5 s" in late.error and "'score' is None" in silent.error
    for trajectory in (refused, late, silent):
        assert trajectory.reward is None and not trajectory.scored and trajectory.outcome is None
    assert sorted(t.attempt for t in done) == list(range(6))  # each of them once, as stored


def test_trajectories_are_scored_at_once_and_while_others_play(tokenizer):
    playing, seen = threading.Event(), []

    class Slow(Guess):
        def step(self, action_text):
            if self.attempt > 0:
                playing.wait(5)  # goes on only when another trajectory is being scored
            return super().step(action_text)

    @dataclass(frozen=True)
    class Overlapping(Guessing):
        def make(self):
            env = Slow()
            env.attempt = len(seen)
            seen.append(env)
            return env

        def score(self, trajectory):
            playing.set()
            return 1.0

    chat = ChatFormat.from_tokenizer(tokenizer)
    engine = ScriptedEngine(
        lambda request: [*tokenizer.encode("1", add_special_tokens=False), min(chat.stop_ids)]
    )
    began = time.monotonic()
    [group] = collect(
        env_tasks(Overlapping(), "train", 1),
        family=Overlapping(),
        engine=engine,
        chat=chat,
        config=CollectConfig(env_runner="threads"),
        group_size=3,
        address=(0, "test", 1),
    )
    assert [t.outcome for t in group] == [1.0] * 3 and time.monotonic() - began < 4


def test_random_play_is_scored_as_a_policy_is():
    [random] = evaluate_baselines([Judged().task(3)], family=Judged(), seed=0)
    assert random.success == 1.0 and random.reward == pytest.approx(1.0 + 1 / 4)


@pytest.mark.parametrize(
    "value, words",
    [
        (True, "'score' is True"),
        (float("nan"), "nan"),
        ({"a": "x"}, "'a' is 'x'"),
        ({"success": 1}, "true or false"),
    ],
)
def test_what_is_no_reward_is_refused(value, words):
    trajectory = Trajectory(
        Task("t", "fake", 0),
        0,
        0,
        Observation(()),
        (Turn(0, "a", reward=0.0),),
        (),
        StopReason.TERMINATED,
    )
    with pytest.raises(EnvError, match=words):
        with_score(trajectory, value)
