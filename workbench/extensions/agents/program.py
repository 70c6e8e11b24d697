"""A program at work on one task: a function in a thread of its own, or a command in a process of its own.

    def solve(task, model):                  a function, or a coroutine function
        client = model.openai()              or any client at all: model.url, model.key, model.name
        ...
        return "the answer"

What it returns is scored: a number is the reward; a text is an answer, handed to the environment of the task as the policy's
last turn would be; None is no answer. A command finds OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL,
ANTHROPIC_API_KEY and the task in WORKBENCH_TASK (JSON); the last line that it prints is what it returns, a JSON object
{"reward": 0.5} or {"answer": "..."} or a plain text. Where a function scores the attempt (`scoring.py`), it returns whatever
that function reads.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from workbench.basics.canonical_json import plain
from workbench.basics.plugins import load_named
from workbench.extensions.agents.messages import MODEL
from workbench.tools.base import schema_of
from workbench.values import Message, Observation, StepResult, Task, ToolCall
from workbench.values.errors import ConfigError, EnvError, WorkbenchError

# Begins as code that is named does: a run from elsewhere starts no command (run/code.py).
COMMAND = "command:line "
RETURNED = "returned"  # in a turn's info: what a program returned, where a function scores it
MOST_OUTPUT = 1 << 20  # characters of what a command prints


@dataclass(frozen=True)
class ModelAddress:
    """Where a program asks its model. `url` ends without a version; `url + "/v1"` is what OpenAI's clients call base_url."""

    url: str
    key: str
    name: str = MODEL
    _open: list[Any] = field(default_factory=list, repr=False)  # clients that are closed at the end

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def openai(self, **settings: Any) -> Any:
        """A client of the package `openai`."""
        return _package("openai").OpenAI(base_url=self.openai_url, api_key=self.key, **settings)

    def async_openai(self, **settings: Any) -> Any:
        kind = _package("openai").AsyncOpenAI
        client = kind(base_url=self.openai_url, api_key=self.key, **settings)
        self._open.append(client)
        return client

    def anthropic(self, **settings: Any) -> Any:
        """A client of the package `anthropic`."""
        return _package("anthropic").Anthropic(base_url=self.url, api_key=self.key, **settings)


@dataclass(frozen=True)
class ProgramTask:
    """A task as a program sees it.

    id        of the task
    question  its text, "" where it has none
    messages  the environment's first prompt, as a chat completion takes it
    tools     the environment's tools, in the same form
    call      runs one of these tools: call("search", {"query": "..."}) -> text
    payload   all that the task holds, a gold answer among it: for programs that score themselves, not for the model
    """

    id: str
    question: str
    messages: list[dict[str, Any]]
    tools: list[Mapping[str, Any]]
    call: Callable[[str, Mapping[str, Any]], str]
    payload: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, env: Any, first: Observation) -> ProgramTask:
        tools = list(first.tools) or [schema_of(tool) for tool in getattr(env, "tools", ())]
        return cls(
            task.id,
            str(task.payload.get("question", "")),
            [_as_sent(message) for message in first.messages],
            tools,
            _caller(env),
            task.payload,
        )

    @property
    def prompt(self) -> str:
        """The first prompt as one text, for programs that begin with a text."""
        return "\n\n".join(message["content"] for message in self.messages)

    @property
    def row(self) -> Mapping[str, Any]:
        """The columns of the data set's row, or the payload."""
        return self.payload.get("row", self.payload)

    def facts(self) -> dict[str, Any]:
        """What a program in another process is told."""
        return {
            "id": self.id,
            "question": self.question,
            "prompt": self.prompt,
            "messages": self.messages,
            "tools": [dict(tool) for tool in self.tools],
        }


def _as_sent(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.text}


def _caller(env: Any) -> Callable[[str, Mapping[str, Any]], str]:
    lock = threading.Lock()  # an executor is used by one thread at a time

    def call(name: str, arguments: Mapping[str, Any]) -> str:
        executor = getattr(env, "executor", None)
        if executor is None:
            raise EnvError("the environment of this task has no tools to call")
        with lock:
            return executor.run([ToolCall(name, dict(arguments))])[0].text

    return call


# ------------------------------------------------------------------------------------------------ running


class ProgramError(Exception):
    """A command ended without returning; the message says how, and begins with the name of it."""


