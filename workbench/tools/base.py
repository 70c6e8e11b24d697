"""What a tool is: a name, words, a JSON schema, and a `call` that takes the checked arguments.

    @tool                                       tool(function)  a typed function; schema from signature and docstring
    def add(a: int, b: int) -> int: ...         tool(Class)     one with state: a fresh instance for every trajectory

An argument annotated `Task` is no part of the schema: the trajectory's task is handed in. Functions may be async. Tools of
other frameworks are taken as they are: what has a name, a description and `invoke` (LangChain's), and a function with
OpenAI's description of it, `tool(function, spec={"type": "function", "function": {...}})`.

A call that goes wrong is no error of ours: it is a `ToolResult` with the kind of the error and words that the agent can
act on (invariant 10). Whether a tool may run in this thread is declared by its author (`trusted`), never guessed.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

from workbench.basics.annotated import checked_methods
from workbench.basics.extensions import provided
from workbench.basics.plugins import NameTable, is_named, load_named, not_importable
from workbench.tools.action_format import shown
from workbench.tools.arguments import from_json, mismatches, together, validator_of
from workbench.tools.rich_types import complaints, read, without_titles
from workbench.tools.schema import checked_parameters, hints_of, summary_of
from workbench.tools.signature import Argument, arguments_of, parameters_of
from workbench.values import Task, ToolCall
from workbench.values.errors import ConfigError, ToolError, shortened

ERRORS = ("unknown_tool", "bad_arguments", "bad_call", "raised", "timeout", "died", "too_many")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class ToolResult:
    """The result of a call.

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
    runs in a process that can be killed. `stateful`: `for_trajectory` gives a fresh one, and no two trajectories share it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    trusted: bool
    stateful: bool

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Text, a ToolResult or a JSON value, or an awaitable that gives one; may raise. `arguments` fit `parameters`."""

    def for_trajectory(self, task: Task) -> Tool:
        """The tool for one trajectory of `task`: a fresh one where it is stateful, else itself."""

    # Optional, found by hasattr:  complaint(arguments) -> str: what is wrong with arguments that fit the schema, or "";
    # close() -> None, of a trusted one with state: its trajectory is over


@checked_methods
@dataclass(frozen=True)
class FunctionTool:
    """A tool around a typed function, or around a class with a method `call`: then one instance per trajectory.

    `place`: "module:attribute", where a worker process finds what cannot be found by its own name."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable = field(repr=False)
    trusted: bool = False
    stateful: bool = False
    task: Task | None = field(default=None, repr=False)
    place: str = field(default="", repr=False, compare=False)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        if inspect.isclass(self.function):
            raise ToolError(
                f"tool {self.name!r} has state: ask for_trajectory(task) for one of its own, and call that"
            )
        known = _arguments(self.function)
        given = {name: _as_annotated(known.get(name), value) for name, value in arguments.items()}
        for name, argument in known.items():
            has_default = argument.default is not inspect.Parameter.empty
            if name not in given and argument.adapter is not None and has_default:
                given[name] = deepcopy(argument.default)
        return self.function(**given, **self._handed_in(self.function))

    def complaint(self, arguments: Mapping[str, Any]) -> str:
        """What is wrong with arguments that fit the schema, in words: a pattern, a date that is none, what a validator of
        the author's says. "" where nothing is."""
        known = _arguments(self.function.call if inspect.isclass(self.function) else self.function)
        sentences = []
        for name, value in arguments.items():
            if name in known and known[name].adapter is not None:
                for place, message, came in complaints(known[name].adapter, name, value):
                    sentences.append(f'{message} for "{place}", got {shown(came)}.')
        return together(sentences)

    def for_trajectory(self, task: Task) -> FunctionTool:
        given = replace(self, task=task)
        if not inspect.isclass(self.function):
            return given if task_arguments(self.function) else self
        instance = self.function(**given._handed_in(self.function.__init__))
        return replace(given, function=instance.call)

    def _handed_in(self, function: Callable) -> dict[str, Task | None]:
        return dict.fromkeys(task_arguments(function), self.task)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The function itself, for people."""
        return self.function(*arguments, **named)


def tool(
    function: Any = None,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    trusted: bool = False,
    spec: Mapping[str, Any] | None = None,
) -> Any:
    """A tool from a typed function, or from a class whose instances have a typed method `call`; also as `@tool`. Or from
    an object with a name, a description and `invoke` or `ainvoke`, as LangChain's tools are.

    `description` and `parameters` come from the docstring and the signature where they are not given; `spec` gives all
    three as OpenAI writes them. Raises ToolError for a name, a signature or a schema that cannot be offered."""
    if spec is not None:
        name, description, parameters = _of_spec(spec, name, description, parameters)
    if function is None:
        return lambda function: tool(
            function, name=name, description=description, parameters=parameters, trusted=trusted
        )
    if isinstance(function, Mapping):
        raise ToolError(
            "a description alone cannot be called: write tool(function, spec={...}), with the function that "
            "does what it says"
        )
    if _is_invoked(function):
        return _invoking(function, name, description, parameters, trusted)
    stateful = inspect.isclass(function)
    name = getattr(function, "__name__", "") if name is None else name
    check_name(name)
    if stateful and not callable(getattr(function, "call", None)):
        raise ToolError(
            f"tool {name!r}: a class that is a tool has a method call(self, ...), typed like a function"
        )
    called = function.call if stateful else function
    if not callable(function) or inspect.isasyncgenfunction(called):
        raise ToolError(
            f"tool {name!r}: expected a function (async or not) or a class, and no async generator, got "
            f"{shortened(function)}"
        )
    if parameters is None:
        parameters = parameters_of(called, is_method=stateful)
    else:
        parameters = checked_parameters(parameters, f"tool {name!r}")
    if description is None:
        description = summary_of(inspect.getdoc(function) or "")
    return FunctionTool(name, description, parameters, function, trusted, stateful)


def _of_spec(spec: Mapping[str, Any], *given: Any) -> tuple[Any, Any, Any]:
    """(name, description, parameters) as OpenAI writes them: with `function` around them, or without."""
    inner = spec.get("function", spec)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise ToolError(
            'spec is OpenAI\'s description of a function, {"type": "function", "function": {"name": ..., '
            f'"description": ..., "parameters": ...}}}}; got {shown(spec)}'
        )
    stated = (
        inner["name"],
        inner.get("description") or "",
        inner.get("parameters") or {"type": "object"},
    )
    return tuple(
        theirs if ours is None else ours for ours, theirs in zip(given, stated, strict=True)
    )


def _is_invoked(tool: Any) -> bool:
    if inspect.isclass(tool) or not hasattr(tool, "description"):
        return False
    has_name = isinstance(getattr(tool, "name", None), str)
    return has_name and any(
        callable(getattr(tool, method, None)) for method in ("invoke", "ainvoke")
    )


def _invoking(
    theirs: Any,
    name: str | None,
    description: str | None,
    parameters: Mapping[str, Any] | None,
    trusted: bool,
) -> FunctionTool:
    """A tool of another framework, called by its own `invoke` or `ainvoke` with the arguments as one dict."""
    name = theirs.name if name is None else name
    check_name(name)
    if parameters is None:  # what the model gives, without what the framework would inject
        parameters = getattr(theirs, "tool_call_schema", None)
        parameters = parameters or getattr(theirs, "args_schema", None) or {"type": "object"}
        if hasattr(parameters, "model_json_schema"):
            parameters = parameters.model_json_schema()
        parameters = without_titles(parameters)
    parameters = checked_parameters(parameters, f"tool {name!r}")
    # Not every framework fills in what its schema promises.
    stated = {
        key: entry["default"]
        for key, entry in parameters.get("properties", {}).items()
        if isinstance(entry, Mapping) and "default" in entry
    }
    has_coroutine = getattr(theirs, "coroutine", None) is not None
    is_async = has_coroutine and getattr(theirs, "func", None) is None
    is_async = is_async or not callable(getattr(theirs, "invoke", None))

    def invoke(**arguments: Any) -> Any:
        arguments = {**stated, **arguments}
        return theirs.ainvoke(arguments) if is_async else theirs.invoke(arguments)

    description = str(theirs.description or "") if description is None else description
    return FunctionTool(name, description, parameters, invoke, trusted)


def _as_annotated(argument: Argument | None, value: Any) -> Any:
    if argument is None:
        return value
    if argument.adapter is None:
        return from_json(argument.hint, value)
    return read(argument.adapter, value)


def _arguments(function: Callable) -> Mapping[str, Argument]:
    method = getattr(function, "__func__", None)  # of an instance that need not be kept
    return _arguments_once(method or function, method is not None)


@lru_cache(maxsize=256)
def _arguments_once(function: Callable, is_method: bool) -> Mapping[str, Argument]:
    return arguments_of(function, is_method=is_method, strict=False)


def task_arguments(function: Callable) -> tuple[str, ...]:
    """The arguments annotated `Task`: no agent gives them; the trajectory's task is handed in."""
    return tuple(
        name for name, hint in hints_of(function).items() if hint is Task and name != "return"
    )


