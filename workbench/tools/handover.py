"""A tool as JSON, which a worker process makes the same tool of: nothing that crosses can execute anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from workbench.basics.canonical_json import json_bytes
from workbench.tools.base import FunctionTool, Tool, task_arguments
from workbench.tools.base import tool as tool_of
from workbench.tools.workers.values import describe, import_named, name_of, rebuild
from workbench.values.errors import EnvError, ToolError

OTHERWISE = (
    "mark it trusted=True: then it runs in this process, and cannot be stopped where it hangs"
)


@dataclass(frozen=True)
class ToolRecipe:
    """A tool as a worker can make it. `asks`: it is handed the trajectory's task. `home`: stateful tools of one home share
    their state, so they live in one worker. `key` says all that makes it what it is."""

    name: str
    content: Any
    stateful: bool
    asks: bool
    home: str

    @property
    def key(self) -> str:
        return json_bytes(self.content, f"tool {self.name!r}").decode()


def describe_tool(tool: Tool) -> ToolRecipe:
    """How a worker makes the same tool. Raises ToolError for one that it could not import, saying what to do."""
    where = f"tool {tool.name!r}"
    try:
        if isinstance(tool, FunctionTool):
            content = {
                "function": _place_of(tool, where),
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            }
            asks = bool(tool.stateful or task_arguments(tool.function))
            return ToolRecipe(tool.name, content, tool.stateful, asks, tool.name)
        if not is_dataclass(tool):
            raise ToolError(
                f"{where} is a {type(tool).__name__}, which worker processes cannot be handed: write it as a "
                f"function or a class with a method call, both by @tool, or as a frozen dataclass; or {OTHERWISE}"
            )
        described = describe(tool, where, OTHERWISE)
    except (EnvError, AttributeError) as error:
        raise ToolError(str(error)) from error
    home = getattr(tool, "home", tool.name)
    return ToolRecipe(tool.name, {"tool": described}, tool.stateful, tool.stateful, home)


def _place_of(tool: FunctionTool, where: str) -> str:
    """The function's own name, or that of the tool in its module: a tool of another framework is no function."""
    try:
        return name_of(tool.function, where, OTHERWISE)
    except EnvError:
        if not tool.place:
            raise
        return tool.place


def made_of(described: Mapping[str, Any]) -> Tool:
    """The tool that `describe_tool` described."""
    if "tool" in described:
        return rebuild(described["tool"])
    named = import_named(described["function"])
    # Decorated with @tool, the name is that of the tool itself.
    function = getattr(named, "function", named)
    return tool_of(
        function,
        name=described["name"],
        description=described["description"],
        parameters=described["parameters"],
    )
