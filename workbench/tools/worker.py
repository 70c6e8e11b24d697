"""Inside a worker process: tools that are not trusted, one call after the other, until the connection ends.

Whatever a tool raises is an answer, KeyboardInterrupt and SystemExit too: Ctrl-C never gets here. What it prints is
dropped (it could flood a terminal as well as a result); what it gives back is bounded here, before it is sent.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.basics.canonical_json import json_bytes
from workbench.tools.awaited import settled
from workbench.tools.base import Tool, refusal_of
from workbench.tools.handover import made_of
from workbench.tools.results import as_result, raised, result_json
from workbench.tools.workers.frames import serve_calls
from workbench.values import Task, ToolCall

MOST_COMPLAINT = 1500  # bytes of why a tool could not be opened: a server's last words fit


def _import_jsonschema() -> None:
    """In the supervisor, so that every fork has it already. Jupyter's packages bring one that has jsonschema compile a
    grammar, for a second, to check a format that is not used here: it is hidden during the import."""
    absent = "rfc3987_syntax"
    known = sys.modules.get(absent)
    sys.modules[absent] = None
    try:
        import jsonschema  # noqa: F401
    finally:
        del sys.modules[absent]
        if known is not None:
            sys.modules[absent] = known


_import_jsonschema()


def serve(connection: socket.socket) -> None:
    """The calls:

        ["open", key, tool, task or None] -> {} or {"complaint": text}
        ["call", key, task or None, arguments, most_bytes, most_memory] -> a ToolResult

    A tool that asks for the task is handed it when it is opened, if it has state, else with every call. A worker in
    which a tool could not be opened is of no more use: its trainer kills it.
    """
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.close(quiet)
    tools: dict[str, Tool] = {}
    size = _size()

    def answer(verb: str, key: str, *rest: Any) -> bytes:
        nonlocal size
        if verb == "call":
            return _call(tools[key], *rest, size)
        content = _open(tools, key, *rest)
        size = _size()
        return content

    serve_calls(connection, answer)


def _open(tools: dict[str, Tool], key: str, described: Any, task: dict | None) -> bytes:
    try:
        made = made_of(described)
        if task is not None:
            made = made.for_trajectory(Task(**task))
        if hasattr(made, "open"):
            made.open()
        tools[key] = made
        return b"{}"
    except BaseException as error:  # a tool's module and constructor may raise anything
        return json_bytes({"complaint": raised("", error, MOST_COMPLAINT).text}, "a complaint")


def _call(
    tool: Tool,
    task: dict | None,
    arguments: Mapping[str, Any],
    most_bytes: int,
    most_memory: int,
    size: int,
) -> bytes:
    """`most_memory`: bytes of address space on top of `size`, what this process took when its tools were open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        if size:
            resource.setrlimit(resource.RLIMIT_AS, (size + most_memory, hard))
        if task is not None:
            tool = tool.for_trajectory(Task(**task))
        # CallError here and not by the trainer: a schema is foreign too, and may hold a pattern that takes minutes.
        refused = refusal_of(ToolCall(tool.name, arguments), {tool.name: tool})
        result = refused or as_result(settled(tool.call(arguments)), most_bytes)
    except BaseException as error:
        result = raised(tool.name, error, most_bytes)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    try:
        return result_json(result)
    except BaseException as error:  # a mapping of the tool's own may raise anything when it is read
        return result_json(raised(tool.name, error, most_bytes))


def _size() -> int:
    """Bytes of address space that this process takes; 0 where the system does not say (other than Linux)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0