def check_name(name: Any) -> None:
    """Raises ToolError for a name that a call could not carry."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ToolError(
            f"a tool's name is 1 to 64 of A-Z a-z 0-9 _ - and begins with a letter or _, got {name!r}; "
            "pass name=..."
        )


def schema_of(tool: Tool) -> dict[str, Any]:
    """The tool as it is shown to a policy: OpenAI's form of function calling. Raises ToolError for parameters that are no
    schema."""
    if not isinstance(tool.parameters, Mapping):
        raise ToolError(f"a tool's parameters are a schema, got {shortened(tool.parameters)}")
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        },
    }


# ------------------------------------------------------------------------------------------------ by name

TOOLS = NameTable(
    {"calculator": "workbench.tools.calculator:calculator"},
    functools.partial(provided, "tools"),
)


def tools_named(names: Sequence[str]) -> tuple[Tool, ...]:
    """The tools of these names: one of ours, or "package.module:attribute", a tool, a typed function or a mounted MCP
    server (all its tools) that can be imported, so that worker processes and stored runs find it again. Raises
    ToolError."""
    tools = tuple(chain.from_iterable(map(_named, names)))
    called = [tool.name for tool in tools]
    if len(set(called)) != len(called):
        raise ToolError(f"two tools of one name cannot be told apart by who calls them: {called}")
    return tools


def as_tool(value: Any) -> Tool:
    """A tool as it is, or one made of a typed function or a class of functions. Raises ToolError."""
    if inspect.isclass(value):
        return tool(value)
    if hasattr(value, "for_trajectory"):
        return value
    if hasattr(value, "for_attempt"):
        raise ToolError(
            f"{type(value).__name__} has for_attempt(task), which is called for_trajectory(task) now; rename the method"
        )
    return tool(value)


def _named(name: str) -> tuple[Tool, ...]:
    place = TOOLS.names.get(name, name)
    if not is_named(place):
        raise ToolError(
            f"there is no tool {name!r}; there are {', '.join(TOOLS)}, and 'package.module:attribute'"
        )
    try:
        value = load_named(place, "tool")
    except ConfigError as error:
        raise ToolError(str(error)) from error
    if hasattr(value, "tools"):  # what an MCP server offers
        return tuple(value.tools)
    made = as_tool(value)
    reason = "" if made.trusted else not_importable(place)
    if reason:
        raise ToolError(
            f"tool {made.name!r} runs in a worker process, but {reason}, or mark it @wb.tool(trusted=True): then it runs in "
            "this process"
        )
    return (replace(made, place=place) if isinstance(made, FunctionTool) else made,)


# ------------------------------------------------------------------------------------------------ calls


def refusal_of(call: ToolCall, tools: Mapping[str, Tool]) -> ToolResult | None:
    """Why a call cannot be made, in words to act on; None where it can: the tool is known and its arguments fit."""
    known = tools.get(call.name)
    if known is None:
        return ToolResult(
            f"Error: there is no tool {shown(call.name)}. There are: {', '.join(tools) or 'none'}.",
            error="unknown_tool",
        )
    wrong = mismatches(validator_of(known.parameters), dict(call.arguments))
    if not wrong and hasattr(known, "complaint"):
        wrong = known.complaint(call.arguments)
    if not wrong:
        return None
    return ToolResult(f"Error: {known.name} was not called. {wrong}", error="bad_arguments")
