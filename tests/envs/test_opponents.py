"""Somebody else speaks in a trajectory: by turns, with a name, from the trajectory's own seed, and never trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from data.make.tiny_tokenizer import build_tokenizer
from workbench.chat import ChatFormat
from workbench.engines.scripted import ScriptedEngine
from workbench.look import trajectory_view
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.rollouts.opponents import EndpointOpponent, PolicyOpponent
from workbench.values import Message, Observation, Source, StepResult, StopReason, Task
from workbench.values.errors import EnvError
from workbench.worlds.opponents import OpponentEnv


class Nim:
    """Whoever takes the last of nine matches wins. The side that begins is in the task."""

    def reset(self, task, dynamics_seed):
        self.left, self.turn, self.asked = 9, task.payload["first"], []
        return Observation((Message("user", "Nine matches."),))

    def to_move(self):
        return None if self.turn == "policy" else "rival"

    def observe(self):
        self.asked.append(self.left)
        return Observation((Message("user", f"{self.left} left."),))

    def step(self, action_text):
        mover, self.turn = self.turn, "policy" if self.turn == "rival" else "rival"
        self.left -= int(action_text)
        won = self.left <= 0 and mover == "policy"
        lost = self.left <= 0 and mover == "rival"
        return StepResult(
            Observation((Message("user", f"{self.left} left."),)),
            float(won) - float(lost),
            {"game": float(won) - float(lost)},
            terminated=self.left <= 0,
            info={"success": won},
        )


def takes(observation, rng):
    return str(rng.integers(1, 4))


async def takes_later(observation, rng):
    return takes(observation, rng)


@dataclass(frozen=True)
class NimFamily:
    opponent: Any = takes
    first: str = "policy"
    max_turns: int = 9
    name: ClassVar[str] = "nim"

    def task(self, task_seed):
        return Task(
            f"nim/{task_seed}", self.name, task_seed, {"first": self.first, "seed": task_seed}
        )

    def make(self):
        return OpponentEnv(Nim(), self.opponent)


def said(messages):
    return [(message.name, message.text) for message in messages]


@pytest.mark.parametrize("opponent", [takes, takes_later])
def test_the_other_side_speaks_when_it_is_to_move_and_chance_is_the_trajectories_own(opponent):
    family = NimFamily(opponent)
    games = []
    for seed in (1, 1, 2, 3, 4):
        env = family.make()
        env.reset(family.task(0), seed)
        result = env.step("1")
        ((name, words),) = [pair for pair in said(result.observation.messages) if pair[0]]
        assert name == "rival" and env.env.left == 8 - int(words) and not result.terminated
        games.append(words)
    assert games[0] == games[1] and len(set(games)) > 1


def test_it_may_begin_and_its_winning_is_the_policys_loss():
    family = NimFamily(lambda observation, rng: "4", first="rival")
    env = family.make()
    first = env.reset(family.task(0), 0)
    assert said(first.messages) == [(None, "Nine matches."), ("rival", "4"), (None, "5 left.")]
    result = env.step("1")
    assert result.terminated and result.reward == -1.0 and result.reward_parts == {"game": -1.0}
    assert not result.info["success"] and env.env.asked == [9, 4]


class Kept(Nim):
    """With a state that can be kept."""

    def snapshot(self):
        return {"left": self.left, "turn": self.turn}

    def restore(self, snapshot):
        self.left, self.turn, self.asked = snapshot["left"], snapshot["turn"], []

    def privileged(self):
        return f"{self.left} left"


def test_a_snapshot_is_that_of_the_game_and_of_the_opponents_chance():
    assert not any(hasattr(OpponentEnv(Nim(), takes), name) for name in ("snapshot", "privileged"))
    goes_on = []
    for seed in range(6):
        env = OpponentEnv(Kept(), takes)
        env.reset(NimFamily().task(0), seed)
        env.step("1")
        taken = json.loads(json.dumps(env.snapshot()))
        other = OpponentEnv(Kept(), takes)
        other.restore(taken)
        assert other.privileged() == env.privileged() == f"{env.env.left} left"
        first, second = env.step("1"), other.step("1")
        assert first == second
        assert taken == {**taken, "seed": seed, "replies": 1}
        goes_on.append(first)
    assert len({said(result.observation.messages)[1] for result in goes_on}) > 1


@pytest.mark.parametrize(
    "opponent, words",
    [(lambda o, r: None, "says a text"), (lambda o, r: "0", "100 times in a row")],
)
def test_an_opponent_that_breaks_is_named(opponent, words):
    class Stuck(Nim):
        def to_move(self):
            return "rival"

    env = OpponentEnv(Stuck(), opponent)
    with pytest.raises(EnvError, match=words):
        env.reset(NimFamily().task(0), 0)


def gathered(opponent):
    tokenizer = build_tokenizer(["Nine matches. 9 left. 1 2 3 rival"] * 5)
    chat = ChatFormat.from_tokenizer(tokenizer)
    engine = ScriptedEngine(
        lambda request: [*tokenizer.encode("1", add_special_tokens=False), min(chat.stop_ids)]
    )
    [group] = collect(
        [NimFamily().task(0)],
        family=NimFamily(opponent),
        engine=engine,
        chat=chat,
        config=CollectConfig(),
        group_size=2,
        address=(0, "test", 1),
    )
    return group, chat


def test_what_it_says_is_text_of_the_environment_with_its_name_and_never_trained():
    group, chat = gathered(takes)
    for trajectory in group:
        assert trajectory.stop_reason is StopReason.TERMINATED
        assert any(message.name == "rival" for turn in trajectory.turns for message in turn.reply)
        spans = [span for segment in trajectory.segments for span in segment.spans]
        sampled = "".join(
            chat.decode(span.token_ids) for span in spans if span.source is Source.POLICY
        )
        assert (
            all(span.source is Source.POLICY for span in spans if span.sampled)
            and "left" not in sampled
        )
        assert sum(span.sampled for span in spans) == len(trajectory.turns)
    assert "rival: " in trajectory_view(group[0]).text


def test_an_opponent_that_raises_is_a_fault_of_its_trajectory():
    def breaks(observation, rng):
        raise OSError("gone")

    group, _ = gathered(breaks)
    assert {t.stop_reason for t in group} == {StopReason.ENV_ERROR} and "gone" in group[0].error


def test_a_policy_in_an_engine_of_its_own_answers_the_same_from_the_same_seed():
    opponent, seen = (
        PolicyOpponent("frozenlake-tiny", max_tokens=6),
        Observation((Message("user", "P _ O G"),)),
    )
    words = [opponent(seen, np.random.default_rng(seed)) for seed in (1, 1, 2, 3, 4)]
    assert words[0] == words[1] and len(set(words)) > 1 and "<|im_end|>" not in "".join(words)


def test_a_model_behind_a_server_answers():
    class Pretended:
        url = "http://nowhere/v1"

        def stream(self, messages, **settings):
            from workbench.engines.endpoint import Reply

            yield "2"
            yield Reply(f"2 of {messages[0]['content']}", (), "stop")

    assert (
        EndpointOpponent(Pretended())(Observation((Message("user", "9 left."),)), None)
        == "2 of 9 left."
    )
