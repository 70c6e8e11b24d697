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

from workbench.envs.awaiting import EventLoop
from workbench.envs.tools.formats import CALL, Hermes
from workbench.types import Message, Observation, StepResult, Task, Text, ToolCall
from workbench.types.errors import EnvError

HOME = EventLoop()  # where all environments of verifiers live
ENDING_S = 5.0  # for what they hold, when the process ends
Words = dict[
    str, Any
]  # a message: role, content (text), calls ((name, arguments as JSON) ...), call_id


class ContextLimit(Exception):
    """In place of an answer: a limit of ours ended the attempt, and there is no more room for one."""


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
    """What the rubric says of an attempt. `parts`: weighted, None where it could not be scored; `metrics`: as they are.
    `cut`: one of the environment's limits ended it, `stop` its name; `last`: what it said at the end."""

    parts: Mapping[str, float] | None
    metrics: Mapping[str, float]
    stop: str = ""
    cut: bool = False
    last: tuple[Words, ...] = ()
    error: str = ""


@dataclass(eq=False)
class _Request:
    """A question to the model: the whole conversation, the tools on offer, and where the answer goes."""

    words: list[Words]
    tools: list[Mapping[str, Any]]
    answer: asyncio.Future


Ask = Callable[[Sequence[Words], Sequence[Mapping[str, Any]]], Awaitable[PolicyAnswer]]


@dataclass(eq=False)
class _Attempt:
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
    """Attempts of one family that go on side by side (`workbench.envs.shared`).

    play     (task, ask) -> RubricVerdict: the package's own loop, which asks for each turn
    success  the reward function whose value of 1 or more is success; "": none is known
    """

    def __init__(
        self, play: Callable[[Task, Ask], Awaitable[RubricVerdict]], success: str = ""
    ) -> None:
        self.play, self.success = play, success
        self._attempts: dict[str, _Attempt] = {}

    async def reset(self, key: str, task: Task, dynamics_seed: int) -> Observation:
        return await _at_home(self._reset(key, task))

    async def step(self, key: str, action_text: str) -> StepResult:
        return await _at_home(self._step(key, action_text))

    async def cut(self, key: str) -> RubricVerdict:
        """End an attempt as one whose context is full: what the rubric says of it so far."""
        return await _at_home(self._cut(key))

    async def close(self, key: str) -> None:
        await _at_home(self._close(key))

    async def shutdown(self) -> None:
        for key in list(self._attempts):
            await self.close(key)

    def row_and_said(self, key: str) -> tuple[Mapping[str, Any], list[Words]]:
        """The task's row and the conversation so far, for policies that are functions."""
        attempt = self._attempts[key]
        return attempt.task.payload, list(attempt.request.words)

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
        attempt = self._attempts[key] = _Attempt(task)
        attempt.work = asyncio.ensure_future(self.play(task, attempt.ask))
        if (verdict := await attempt.proceed()) is not None:
            raise EnvError(
                f"the environment ended task {task.id!r} ({verdict.stop or 'nothing says why'}) before it asked "
                "for an answer"
            )
        return Observation(messages_of(attempt.request.words), tuple(attempt.request.tools))

    async def _step(self, key: str, action_text: str) -> StepResult:
        attempt = self._attempts.get(key)
        if attempt is None or attempt.request is None:
            raise EnvError(
                "this attempt is over or was never begun; call reset(task, dynamics_seed) first"
            )
        before, answer = attempt.request, read_answer(action_text, attempt.turns)
        attempt.turns += 1
        before.answer.set_result(answer)
        verdict = await attempt.proceed()
        info: dict[str, Any] = {"valid_format": not answer.complaint, "complaint": answer.complaint}
        if verdict is not None:
            return self._over(verdict, info, answer)
        new = messages_of(_appended(before, answer, attempt.request), answer.calls)
        return StepResult(
            Observation(new),
            0.0,
            {},
            tool_calls=answer.calls,
            info=info | ({"success": False} if self.success else {}),
        )

    async def _cut(self, key: str) -> RubricVerdict:
        attempt = self._attempts[key]
        attempt.request.answer.set_exception(ContextLimit())
        if (verdict := await attempt.proceed()) is None:
            raise EnvError(
                "the environment asks for another answer, although there is no more room for one"
            )
        return verdict

    async def _close(self, key: str) -> None:
        attempt = self._attempts.pop(key, None)
        if attempt is not None and attempt.work is not None:
            attempt.work.cancel()
            await asyncio.gather(attempt.work, return_exceptions=True)

    def _over(
        self, verdict: RubricVerdict, info: dict[str, Any], answer: PolicyAnswer
    ) -> StepResult:
        info |= {"stop": verdict.stop, "metrics": dict(verdict.metrics), **self.succeeded(verdict)}
        if verdict.error:
            info["scorer_error"] = verdict.error
        reward = None if verdict.parts is None else sum(verdict.parts.values())
        return StepResult(
            Observation(messages_of(verdict.last, answer.calls)),
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
    """A turn as an environment is told of it."""
    parsed = Hermes().parse(text)
    if parsed.bad_calls or not parsed.calls:
        return PolicyAnswer(
            text, complaint=parsed.bad_calls[0].complaint if parsed.bad_calls else ""
        )
    calls = tuple(
        ToolCall(call.name, call.arguments, f"t{turn}c{n}") for n, call in enumerate(parsed.calls)
    )
    return PolicyAnswer(text[: text.index(CALL)].strip(), calls)


def words_of(
    role: str, content: Any, calls: Sequence[tuple[str, str]] = (), call_id: str | None = None
) -> Words:
    """A message in plain values. Raises EnvError for pictures and sounds, which no policy here could see."""
    parts = content if isinstance(content, list) else [content or ""]
    texts = [part if isinstance(part, str) else _field(part, "text") for part in parts]
    if None in texts:
        kind = _field(parts[texts.index(None)], "type")
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
    return tuple(
        Message(
            each["role"],
            (Text("\n".join(filter(None, (each["content"], *map(_written, each["calls"]))))),),
            names.get(each["call_id"]),
            each["call_id"],
        )
        for each in words
    )


def _written(call: tuple[str, str]) -> str:
    try:
        return Hermes().write_call(call[0], json.loads(call[1]))
    except (ValueError, TypeError):
        return f"{CALL}\n{call[1]}\n</tool_call>"


def _field(part: Any, name: str) -> Any:
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def _appended(before: _Request, answer: PolicyAnswer, now: _Request) -> list[Words]:
    """What a request shows beyond the one before and its answer. Raises EnvError for a rewritten history."""
    own = words_of("assistant", answer.content, [call[1:] for call in answer.wire_calls])
    known = [*before.words, own]
    shown = now.words[: len(known)]
    if [(each["role"], each["content"].strip()) for each in shown] != [
        (each["role"], each["content"].strip()) for each in known
    ]:
        raise EnvError(
            "this environment rewrites its conversation between turns; only one that appends to it can be played, "
            "as a policy's tokens are trained where they were sampled"
        )
    if now.tools != before.tools:
        raise EnvError(
            "this environment offers other tools in the middle of an attempt; a prompt is written once"
        )
    return now.words[len(known) :]
