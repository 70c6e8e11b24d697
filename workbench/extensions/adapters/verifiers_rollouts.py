"""An environment of *verifiers* drives its own loop and asks a model for each turn; ours are asked for the next step.

So its loop runs as a task of its own, and what it takes for a model is a queue: a request for an answer is the
observation, the action is the answer. The loop is the package's own, with its limits, stops and clean-up. It must show
its conversation append-only: what it asked with before, the answer, and then something new.

All of it happens in one event loop of the process, whichever runner asks: what the package opens (tool servers, clients
of judges) is opened once, and ended with the process.

A turn with calls is read as vLLM's parser for `<tool_call>` reads it: calls that are in order are handed over with
what was written before the first one; where one is not, the whole turn is an answer in words.
"""

from __future__ import annotations

import asyncio
import atexit
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.tools.awaiting import EventLoop
from workbench.tools.formats import CALL, Hermes
from workbench.values import Message, Observation, StepResult, Task, Text, ToolCall, sum_of
from workbench.values.errors import EnvError

HOME = EventLoop()  # where all environments of verifiers live
ENDING_S = 5.0  # for what they hold, when the process ends
# A message: role, content (text), calls ((name, arguments as JSON) ...), call_id.
Words = dict[str, Any]


class ContextLimit(Exception):
    """In place of an answer: a limit of ours ended the trajectory, and there is no more room for one."""


@dataclass(frozen=True)
class PolicyAnswer:
    """What a policy's turn says to an environment: words, and calls with ids of their own."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    complaint: str = ""  # why nothing of it was read as a call, where something looks like one

    @property
    def wire_calls(self) -> list[tuple[str, str, str]]:
        """(id, name, arguments as JSON) of each call."""
        return [
            (call.call_id, call.name, json.dumps(dict(call.arguments), ensure_ascii=False))
            for call in self.calls
        ]


@dataclass(frozen=True)
class RubricVerdict:
    """What the rubric says of a trajectory.

    parts: weighted rewards, None where it could not be scored.
    metrics: as they are.
    stop: what ended it.
    cut: whether that was one of the environment's limits.
    error: why it could not be scored.
    """

    parts: Mapping[str, float] | None
    metrics: Mapping[str, float]
    stop: str = ""
    cut: bool = False
    error: str = ""


@dataclass(eq=False)
class _Request:
    """A question to the model: the whole conversation, the tools on offer, and where the answer goes."""

    words: list[Words]
    tools: list[Mapping[str, Any]]
    answer: asyncio.Future


Ask = Callable[[Sequence[Words], Sequence[Mapping[str, Any]]], Awaitable[PolicyAnswer]]


@dataclass(eq=False)
class _OpenTrajectory:
    task: Task
    requests: asyncio.Queue = field(default_factory=asyncio.Queue)
    work: asyncio.Task | None = None
    request: _Request | None = None  # that waits for an answer
    turns: int = 0

    async def ask(self, words: Sequence[Words], tools: Sequence[Mapping[str, Any]]) -> PolicyAnswer:
        """Called by the environment's side."""
        request = _Request(list(words), list(tools), asyncio.get_running_loop().create_future())
        self.requests.put_nowait(request)
        return await request.answer

    async def proceed(self) -> RubricVerdict | None:
        """Wait until it asks again (None) or is over."""
        asked = asyncio.ensure_future(self.requests.get())
        try:
            await asyncio.wait({asked, self.work}, return_when=asyncio.FIRST_COMPLETED)
            self.request = asked.result() if asked.done() else None
            return None if self.request else self.work.result()
        finally:
            asked.cancel()


