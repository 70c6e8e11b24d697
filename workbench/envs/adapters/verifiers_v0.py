"""Environments of verifiers 0.1: `Environment` with its `rollout`, its `Rubric` and its dataset.

The loop is `env.rollout(row, client, ...)` itself, with a client that is a queue, and the reward is
`env.rubric.score_rollout(state)`, right after it, on the live state. In that package a reward function that raises
counts as 0 and a log line; here it is tried again, as often as rewards are, and then the attempt is unscored (law 5).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from workbench.envs.adapters.packages import package
from workbench.envs.adapters.verifiers_rollouts import (
    Ask,
    ContextLimit,
    Rollouts,
    RubricVerdict,
    Words,
    words_of,
)
from workbench.envs.scoring import PAUSE_S, RETRIES
from workbench.types import Task
from workbench.types.errors import ConfigError, EnvError

# Stops that are limits. A limit of one turn is none: it is what a question with one answer is.
LIMITS = (
    "max_turns_reached",
    "timeout_reached",
    "prompt_too_long",
    "max_total_completion_tokens_reached",
)
_SCORES: ContextVar[_Scores] = ContextVar("scores")


class _Scores:
    """What reward functions said while an attempt was scored."""

    def __init__(self) -> None:
        self.values: list[tuple[str, float, float]] = []  # (name, value, weight)
        self.faults: list[str] = []


class VerifiersEnvironment:
    """One environment, loaded. `turns`: a limit below its own, 0 for none."""

    def __init__(
        self, load: Callable[..., Any], args: Mapping[str, Any], turns: int, success: str
    ) -> None:
        self.vf = package("verifiers", "verifiers")
        with _signals_left_alone():
            self.env = load(**args)
        if not hasattr(self.env, "rollout") or not hasattr(self.env, "rubric"):
            raise ConfigError(
                f"env.load made {type(self.env).__name__}; expected an Environment of verifiers or a Taskset"
            )
        if self.env.rubric.has_group_rewards:
            raise ConfigError(
                "this environment's rubric has reward functions of whole groups, and attempts are scored one by "
                "one here; give it functions of one attempt (an algorithm compares the attempts of a group)"
            )
        own = getattr(self.env, "max_turns", -1)
        self.limit = min([each for each in (own, turns) if each > 0], default=0)
        if self.limit and own >= 0:
            self.env.max_turns = self.limit
        for rubric in _rubrics_of(self.env):
            rubric.funcs = [
                _watched(function, rubric, n) for n, function in enumerate(rubric.funcs)
            ]
        self.success = success

    def rows(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """(split, "" where the environment has one set of rows; id; row) of every row."""
        own = {
            "train": (self.env.dataset, self.env.dataset_source, self.env.get_dataset),
            "held-out": (
                self.env.eval_dataset,
                self.env.eval_dataset_source,
                self.env.get_eval_dataset,
            ),
        }
        sets = {
            split: get()
            for split, (built, source, get) in own.items()
            if built is not None or source is not None
        }
        for split, rows in sets.items():
            for number in range(len(rows)):
                row = rows[number]
                yield split if len(sets) > 1 else "", str(row.get("example_id", number)), row

    def rollouts(self, row_of: Callable[[Task], Mapping[str, Any]]) -> Rollouts:
        return Rollouts(functools.partial(self._play, row_of), self.success)

    async def _play(
        self, row_of: Callable[[Task], Mapping[str, Any]], task: Task, ask: Ask
    ) -> RubricVerdict:
        state = await self.env.rollout(
            dict(row_of(task)), _client(self.vf, ask), "policy", dict(self.env.sampling_args)
        )
        if (error := state.get("error")) is not None:
            raise EnvError(
                f"verifiers ended this attempt with {type(error).__name__}: {error.__cause__ or error}"
            )
        stop = state.get("stop_condition") or ""
        last = tuple(map(_words, self._final(state)))
        try:
            scores, reward = await self._scored(state)
        finally:
            await self.env.rubric.cleanup(state)
        metrics = dict(state.get("metrics") or {})
        cut = stop in LIMITS and getattr(self.env, "max_turns", 0) != 1
        if scores.faults:
            return RubricVerdict(None, metrics, stop, cut, last, scores.faults[0])
        parts: dict[str, float] = {}
        for name, value, weight in scores.values:
            if weight:
                parts[name] = parts.get(name, 0.0) + value * weight
        if abs(sum(parts.values()) - reward) > 1e-9:  # a rubric with a way of its own
            parts = {"rubric": reward}
        return RubricVerdict(parts, metrics, stop, cut, last)

    async def _scored(self, state: Any) -> tuple[_Scores, float]:
        """Retried where a function raises."""
        for number in range(RETRIES + 1):
            _SCORES.set(scores := _Scores())
            try:
                await self.env.rubric.score_rollout(state)
            except Exception as error:  # a judge's client, an assertion of the rubric's
                scores.faults.append(f"{type(error).__name__}: {error}")
            if not scores.faults:
                return scores, float(state["reward"])
            if number < RETRIES:
                await asyncio.sleep(PAUSE_S * 2**number)
        return scores, 0.0

    def _final(self, state: Any) -> list[Any]:
        said = state.get("final_env_response") or []
        return [SimpleNamespace(role="user", content=said)] if isinstance(said, str) else list(said)


def _watched(function: Callable, rubric: Any, place: int) -> Callable:
    """A reward function that leaves word of what it said, and of what it raised."""

    @functools.wraps(function)
    async def call(*args: Any, **named: Any) -> float:
        scores = _SCORES.get()
        try:
            value = function(*args, **named)
            value = float(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            scores.faults.append(f"{call.__name__}: {type(error).__name__}: {error}")
            raise
        scores.values.append((call.__name__, value, float(rubric.weights[place])))
        return value

    return call


def _rubrics_of(env: Any) -> Iterator[Any]:
    """Every rubric that has functions of its own: those of a group, and those of a group of environments."""
    waiting, seen = [env.rubric, *(each.rubric for each in getattr(env, "envs", ()))], set()
    while waiting:
        rubric = waiting.pop()
        if id(rubric) not in seen:
            seen.add(id(rubric))
            waiting += getattr(rubric, "rubrics", ())
            yield rubric


def _words(message: Any) -> Words:
    get = message.get if isinstance(message, Mapping) else functools.partial(getattr, message)
    calls = [(_of(call, "name"), _of(call, "arguments")) for call in get("tool_calls", None) or ()]
    return words_of(get("role", "user"), get("content", ""), calls, get("tool_call_id", None))


def _of(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) else getattr(value, name)


def _client(vf: Any, ask: Ask) -> Any:
    """A client of verifiers whose model is whoever answers `ask`."""
    types = package("verifiers.types", "verifiers")

    class Policy(vf.Client):
        async def get_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
        ) -> Any:
            offered = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": dict(tool.parameters),
                    },
                }
                for tool in tools or ()
            ]
            try:
                answer = await ask([_words(message) for message in prompt], offered)
            except ContextLimit:
                raise vf.OverlongPromptError("the policy's context is full") from None
            calls = [
                types.ToolCall(id=each, name=name, arguments=arguments)
                for each, name, arguments in answer.wire_calls
            ]
            message = types.ResponseMessage(
                content=answer.content,
                tool_calls=calls or None,
                is_truncated=False,
                finish_reason="tool_calls" if calls else "stop",
            )
            return types.Response(id="", created=0, model=model, message=message)

        def setup_client(self, config: Any) -> None: ...

        async def to_native_tool(self, tool: Any) -> Any: ...

        async def to_native_prompt(self, messages: Any) -> Any: ...

        async def get_native_response(self, *_: Any, **__: Any) -> Any: ...

        async def raise_from_native_response(self, response: Any) -> None: ...

        async def from_native_response(self, response: Any) -> Any: ...

        async def close(self) -> None: ...

    return Policy(None)


@contextmanager
def _signals_left_alone() -> Iterator[None]:
    """An environment of verifiers takes SIGINT and SIGTERM when it is made, which are the run's; and it could be made in
    the main thread alone."""
    module = package("verifiers.envs.environment", "verifiers")
    module.signal = SimpleNamespace(**{**vars(signal), "signal": lambda number, handler: None})
    try:
        yield
    finally:
        module.signal = signal
