"""What tools that run an agent's programs share: a sandbox for each trajectory, begun with its first call, and what it rests on.

Such a tool counts as trusted, in the words of `base`: the tool itself is ours and bounded; what it runs is shut in. Where no
sandbox can be had on this machine it refuses (ToolError): code of an agent's is never run without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from workbench.extensions.sandbox.limits import SandboxSettings
from workbench.extensions.sandbox.sandboxes import Sandbox, open_sandbox
from workbench.values import Task


@dataclass
class SandboxState:
    """Of one trajectory: its sandbox, what was run in it, and what a state that is to be made again begins with."""

    sandbox: Sandbox | None = None
    ran: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def begin(self, sandbox: Sandbox) -> list[str]:
        """Go on in a new sandbox; returns what is to be run in it first."""
        self.sandbox = sandbox
        self.ran = []
        again = self.waiting
        self.waiting = []
        return again


@dataclass(frozen=True)
class SandboxTool:
    """A tool of one text: `_run(state, text)` runs it in the state's sandbox and keeps `state.ran`."""

    settings: SandboxSettings = SandboxSettings()
    state: SandboxState | None = field(default=None, repr=False, compare=False)

    trusted: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    new_state: ClassVar[type[SandboxState]] = SandboxState

    def for_trajectory(self, task: Task) -> Self:
        return replace(self, state=self.new_state())

    def _outcome(self, text: str) -> Any:
        """What came of running this where the trajectory stands."""
        state = self.state or self.new_state()
        try:
            if state.sandbox is None or not state.sandbox.alive:
                for earlier in state.begin(open_sandbox(self.settings)):
                    self._run(state, earlier)
            return self._run(state, text)
        finally:
            # Asked outside of a trajectory: nothing is kept.
            if self.state is None and state.sandbox is not None:
                state.sandbox.close()

    def _run(self, state: SandboxState, text: str) -> Any:
        raise NotImplementedError

    @property
    def cells(self) -> tuple[str, ...]:
        """What made the state as it is: run again it makes it again, as far as the sandbox is deterministic."""
        return tuple(self.state.waiting or self.state.ran) if self.state else ()

    def replay(self, cells: Sequence[str]) -> None:
        """Begin the next call in the state that these make."""
        self.close()
        self.state.ran = []
        self.state.waiting = list(cells)

    def close(self) -> None:
        """The trajectory is over."""
        if self.state is not None and self.state.sandbox is not None:
            self.state.sandbox.close()
            self.state.sandbox = None
