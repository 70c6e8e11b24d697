"""Somebody else who speaks in a trajectory: an opponent, a user simulator.

    class Talk:                                   an environment of two sides, as any other, and beside it:
        def to_move(self) -> str | None           the name of who is to speak now; None: the policy
        def observe(self) -> Observation          what that side is shown

    family.make() returns OpponentEnv(Talk(), opponent)         opponent(observation, rng) -> str

`step(text)` of such an environment takes the words of whoever is to move; rewards, `info` and the observation it returns
are the policy's. What the other side says reaches the policy as messages with its name. To a policy's sequence they are
text of the environment, so they are never trained, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.tools.awaiting import EventLoop
from workbench.values import Message, Observation, StepResult, Task
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.runners import asked

MOST_REPLIES = 100  # of the other side in a row


class OpponentEnv:
    """`env` with its other side played by `opponent(observation, rng)`, a function or a coroutine. `rng` comes from the
    trajectory's dynamics seed and the number of the reply. What the opponent raises ends the trajectory as a fault.

    `state_key`, `snapshot`, `restore` and `privileged` are those of `env`, which has to count an opponent's memory as its own
    state: one that is a function of (observation, rng) has none."""

    def __init__(
        self, env: Any, opponent: Callable[[Observation, np.random.Generator], str]
    ) -> None:
        self.env = env
        self.opponent = opponent
        self._loop = EventLoop()
        self._seed = 0
        self._replies = 0

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        self._seed = dynamics_seed
        self._replies = 0
        first = self.env.reset(task, dynamics_seed)
        return self._others(StepResult(first, 0.0)).observation

    def step(self, action_text: str) -> StepResult:
        return self._others(self.env.step(action_text))

    def _others(self, result: StepResult) -> StepResult:
        """Let the other side speak until the policy is to move, or it is over; one result for all of it."""
        for _ in range(MOST_REPLIES):
            speaker = None if result.terminated or result.truncated else self.env.to_move()
            if speaker is None:
                return result
            rng = rng_at(self._seed, "opponent", self._replies)
            text = self._loop.settle(self.opponent(self.env.observe(), rng))
            if not isinstance(text, str):
                raise EnvError(f"the opponent {speaker!r} says a text, got {text!r:.80}")
            self._replies += 1
            result = _joined(result, Message("user", text, name=speaker), self.env.step(text))
        raise EnvError(
            f"the opponent spoke {MOST_REPLIES} times in a row; to_move() returns None where the policy is to "
            "move"
        )

    def state_key(self) -> str | None:
        return asked(self.env, "state_key")

    @property
    def privileged(self) -> Callable[[], str]:
        """AttributeError where the game has none."""
        return self.env.privileged

    @property
    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The game's own, and where the opponent's chance stands. AttributeError where the game has none."""
        inside = self.env.snapshot
        return lambda: {"env": inside(), "seed": self._seed, "replies": self._replies}

    @property
    def restore(self) -> Callable[[Mapping[str, Any]], None]:
        """AttributeError where the game has none."""
        inside = self.env.restore

        def restored(snapshot: Mapping[str, Any]) -> None:
            inside(snapshot["env"])
            self._seed = snapshot["seed"]
            self._replies = snapshot["replies"]

        return restored

    def close(self) -> None:
        self._loop.close()
        if hasattr(self.env, "close"):
            self.env.close()


def _joined(before: StepResult, said: Message, after: StepResult) -> StepResult:
    """Rewards of both are the policy's: they are added up, part by part."""
    parts = dict(before.reward_parts)
    for name, value in after.reward_parts.items():
        parts[name] = parts.get(name, 0.0) + value
    reward = None
    if before.reward is not None and after.reward is not None:
        reward = before.reward + after.reward
    messages = (*before.observation.messages, said, *after.observation.messages)
    return replace(
        after,
        observation=replace(before.observation, messages=messages),
        reward=reward,
        reward_parts=parts,
        info={**before.info, **after.info},
        tool_calls=before.tool_calls,
    )
