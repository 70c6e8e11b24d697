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
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.processes.frames import frame, read_call
from workbench.processes.values import import_named, rebuild
from workbench.sealed import json_bytes
from workbench.tools.base import Tool, refusal_of
from workbench.tools.base import tool as tool_of
from workbench.tools.results import as_result, raised, result_json
from workbench.types import Task, ToolCall


def _import_jsonschema() -> None:
    """In the supervisor, so that every fork has it already. Jupyter's packages bring one that has jsonschema compile a
    grammar, for a second, to check a format that nobody asks for here: that one is missing for the moment."""
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
    """Answer calls in the order in which they come:

        ["open", slot, tool, task or None] -> {} or {"complaint": text}
        ["call", slot, arguments, most_bytes, most_memory] -> a ToolResult
        ["drop", slot] (no answer)
    """
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.close(quiet)
    own, tools, size = os.getpid(), {}, _size()
    connection.sendall(frame(b"{}"))  # it has begun: deadlines count from here on
    while (call := read_call(connection)) is not None:
        verb, slot, *rest = call
        if verb == "drop":
            _close(tools.pop(slot, None))
            continue
        if verb == "open":
            content, size = _open(tools, slot, *rest), _size()
        else:
            content = _call(tools[slot], *rest, size)
        if os.getpid() != own:  # the tool forked, and this is its child: it has no business here
            os._exit(0)
        connection.sendall(frame(content))


def _open(tools: dict[str, Tool], slot: str, described: Any, task: dict | None) -> bytes:
    try:
        made = made_of(described)
        made = made if task is None else made.for_attempt(Task(**task))
        if hasattr(made, "open"):
            made.open()
        tools[slot] = made
        return b"{}"
    except BaseException as error:  # a tool's module and constructor may raise anything
        return json_bytes({"complaint": raised("", error, 500).text}, "a complaint")


def made_of(described: Mapping[str, Any]) -> Tool:
    """The tool that `describe_tool` described."""
    if "tool" in described:
        return rebuild(described["tool"])
    found = import_named(described["function"])
    function = getattr(found, "function", found)  # decorated with @tool, the name is that of the tool itself
    return tool_of(function, **{name: described[name] for name in ("name", "description", "parameters")})


def _call(tool: Tool, arguments: Mapping[str, Any], most_bytes: int, most_memory: int, size: int) -> bytes:
    """`most_memory`: bytes of address space on top of `size`, what this process took when its tools were open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        if size:
            resource.setrlimit(resource.RLIMIT_AS, (size + most_memory, hard))
        # Refused here and not by the trainer: a schema is foreign too, and may hold a pattern that takes for ever.
        refused = refusal_of(ToolCall(tool.name, arguments), {tool.name: tool})
        result = refused or as_result(tool.call(arguments), most_bytes)
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


def _close(tool: Tool | None) -> None:
    with suppress(Exception):
        if hasattr(tool, "close"):
            tool.close()
