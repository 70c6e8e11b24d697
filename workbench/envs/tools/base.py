"""What a tool is: a name, words, a JSON schema, and a `call` that takes the checked arguments.

    @tool                                       tool(function)  a typed function; schema from signature and docstring
    def add(a: int, b: int) -> int: ...         tool(Class)     one with state: a fresh instance for every attempt

An argument annotated `Task` is no part of the schema: the attempt's task is handed in.

A call that goes wrong is no error of ours: it is a `ToolResult` with the kind of the error and words that the agent can
act on (law 10). Whether a tool may run in this thread is declared by its author (`trusted`), never guessed.
"""
from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Protocol

from workbench.envs.tools.arguments import from_json, mismatches, validator_of
from workbench.envs.tools.schema import checked_parameters, hints_of, parameters_of, shown, summary_of
from workbench.types import Task, ToolCall
from workbench.types.errors import ToolError

ERRORS = ("unknown_tool", "bad_arguments", "bad_call", "raised", "timeout", "died", "too_many")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class ToolResult:
    """What came of a call.

    `text` is what the agent reads (always untrusted). `value` is JSON for people and process rewards,
    such as {"documents": [ids]}. `error` names the kind of the error, "" where there was none. `reward`: what a tool
    pays for its own call (None: it pays nothing). `cut_bytes`: how many bytes of the text were left out.
    """

    text: str
    value: Any = None
    error: str = ""
    reward: float | None = None
    cut_bytes: int = 0


class Tool(Protocol):
    """Anything with these names. `trusted`: ours, pure and bounded, so it may run in the caller's thread; anything else
    runs in a process that can be killed. `stateful`: `for_attempt` gives a fresh one, and no two attempts share it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    trusted: bool
    stateful: bool

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Text, a ToolResult or a JSON value; may raise. `arguments` fit `parameters`."""

    def for_attempt(self, task: Task) -> Tool:
        """The tool for one attempt at `task`: a fresh one where it is stateful, else itself."""


@dataclass(frozen=True)
class FunctionTool:
    """A tool around a typed function, or around a class with a method `call`: then one instance per attempt."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable = field(repr=False)
    trusted: bool = False
    stateful: bool = False
    task: Task | None = field(default=None, repr=False)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        if inspect.isclass(self.function):
            raise ToolError(f"tool {self.name!r} has state: ask for_attempt(task) for one of its own, and call that")
        hints = hints_of(self.function)
        given = {name: from_json(hints.get(name), value) for name, value in arguments.items()}
        return self.function(**given, **self._handed_in(self.function))

    def for_attempt(self, task: Task) -> FunctionTool:
        given = replace(self, task=task)
        if not inspect.isclass(self.function):
            return given if task_arguments(self.function) else self
        return replace(given, function=self.function(**given._handed_in(self.function.__init__)).call)

    def _handed_in(self, function: Callable) -> dict[str, Task | None]:
        return dict.fromkeys(task_arguments(function), self.task)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The function itself, for people."""
        return self.function(*arguments, **named)


def tool(function: Callable | None = None, *, name: str | None = None, description: str | None = None,
         parameters: Mapping[str, Any] | None = None, trusted: bool = False) -> Any:
    """A tool from a typed function, or from a class whose instances have a typed method `call`; also as `@tool`.

    `description` and `parameters` come from the docstring and the signature where they are not given. Raises ToolError
    for a name, a signature or a schema that cannot be offered."""
    if function is None:
        return lambda function: tool(function, name=name, description=description, parameters=parameters, trusted=trusted)
    stateful = inspect.isclass(function)
    name = getattr(function, "__name__", "") if name is None else name
    check_name(name)
    if stateful and not callable(getattr(function, "call", None)):
        raise ToolError(f"tool {name!r}: a class that is a tool has a method call(self, ...), typed like a function")
    if not callable(function) or inspect.iscoroutinefunction(function.call if stateful else function):
        raise ToolError(f"tool {name!r}: expected a function or a class, not async, got {function!r}")
    if parameters is None:
        parameters = parameters_of(function.call, is_method=True) if stateful else parameters_of(function)
    else:
        parameters = checked_parameters(parameters, f"tool {name!r}")
    if description is None:
        description = summary_of(inspect.getdoc(function) or "")
    return FunctionTool(name, description, parameters, function, trusted, stateful)


def task_arguments(function: Callable) -> tuple[str, ...]:
    """The arguments annotated `Task`: no agent gives them; the attempt's task is handed in."""
    return tuple(name for name, hint in hints_of(function).items() if hint is Task and name != "return")


def check_name(name: Any) -> None:
    """Raises ToolError for a name that a call could not carry."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ToolError(f"a tool's name is 1 to 64 of A-Z a-z 0-9 _ - and begins with a letter or _, got {name!r}; "
                        "pass name=...")


def schema_of(tool: Tool) -> dict[str, Any]:
    """The tool as it is shown to a policy: OpenAI's form of function calling."""
    return {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                             "parameters": dict(tool.parameters)}}


# ------------------------------------------------------------------------------------------------ by name

OWN: Mapping[str, str] = {"calculator": "workbench.envs.tools.calculator:calculator"}


def tools_named(names: Sequence[str]) -> tuple[Tool, ...]:
    """The tools of these names: one of ours, or "package.module:attribute", a tool, a typed function or a mounted MCP
    server (all its tools) that can be imported, so that worker processes and stored runs find it again. Raises
    ToolError."""
    found = tuple(each for name in names for each in _named(name))
    called = [each.name for each in found]
    if len(set(called)) != len(called):
        raise ToolError(f"two tools of one name cannot be told apart by who calls them: {called}")
    return found


def _named(name: str) -> tuple[Tool, ...]:
    place = OWN.get(name, name)
    module, colon, attribute = place.partition(":")
    if not colon:
        raise ToolError(f"there is no tool {name!r}; there are {', '.join(OWN)}, and 'package.module:attribute'")
    try:
        value = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ToolError(f"tool {name!r} cannot be imported: {error}") from None
    if hasattr(value, "tools"):  # what an MCP server offers
        return tuple(value.tools)
    return (value if hasattr(value, "for_attempt") and not inspect.isclass(value) else tool(value),)


# ------------------------------------------------------------------------------------------------ calls


def refusal_of(call: ToolCall, tools: Mapping[str, Tool]) -> ToolResult | None:
    """Why a call cannot be made, in words to act on; None where it can: the tool is known and its arguments fit."""
    known = tools.get(call.name)
    if known is None:
        return ToolResult(f"Error: there is no tool {shown(call.name)}. There are: {', '.join(tools) or 'none'}.",
                          error="unknown_tool")
    wrong = mismatches(validator_of(known.parameters), dict(call.arguments))
    return ToolResult(f"Error: {known.name} was not called. {wrong}", error="bad_arguments") if wrong else None
