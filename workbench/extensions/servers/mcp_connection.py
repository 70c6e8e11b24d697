"""Where an MCP server is, and the connection to it: the official client (`mcp`), inside a worker process.

A worker has one connection for all tools of one server. It is foreign code, so it never runs in the trainer's process.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from workbench.basics.bounded_http import MOST_BYTES, async_hooks
from workbench.basics.canonical_json import json_bytes
from workbench.extensions.servers import mcp_lines
from workbench.values.errors import ToolError

LINE_S = 30.0  # in which a line of a server's must end: a call's own deadline is mostly shorter
# Bytes of what a server last printed on stderr, for the error that says why it failed.
MOST_PAGES_BYTES = 16 << 20  # of all that a server lists of a kind
LAST_WORDS = 1_000


@dataclass(frozen=True)
class McpServer:
    """Where a server is: `command` starts it (and it ends with its worker process), or it listens at `url`.

    environment  variables on top of the few that the client hands over (PATH, HOME and the like: no secrets)
    folder       in which the command is started; "" for that of the run
    headers      sent with every request to the URL
    stateful     every trajectory has a connection (and a started server) of its own, else trajectories share
    """

    command: tuple[str, ...] = ()
    url: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    stateful: bool = False

    def __post_init__(self) -> None:
        command = (self.command,) if isinstance(self.command, str) else tuple(self.command)
        object.__setattr__(self, "command", command)
        if bool(self.command) == bool(self.url):
            raise ToolError(
                "an MCP server is started by command=[...] or found at url=..., one of the two; got "
                f"command={list(self.command)} and url={self.url!r}"
            )
        if self.url and not re.match(r"https?://", self.url):
            raise ToolError(
                f"the URL of an MCP server begins with http:// or https://, got {self.url!r}"
            )

    @property
    def key(self) -> str:
        return json_bytes(vars(self), "an MCP server").decode()

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


_CONNECTIONS: dict[str, _Connection] = {}


def connection(server: McpServer) -> _Connection:
    """The connection of this process, begun where there is none."""
    if server.key not in _CONNECTIONS:
        _CONNECTIONS[server.key] = _Connection(server)
    return _CONNECTIONS[server.key]


def forget(server: McpServer) -> str:
    """End this process's connection; what the server last printed."""
    ended = _CONNECTIONS.pop(server.key, None)
    return ended.close() if ended else ""


class _Connection:
    """The official client in an event loop of its own thread. Raises ConnectionError where the server does not begin.

    `tools` is what the server lists. It is asked once here whatever it is needed for: some servers do at their first
    request what takes long, and a call's deadline should not pay for that.
    """

    def __init__(self, server: McpServer) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._client: Any = None
        self.tools: list[Any] = []
        self._failure: BaseException | None = None
        self._words = _LastWords()
        self._thread = threading.Thread(
            target=self._serve, args=(server,), daemon=True, name=f"mcp {server}"
        )
        self._thread.start()
        self._ready.wait()
        if self._client is None:
            words = self._words.close()
            printed = f"; it printed: {last_line_first(words)}" if words else ""
            raise ConnectionError(f"the server did not begin: {in_short(self._failure)}{printed}")

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of the client, and wait for what comes of it."""
        if not self._thread.is_alive():
            raise ConnectionError("its connection has ended")
        answer = getattr(self._client, what)(*arguments)
        return asyncio.run_coroutine_threadsafe(answer, self._loop).result()

    def list_all(self, what: str) -> list[Any]:
        """All "prompts", "resources" or "resource_templates" of the server, whatever number of pages they take; [] where
        it has none of the kind."""
        kind = "resources" if what == "resource_templates" else what
        if getattr(self._client.server_capabilities, kind) is None:
            return []
        return asyncio.run_coroutine_threadsafe(_all_of(self._client, what), self._loop).result()

    def close(self) -> str:
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5.0)
        return self._words.close()

    def _serve(self, server: McpServer) -> None:
        try:
            self._loop.run_until_complete(self._hold(server))
        except BaseException as error:  # the server's, whatever it is: told to who waits for it
            self._failure = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _hold(self, server: McpServer) -> None:
        import httpx2  # what mcp speaks by
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

        async with AsyncExitStack() as held:
            if server.url:
                http = await held.enter_async_context(
                    create_mcp_http_client(headers=dict(server.headers))
                )
                http.event_hooks = async_hooks(server.url, library=httpx2)
                transport = streamable_http_client(server.url, http_client=http)
            else:
                bounds = [str(MOST_BYTES), str(LINE_S)]
                parameters = StdioServerParameters(
                    command=sys.executable,
                    args=["-I", "-S", mcp_lines.__file__, *bounds, *server.command],
                    env=dict(server.environment),
                    cwd=server.folder or None,
                )
                transport = stdio_client(parameters, errlog=self._words.file)
            client = await held.enter_async_context(Client(transport, cache=None))
            if client.server_capabilities.tools is not None:
                self.tools = await _all_of(client, "tools")
            self._client = client
            self._ready.set()
            await self._stop.wait()


async def _all_of(client: Any, what: str) -> list[Any]:
    """The entries of all pages. Raises ConnectionError for more than MOST_PAGES_BYTES of them: a list may be endless, and
    a deadline alone would let it grow as fast as the server writes."""
    entries = []
    cursor = None
    listed_bytes = 0
    while True:
        page = await getattr(client, f"list_{what}")(cursor=cursor)
        listed_bytes += len(page.model_dump_json())
        if listed_bytes > MOST_PAGES_BYTES:
            raise ConnectionError(
                f"it lists {what.replace('_', ' ')} without end: {len(entries):,} and more than "
                f"{MOST_PAGES_BYTES >> 20} MB; expected at most so much"
            )
        entries += getattr(page, what)
        cursor = page.next_cursor
        if not cursor:
            return entries


class _LastWords:
    """The end of what a server prints on stderr, however much that is."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.file = os.fdopen(writer, "w")
        self._tail = b""
        self._thread = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._thread.start()

    def _read(self, reader: int) -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                self._tail = (self._tail + data)[-LAST_WORDS:]

    def close(self) -> str:
        self.file.close()
        # A process that the server let loose may hold it open: not waited for.
        self._thread.join(0.5)
        return self._tail.decode("utf-8", "replace").strip()


def last_line_first(words: str) -> str:
    """What a server printed, the line that says most in front: of a traceback the exception, which is its last line."""
    lines = words.splitlines()
    worded = [index for index, line in enumerate(lines) if re.search(r"\w", line)]
    last = worded[-1] if worded else len(lines) - 1
    before = "\n".join(lines[:last])
    return lines[last].strip(" |+-") + (f"\nBefore that: {before}" if before else "")


def is_answer(error: Exception) -> bool:
    """Whether the server is there and said no, rather than gone."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    return isinstance(error, MCPError) and error.error.code != CONNECTION_CLOSED


def in_short(error: BaseException | None) -> str:
    """The innermost of an error and of the groups around it, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not error:
        return "no reason given"
    return f"{type(error).__name__}: {error}"[:300].replace("\n", " ")
