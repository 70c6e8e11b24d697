"""What crosses between the trainer and its workers: JSON in frames, exact both ways.

No pickle: a family is named by its class and its fields, which are its only configuration, and built again on the other
side. So a worker needs neither the trainer's memory nor its trust, and an answer can carry values but no code.
"""
from __future__ import annotations

import functools
import importlib
import json
import struct
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from workbench.envs.base import EnvFamily
from workbench.envs.runners import EnvAnswer, check_messages
from workbench.errors import EnvError, WorkbenchError
from workbench.sealed import json_bytes, plain
from workbench.types import Message, Observation, StepResult, Task, Text, ToolCall

LENGTH = struct.Struct(">I")   # of a frame's content
TIMES = struct.Struct(">dd")   # begins an answer: seconds it took, and when it was ready (monotonic clock)
SPARE = 4096                   # bytes that an answer may have beyond the cap: its names and its times


def frame(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content


def take_frames(buffer: bytearray, limit: int) -> list[bytes]:
    """Cut whole frames off the front of `buffer`. Raises ValueError for one that says it is longer than `limit`."""
    frames = []
    while len(buffer) >= LENGTH.size:
        (length,) = LENGTH.unpack_from(buffer)
        if length > limit:
            raise ValueError(f"{length:,} bytes in one answer")
        if len(buffer) < LENGTH.size + length:
            break
        frames.append(bytes(buffer[LENGTH.size : LENGTH.size + length]))
        del buffer[: LENGTH.size + length]
    return frames


# ------------------------------------------------------------------------------------------------ families and tasks


def describe(value: Any, where: str = "the family") -> Any:
    """`value` (a family, or one of its fields) as JSON that `rebuild` makes an equal one of.

    Dataclasses go by class and fields; functions and classes by name. Raises EnvError for what a worker could not
    import, and for fields that are no settings, saying what to do.
    """
    if is_dataclass(value) and not isinstance(value, type):
        settings = {f.name: describe(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value) if f.init}
        return {"class": _name_of(type(value), where), "fields": settings}
    if isinstance(value, (type, types.FunctionType)):
        return {"name": _name_of(value, where)}
    if isinstance(value, tuple):
        return {"tuple": [describe(item, where) for item in value]}
    if isinstance(value, list):
        return [describe(item, where) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: describe(item, f"{where}.{key}") for key, item in value.items()}}
    try:
        return plain(value, where)
    except WorkbenchError as error:
        raise EnvError(f"collect.env_runner='processes' hands {where} to worker processes, but {error}. Keep settings "
                       "in the family's fields and make everything else in make() or reset()") from error


def _name_of(thing: Any, where: str) -> str:
    module, name = thing.__module__, thing.__qualname__
    if module == "__main__" or "<" in name:
        home = "a notebook or script" if module == "__main__" else f"a function of {module}"
        raise EnvError(
            f"{where} needs {name}, which is defined inside {home}: worker processes cannot import it. Move it to a "
            f"file of its own (in a notebook: a cell that begins with %%writefile my_env.py, then `from my_env import "
            f"{name.rsplit('.', 1)[-1]}`), or set collect.env_runner to 'threads' or 'inline'")
    return f"{module}:{name}"


def rebuild(described: Any) -> Any:
    if isinstance(described, list):
        return [rebuild(item) for item in described]
    if not isinstance(described, dict):
        return described
    if "class" in described:
        settings = {name: rebuild(item) for name, item in described["fields"].items()}
        return _import(described["class"])(**settings)
    if "name" in described:
        return _import(described["name"])
    if "tuple" in described:
        return tuple(rebuild(item) for item in described["tuple"])
    return {key: rebuild(item) for key, item in described["dict"].items()}


def _import(name: str) -> Any:
    module, _, qualified = name.partition(":")
    try:
        return functools.reduce(getattr, qualified.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise EnvError(f"a worker process cannot import {qualified} from {module} ({error}); workers see the same "
                       "sys.path and folder as the run, so put the module there or install it") from error


def reset_call(family: EnvFamily, task: Task, dynamics_seed: int) -> list:
    held = {"id": task.id, "env": task.env, "task_seed": task.task_seed, "payload": task.payload,
            "metadata": task.metadata}
    return ["reset", describe(family), plain(held, f"task {task.id!r}"), dynamics_seed]


# ------------------------------------------------------------------------------------------------ answers


def encode_answer(answer: EnvAnswer) -> bytes:
    """The content of an answer, without its times. Raises StoreError for values that JSON would lose."""
    what = "StepResult" if answer.result is not None else "Observation"
    return json_bytes({
        "error": answer.error, "state_key": answer.state_key,
        "observation": _observation(answer.observation), "result": _result(answer.result),
    }, f"the {what}")


def _observation(observation: Observation | None) -> dict | None:
    if observation is None:
        return None
    messages = [[m.role, m.name, m.tool_call_id, [[part.text, part.trusted] for part in m.content]]
                for m in observation.messages]
    return {"messages": messages, "tools": plain(list(observation.tools), "the tools of an Observation")}


def _result(result: StepResult | None) -> dict | None:
    if result is None:
        return None
    held = {name: plain(getattr(result, name), f"{name} of a StepResult")
            for name in ("reward", "reward_parts", "terminated", "truncated", "info")}
    calls = [[call.name, plain(call.arguments, "arguments of a ToolCall"), call.call_id] for call in result.tool_calls]
    return {"observation": _observation(result.observation), **held, "tool_calls": calls}


def decode_answer(key: str, content: bytes, seconds: float) -> EnvAnswer:
    """What `encode_answer` wrote. Raises ValueError for anything else (an environment may write where it should not).
    """
    try:
        held = json.loads(content)
        observation, result = held["observation"], held["result"]
        if held["error"] is not None:
            return EnvAnswer(key, error=str(held["error"]), seconds=seconds)
        answer = EnvAnswer(key, observation and _to_observation(observation), result and _to_result(result),
                           state_key=held["state_key"], seconds=seconds)
        if (answer.observation is None) == (answer.result is None):
            raise ValueError("neither an observation nor a result")
        check_messages(answer.observation or answer.result.observation)
        return answer
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, EnvError) as error:
        raise ValueError(f"no answer of this program: {type(error).__name__}: {error}") from error


def _to_observation(held: dict) -> Observation:
    return Observation(
        tuple(Message(role, tuple(Text(text, trusted) for text, trusted in parts), name, call_id)
              for role, name, call_id, parts in held["messages"]), tuple(held["tools"]))


def _to_result(held: dict) -> StepResult:
    return StepResult(**held | {"observation": _to_observation(held["observation"]),
                                "tool_calls": tuple(ToolCall(*call) for call in held["tool_calls"])})


def first_difference(before: bytes, after: bytes) -> str | None:
    """Which value of two answers differs first, with both values; None if the answers are equal."""
    if before == after:
        return None
    return _difference(json.loads(before), json.loads(after), "the answer") or "the order of names in the answer"


def _difference(a: Any, b: Any, where: str) -> str | None:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next(filter(None, (_difference(a[key], b[key], key) for key in a)), None)
    same: Callable[[Any], str] = json.dumps  # NaN equals itself here
    return None if same(a) == same(b) else f"{where} was {_short(a)} and is {_short(b)} now"


def _short(value: Any) -> str:
    words = json.dumps(value)
    return words if len(words) <= 100 else f"{words[:100]}..."
