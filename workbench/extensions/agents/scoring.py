"""A function of the user's that scores an attempt of a program once it is over.

    def score(attempt):
        looked = any(call.tool_calls for call in attempt.calls)
        right = attempt.returned == attempt.task.row["answer"]
        return {"right": float(right), "looked": 0.1 * looked, "success": right}

It stands beside the program, under the name `score`, or is named by `env.scored_by`, and may be a coroutine function. What it
may return is what a reward function may (`worlds/tool_rewards.py`): true or false, a number, numbers by name, None. It is
tried, and given up, as any score that comes after a trajectory (`worlds/scoring.py`); attempts that a fault ended are not
scored.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workbench.basics.plugins import load_named
from workbench.extensions.agents.messages import WireCall, WireMessage
from workbench.extensions.agents.program import COMMAND, ProgramTask
from workbench.extensions.agents.tree import CallTree, TreeCall
from workbench.values import Trajectory
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds.tool_rewards import verdict_of

BESIDE = "score"  # the name of the function beside a program
OF_TASKS = "tasks"  # as env.scored_by: the environment of the tasks scores, whatever stands beside the program


@dataclass(frozen=True)
class ScoredCall:
    """A call of the model that was answered.

    messages      that were sent, as a chat completion takes them
    text          that was given back
    tool_calls    that were given back: {"name": ..., "arguments": {...}} each
    conversation  the name of the conversation that it belongs to
    """

    messages: tuple[Mapping[str, Any], ...]
    text: str
    tool_calls: tuple[Mapping[str, Any], ...]
    conversation: str


@dataclass(frozen=True)
class ScoredAttempt:
    """An attempt of a program that is over.

    task         as the program saw it; its tools are gone
    returned     what the program returned; None where a limit ended it
    calls        of the model, in the order of asking
    stop_reason  why it ended, by name
    """

    task: ProgramTask
    returned: Any
    calls: tuple[ScoredCall, ...]
    stop_reason: str = "terminated"

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The conversation of the newest call, its answer at the end."""
        if not self.calls:
            return ()
        call = self.calls[-1]
        answer: dict[str, Any] = {"role": "assistant", "content": call.text}
        if call.tool_calls:
            answer["tool_calls"] = call.tool_calls
        return (*call.messages, answer)

    @classmethod
    def of(cls, task: ProgramTask, tree: CallTree, returned: Any, reason: str) -> ScoredAttempt:
        answered = sorted(tree.answered, key=lambda call: call.number)
        return cls(replace(task, call=_gone), returned, tuple(map(_finished, answered)), reason)


@dataclass(frozen=True, eq=False)
class AttemptScores:
    """In the place of a family that scores: what the user's function says of the attempt that a trajectory is of.

    attempts  by the trajectory's task and number
    """

    function: Callable[[ScoredAttempt], Any]
    attempts: Mapping[tuple[str, int], ScoredAttempt]

    def score(self, trajectory: Trajectory) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        verdict = self.function(self.attempts[trajectory.task.id, trajectory.attempt])
        if inspect.isawaitable(verdict):
            return self._awaited(verdict)
        return self._parts(verdict)

    async def _awaited(self, verdict: Awaitable[Any]) -> dict[str, Any]:
        return self._parts(await verdict)

    def _parts(self, verdict: Any) -> dict[str, Any]:
        name = getattr(self.function, "__qualname__", self.function)
        parts, success = verdict_of(verdict, f"the score function {name}")
        if parts is None:
            raise EnvError(f"the score function {name} returned None: it could not say")
        return parts if success is None else parts | {"success": success}


def judge_of(program: str, scored_by: str) -> Callable[[ScoredAttempt], Any] | None:
    """The function that scores attempts of this program; None: the environment of the tasks does. Imports the program.

    Raises ConfigError for a name that leads to nothing, or to what cannot be called with an attempt."""
    if scored_by == OF_TASKS:
        return None
    named = scored_by
    if not named:
        module = program.partition(":")[0]
        if program.startswith(COMMAND):
            return None
        load_named(program, "env.program")
        if not callable(getattr(sys.modules[module], BESIDE, None)):
            return None
        named = f"{module}:{BESIDE}"
    function = load_named(named, "env.scored_by")
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{named!r} scores a finished attempt: score(attempt); {error}. env.scored_by names another function, or "
            f"{OF_TASKS!r} for the reward of the tasks"
        ) from error
    return function


def left_to_score(trajectory: Any) -> None:
    """The reward of rows whose attempts a function scores: there is no other."""


def _finished(call: TreeCall) -> ScoredCall:
    return ScoredCall(
        tuple(_message(message) for message in call.asked.messages),
        call.given.text,
        tuple(_call(wire_call) for wire_call in call.given.calls),
        str(call.facts.get("conversation", "")),
    )


def _message(message: WireMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.text or ""}
    if message.calls:
        shown["tool_calls"] = tuple(_call(call) for call in message.calls)
    return shown


def _call(call: WireCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):  # somebody else's
        arguments = call.arguments
    return {"name": call.name, "arguments": arguments}


def _gone(name: str, arguments: Mapping[str, Any]) -> str:
    raise EnvError(f"the attempt is over, and its tools with it; {name} cannot be called any more")
