"""Runs where Inspect is installed: its contract for sandboxes, held by a sandbox of ours that may start programs.

    python inspect_checks.py        a line of JSON: each check with "" or why it failed

Commands as another user are started as that user of the sandbox's own (`open_sandbox(users=True)`). Where none can be had, since that takes root,
they are refused (`SandboxUserUnsupportedError`), as the contract allows.
"""

from __future__ import annotations

import builtins
import json
import posixpath
import sys
import traceback
from pathlib import Path
from typing import Any

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox import self_check

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from workbench.extensions.sandbox.programs import PART  # noqa: E402
from workbench.extensions.sandbox.sandboxes import (  # noqa: E402
    WORK,
    CallOutcome,
    Sandbox,
    SandboxSettings,
    open_sandbox,
)
from workbench.values.errors import ToolError  # noqa: E402

SETTINGS = SandboxSettings(
    programs=True,
    deterministic=False,
    seconds=120.0,
    memory_mb=1024,
    disk_mb=256,
    processes=32,
    warm=0,
)
SLOW_S = 120.0
MOST_OUTPUT = 10 << 20
GIVEN = "/tmp/.given"
WRITE = """
import os
os.makedirs(os.path.dirname({name!r}), exist_ok=True)
with open({name!r}, "wb") as file:
    while piece := ask():
        file.write(piece)
"""
READ = """
with open({name!r}, "rb") as file:
    while piece := file.read({part}):
        ask(piece)
"""


class OurEnvironment(SandboxEnvironment):
    """A sandbox as Inspect speaks to one."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None and not self.sandbox.users:
            raise SandboxUserUnsupportedError(
                "a sandbox has one user where no range of user numbers can be had"
            )
        return await anyio.to_thread.run_sync(
            lambda: self._exec(cmd, input, cwd, env, timeout, user)
        )

    def _exec(
        self,
        words: list[str],
        given: str | bytes | None,
        folder: str | None,
        environment: dict[str, str] | None,
        seconds: float | None,
        user: str | None,
    ) -> ExecResult[str]:
        if given is not None:
            self._write(GIVEN, given.encode() if isinstance(given, str) else given)
        ran = self.sandbox.start(
            words,
            folder=_inside(folder or ""),
            environment=environment or {},
            seconds=seconds or SLOW_S,
            most=MOST_OUTPUT,
            given=None if given is None else GIVEN,
            user=user,
        )
        if ran.error in ("late", "timeout"):
            raise TimeoutError
        if ran.error:
            if ran.said.startswith("FileNotFoundError"):
                return ExecResult(False, 127, "", ran.said)
            if ran.said.startswith("the sandbox has no user"):
                return ExecResult(False, 1, "", ran.said)
            raise _error(ran.said)
        if ran.cut:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR,
                ran.out.decode("utf-8", "replace"),
            )
        status = ran.status if ran.status >= 0 else 128 - ran.status
        return ExecResult(
            status == 0,
            status,
            ran.out.decode("utf-8", "replace"),
            ran.err.decode("utf-8", "replace"),
        )

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        await anyio.to_thread.run_sync(lambda: self._write(_inside(file), data))

    def _write(self, name: str, data: bytes) -> None:
        pieces = iter([data[at : at + PART] for at in range(0, len(data), PART)])
        _checked(
            self.sandbox.run(
                WRITE.format(name=name), seconds=SLOW_S, answer=lambda: next(pieces, b"")
            )
        )

    async def read_file(self, file: str, text: bool = True) -> Any:
        data = await anyio.to_thread.run_sync(lambda: self._read(_inside(file)))
        return data.decode() if text else data

    def _read(self, name: str) -> bytes:
        came, most = [], SandboxEnvironmentLimits.MAX_READ_FILE_SIZE

        def take(piece: bytes) -> None:
            came.append(piece)
            if sum(map(len, came)) > most:
                raise ValueError("too much")

        ran = self.sandbox.run(READ.format(name=name, part=PART), seconds=SLOW_S, answer=take)
        if "too much" in ran.said:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        _checked(ran)
        return b"".join(came)

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: Any, interrupted: bool
    ) -> None:
        for each in environments.values():
            each.sandbox.close()


def _inside(name: str) -> str:
    return posixpath.join(WORK, name)


def _checked(ran: CallOutcome) -> None:
    if ran.error:
        raise _error(ran.said)


def _error(said: str) -> Exception:
    """The exception that the sandbox named."""
    name, _, words = said.partition(": ")
    kind = getattr(builtins, name, RuntimeError)
    if name == "IsADirectoryError":
        words = words.replace("Is a directory", "it is a directory")
    return (
        kind(words)
        if isinstance(kind, type) and issubclass(kind, Exception)
        else RuntimeError(said)
    )


def opened() -> Sandbox:
    try:
        return open_sandbox(SETTINGS, users=SETTINGS.programs)
    except ToolError:  # one id is all that can be mapped here
        return open_sandbox(SETTINGS)


async def check(name: str) -> str:
    """ "" or why it failed; each in a sandbox of its own."""
    with opened() as sandbox:
        try:
            await getattr(self_check, name)(OurEnvironment(sandbox))
        except BaseException as error:
            return "".join(traceback.format_exception_only(error))[:500] or type(error).__name__
    return ""


if __name__ == "__main__":
    wanted = sys.argv[1:] or self_check.__all__
    print(json.dumps({name: anyio.run(check, name) for name in wanted}))
