"""Python as a tool: an agent's programs run in a sandbox of its trajectory, and what they define is kept from call to
call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.extensions.sandbox.sandbox_tool import SandboxState, SandboxTool
from workbench.extensions.sandbox.sandboxes import CallOutcome
from workbench.tools.base import ToolResult

SAID = {"timeout": "timeout", "died": "died", "raised": "raised", "exit": ""}


@dataclass(frozen=True)
class PythonTool(SandboxTool):
    """Runs a program and gives back what it printed, and the value of its last line."""

    name: ClassVar[str] = "python"
    description: ClassVar[str] = (
        "Run a Python program; get what it prints, and the value of its last line. Names are "
        "kept from call to call. There is no network."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The program."}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        ran = self._outcome(arguments["code"])
        if ran.lost:
            return ToolResult(
                f"Error: {self.name}: {ran.said}. What it had defined is lost: the next call begins anew.",
                error=SAID[ran.error],
            )
        cut = f"\n[cut: {ran.cut:,} more bytes]" if ran.cut else ""
        left = f"The program ended itself by {ran.said}.\n" if ran.error == "exit" else ""
        return ToolResult(
            f"{ran.text}{cut}{left}" or "(nothing was printed)", error=SAID.get(ran.error, "")
        )

    def _run(self, state: SandboxState, text: str) -> CallOutcome:
        ran = state.sandbox.run(text)
        state.ran = [] if ran.lost else [*state.ran, text]
        return ran


python = PythonTool()
