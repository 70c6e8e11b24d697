"""Where an environment hands in the calls of one turn, and gets back one result each, in the same order.

The desk never raises for what a tool does: whatever goes wrong is a `ToolResult` with the kind of failure and a text
that the agent can act on.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.errors import ToolError
from workbench.tools.base import Tool, ToolResult
from workbench.tools.results import as_result, raised
from workbench.types import ToolCall


@dataclass(frozen=True)
class ToolLimits:
    """What one call may take. `deadline_s`: by the wall clock, from when the call begins. `most_bytes`: of its text
    (UTF-8), the rest is cut with a mark. `most_calls`: in one turn, the rest is not run. `workers`: worker processes at
    work at once, for all desks of this process together."""

    deadline_s: float = 5.0
    most_bytes: int = 2000
    most_calls: int = 4
    workers: int = 2

    def __post_init__(self) -> None:
        if not self.deadline_s > 0 or self.most_bytes < 1 or self.most_calls < 1 or self.workers < 1:
            raise ToolError("deadline_s is positive, most_bytes, most_calls and workers are at least 1; got "
                            f"{self.deadline_s}, {self.most_bytes}, {self.most_calls}, {self.workers}")


class ToolDesk:
    """The tools of one attempt. Raises ToolError where two tools have one name."""

    def __init__(self, tools: Sequence[Tool], limits: ToolLimits = ToolLimits()) -> None:
        self.tools, self.limits = {tool.name: tool for tool in tools}, limits
        if len(self.tools) < len(tools):
            names = [tool.name for tool in tools]
            raise ToolError(f"every tool has a name of its own, got {', '.join(names)}")

    def run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """One result for each call, in the order of the calls."""
        return [self._run_here(call) if index < self.limits.most_calls else self._too_many(len(calls))
                for index, call in enumerate(calls)]

    def close(self) -> None:
        """The attempt is over. A closed desk may be closed again."""

    def _run_here(self, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        if tool is None:
            return ToolResult(f"there is no tool {call.name!r}; there are: {', '.join(self.tools) or 'none'}",
                              error="unknown_tool")
        try:
            return as_result(tool.call(call.arguments), self.limits.most_bytes)
        except (Exception, SystemExit) as error:  # a tool may raise anything (law 10); Ctrl-C is the user's
            return raised(call.name, error, self.limits.most_bytes)

    def _too_many(self, count: int) -> ToolResult:
        return ToolResult(f"not run: {count} calls in one turn, at most {self.limits.most_calls} are taken; ask again",
                          error="too_many")
