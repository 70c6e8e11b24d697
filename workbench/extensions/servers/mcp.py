"""The tools of an MCP server, by the official client (`mcp`): a server started by a command, or one at a URL.

    mounted = mount(command=["python", "-m", "my_server"])      mounted.tools, to hand to an environment
    mounted = mount(url="http://127.0.0.1:8000/mcp")            mounted.close() when done
    mounted = mount(..., resources=True, prompts=True)          what it has to read, and its prompts, as tools too

A server is foreign code, so nothing of it runs in the trainer's process, the client neither: a worker process holds the
connection (and the server that it started), and is killed with it where a call misses its deadline. Names, descriptions,
schemas and results are the server's words: untrusted text (invariant 9).

What the parts are for: `McpServer` says where, as settings that a worker can be handed; `McpTool` is one of its tools;
the connection lives in a worker (`mcp_connection`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from workbench.extensions.servers.mcp_connection import (
    McpServer,
    connection,
    forget,
    in_short,
    is_answer,
)
from workbench.tools.base import NAME, Tool, ToolResult
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.tools.handover import describe_tool
from workbench.tools.results import MOST_VALUE_BYTES
from workbench.tools.schema import checked_parameters
from workbench.tools.shared_workers import shared_workers
from workbench.values import Task, ToolCall
from workbench.values.errors import StoreError, ToolError

MOST_LISTED = 2_000_000  # bytes that the names, words and schemas of a server's tools may take
MOST_DESCRIPTION = 2_000  # characters of a tool's description that are kept


@dataclass(frozen=True)
class McpTool:
    """One tool of a server. `theirs` is its name there, where that is no name for a call here. `kind`: what it asks the
    server, one of KINDS."""

    server: McpServer
    name: str
    description: str
    parameters: Mapping[str, Any]
    theirs: str
    trusted: bool = False
    kind: str = "tool"

    @property
    def stateful(self) -> bool:
        return self.server.stateful

    @property
    def home(self) -> str:
        """All tools of one server share what state there is."""
        return f"mcp {self.server.key}"

    def open(self) -> None:
        """Connect, before the first call's deadline begins to count."""
        connection(self.server)

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Runs in a worker process. A server that is gone is an error of this call; the next one starts it again."""
        try:
            return KINDS[self.kind](connection(self.server), self.theirs, dict(arguments))
        except Exception as error:  # whatever the client raises for a server that broke off
            if is_answer(error):
                refusal = f"Error: the server refused the call of {self.name}: {error}"
                return ToolResult(refusal, error="raised")
            words = forget(self.server)
            state = " Its state is lost." if self.stateful else ""
            return ToolResult(
                f"Error: the server of {self.name} broke off ({in_short(error)}).{state}",
                {"stderr": words} if words else None,
                error="died",
            )

    def for_trajectory(self, task: Task) -> McpTool:
        return self


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
        tools = (*self.tools, _Listing(self.server))
        shared_workers().forget({describe_tool(tool).key for tool in tools})


def mount(
    command: str | Sequence[str] = (),
    url: str = "",
    *,
    environment: Mapping[str, str] | None = None,
    folder: str = "",
    headers: Mapping[str, str] | None = None,
    stateful: bool = False,
    prefix: str = "",
    resources: bool = False,
    prompts: bool = False,
    limits: ToolLimits = ToolLimits(),
) -> Mount:
    """The tools that a server offers, as it describes them; see `McpServer` for what the arguments mean.

    `resources`: two tools more, list_resources and read_resource. `prompts`: one more for each prompt of the server,
    prompt_NAME, which gives back its text.

    `prefix` stands before every name, where two servers have tools of one name. `limits.open_s` is how long the server
    may take to begin and to list them. Raises ToolError where it does not, or lists what cannot be
    offered to a policy: then with the server's own last words.
    """
    if find_spec("mcp") is None:
        raise ToolError(
            "tools of an MCP server need the package mcp: pip install 'agent-rl-workbench[mcp]'"
        )
    server = McpServer(command, url, dict(environment or {}), folder, dict(headers or {}), stateful)
    executor = ToolExecutor(
        [_Listing(server)], replace(limits, most_bytes=MOST_LISTED, most_calls=1)
    )
    [listed] = executor.run([ToolCall("list_tools")])
    executor.close()
    if listed.error or listed.cut_bytes:
        why = f"more than {MOST_LISTED:,} bytes of them"
        if listed.error:
            why = listed.text.removeprefix("Error: list_tools ")
        raise ToolError(f"the MCP server {str(server)!r} did not list its tools: {why}")
    tools = _offered(server, prefix, json.loads(listed.text), resources=resources, prompts=prompts)
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ToolError(
            f"the MCP server {str(server)!r} has several tools that would be called {', '.join(twice)} here"
        )
    for tool in tools:
        _check_can_be_sent(tool)
    return Mount(server, tools)


def _check_can_be_sent(tool: McpTool) -> None:
    """Raise ToolError for what cannot be handed to a worker: a schema that is nested too deep."""
    try:
        describe_tool(tool).key
    except StoreError as error:
        raise ToolError(f"the tool {tool.name!r} of an MCP server is refused: {error}") from error


def _offered(
    server: McpServer, prefix: str, listed: Mapping[str, Any], *, resources: bool, prompts: bool
) -> tuple[McpTool, ...]:
    """Raises ToolError where there is nothing of what was asked for."""
    for asked, what in ((resources, "resources"), (prompts, "prompts")):
        if asked and not listed[what]:
            raise ToolError(
                f"the MCP server {str(server)!r} has no {what}; mount it without {what}=True"
            )
    tools = [_tool(server, prefix, **offer) for offer in listed["tools"]]
    if resources:
        listing = "What there is to read: each with its URI."
        nothing = {"type": "object"}
        uri = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}
        reading = "Read a resource by its URI."
        tools.append(_tool(server, prefix, "list_resources", listing, nothing, "list"))
        tools.append(_tool(server, prefix, "read_resource", reading, uri, "resource"))
    if prompts:
        for offer in listed["prompts"]:
            tool = _tool(server, f"{prefix}prompt_", **offer, kind="prompt")
            tools.append(replace(tool, theirs=offer["name"]))
    return tuple(tools)


def _tool(
    server: McpServer,
    prefix: str,
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    kind: str = "tool",
) -> McpTool:
    ours = re.sub(r"[^A-Za-z0-9_-]", "_", prefix + name)[:64]
    if not NAME.fullmatch(ours):
        raise ToolError(
            f"the tool {name!r} of the MCP server {str(server)!r} needs a name that begins with a letter or _; "
            "mount it with a prefix"
        )
    schema = checked_parameters(parameters, f"tool {name!r} of the MCP server {str(server)!r}")
    return McpTool(server, ours, description[:MOST_DESCRIPTION], schema, name, kind=kind)


@dataclass(frozen=True)
class _Listing:
    """Lists what a server offers, in a worker as a call is made: with the same deadline and bounds."""

    server: McpServer
    name: str = "list_tools"
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    trusted: bool = False
    stateful: bool = False

    def open(self) -> None:
        connection(self.server)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        here = connection(self.server)
        tools = [_offer(tool, tool.input_schema) for tool in here.tools]
        prompts = [_offer(prompt, _arguments(prompt)) for prompt in here.list_all("prompts")]
        resources = bool(here.list_all("resources") or here.list_all("resource_templates"))
        return {"tools": tools, "prompts": prompts, "resources": resources}

    def for_trajectory(self, task: Task) -> Tool:
        return self


def _offer(listed: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool or a prompt, as `_tool` takes it."""
    return {
        "name": listed.name,
        "description": listed.description or "",
        "parameters": parameters,
    }


