"""A shell as a tool: an agent's commands are run by bash in a sandbox of its trajectory, where files and the folder are kept.

The machine's own programs (/usr/bin) are there to be run, read-only; the network is not. So it needs a sandbox of tier `namespaces`
(`SandboxSettings.programs`), and refuses where none can be had (ToolError).
Programs read the machine's clock: what they say of it differs from replay to replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.extensions.sandbox.limits import SandboxSettings
from workbench.extensions.sandbox.sandbox_tool import SandboxState, SandboxTool
from workbench.extensions.sandbox.sandboxes import WORK, ProgramOutcome, Sandbox
from workbench.tools.base import ToolResult

FOLDER = "/tmp/.folder"  # where bash leaves word of the folder that it ended in
_LEAVING = f"trap 'pwd -P > {FOLDER}' EXIT; eval \"$1\""


@dataclass
class ShellState(SandboxState):
    """Beside what is run, the folder that the next command begins in."""

    folder: str = WORK

    def begin(self, sandbox: Sandbox) -> list[str]:
        self.folder = WORK
        return super().begin(sandbox)


@dataclass(frozen=True)
class ShellTool(SandboxTool):
    """Runs a command and gives back what it printed."""

    settings: SandboxSettings = SandboxSettings(programs=True)

    new_state: ClassVar[type[SandboxState]] = ShellState
    name: ClassVar[str] = "shell"
    description: ClassVar[str] = (
        "Run a command by bash; get what it prints, errors too. Files and the folder are kept from "
        "call to call, variables are not. There is no network."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The command."}},
        "required": ["command"],
        "additionalProperties": False,
    }

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        ran = self._outcome(arguments["command"])
        if ran.lost:
            return ToolResult(
                f"Error: {self.name}: {ran.said}. Its files are lost: the next call begins anew.",
                error=ran.error,
            )
        if ran.error == "raised":
            return ToolResult(f"Error: {self.name}: {ran.said}", error="raised")
        text = ran.out.decode("utf-8", "replace") + ran.err.decode("utf-8", "replace")
        cut = f"\n[cut: {ran.cut:,} more bytes]" if ran.cut else ""
        if ran.error == "late":
            return ToolResult(
                f"{text}{cut}\nError: {self.name}: it did not end within {self.settings.seconds:g} s and was stopped. "
                "Its files are kept.",
                error="timeout",
            )
        left = f"[exit status {ran.status}]\n" if ran.status else ""
        return ToolResult(f"{text}{cut}{left}" or "(nothing was printed)")

    def _run(self, state: ShellState, text: str) -> ProgramOutcome:
        words = ["bash", "-c", _LEAVING, "bash", text]
        ran = state.sandbox.start(words, folder=state.folder)
        if ran.error == "raised" and state.folder != WORK:  # the folder is gone
            ran = state.sandbox.start(words)
            state.folder = WORK
        if ran.lost:
            state.ran = []
            return ran
        state.ran.append(text)
        left = state.sandbox.read_file(FOLDER)
        if left is not None and len(left) < 4096:
            folder = left.decode("utf-8", "surrogateescape").rstrip("\n")
            # Nothing in it: the folder that bash was in is gone.
            state.folder = folder if left.startswith(b"/") else WORK
        return ran


shell = ShellTool()
