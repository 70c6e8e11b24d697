"""A program at one task, a tick at a time: for whoever talks to a policy through the program that asks it."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from typing import Any

from workbench.chat import ChatFormat
from workbench.engines.base import Completion, Engine
from workbench.extensions.agents.tree import CallTree, TreeCall
from workbench.rollouts.config import CollectConfig
from workbench.values import Observation, Task, ToolCall, Trajectory, Turn
from workbench.values.errors import EnvError
from workbench.worlds.base import Wrapped
from workbench.worlds.runners import EnvRunner


class _LimitedCalls(Wrapped):
    """The family, with another most of calls."""

    def __init__(self, inside: Any, max_turns: int) -> None:
        super().__init__(inside)
        self.max_turns = max_turns


class WatchedProgram:
    """The loop of `collect` with one trajectory. Its turns are the calls of the program in the order in which they were
    answered; what followed a call is known once the program has gone on from it. Close it when done."""

    def __init__(
        self,
        task: Task,
        *,
        family: Any,
        engine: Engine,
        chat: ChatFormat,
        config: CollectConfig,
        address: tuple[int | str, ...],
        runner: EnvRunner,
        max_turns: int,
    ) -> None:
        limited = _LimitedCalls(family, max_turns)
        self._collector = family.collector()(engine, chat, limited, config, address, runner, None)
        self._trajectory = self._collector.start(task, 0)
        self._waiting: deque[Any] = deque()  # what happened and is not looked at yet
        self._answered: list[TreeCall] = []

    @property
    def trajectory(self) -> Trajectory | None:
        """The finished trajectory; None while it is under way."""
        return self._trajectory.result

    @property
    def first_observation(self) -> Observation:
        return self._trajectory.first_observation

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The answered calls so far."""
        tree: CallTree | None = self._trajectory.conversation
        if tree is None:
            return ()
        numbered = {turn.info["call"]["number"]: turn for turn in self._turns_of(tree)}
        return tuple(_as_told(numbered[call.number], call) for call in self._answered)

    def _turns_of(self, tree: CallTree) -> tuple[Turn, ...] | list[Turn]:
        return tree.turns() if self.trajectory is None else self.trajectory.turns

    @property
    def waits(self) -> bool:
        """True while the program may still go on from the last of `turns`."""
        return self.trajectory is None

    @property
    def sampled(self) -> tuple[int, ...]:
        """The ids of a turn that is being sampled, as far as the engine tells."""
        return self._collector.partial()

    @property
    def length(self) -> int | None:
        """Tokens of all segments."""
        over = self.trajectory
        return None if over is None else sum(len(segment) for segment in over.segments)

    def tick(self) -> None:
        """Look at one thing that happened, so that each turn is seen by itself."""
        if not self._waiting:
            self._waiting.extend(self._collector.answers())
            self._waiting.extend(self._collector.engine.poll())
        if not self._waiting:
            return
        happened = self._waiting.popleft()
        if isinstance(happened, Completion):
            self._collector.on_completion(happened)
        else:
            self._collector.on_answer(happened)
        tree = self._trajectory.conversation
        if tree is not None:
            self._answered += [call for call in tree.answered if call not in self._answered]

    def go_on(self, task: Task, dynamics_seed: int) -> None:
        raise EnvError("a program begins anew with every question")

    def close(self) -> None:
        """Let go of what is under way."""
        self._collector.abandon()


def _as_told(turn: Turn, call: TreeCall) -> Turn:
    """The turn with the calls that the program was given, as an environment with tools would tell them."""
    calls = tuple(ToolCall(own.name, json.loads(own.arguments), own.id) for own in call.given.calls)
    info = {**turn.info, "calls": [{"error": ""} for _ in calls]}
    return replace(turn, tool_calls=calls, info=info)
