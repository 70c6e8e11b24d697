"""Python as a tool: an agent's programs run in a sandbox of its attempt, and what they define is kept from call to
call.

It counts as trusted, in the words of `base`: the tool itself is ours and bounded; what it runs is shut in. Where no
sandbox can be had on this machine it refuses (ToolError): code of an agent's is never run without one.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from workbench.envs.sandbox.boxes import CallOutcome, Sandbox, open_sandbox
from workbench.envs.sandbox.limits import SandboxSettings
from workbench.envs.tools.base import ToolResult
from workbench.types import Task

SAID = {"timeout": "timeout", "died": "died", "raised": "raised", "exit": ""}


@dataclass
class _State:
    """Of one attempt: its sandbox, begun with the first call, and the programs that it rests on."""

    sandbox: Sandbox | None = None
    cells: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)  # programs of a state that is to be made again


@dataclass(frozen=True)
class PythonTool:
    """Runs a program and gives back what it printed, and the value of its last line."""

    settings: SandboxSettings = SandboxSettings()
    state: _State | None = field(default=None, repr=False, compare=False)

    name: ClassVar[str] = "python"
    description: ClassVar[str] = ("Run a Python program; get what it prints, and the value of its last line. Names are "
                                  "kept from call to call. There is no network.")
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object", "properties": {"code": {"type": "string", "description": "The program."}},
        "required": ["code"], "additionalProperties": False}
    trusted: ClassVar[bool] = True
    stateful: ClassVar[bool] = True

    def for_attempt(self, task: Task) -> PythonTool:
        return replace(self, state=_State())

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        state = self.state or _State()
        try:
            ran = self._run(state, arguments["code"])
        finally:
            if self.state is None and state.sandbox is not None:  # asked outside of an attempt: nothing is kept
                state.sandbox.close()
        lost = " What it had defined is lost: the next call begins anew." if ran.lost else ""
        if ran.lost:
            return ToolResult(f"Error: {self.name}: {ran.said}.{lost}", error=SAID[ran.error])
        cut = f"\n[cut: {ran.cut:,} more bytes]" if ran.cut else ""
        left = f"The program ended itself by {ran.said}.\n" if ran.error == "exit" else ""
        return ToolResult(f"{ran.text}{cut}{left}" or "(nothing was printed)", error=SAID.get(ran.error, ""))

    def _run(self, state: _State, code: str) -> CallOutcome:
        if state.sandbox is None or not state.sandbox.alive:
            state.sandbox = open_sandbox(self.settings)
            state.cells, again = [], state.waiting
            state.waiting = []
            for cell in again:
                state.sandbox.run(cell)
                state.cells.append(cell)
        ran = state.sandbox.run(code)
        state.cells = [] if ran.lost else [*state.cells, code]
        return ran

    @property
    def cells(self) -> tuple[str, ...]:
        """The programs that made the state as it is: run again they make it again, where the sandbox is
        deterministic."""
        return tuple(self.state.waiting or self.state.cells) if self.state else ()

    def replay(self, cells: Sequence[str]) -> None:
        """Begin the next call in the state that these programs make."""
        self.close()
        self.state.cells, self.state.waiting = [], list(cells)

    def close(self) -> None:
        """The attempt is over."""
        if self.state is not None and self.state.sandbox is not None:
            self.state.sandbox.close()
            self.state.sandbox = None


python = PythonTool()