def _arguments(prompt: Any) -> dict[str, Any]:
    """The schema of a prompt's arguments, which are all text."""
    required = []
    properties = {}
    for argument in prompt.arguments or []:
        properties[argument.name] = {"type": "string"}
        if argument.description:
            properties[argument.name]["description"] = argument.description
        if argument.required:
            required.append(argument.name)
    return {"type": "object", "required": required, "properties": properties}


# ------------------------------------------------------------------------------------------------ results


def _listed(here: Any, theirs: str, arguments: dict[str, Any]) -> ToolResult:
    """A line for each resource, and for each pattern of URIs that have some."""
    resources = [(one.uri, one) for one in here.list_all("resources")]
    resources += [(one.uri_template, one) for one in here.list_all("resource_templates")]
    lines = []
    for uri, resource in resources:
        description = f": {resource.description}" if resource.description else ""
        lines.append(f"{uri} {resource.name}{description}")
    return ToolResult("\n".join(lines) or "There is nothing to read.")


def _read(here: Any, theirs: str, arguments: dict[str, Any]) -> ToolResult:
    return ToolResult("\n".join(map(_named, here.ask("read_resource", arguments["uri"]).contents)))


def _prompted(here: Any, theirs: str, arguments: dict[str, Any]) -> ToolResult:
    messages = here.ask("get_prompt", theirs, arguments).messages
    return ToolResult("\n".join(_text_of(message.content) for message in messages))


# What a tool may ask its server.
KINDS: Mapping[str, Callable[[Any, str, dict[str, Any]], ToolResult]] = {
    "tool": lambda here, theirs, arguments: _result(here.ask("call_tool", theirs, arguments)),
    "list": _listed,
    "resource": _read,
    "prompt": _prompted,
}


def _result(answer: Any) -> ToolResult:
    """The server's answer as a result: its texts, the rest named; its structure is for people and rewards."""
    parts = list(map(_text_of, answer.content))
    value = answer.structured_content
    if value is not None and len(json.dumps(value)) > MOST_VALUE_BYTES:
        value = None
    text = "\n".join(parts)
    if not parts:
        text = json.dumps(answer.structured_content, ensure_ascii=False)
    if answer.is_error:
        return ToolResult(f"Error: {text}", value, error="raised")
    return ToolResult(text, value)


def _text_of(part: Any) -> str:
    return part.text if part.type == "text" else _named(part)


def _named(part: Any) -> str:
    """A part that is no text: an image, a sound, a link to a resource; or a resource that is text."""
    resource = getattr(part, "resource", part)
    if isinstance(text := getattr(resource, "text", None), str):
        return text
    where = getattr(resource, "uri", None) or getattr(resource, "mime_type", None) or "no name"
    return f"[{getattr(part, 'type', 'resource')}: {where}]"
