"""The tools of an MCP server, by the official client (`mcp`): a server started by a command, or one at a URL.

    mounted = mount(command=["python", "-m", "my_server"])      mounted.tools, to hand to an environment
    mounted = mount(url="http://127.0.0.1:8000/mcp")            mounted.close() when done

A server is foreign code, so nothing of it runs in the trainer's process, the client neither: a worker process holds the
connection (and the server that it started), and is killed with it where a call misses its deadline. Names, descriptions,
schemas and results are the server's words: untrusted text (law 9).

What the parts are for: `McpServer` says where, as settings that a worker can be handed; `McpTool` is one of its tools;
`_Connection` lives in a worker, one for all tools of one server there.
"""
from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from workbench.errors import ToolError
from workbench.sealed import json_bytes
from workbench.tools.base import NAME, Tool, ToolResult
from workbench.tools.desk import ToolDesk, ToolLimits
from workbench.tools.pool import describe_tool, shared_pool
from workbench.tools.results import MOST_VALUE_BYTES
from workbench.tools.schema import checked_parameters
from workbench.types import Task, ToolCall

MOST_LISTED = 2_000_000    # bytes that the names, words and schemas of a server's tools may take
MOST_DESCRIPTION = 2_000   # characters of a tool's description that are kept
LAST_WORDS = 1_000         # bytes of what a server last printed on stderr, for the error that says why it failed


@dataclass(frozen=True)
class McpServer:
    """Where a server is: `command` starts it (and it ends with its worker process), or it listens at `url`.

    environment  variables on top of the few that the client hands over (PATH, HOME and the like: no secrets)
    folder       in which the command is started; "" for that of the run
    headers      sent with every request to the URL
    stateful     every attempt has a connection (and a started server) of its own, else attempts share
    """

    command: tuple[str, ...] = ()
    url: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    stateful: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", (self.command,) if isinstance(self.command, str) else tuple(self.command))
        if bool(self.command) == bool(self.url):
            raise ToolError("an MCP server is started by command=[...] or found at url=..., one of the two; got "
                            f"command={list(self.command)} and url={self.url!r}")
        if self.url and not re.match(r"https?://", self.url):
            raise ToolError(f"the URL of an MCP server begins with http:// or https://, got {self.url!r}")

    @property
    def key(self) -> str:
        return json_bytes(vars(self), "an MCP server").decode()

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


