"""One trajectory, a tick at a time: the loop of `collect` for a person who watches it and may go on with a next task."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.chat import ChatFormat
from workbench.engines.base import Engine
from workbench.rollouts.collect import collector_for
from workbench.rollouts.config import CollectConfig
from workbench.values import Observation, StopReason, Task, Trajectory, Turn
from workbench.values.errors import DataError, EnvError
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import EnvRunner


@dataclass(frozen=True)
class _TurnLimit:
    """All that the loop asks of a family once a trajectory has begun."""

    max_turns: int


class InteractiveTrajectory:
    """One trajectory, a tick at a time: the loop of `collect` for whoever watches it, and may then go on with a next task.

    `max_turns` (default: the family's) is for each task. Close it when done: the engine and the runner outlive it.
    """

    def __init__(
        self,
        task: Task,
        *,
        family: EnvFamily,
        engine: Engine,
        chat: ChatFormat,
        config: CollectConfig,
        address: tuple[int | str, ...],
        runner: EnvRunner,
        max_turns: int | None = None,
    ) -> None:
        self.family = family
        self.max_turns = family.max_turns if max_turns is None else max_turns
        self._collector = collector_for(family)(engine, chat, family, config, address, runner, None)
        self._trajectory = self._collector.start(task, 0)
        self._collector.family = _TurnLimit(self.max_turns)

    @property
    def trajectory(self) -> Trajectory | None:
        """The finished trajectory; None while it is under way."""
        return self._trajectory.result

    @property
    def first_observation(self) -> Observation:
        """What the environment of the first task showed; empty until it has."""
        return self._trajectory.first_observation

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What was said and answered so far; then, if there is one, the action that waits for its answer."""
        pending = self._trajectory.pending
        return (*self._trajectory.turns, *(() if pending is None else (pending,)))

    @property
    def waits(self) -> bool:
        """True while the environment works at the last of `turns`."""
        return self._trajectory.pending is not None

    @property
    def sampled(self) -> tuple[int, ...]:
        """The ids of the turn that is being sampled, as far as the engine tells."""
        return self._collector.partial()

    @property
    def length(self) -> int:
        """Tokens of the sequence that the policy sees now."""
        return (
            0
            if self._trajectory.conversation is None
            else len(self._trajectory.conversation.prompt_ids)
        )

    def tick(self) -> None:
        """Let environment and engine go one tick on."""
        for answer in self._collector.answers():
            self._collector.on_answer(answer)
        for completion in self._collector.engine.poll():
            self._collector.on_completion(completion)

    def go_on(self, task: Task, dynamics_seed: int) -> None:
        """Begin the next task behind what was said: its first observation is appended (without system messages, which
        stand at the beginning), and so are the words of the last reply that no prompt has shown.

        Raises EnvError where its environment cannot begin, DataError where the trajectory did not end by an action.
        """
        trajectory = self._trajectory
        collector = self._collector
        if trajectory.result is None or trajectory.result.stop_reason.is_fault:
            raise DataError("a next task begins where the last one has ended, and not by a fault")
        unseen = trajectory.turns[-1].reply if trajectory.turns else ()
        first = self._reset(task, dynamics_seed)
        messages = tuple(message for message in first.messages if message.role != "system")
        observation = Observation((*unseen, *messages))
        trajectory.result = None
        following = trajectory.conversation.continuation(observation)
        if following.length >= collector.context:
            return collector.end(trajectory, StopReason.CONTEXT_FULL)
        trajectory.conversation.add_observation(observation, following)
        collector.family = _TurnLimit(len(trajectory.turns) + self.max_turns)
        collector.ask(trajectory)

    def _reset(self, task: Task, dynamics_seed: int) -> Observation:
        runner = self._collector.runner
        answers = []
        runner.reset(self._trajectory.key, self.family, task, dynamics_seed)
        while not answers:
            answers = runner.poll(0.05)
        if answers[0].error is not None:
            raise EnvError(f"the environment could not begin {task.id}: {answers[0].error}")
        self._trajectory.task = task
        self._trajectory.named = {"state_key": answers[0].state_key}
        return answers[0].observation

    def close(self) -> None:
        """Let go of what is under way."""
        self._collector.abandon()
