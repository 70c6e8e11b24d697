"""What crosses between the trainer and its environments' workers, and what a worker does with it: JSON, exact both ways.

No pickle: families go by class and fields (`workbench.tools.workers.values`), and an answer can carry values but no code.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from workbench.basics.canonical_json import json_bytes, plain
from workbench.basics.message_json import call_to_json, observation_from_json, observation_to_json
from workbench.tools.workers.frames import serve_calls
from workbench.tools.workers.values import describe, describe_task, rebuild
from workbench.values import Observation, StepResult, Task, ToolCall
from workbench.values.errors import WorkbenchError
from workbench.worlds.base import Env, EnvFamily
from workbench.worlds.runners import EnvAnswer, InlineRunner, check_messages

SPARE = 4096  # bytes that an answer may have beyond the cap: its names
OTHERWISE = "set collect.env_runner to 'threads' or 'inline'"


def reset_call(family: EnvFamily, task: Task, dynamics_seed: int) -> list:
    described = plain(describe_task(task), f"task {task.id!r}")
    return ["reset", describe(family, "the family", OTHERWISE), described, dynamics_seed]


# ------------------------------------------------------------------------------------------------ inside a worker


def serve(connection: socket.socket, answer_bytes: int) -> None:
    """The calls:

        ["reset", slot, family, task, dynamics seed] · ["step", slot, action text] · ["drop", slot] (no answer)

    Whatever an environment raises is an answer; here that includes KeyboardInterrupt, since Ctrl-C never gets here.
    """
    runner = InlineRunner(caught=(BaseException,))

    def answer(verb: str, slot: str, *rest) -> bytes | None:
        if verb == "drop":
            return runner.close(slot)
        if verb == "reset":
            family, task, dynamics_seed = rest
            runner.reset(slot, _DescribedFamily(json.dumps(family)), Task(**task), dynamics_seed)
        else:
            runner.step(slot, *rest)
        [answered] = runner.poll()
        return _encoded(answered, answer_bytes)

    try:
        serve_calls(connection, answer)
    finally:
        runner.shutdown()


class _DescribedFamily(NamedTuple):
    """Made when it is first needed, so that whatever goes wrong with its code is the answer of an environment."""

    described: str

    @property
    def serves_many(self) -> bool:
        try:
            return getattr(_family(self.described), "serves_many", False)
        except BaseException:  # `make` says it
            return False

    def make(self) -> Env:
        return _family(self.described).make()

    def make_shared(self) -> Any:
        return _family(self.described).make_shared()


@cache
def _family(described: str) -> EnvFamily:
    """One for all its environments, as in the trainer."""
    return rebuild(json.loads(described))


def _encoded(answer: EnvAnswer, answer_bytes: int) -> bytes:
    try:
        content = encode_answer(answer)
    except WorkbenchError as error:
        content = encode_answer(EnvAnswer(answer.key, error=str(error)))
    except BaseException as error:  # a mapping of the environment's own may raise anything when it is read (invariant 10)
        words = f"its answer cannot be sent: {type(error).__name__}"
        content = encode_answer(EnvAnswer(answer.key, error=words))
    if len(content) > answer_bytes:
        words = (
            f"its answer takes {len(content):,} bytes; at most {answer_bytes:,} are taken "
            "(collect.env_answer_bytes)"
        )
        content = encode_answer(EnvAnswer(answer.key, error=words))
    return content


# ------------------------------------------------------------------------------------------------ answers


def encode_answer(answer: EnvAnswer) -> bytes:
    """The content of an answer, without its times. Raises StoreError for values that JSON would lose."""
    what = "StepResult" if answer.result is not None else "Observation"
    return json_bytes(
        {
            "error": answer.error,
            "state_key": answer.state_key,
            "privileged": answer.privileged,
            "observation": answer.observation and _observation(answer.observation),
            "result": answer.result and _result(answer.result),
        },
        f"the {what}",
    )


def _observation(observation: Observation) -> dict:
    """With names, so that `first_difference` can name what differs."""
    return dict(zip(("messages", "tools"), observation_to_json(observation)))


def _result(result: StepResult) -> dict:
    held = {
        name: plain(getattr(result, name), f"{name} of a StepResult")
        for name in ("reward", "reward_parts", "terminated", "truncated", "info", "if_cut")
    }
    return {
        "observation": _observation(result.observation),
        **held,
        "tool_calls": list(map(call_to_json, result.tool_calls)),
    }


def decode_answer(key: str, content: bytes, seconds: float) -> EnvAnswer:
    """Read what `encode_answer` wrote. Raises ValueError for anything else (an environment may write where it should not)."""
    try:
        held = json.loads(content)
        observation = held["observation"]
        result = held["result"]
        if held["error"] is not None:
            return EnvAnswer(key, error=str(held["error"]), seconds=seconds)
        answer = EnvAnswer(
            key,
            observation and observation_from_json(observation.values()),
            result and _to_result(result),
            state_key=held["state_key"],
            privileged=held["privileged"],
            seconds=seconds,
        )
        if (answer.observation is None) == (answer.result is None):
            raise ValueError("neither an observation nor a result")
        check_messages(answer.observation or answer.result.observation)
        return answer
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        WorkbenchError,
    ) as error:
        raise ValueError(f"no answer of this program: {type(error).__name__}: {error}") from error


def _to_result(held: dict) -> StepResult:
    values = dict(held)
    values["observation"] = observation_from_json(held["observation"].values())
    values["tool_calls"] = tuple(ToolCall(*call) for call in held["tool_calls"])
    return StepResult(**values)


def first_difference(before: bytes, after: bytes) -> str | None:
    """Which value of two answers differs first, with both values; None if the answers are equal."""
    if before == after:
        return None
    difference = _difference(json.loads(before), json.loads(after), "the answer")
    return difference or "the order of names in the answer"


def _difference(a: Any, b: Any, where: str) -> str | None:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        differences = (_difference(a[key], b[key], key) for key in a)
        return next(filter(None, differences), None)
    same: Callable[[Any], str] = json.dumps  # NaN equals itself here
    return None if same(a) == same(b) else f"{where} was {_short(a)} and is {_short(b)} now"


def _short(value: Any) -> str:
    words = json.dumps(value)
    return words if len(words) <= 100 else f"{words[:100]}..."
