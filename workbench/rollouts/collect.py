"""From tasks to groups of finished trajectories: the one loop between policy and environments.

There is no barrier between turns. Whatever an environment has answered goes to the engine at the next tick, whatever
the engine has finished goes to its environment, and a slow, hung or finished trajectory never holds up the others:

    reset ──▶ prompt ──▶ engine ──▶ action ──▶ environment ──▶ observation ──▶ prompt ──▶ ...  to a named stop reason

Every draw has an address (invariant 8), so the result does not depend on who finished first, and comes back in address
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.basics.canonical_json import plain
from workbench.chat import ChatFormat, Conversation
from workbench.engines.base import Completion, Engine, Request
from workbench.rollouts.config import GREEDY, CollectConfig
from workbench.values import (
    Group,
    Observation,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    sum_of,
)
from workbench.values.errors import ConfigError, EngineError, EnvError, WorkbenchError
from workbench.values.seeds import seed_of
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import EnvAnswer, EnvRunner
from workbench.worlds.scoring import RewardRunner


@dataclass
class _OpenTrajectory:
    """One trajectory in progress. Everything mutable about collecting lives here and is gone when `collect` returns."""

    key: str
    task: Task
    number: int
    dynamics_seed: int
    greedy: bool = False
    first_observation: Observation = Observation(())
    conversation: Conversation | None = None
    turns: list[Turn] = field(default_factory=list)
    pending: Turn | None = None  # an action that the environment has not answered yet
    # what the environment says of the state it is in now
    named: dict[str, str | None] = field(default_factory=dict)
    # the outcome, should a limit of ours end it now
    if_cut: dict[str, float] = field(default_factory=dict)
    result: Trajectory | None = None

    def finish(self, reason: StopReason, error: str | None = None) -> None:
        if self.pending is not None:  # never answered: kept, and unscored (invariant 5)
            self.turns.append(self.pending)
            self.pending = None
        success = None
        if not reason.is_fault and self.turns and "success" in self.turns[-1].info:
            success = bool(self.turns[-1].info["success"])
        parts = self.if_cut if reason in (StopReason.CONTEXT_FULL, StopReason.MAX_TURNS) else {}
        self.result = Trajectory(
            task=self.task,
            attempt=self.number,
            dynamics_seed=self.dynamics_seed,
            first_observation=self.first_observation,
            turns=tuple(self.turns),
            segments=self.conversation.segments if self.conversation is not None else (),
            stop_reason=reason,
            scored=not reason.is_fault,
            error=error,
            outcome=sum_of(parts.values()) if parts else None,
            outcome_parts=parts,
            success=success,
        )


class Collector:
    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        family: EnvFamily,
        config: CollectConfig,
        address: tuple[int | str, ...],
        runner: EnvRunner,
        on_done: Callable[[Trajectory], None] | None,
    ) -> None:
        self.engine = engine
        self.chat = chat
        self.family = family
        self.config = config
        self.address = address
        self.runner = runner
        self.on_done = on_done
        if config.max_context is not None and config.max_context > engine.context_length:
            raise ConfigError(
                f"collect.max_context = {config.max_context} has no effect: the engine can hold "
                f"{engine.context_length} tokens; lower it, or leave it out to use them all"
            )
        self.context = config.max_context or engine.context_length
        self.trajectories: dict[str, _OpenTrajectory] = {}
        self.sampling: dict[int, _OpenTrajectory] = {}  # request id -> trajectory
        self.requests = 0
        self.stepping = 0  # calls that environments have not answered yet

    # -- trajectories come and go

    def start(self, task: Task, number: int, greedy: bool = False) -> _OpenTrajectory:
        key = f"{task.id}#{number}"
        if key in self.trajectories:
            raise ConfigError(
                f"task {task.id!r} occurs twice in one collect; ask for a larger group instead"
            )
        trajectory = _OpenTrajectory(
            key, task, number, seed_of(*self.address, "dynamics", task.id, number), greedy
        )
        self.trajectories[key] = trajectory
        self.stepping += 1
        self.runner.reset(key, self.family, task, trajectory.dynamics_seed)
        return trajectory

    def end(
        self, trajectory: _OpenTrajectory, reason: StopReason, error: str | None = None
    ) -> None:
        trajectory.finish(reason, error)
        self.let_go(trajectory)
        self.tell(trajectory)

    def tell(self, trajectory: _OpenTrajectory) -> None:
        if self.on_done is not None and not trajectory.greedy:
            self.on_done(trajectory.result)

    def let_go(self, trajectory: _OpenTrajectory) -> None:
        self.runner.close(trajectory.key)
        if trajectory.conversation is not None:
            self.engine.release(f"{trajectory.key}/{trajectory.conversation.segment_index}")

    def abandon(self) -> None:
        """Let go of what an interrupt or a bug left under way: the engine outlives this collect."""
        for trajectory in self.trajectories.values():
            if trajectory.result is None:
                self.let_go(trajectory)

    # -- policy side

    def ask(self, trajectory: _OpenTrajectory) -> None:
        """Submit the next turn. Its seed names the turn, so nothing else in the batch can change its noise."""
        conversation = trajectory.conversation
        turn = len(trajectory.turns)
        prompt_ids = conversation.prompt_ids
        room = self.context - len(prompt_ids)
        if room < 1:
            return self.end(trajectory, StopReason.CONTEXT_FULL)
        request = Request(
            id=self.requests,
            session=f"{trajectory.key}/{conversation.segment_index}",
            prompt_ids=prompt_ids,
            seed=seed_of(*self.address, "engine", trajectory.task.id, trajectory.number, turn),
            max_new_tokens=min(self.config.max_turn_tokens, room),
            stop_ids=self.chat.stop_ids,
            **GREEDY
            if trajectory.greedy
            else {"temperature": self.config.temperature, "top_p": self.config.top_p},
        )
        self.requests += 1
        try:
            self.engine.submit(request)
        except EngineError as error:
            return self.end(trajectory, StopReason.ENGINE_ERROR, str(error))
        self.sampling[request.id] = trajectory

    def on_completion(self, completion: Completion) -> None:
        trajectory = self.sampling.pop(completion.request_id)
        if completion.finish == "error":
            return self.end(trajectory, StopReason.ENGINE_ERROR, completion.error)
        spoken = trajectory.conversation.add_action(
            completion.token_ids,
            completion.logprobs,
            finish=completion.finish,
            policy_version=completion.policy_version,
            sampling=completion.sampling,
            plain_logprobs=completion.plain_logprobs,
        )
        # Environments know thoughts in one form, in whatever marks they were sampled.
        text = self.chat.manner.plain(spoken)
        trajectory.pending = Turn(
            len(trajectory.turns), text, completion.finish, **trajectory.named
        )
        self.stepping += 1
        self.runner.step(trajectory.key, text)

    # -- environment side

    def on_answer(self, answer: EnvAnswer) -> None:
        self.stepping -= 1
        trajectory = self.trajectories[answer.key]
        if answer.error is not None:
            reason = StopReason.ENV_TIMEOUT if answer.timed_out else StopReason.ENV_ERROR
            return self.end(trajectory, reason, answer.error)
        trajectory.named = {"state_key": answer.state_key, "privileged": answer.privileged}
        if answer.observation is not None:
            trajectory.first_observation = answer.observation
            try:
                trajectory.conversation = Conversation(
                    self.chat,
                    answer.observation,
                    history=self.config.history,
                    window=self.config.window,
                )
            except WorkbenchError as error:  # an observation that no prompt can be made of
                return self.end(trajectory, StopReason.ENV_ERROR, str(error))
            return self.ask(trajectory)
        self.on_step(trajectory, answer.result)

    def on_step(self, trajectory: _OpenTrajectory, result: StepResult) -> None:
        try:
            answered = finished_turn(trajectory.pending, result)
            if_cut = _parts(result.if_cut)
        except WorkbenchError as error:
            return self.end(trajectory, StopReason.ENV_ERROR, str(error))
        trajectory.pending = None
        trajectory.turns.append(answered)
        trajectory.if_cut = if_cut
        if result.terminated:
            return self.end(trajectory, StopReason.TERMINATED)
        if result.truncated:
            return self.end(trajectory, StopReason.ENV_TRUNCATED)
        if len(trajectory.turns) >= self.family.max_turns:
            return self.end(trajectory, StopReason.MAX_TURNS)
        # The whole observation or nothing: half of one would be text that no environment ever sent.
        try:
            following = trajectory.conversation.continuation(result.observation)
        except WorkbenchError as error:
            return self.end(trajectory, StopReason.ENV_ERROR, str(error))
        if following.length >= self.context:
            return self.end(trajectory, StopReason.CONTEXT_FULL)
        if following.opens_segment:  # a rewritten history: what was cached for the old one is over
            self.engine.release(f"{trajectory.key}/{trajectory.conversation.segment_index}")
        trajectory.conversation.add_observation(result.observation, following)
        self.ask(trajectory)

    def partial(self) -> tuple[int, ...]:
        """The ids of the oldest turn in flight, as far as the engine tells."""
        request_id = next(iter(self.sampling), None)
        partial = getattr(self.engine, "partial", None)
        return () if request_id is None or partial is None else partial(request_id)

    def answers(self) -> list[EnvAnswer]:
        """What environments have answered; waits for them only when the engine has nothing to do."""
        return self.runner.poll(0.0 if self.sampling else 0.05)


class RewardCollector(Collector):
    """For families that score a trajectory once it has ended (`worlds.scoring`), while others go on."""

    def __init__(self, engine: Engine, chat: ChatFormat, family: EnvFamily, *others: Any) -> None:
        super().__init__(engine, chat, family, *others)
        self.rewards = RewardRunner(family)

    def end(
        self, trajectory: _OpenTrajectory, reason: StopReason, error: str | None = None
    ) -> None:
        if reason.is_fault:
            return super().end(trajectory, reason, error)
        trajectory.finish(reason, error)
        self.let_go(trajectory)
        self.stepping += 1
        self.rewards.begin(trajectory.key, trajectory.result)
        trajectory.result = None  # it has none yet

    def answers(self) -> list[EnvAnswer]:
        idle = not self.sampling and self.stepping == self.rewards.waiting
        for key, trajectory in self.rewards.take(0.05 if idle else 0.0):
            self.stepping -= 1
            self.trajectories[key].result = trajectory
            self.tell(self.trajectories[key])
        return super().answers()

    def abandon(self) -> None:
        self.rewards.close()
        super().abandon()


def collector_for(family: EnvFamily) -> type[Collector]:
    if hasattr(family, "collector"):  # whose trajectories are not stepped
        return family.collector()
    return RewardCollector if hasattr(family, "score") else Collector


def finished_turn(action: Turn, result: StepResult) -> Turn:
    """The finished exchange, in plain values. Raises EnvError or StoreError for numbers and facts that could be neither
    added up nor stored: a broken environment ends its own trajectory and not the run (invariant 10)."""
    for name in ("info", "reward_parts", "if_cut"):
        if not isinstance(getattr(result, name), Mapping):
            raise EnvError(
                f"{name} of a StepResult holds values by name, got {getattr(result, name)!r}"
            )
    info = plain(result.info, "info of a StepResult")
    moves = info.get("moves", [])
    if not isinstance(moves, list) or not all(isinstance(move, str) for move in moves):
        raise EnvError(f"info['moves'] of a StepResult is a list of names, got {moves!r}")
    if not isinstance(info.get("success", False), bool):
        raise EnvError(f"info['success'] of a StepResult is true or false, got {info['success']!r}")
    return replace(
        action,
        moves=tuple(moves),
        tool_calls=_calls(result.tool_calls),
        reply=result.observation.messages,
        reward=None if result.reward is None else _number(result.reward, "reward"),
        reward_parts=_parts(result.reward_parts),
        info=info,
    )


def _parts(parts: Mapping[str, Any]) -> dict[str, float]:
    return {name: _number(value, f"reward part {name!r}") for name, value in parts.items()}


def _calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    if not all(isinstance(call, ToolCall) and isinstance(call.name, str) for call in calls):
        raise EnvError(f"tool_calls of a StepResult are ToolCalls, got {calls!r}")
    return tuple(
        ToolCall(
            call.name,
            plain(call.arguments, f"arguments of the call of {call.name!r}"),
            call.call_id,
        )
        for call in calls
    )


def _number(value: Any, what: str) -> float:
    if not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
        raise EnvError(
            f"the {what} of a StepResult is a finite number (a reward that failed is None), got {value!r}"
        )
    return float(value)


def collect(
    tasks: Sequence[Task],
    *,
    family: EnvFamily,
    engine: Engine,
    chat: ChatFormat,
    config: CollectConfig,
    group_size: int,
    address: tuple[int | str, ...],
    runner: EnvRunner | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
    greedy: bool = False,
) -> list[Group]:
    """Sample `group_size` trajectories of each task, with `greedy` one aside by the likeliest tokens (`Group.greedy`); one group per
    task, in the order of `tasks`.

    `address` is the beginning of every seed: (run seed, purpose, step). `on_done` sees each trajectory as it ends.
    `runner` steps the environments and stays open; without one, `config` says which, and it is closed at the end.
    Faults (a raising environment, an engine without an answer) end *their* trajectory with a named stop reason and are
    returned like any other (invariant 10). Raises ConfigError for a task that stands twice. However it ends, nothing of it
    stays behind in the engine or the runner, so that an interrupted collect can be followed by another.
    """
    if group_size < 1:
        raise ConfigError(f"group_size is at least 1, got {group_size}")
    own = config.runner() if runner is None else None
    collector = collector_for(family)(engine, chat, family, config, address, runner or own, on_done)
    try:
        for task in tasks:
            for number in range(group_size + greedy):
                collector.start(task, number, greedy=number == group_size)
        while collector.sampling or collector.stepping:
            for answer in collector.answers():
                collector.on_answer(answer)
            for completion in engine.poll():
                collector.on_completion(completion)
    finally:
        collector.abandon()
        if own is not None:
            own.shutdown()
    results = [trajectory.result for trajectory in collector.trajectories.values()]
    groups = []
    for first in range(0, len(results), group_size + greedy):
        end = first + group_size
        groups.append(Group(tuple(results[first:end]), results[end] if greedy else None))
    return groups
