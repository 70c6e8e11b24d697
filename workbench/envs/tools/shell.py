"""A shell as a tool: an agent's commands are run by bash in a sandbox of its attempt, where files and the folder are kept.

The machine's own programs (/usr/bin) are there to be run, read-only; the network is not. So it needs a box of tier `namespaces`
(`SandboxSettings.programs`), and refuses where none can be had (ToolError). It counts as trusted, as the Python tool does.
Programs read the machine's clock: what they say of it differs from replay to replay.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from workbench.envs.sandbox.boxes import WORK, ProgramOutcome, Sandbox, open_sandbox
from workbench.envs.sandbox.limits import SandboxSettings
from workbench.envs.tools.base import ToolResult
from workbench.types import Task

FOLDER = "/tmp/.folder"  # where bash leaves word of the folder that it ended in
_LEAVING = f"trap 'pwd -P > {FOLDER}' EXIT; eval \"$1\""


@dataclass
class _ShellState:
    """Of one attempt: its sandbox, begun with the first command; the folder; the commands that it rests on."""

    sandbox: Sandbox | None = None
    folder: str = WORK
    commands: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)  # commands of a state that is to be made again


@dataclass(frozen=True)
class ShellTool:
    """Runs a command and gives back what it printed."""

    settings: SandboxSettings = SandboxSettings(programs=True)
    state: _ShellState | None = field(default=None, repr=False, compare=False)

    name: ClassVar[str] = "shell"
    description: ClassVar[str] = ("Run a command by bash; get what it prints, errors too. Files and the folder are kept from "
                                  "call to call, variables are not. There is no network.")
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object", "properties": {"command": {"type": "string", "description": "The command."}},
        "required": ["command"], "additionalProperties": False}
    trusted: ClassVar[bool] = True
    stateful: ClassVar[bool] = True

    def for_attempt(self, task: Task) -> ShellTool:
        return replace(self, state=_ShellState())

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        state = self.state or _ShellState()
        try:
            ran = self._run(state, arguments["command"])
        finally:
            if self.state is None and state.sandbox is not None:  # asked outside of an attempt: nothing is kept
                state.sandbox.close()
        if ran.lost:
            return ToolResult(f"Error: {self.name}: {ran.said}. Its files are lost: the next call begins anew.", error=ran.error)
        if ran.error == "raised":
            return ToolResult(f"Error: {self.name}: {ran.said}", error="raised")
        text = ran.out.decode("utf-8", "replace") + ran.err.decode("utf-8", "replace")
        cut = f"\n[cut: {ran.cut:,} more bytes]" if ran.cut else ""
        if ran.error == "late":
            return ToolResult(f"{text}{cut}\nError: {self.name}: it did not end within {self.settings.seconds:g} s and was stopped. "
                              "Its files are kept.", error="timeout")
        left = f"[exit status {ran.status}]\n" if ran.status else ""
        return ToolResult(f"{text}{cut}{left}" or "(nothing was printed)")

    def _run(self, state: _ShellState, command: str) -> ProgramOutcome:
        if state.sandbox is None or not state.sandbox.alive:
            state.sandbox = open_sandbox(self.settings)
            state.commands, again, state.folder = [], state.waiting, WORK
            state.waiting = []
            for each in again:
                self._told(state, each)
        return self._told(state, command)

    @staticmethod
    def _told(state: _ShellState, command: str) -> ProgramOutcome:
        words = ["bash", "-c", _LEAVING, "bash", command]
        ran = state.sandbox.start(words, folder=state.folder)
        if ran.error == "raised" and state.folder != WORK:  # the folder is gone
            ran = state.sandbox.start(words)
            state.folder = WORK
        if ran.lost:
            state.commands = []
            return ran
        state.commands.append(command)
        left = state.sandbox.read_file(FOLDER)
        if left is not None and len(left) < 4096:  # nothing in it: the folder that bash was in is gone
            state.folder = left.decode("utf-8", "surrogateescape").rstrip("\n") if left.startswith(b"/") else WORK
        return ran

    @property
    def cells(self) -> tuple[str, ...]:
        """The commands that made the state as it is: run again they make it again, but for what they read off a clock."""
        return tuple(self.state.waiting or self.state.commands) if self.state else ()

    def replay(self, commands: Sequence[str]) -> None:
        """Begin the next call in the state that these commands make."""
        self.close()
        self.state.commands, self.state.waiting = [], list(commands)

    def close(self) -> None:
        """The attempt is over."""
        if self.state is not None and self.state.sandbox is not None:
            self.state.sandbox.close()
            self.state.sandbox = None


shell = ShellTool()
