"""Call tools by hand, as an agent's calls are run: arguments checked, deadlines, bounded results, errors in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.look import show_rows
from workbench.tools.base import Tool, as_tool, tools_named
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.values import Task, ToolCall, View


def show_calls(
    tools: Tool | Callable | str | Sequence[Tool | Callable | str],
    *calls: tuple[str, Mapping[str, Any]],
    task: Task | None = None,
    limits: ToolLimits = ToolLimits(),
) -> View:
    """What an agent would read in answer to `calls`, (name, arguments) each, made in one turn.

    `tools`: tools, typed functions, or names ("calculator", "module:name"). `task`: the trajectory's, for tools that ask
    for it. Nothing that a call does wrong is raised; ToolError is, for a tool that cannot be offered.
    """
    given = [tools] if isinstance(tools, str) or not isinstance(tools, Sequence) else tools
    executor = ToolExecutor([_as_tool(offered) for offered in given], limits, task)
    try:
        results = executor.run([ToolCall(name, arguments) for name, arguments in calls])
    finally:
        executor.close()
    return show_rows(
        [
            {
                "call": f"{name}({json.dumps(arguments, ensure_ascii=False, default=str)})",
                "what the agent reads": result.text,
                "error": result.error,
            }
            for (name, arguments), result in zip(calls, results, strict=True)
        ]
    )


def _as_tool(given: Tool | Callable | str) -> Tool:
    if isinstance(given, str):
        return tools_named([given])[0]
    return as_tool(given)
