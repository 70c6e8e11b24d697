"""One trajectory of a question by whatever answers at an OpenAI-compatible endpoint: the environment and its tools are
ours, the turns are the server's. No token is known, so the trajectory has turns and no segments.

Tool calls that the server has read itself are written down as the policy would have written them, so that there is one
reader of actions, the environment's; what it replies goes back under the ids that the server gave its calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from workbench.engines.endpoint import Endpoint, NativeCall, Reply
from workbench.rollouts.collect import finished_turn
from workbench.rollouts.config import CollectConfig
from workbench.values import Message, Observation, StopReason, Task, Trajectory, Turn
from workbench.values.errors import EngineError, EnvError, WorkbenchError
from workbench.values.seeds import seed_of
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import EnvAnswer, EnvRunner
from workbench.worlds.scoring import RewardRunner, scores_after

NOT_RUN = "Error: this call was not run."


class EndpointTrajectory:
    """What `interactive.InteractiveTrajectory` is for an engine. Each tick waits for one more piece of a reply."""

    def __init__(
        self,
        task: Task,
        *,
        endpoint: Endpoint,
        family: EnvFamily,
        config: CollectConfig,
        address: tuple[int | str, ...],
        runner: EnvRunner,
        max_turns: int,
    ) -> None:
        self.endpoint = endpoint
        self.family = family
        self.config = config
        self.runner = runner
        self.max_turns = max_turns
        self.task = task
        self.key = f"{task.id}#0"
        self.dynamics_seed = seed_of(*address, "dynamics", task.id, 0)
        self.messages: list[dict[str, Any]] = []
        self.first_observation = Observation(())
        self.trajectory: Trajectory | None = None
        self.text = ""  # of the turn that is being written
        self._turns: list[Turn] = []
        self._pending: Turn | None = None
        self._over: Trajectory | None = None  # as it ended, perhaps not scored yet
        self._steps = self._trajectory(task, self.dynamics_seed)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return (*self._turns, *(() if self._pending is None else (self._pending,)))

    @property
    def waits(self) -> bool:
        return self._pending is not None

    def tick(self) -> None:
        next(self._steps, None)

    def go_on(self, task: Task, dynamics_seed: int) -> None:
        """The next question, behind what was said. Raises EnvError at the next tick where it cannot begin."""
        if self.trajectory is None or self.trajectory.stop_reason.is_fault:
            raise EnvError(
                "a next question begins where the last one has ended, and not by a fault"
            )
        self.task = task
        self.trajectory = None
        self._steps = self._trajectory(task, dynamics_seed)

    def close(self) -> None:
        self._steps.close()
        self.runner.close(self.key)

    # -------------------------------------------------------------------------------------------- the loop

    def _trajectory(self, task: Task, dynamics_seed: int) -> Iterator[None]:
        """One question to its end, and the score of a family that gives one after it."""
        yield from self._play(task, dynamics_seed)
        if scores_after(self.family) and not self._over.stop_reason.is_fault:
            yield from self._score()
        self.trajectory = self._over

    def _score(self) -> Iterator[None]:
        rewards = RewardRunner(self.family)
        try:
            rewards.begin(self.key, self._over)
            while rewards.waiting:
                for _, self._over in rewards.take(0.05):
                    return
                yield
        finally:
            rewards.close()

    def _play(self, task: Task, dynamics_seed: int) -> Iterator[None]:
        """One question to its end; stands still at each piece that comes."""
        self.runner.reset(self.key, self.family, task, dynamics_seed)
        answer = yield from self._answer()
        if answer.error is not None:
            return self._finish(_fault(answer), answer.error)
        if not self.messages:
            self.first_observation = answer.observation
        self.messages += [
            _shown(message)
            for message in answer.observation.messages
            if not self.messages or message.role != "system"
        ]
        tools = answer.observation.tools
        for _ in range(self.max_turns):
            reply = yield from self._reply(tools)
            if reply is None:
                return
            text = self._action(reply)
            self._pending = Turn(len(self._turns), text, reply.finish, state_key=answer.state_key)
            yield
            self.runner.step(self.key, text)
            answer = yield from self._answer()
            if answer.error is not None:
                return self._finish(_fault(answer), answer.error)
            try:
                self._turns.append(finished_turn(self._pending, answer.result))
            except WorkbenchError as error:
                return self._finish(StopReason.ENV_ERROR, str(error))
            self._pending = None
            self._say(reply, text, answer.result.observation.messages)
            if answer.result.terminated:
                return self._finish(StopReason.TERMINATED)
            if answer.result.truncated:
                return self._finish(StopReason.ENV_TRUNCATED)
            yield
        self._finish(StopReason.MAX_TURNS)

    def _answer(self) -> Iterator[EnvAnswer]:
        while not (answers := self.runner.poll(0.05)):
            yield
        return answers[0]

    def _reply(self, tools: Any) -> Iterator[Reply | None]:
        """The server's reply; None, and the trajectory has ended, where it gave none."""
        try:
            for piece in self.endpoint.stream(
                self.messages,
                tools,
                temperature=self.config.temperature,
                top_p=self.config.top_p,
                max_tokens=self.config.max_turn_tokens,
            ):
                if isinstance(piece, Reply):
                    self.text = ""
                    return piece
                self.text += piece
                yield
        except EngineError as error:
            self.text = ""
            self._finish(StopReason.ENGINE_ERROR, str(error))
        return None

    def _finish(self, reason: StopReason, error: str | None = None) -> None:
        if self._pending is not None:
            self._turns.append(self._pending)
            self._pending = None
        self.runner.close(self.key)
        last = self._turns[-1].info if self._turns else {}
        success = None
        if not reason.is_fault and "success" in last:
            success = bool(last["success"])
        self._over = Trajectory(
            self.task,
            0,
            self.dynamics_seed,
            self.first_observation,
            tuple(self._turns),
            (),
            reason,
            scored=not reason.is_fault,
            error=error,
            success=success,
        )

    # -------------------------------------------------------------------------------------------- words

    def _action(self, reply: Reply) -> str:
        """The turn as the policy would have written it: its words, and the calls that the server has read. Words beside
        calls are a thought: that is what stands before calls in our formats."""
        if not reply.calls:
            return reply.text
        words = reply.text
        style = getattr(
            self.family.make() if hasattr(self.family, "make") else None, "format", None
        )
        if "<" not in words and (words.strip() or getattr(style, "think", False)):
            words = f"<think>{words}</think>"
        return "\n".join(filter(None, (words, *(_written(call, style) for call in reply.calls))))

    def _say(self, reply: Reply, text: str, replies: tuple[Message, ...]) -> None:
        """The turn and what it was answered, as the server is shown them next."""
        if not reply.calls:
            self.messages.append({"role": "assistant", "content": text})
            self.messages += map(_shown, replies)
            return
        self.messages.append(
            {
                "role": "assistant",
                "content": reply.text,
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in reply.calls
                ],
            }
        )
        results = [message.text for message in replies if message.role == "tool"]
        for call, result in zip_longest(reply.calls, results[: len(reply.calls)], fillvalue=None):
            content = NOT_RUN if result is None else result
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        self.messages += [_shown(message) for message in replies if message.role != "tool"]


def _written(call: NativeCall, style: Any) -> str:
    """A call in the environment's format; one that cannot be written so is left for the environment to complain of."""
    arguments: Any = None
    with suppress(ValueError, RecursionError):
        arguments = json.loads(call.arguments or "{}")
    if style is not None and isinstance(arguments, dict):
        with suppress(KeyError):  # of a tool that is none
            return replace(style, think=False).write_call(call.name, arguments)
    if style is not None and style.name == "tags":
        return f"<{call.name}>{call.arguments}</{call.name}>"
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'


def _shown(message: Message) -> dict[str, Any]:
    shown = {"role": message.role, "content": message.text}
    if message.role == "tool":
        shown["tool_call_id"] = message.tool_call_id or ""
    return shown


def _fault(answer: EnvAnswer) -> StopReason:
    return StopReason.ENV_TIMEOUT if answer.timed_out else StopReason.ENV_ERROR