@dataclass(eq=False)
class ProgramRun:
    """A program at work. `stop` may be called from another thread: it kills a command; a function goes on in its thread until
    its next call is refused."""

    program: str
    process: subprocess.Popen | None = None
    stopped: bool = False

    def returned(self, task: ProgramTask, model: ModelAddress) -> Any:
        """Run it to its end. Raises whatever a function raises, and ProgramError for a command that fails."""
        if self.program.startswith(COMMAND):
            return self._command(task, model)
        solve = load_named(self.program, "env.program")
        value = solve(task, model)
        if inspect.isawaitable(value):
            return asyncio.run(_settled(value, model))
        return value

    def stop(self) -> None:
        self.stopped = True
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _command(self, task: ProgramTask, model: ModelAddress) -> Any:
        names = {
            "OPENAI_BASE_URL": model.openai_url,
            "OPENAI_API_KEY": model.key,
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": model.key,
            "WORKBENCH_MODEL": model.name,
            "WORKBENCH_URL": model.url,
            "WORKBENCH_TASK": json.dumps(task.facts(), ensure_ascii=False),
        }
        self.process = subprocess.Popen(
            shlex.split(self.program.removeprefix(COMMAND)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | names,
            start_new_session=True,
        )
        if self.stopped:
            self.stop()
        try:
            output, complaint = self.process.communicate()
        finally:
            self.stop()  # what it started and left behind
        status = self.process.returncode
        if status < 0:
            raise ProgramError(f"agent_killed: the command was ended by signal {-status}")
        if status:
            raise ProgramError(
                f"agent_exited: the command ended with {status}: {complaint.strip()[-400:]}"
            )
        return _printed(output[-MOST_OUTPUT:])


async def _settled(value: Any, model: ModelAddress) -> Any:
    """What a coroutine comes to. Connections belong to its loop, and are closed before that ends."""
    try:
        return await value
    finally:
        for client in model._open:
            await client.close()


def _printed(output: str) -> Any:
    """What a command returns: its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not lines:
        return None
    try:
        value = json.loads(lines[-1])
    except ValueError:
        return lines[-1]
    if isinstance(value, dict) and set(value) == {"reward"}:
        return value["reward"]
    if isinstance(value, dict) and set(value) == {"answer"}:
        return value["answer"]
    return lines[-1]


def check_program(program: str) -> None:
    """Raise ConfigError for a program that cannot be started."""
    if program.startswith(COMMAND):
        try:
            parts = shlex.split(program.removeprefix(COMMAND))
        except ValueError as error:
            raise ConfigError(f"env.program {program!r} is no command: {error}") from error
        if not parts:
            raise ConfigError(
                "env.program = 'command:line ' names no command, such as 'command:line python my_agent.py'"
            )
        return
    if not program:
        raise ConfigError(
            "env.program names nothing: 'my_agent:solve', a function of a task and of where its model is, or "
            "'command:line python my_agent.py'"
        )
    solve = load_named(program, "env.program")
    try:
        inspect.signature(solve).bind(None, None)
    except (TypeError, ValueError) as error:  # ValueError: `int` and its like have no signature
        raise ConfigError(
            f"env.program {program!r} is called with a task and with where its model is: solve(task, model); {error}"
        ) from error


# ------------------------------------------------------------------------------------------------ scoring


def scored_return(value: Any, env: Any) -> StepResult:
    """What a program returned, as the result of its last turn. Raises EnvError for what can be no result.

    A number is the reward itself. A text goes to the environment: as it is where the environment reads an answer in it, else
    written as an answer. None goes there as a turn without an answer.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str, type(None))):
        raise EnvError(
            f"the program returns a number (the reward), a text (the answer) or None, got {value!r:.80}"
        )
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise EnvError(f"the program returned {value!r}; a reward is a finite number")
        parts = {"program": float(value)}
        return StepResult(Observation(()), float(value), parts, terminated=True)
    text = "" if value is None else value
    written = getattr(env, "format", None)
    if written is not None and value is not None and written.parse(text).answer is None:
        text = written.write_answer(text)
    return env.step(text)


def kept_return(value: Any) -> StepResult:
    """What a program returned, for the function that scores it later. Raises EnvError for what could not be stored."""
    try:
        info = {RETURNED: plain(value, "what the program returned")}
    except WorkbenchError as error:
        raise EnvError(
            f"a function scores what the program returns, as JSON values: {error}"
        ) from error
    return StepResult(Observation(()), 0.0, terminated=True, info=info)


def _package(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the program asks for the package {name}; pip install {name}") from error