@dataclass(frozen=True)
class McpTool:
    """One tool of a server. `theirs` is its name there, where that is no name for a call here."""

    server: McpServer
    name: str
    description: str
    parameters: Mapping[str, Any]
    theirs: str
    trusted: bool = False

    @property
    def stateful(self) -> bool:
        return self.server.stateful

    @property
    def home(self) -> str:
        """All tools of one server share what state there is."""
        return f"mcp {self.server.key}"

    def open(self) -> None:
        """Connect, before the first call's deadline begins to count."""
        _connection(self.server)

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Runs in a worker process. A server that is gone is an error of this call; the next one starts it again."""
        try:
            return _result(_connection(self.server).ask("call_tool", self.theirs, dict(arguments)))
        except Exception as error:  # whatever the client raises for a server that broke off, or answered nonsense
            if _is_answer(error):
                return ToolResult(f"Error: the server refused the call of {self.name}: {error}", error="raised")
            words = _forget(self.server)
            state = " Its state is lost." if self.stateful else ""
            return ToolResult(f"Error: the server of {self.name} broke off ({_short(error)}).{state}",
                              {"stderr": words} if words else None, error="died")

    def for_attempt(self, task: Task) -> McpTool:
        return self

    def close(self) -> None:
        _forget(self.server)


@dataclass(frozen=True)
class Mount:
    """A server's tools, in its order. Iterates over them."""

    server: McpServer
    tools: tuple[McpTool, ...]

    def __iter__(self) -> Iterator[McpTool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def close(self) -> None:
        """End the connections that idle workers of this process hold, and the servers started for them. A call after it
        connects anew."""
        shared_pool().forget({describe_tool(tool).key for tool in (*self.tools, _Listing(self.server))})


def mount(command: Any = (), url: str = "", *, environment: Mapping[str, str] | None = None, folder: str = "",
          headers: Mapping[str, str] | None = None, stateful: bool = False, prefix: str = "",
          limits: ToolLimits = ToolLimits()) -> Mount:
    """The tools that a server offers, as it describes them; see `McpServer` for what the arguments mean.

    `prefix` stands before every name, where two servers have tools of one name. `limits.open_s` is how long the server
    may take to begin and to list them. Raises ToolError where it does not, or lists what cannot be
    offered to a policy: then with the server's own last words.
    """
    if find_spec("mcp") is None:
        raise ToolError("tools of an MCP server need the package mcp: pip install 'agent-rl-workbench[mcp]'")
    server = McpServer(command, url, dict(environment or {}), folder, dict(headers or {}), stateful)
    desk = ToolDesk([_Listing(server)], ToolLimits(
        limits.deadline_s, MOST_LISTED, workers=limits.workers, open_s=limits.open_s, most_memory=limits.most_memory))
    [listed] = desk.run([ToolCall("list_tools")])
    desk.close()
    if listed.error or listed.cut_bytes:
        why = listed.text.removeprefix("Error: list_tools ") if listed.error else f"more than {MOST_LISTED:,} bytes of them"
        raise ToolError(f"the MCP server {str(server)!r} did not list its tools: {why}")
    tools = tuple(_tool(server, prefix, **each) for each in json.loads(listed.text))
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ToolError(f"the MCP server {str(server)!r} has several tools that would be called {', '.join(twice)} here")
    return Mount(server, tools)


def _tool(server: McpServer, prefix: str, name: str, description: str, parameters: Mapping[str, Any]) -> McpTool:
    ours = re.sub(r"[^A-Za-z0-9_-]", "_", prefix + name)[:64]
    if not NAME.fullmatch(ours):
        raise ToolError(f"the tool {name!r} of the MCP server {str(server)!r} needs a name that begins with a letter or _; "
                        "mount it with a prefix")
    schema = checked_parameters(parameters, f"tool {name!r} of the MCP server {str(server)!r}")
    return McpTool(server, ours, description[:MOST_DESCRIPTION], schema, name)


@dataclass(frozen=True)
class _Listing:
    """What a server offers, asked in a worker as a call is: with the same deadline and bounds."""

    server: McpServer
    name: str = "list_tools"
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    trusted: bool = False
    stateful: bool = False

    def open(self) -> None:
        _connection(self.server)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        return [{"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
                for tool in _connection(self.server).tools]

    def for_attempt(self, task: Task) -> Tool:
        return self


# ------------------------------------------------------------------------------------------------ inside a worker

_CONNECTIONS: dict[str, _Connection] = {}


def _connection(server: McpServer) -> _Connection:
    """The connection of this process, begun where there is none."""
    if server.key not in _CONNECTIONS:
        _CONNECTIONS[server.key] = _Connection(server)
    return _CONNECTIONS[server.key]


def _forget(server: McpServer) -> str:
    """End this process's connection; what the server last printed."""
    connection = _CONNECTIONS.pop(server.key, None)
    return connection.close() if connection else ""


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
        self._thread = threading.Thread(target=self._serve, args=(server,), daemon=True, name=f"mcp {server}")
        self._thread.start()
        self._ready.wait()
        if self._client is None:
            words = self._words.close()
            raise ConnectionError(f"the server did not begin: {_short(self._failure)}"
                                  + (f"; it printed: {words}" if words else ""))

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of the client, and wait for what comes of it."""
        if not self._thread.is_alive():
            raise ConnectionError("its connection has ended")
        return asyncio.run_coroutine_threadsafe(getattr(self._client, what)(*arguments), self._loop).result()

    def close(self) -> str:
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5.0)
        return self._words.close()

    def _serve(self, server: McpServer) -> None:
        try:
            self._loop.run_until_complete(self._hold(server))
        except BaseException as error:  # whatever it is, it is the server's; who waits for it gets to know
            self._failure = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _hold(self, server: McpServer) -> None:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

        async with AsyncExitStack() as held:
            if server.url:
                http = await held.enter_async_context(create_mcp_http_client(headers=dict(server.headers)))
                transport = streamable_http_client(server.url, http_client=http)
            else:
                program, *arguments = server.command
                transport = stdio_client(StdioServerParameters(
                    command=program, args=arguments, env=dict(server.environment), cwd=server.folder or None),
                    errlog=self._words.file)
            client = await held.enter_async_context(Client(transport, cache=None))
            page = await client.list_tools()
            self.tools = list(page.tools)
            while page.next_cursor:  # a list without end is ended by the deadline of whoever waits for it
                page = await client.list_tools(cursor=page.next_cursor)
                self.tools += page.tools
            self._client = client
            self._ready.set()
            await self._stop.wait()


class _LastWords:
    """The end of what a server prints on stderr, however much that is."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.file, self._tail = os.fdopen(writer, "w"), b""
        self._thread = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._thread.start()

    def _read(self, reader: int) -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                self._tail = (self._tail + data)[-LAST_WORDS:]

    def close(self) -> str:
        self.file.close()
        self._thread.join(0.5)  # a process that the server let loose may hold it open: not waited for
        return self._tail.decode("utf-8", "replace").strip()


def _result(answer: Any) -> ToolResult:
    """What the server gave back: its texts, the rest named; what it says in a structure is for people and rewards."""
    parts = [part.text if part.type == "text" else _named(part) for part in answer.content]
    value = answer.structured_content
    if value is not None and len(json.dumps(value)) > MOST_VALUE_BYTES:
        value = None
    text = "\n".join(parts) if parts else json.dumps(answer.structured_content, ensure_ascii=False)
    return ToolResult(f"Error: {text}" if answer.is_error else text, value, error="raised" if answer.is_error else "")


def _named(part: Any) -> str:
    """A part that is no text: an image, a sound, a link to a resource; or a resource that is text."""
    resource = getattr(part, "resource", part)
    if isinstance(text := getattr(resource, "text", None), str):
        return text
    where = getattr(resource, "uri", None) or getattr(resource, "mime_type", None) or "no name"
    return f"[{part.type}: {where}]"


def _is_answer(error: Exception) -> bool:
    """Whether the server is there and said no, rather than gone."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    return isinstance(error, MCPError) and error.error.code != CONNECTION_CLOSED


def _short(error: BaseException | None) -> str:
    """The innermost of an error and of the groups around it, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300].replace("\n", " ") if error else "no reason given"