class Rollouts:
    """Trajectories of one family that go on side by side (`workbench.worlds.shared`).

    play     (task, ask) -> RubricVerdict: the package's own loop, which asks for each turn
    success  the reward function whose value of 1 or more is success; "": none is known
    """

    def __init__(
        self, play: Callable[[Task, Ask], Awaitable[RubricVerdict]], success: str = ""
    ) -> None:
        self.play = play
        self.success = success
        self._trajectories: dict[str, _OpenTrajectory] = {}

    async def reset(self, key: str, task: Task, dynamics_seed: int) -> Observation:
        return await _at_home(self._reset(key, task))

    async def step(self, key: str, action_text: str) -> StepResult:
        return await _at_home(self._step(key, action_text))

    async def cut(self, key: str) -> RubricVerdict:
        """End a trajectory as one whose context is full: what the rubric says of it so far."""
        return await _at_home(self._cut(key))

    async def close(self, key: str) -> None:
        await _at_home(self._close(key))

    async def shutdown(self) -> None:
        for key in list(self._trajectories):
            await self.close(key)

    def row_and_said(self, key: str) -> tuple[Mapping[str, Any], list[Words]]:
        """The task's row and the conversation so far, for policies that are functions."""
        trajectory = self._trajectories[key]
        return trajectory.task.payload, list(trajectory.request.words)

    def succeeded(self, verdict: RubricVerdict) -> dict[str, bool]:
        """{"success": ...} where it is known."""
        if not self.success or verdict.parts is None:
            return {}
        if self.success not in verdict.metrics:
            raise EnvError(
                f"env.success names no reward or metric of this environment; it has {', '.join(verdict.metrics)}"
            )
        return {"success": verdict.metrics[self.success] >= 1.0}

    # -------------------------------------------------------------------------------------------- in the loop

    async def _reset(self, key: str, task: Task) -> Observation:
        await self._close(key)
        trajectory = self._trajectories[key] = _OpenTrajectory(task)
        trajectory.work = asyncio.ensure_future(self.play(task, trajectory.ask))
        verdict = await trajectory.proceed()
        if verdict is not None:
            raise EnvError(
                f"the environment ended task {task.id!r} ({verdict.stop or 'nothing says why'}) before it asked "
                "for an answer"
            )
        return Observation(messages_of(trajectory.request.words), tuple(trajectory.request.tools))

    async def _step(self, key: str, action_text: str) -> StepResult:
        trajectory = self._trajectories.get(key)
        if trajectory is None or trajectory.request is None:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        before = trajectory.request
        answer = read_answer(action_text, trajectory.turns)
        trajectory.turns += 1
        before.answer.set_result(answer)
        verdict = await trajectory.proceed()
        info: dict[str, Any] = {"valid_format": not answer.complaint, "complaint": answer.complaint}
        if verdict is not None:
            return self._over(verdict, info, answer)
        new = messages_of(_appended(before, answer, trajectory.request), answer.calls)
        if self.success:
            info["success"] = False
        return StepResult(Observation(new), 0.0, {}, tool_calls=answer.calls, info=info)

    async def _cut(self, key: str) -> RubricVerdict:
        trajectory = self._trajectories[key]
        trajectory.request.answer.set_exception(ContextLimit())
        verdict = await trajectory.proceed()
        if verdict is None:
            raise EnvError(
                "the environment asks for another answer, although there is no more room for one"
            )
        return verdict

    async def _close(self, key: str) -> None:
        trajectory = self._trajectories.pop(key, None)
        if trajectory is not None and trajectory.work is not None:
            trajectory.work.cancel()
            await asyncio.gather(trajectory.work, return_exceptions=True)

    def _over(
        self, verdict: RubricVerdict, info: dict[str, Any], answer: PolicyAnswer
    ) -> StepResult:
        info |= {"stop": verdict.stop, "metrics": dict(verdict.metrics), **self.succeeded(verdict)}
        if verdict.error:
            info["scorer_error"] = verdict.error
        reward = None if verdict.parts is None else sum_of(verdict.parts.values())
        return StepResult(
            Observation(()),
            reward,
            verdict.parts or {},
            terminated=not verdict.cut,
            truncated=verdict.cut,
            info=info,
            tool_calls=answer.calls,
        )


def _at_home(work: Coroutine) -> Awaitable[Any]:
    return asyncio.wrap_future(HOME.begin(work))


@atexit.register
def _leave() -> None:
    """Give back what environments hold: tool servers are processes."""

    async def ended() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    if HOME.running:
        HOME.settle_within(ended(), ENDING_S)


# ------------------------------------------------------------------------------------------------ words


def read_answer(text: str, turn: int) -> PolicyAnswer:
    """A turn as an environment sees it."""
    parsed = Hermes().parse(text)
    if parsed.bad_calls:
        return PolicyAnswer(text, complaint=parsed.bad_calls[0].complaint)
    if not parsed.calls:
        return PolicyAnswer(text)
    calls = tuple(
        ToolCall(call.name, call.arguments, f"t{turn}c{n}") for n, call in enumerate(parsed.calls)
    )
    return PolicyAnswer(text[: text.index(CALL)].strip(), calls)


def words_of(
    role: str, content: Any, calls: Sequence[tuple[str, str]] = (), call_id: str | None = None
) -> Words:
    """A message in plain values. Raises EnvError for pictures and sounds, which no policy here could see."""
    parts = content if isinstance(content, list) else [content or ""]
    texts = [part if isinstance(part, str) else part.get("text") for part in parts]
    if None in texts:
        kind = parts[texts.index(None)].get("type")
        raise EnvError(
            f"a message of the environment holds a part of type {kind!r}; policies here read text alone"
        )
    return {
        "role": role,
        "content": "\n".join(texts),
        "calls": tuple(map(tuple, calls)),
        "call_id": call_id,
    }


def messages_of(words: Sequence[Words], calls: Sequence[ToolCall] = ()) -> tuple[Message, ...]:
    """Messages of ours. Calls of examples in a prompt are written as a policy writes them."""
    names = {call.call_id: call.name for call in calls}
    messages = []
    for message in words:
        parts = (message["content"], *map(_written, message["calls"]))
        text = Text("\n".join(filter(None, parts)))
        call_id = message["call_id"]
        messages.append(Message(message["role"], (text,), names.get(call_id), call_id))
    return tuple(messages)


def _written(call: tuple[str, str]) -> str:
    try:
        return Hermes().write_call(call[0], json.loads(call[1]))
    except (ValueError, TypeError):
        return f"{CALL}\n{call[1]}\n</tool_call>"


def _appended(before: _Request, answer: PolicyAnswer, now: _Request) -> list[Words]:
    """What a request shows beyond the one before and its answer. Raises EnvError for a rewritten history."""
    own = words_of("assistant", answer.content, [call[1:] for call in answer.wire_calls])
    known = [*before.words, own]
    shown = now.words[: len(known)]
    if [*map(_role_and_text, shown)] != [*map(_role_and_text, known)]:
        raise EnvError(
            "this environment rewrites its conversation between turns; only one that appends to it can be played, "
            "as a policy's tokens are trained where they were sampled"
        )
    if now.tools != before.tools:
        raise EnvError(
            "this environment offers other tools in the middle of a trajectory; a prompt is written once"
        )
    return now.words[len(known) :]


def _role_and_text(message: Words) -> tuple[str, str]:
    return message["role"], message["content"].strip()
