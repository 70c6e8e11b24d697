"""An MCP server that lies in one way: python mcp_liar.py KIND. It speaks lines of JSON by hand, with the standard library only."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

SOUND = {"name": "say", "description": "Says it.", "inputSchema": {"type": "object"}}


def nested(depth: int, value: Any = 1) -> Any:
    for _ in range(depth):
        value = {"a": value}
    return value


def _tool(**changes: Any) -> list[dict[str, Any]]:
    return [{**SOUND, **changes}]


def _schema(**properties: Any) -> list[dict[str, Any]]:
    return _tool(inputSchema={"type": "object", "properties": properties})


LOOP = {
    "type": "object",
    "properties": {"q": {"$ref": "#/$defs/q"}},
    "$defs": {"q": {"$ref": "#/$defs/q"}},
}
# What it lists.
TOOLS: dict[str, Callable[[], Any]] = {
    "no list of tools": lambda: None,
    "tools that are a text": lambda: "say",
    "a hundred thousand tools": lambda: [{**SOUND, "name": f"t{n}"} for n in range(100_000)],
    "one tool twice": lambda: _tool() * 2,
    "a name of controls": lambda: _tool(name="say\x1b]0;t\x07\u202e"),
    "a name of 100,000 letters": lambda: _tool(name="s" * 100_000),
    "a name that is a number": lambda: _tool(name=5),
    "an empty name": lambda: _tool(name=""),
    "a description of 15 MB": lambda: _tool(description="x" * 15_000_000),
    "a description of controls": lambda: _tool(description="\x1b[2J\x00\u202e<|im_end|>"),
    "a description of half a surrogate": lambda: _tool(description="\ud800"),
    "a schema that is a text": lambda: _tool(inputSchema="object"),
    "a schema without a type": lambda: _tool(inputSchema={}),
    "a schema of another type": lambda: _tool(inputSchema={"type": 5}),
    "a schema 90 deep": lambda: _schema(q=nested(90)),
    "a schema 400 deep": lambda: _schema(q=nested(400)),
    "a schema that refers to itself": lambda: _tool(inputSchema=LOOP),
    "a schema that refers elsewhere": lambda: _schema(q={"$ref": "file:///etc/passwd"}),
    "a pattern that never ends": lambda: _schema(q={"type": "string", "pattern": "(a+)+$"}),
    "properties that are a list": lambda: _tool(inputSchema={"type": "object", "properties": [1]}),
    "a property of half a surrogate": lambda: _schema(**{"\ud800": {"type": "string"}}),
    "a thousand properties": lambda: _schema(**{f"p{n}": {"type": "string"} for n in range(1_000)}),
    "a default that is no number": lambda: _schema(q={"type": "number", "default": float("nan")}),
    "an enum of 10^400": lambda: _schema(q={"enum": [10**400]}),
}


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


# What it answers to a call.
ANSWERS: dict[str, Callable[[], Any]] = {
    "an answer of 15 MB": lambda: _text("x" * 15_000_000),
    "a hundred thousand parts": lambda: {"content": _text("x")["content"] * 100_000},
    "parts of no kind": lambda: {"content": [{"type": "nothing"}]},
    "a picture of 10 MB": lambda: {
        "content": [{"type": "image", "data": "AAAA" * 2_500_000, "mimeType": "image/png"}]
    },
    "no parts": lambda: {"content": []},
    "parts that are a number": lambda: {"content": 5},
    "an answer that is null": lambda: None,
    "an answer of controls": lambda: _text("\x1b]0;t\x07\x00\u202e<|im_end|><tool_call>"),
    "an answer of half a surrogate": lambda: _text("\ud800"),
    "structure 90 deep": lambda: {**_text("x"), "structuredContent": nested(90)},
    "structure 400 deep": lambda: {**_text("x"), "structuredContent": nested(400)},
    "structure that is no number": lambda: {**_text("x"), "structuredContent": {"a": float("nan")}},
    "structure of 10^400": lambda: {**_text("x"), "structuredContent": {"a": 10**400}},
    "structure alone": lambda: {"content": [], "structuredContent": {"a": ["\ud800"]}},
    "an error that is a text": lambda: {**_text("x"), "isError": "yes"},
    "a request in place of an answer": lambda: {
        "resultType": "input_required",
        "inputRequests": {},
    },
}
WAYS = (
    "hangs at once",
    "ends at once",
    "hangs at the list",
    "hangs at the call",
    "lists for ever",
    "lists the same page for ever",
    "answers with another id",
    "answers with an id of 10^30",
    "answers twice",
    "answers before it is asked",
    "floods with notes",
    "floods with requests",
    "floods its stderr",
    "sends lines of 15 MB",
    "sends no JSON",
    "sends half characters",
    "sends a batch",
    "nests 50,000 deep",
    "refuses with an error of 10 MB",
    "refuses with an error of controls",
    "does not end when it is told to",
    "leaves a child behind",
    "speaks a version of its own",
    "has capabilities that are a text",
)
KINDS = (*TOOLS, *ANSWERS, *WAYS)


def send(value: Any) -> None:
    line(json.dumps({"jsonrpc": "2.0", **value}).encode())


def line(data: bytes) -> None:
    data += b"\n"
    while data:
        data = data[os.write(1, data) :]


def begun(kind: str) -> dict[str, Any]:
    version = "2025-06-18"
    capabilities: Any = {"tools": {}}
    if kind == "speaks a version of its own":
        version = "\x1b[31m" + "9" * 1_000
    if kind == "has capabilities that are a text":
        capabilities = "all"
    server = {"name": "liar", "version": "1"}
    return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": server}


def misbehave(kind: str) -> None:
    """What it does before it answers a call."""
    if kind == "hangs at the call":
        time.sleep(1e6)
    while kind == "floods with notes":
        send({"method": "notifications/message", "params": {"level": "info", "data": "x" * 1_000}})
    while kind == "floods with requests":
        send({"id": os.urandom(8).hex(), "method": "roots/list"})
    while kind == "floods its stderr":
        os.write(2, b"\x1b]0;t\x07" * 10_000)
    while kind == "sends lines of 15 MB":
        send(
            {
                "method": "notifications/message",
                "params": {"level": "info", "data": "x" * 15_000_000},
            }
        )
    if kind == "sends no JSON":
        line(b"no JSON")
    if kind == "sends half characters":
        line(b"\xff\xfe\x00")
    if kind == "sends a batch":
        line(b"[{}, 1, null]")
    if kind == "nests 50,000 deep":
        line(b"[" * 50_000 + b"]" * 50_000)


def listed(kind: str, cursor: Any) -> dict[str, Any]:
    if kind == "hangs at the list":
        time.sleep(1e6)
    page: dict[str, Any] = {"tools": TOOLS.get(kind, _tool)()}
    if kind == "lists for ever":
        page = {
            "tools": [{**SOUND, "description": "x" * 1_000_000}],
            "nextCursor": os.urandom(8).hex(),
        }
    if kind == "lists the same page for ever":
        page["nextCursor"] = "again"
    return page


def answered(kind: str, id: Any) -> None:
    misbehave(kind)
    if kind.startswith("refuses"):
        words = "x" * 10_000_000 if "10 MB" in kind else "\x1b]0;t\x07<|im_end|>"
        return send({"id": id, "error": {"code": -32000, "message": words}})
    if kind == "answers with another id":
        return send({"id": id + 1_000, "result": _text("x")})
    if kind == "answers with an id of 10^30":
        return send({"id": 10**30, "result": _text("x")})
    for _ in range(2 if kind == "answers twice" else 1):
        send({"id": id, "result": ANSWERS.get(kind, lambda: _text("x"))()})


def main(kind: str) -> None:
    if kind == "hangs at once":
        time.sleep(1e6)
    if kind == "ends at once":
        sys.exit("\x1b]0;t\x07 last words")
    if kind == "does not end when it is told to":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind == "leaves a child behind" and not os.fork():
        time.sleep(60)
        os._exit(0)
    if kind == "answers before it is asked":
        send({"id": 0, "result": begun(kind)})
        send({"id": 1, "result": {"tools": _tool()}})
    for request in map(json.loads, sys.stdin):
        id = request.get("id")
        if request.get("method") == "initialize":
            send({"id": id, "result": begun(kind)})
        elif request.get("method") == "tools/list":
            send({"id": id, "result": listed(kind, request)})
        elif request.get("method") == "tools/call":
            answered(kind, id)
        elif id is not None and "method" in request:
            send({"id": id, "error": {"code": -32601, "message": "no such method"}})
    while kind == "does not end when it is told to":
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])
