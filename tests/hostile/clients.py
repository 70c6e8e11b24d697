"""Hostile clients of the servers of this package: what they send, byte by byte.

BODIES      name -> bytes of a body that is sent to a route with the right key
REQUESTS    name -> function(route, key), the bytes of a whole request
said_to(address, request)      what a server says to such bytes, and after how many seconds
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

ASK = {"role": "user", "content": "Question: Where was Bita born?"}
ODD: dict[str, Any] = {
    "none": None,
    "true": True,
    "zero": 0,
    "less than nothing": -1,
    "a trillion": 10**12,
    "a number of 4,000 digits": 10**3_999,
    "a huge float": 1e308,
    "no number": float("nan"),
    "infinite": float("inf"),
    "an empty text": "",
    "half a surrogate": "\ud800",
    "controls": "\x1b]0;t\x07\u202e\x00",
    "a long text": "x" * 100_000,
    "an empty list": [],
    "lists in lists": [[[]]],
    "an object": {"a": [1]},
    "a list of nothing": [None] * 40,
    "a list of objects": [{}],
}
FIELDS = (
    "model",
    "messages",
    "input",
    "system",
    "tools",
    "tool_choice",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "temperature",
    "top_p",
    "stop",
    "stop_sequences",
    "seed",
    "n",
    "logprobs",
    "top_logprobs",
    "stream",
    "stream_options",
    "response_format",
    "logit_bias",
    "metadata",
    "include",
    "instructions",
    "reasoning",
    "thinking",
)
PARTS = ("role", "content", "name", "tool_call_id", "tool_calls", "id", "reasoning_content", "type")
DEEP = 900  # levels: json reads them, other recursions do not


def nested(depth: int, inner: str = "1") -> str:
    return "[" * depth + inner + "]" * depth


def _body(**changes: Any) -> bytes:
    return json.dumps({"model": "policy", "messages": [ASK], "max_tokens": 4, **changes}).encode()


def _put(field: str, text: str) -> bytes:
    """A body with `text` as it stands as one field's value."""
    return _body(**{field: "@@"}).replace(b'"@@"', text.encode())


def _tool(parameters: Any, name: Any = "search") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _called(arguments: Any, name: Any = "search") -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [ASK, {"role": "assistant", "content": "", "tool_calls": [call]}, ASK]


def bodies() -> dict[str, bytes]:
    """Bodies of a call of a model, one thing wrong or strange in each."""
    made = {
        f"{field} is {name}": _body(**{field: v}) for field in FIELDS for name, v in ODD.items()
    }
    for part in PARTS:
        for name, value in ODD.items():
            made[f"a message's {part} is {name}"] = _body(messages=[{**ASK, part: value}])
    for name, value in ODD.items():
        made[f"arguments are {name}"] = _body(messages=_called(value))
        made[f"arguments hold {name}"] = _body(messages=_called(json.dumps({"query": value})))
        made[f"a called name is {name}"] = _body(messages=_called("{}", value))
        made[f"a tool's parameters are {name}"] = _body(tools=[_tool(value)])
        made[f"a tool's properties are {name}"] = _body(tools=[_tool({"properties": value})])
        made[f"a property is {name}"] = _body(tools=[_tool({"properties": {"q": value}})])
        made[f"a tool's name is {name}"] = _body(tools=[_tool({}, value)])
        made[f"a result is {name}"] = _body(
            messages=[*_called("{}")[:2], {"role": "tool", "tool_call_id": "c", "content": value}]
        )
    for depth in (60, 300, DEEP, 970, 985, 995, 100_000):
        deep = nested(depth)
        for field in (
            "model",
            "messages",
            "tools",
            "stop",
            "metadata",
            "seed",
            "x",
            "stream_options",
        ):
            made[f"{field} nests {depth} deep"] = _put(field, deep)
        made[f"a role nests {depth} deep"] = _put("messages", f'[{{"role": {deep}}}]')
        made[f"a call's id nests {depth} deep"] = _put(
            "messages", json.dumps(_called("{}")).replace('"c"', deep)
        )
        made[f"arguments nest {depth} deep"] = _body(messages=_called(f'{{"query": {deep}}}'))
        made[f"parameters nest {depth} deep"] = _put(
            "tools", json.dumps([_tool({"properties": {"q": "@"}})]).replace('"@"', deep)
        )
    made["a body of zeros"] = b"\0" * 1_000
    made["a body of half characters"] = b'{"model": "\xff\xfe"}'
    made["a body in UTF-16"] = _body().decode().encode("utf-16")
    made["a body that is a number"] = b"1" * 5_000
    made["a body that is empty"] = b""
    made["one field a hundred thousand times"] = b"{" + b'"n": 1,' * 100_000 + b'"n": 1}'
    made["a hundred thousand fields"] = json.dumps(dict.fromkeys(map(str, range(100_000)))).encode()
    made["two thousand messages"] = _body(messages=[ASK] * 2_000)
    made["a thousand turns"] = _body(
        messages=[ASK, {"role": "assistant", "content": "x"}] * 999 + [ASK]
    )
    made["a hundred tools"] = _body(tools=[_tool({}, f"t{n}") for n in range(100)])
    made["a thousand tools"] = _body(tools=[_tool({}, f"t{n}") for n in range(1_000)])
    made["a text of 7 MB"] = _body(messages=[{**ASK, "content": "word " * 1_400_000}])
    made["a text of 7 MB without a blank"] = _body(messages=[{**ASK, "content": "x" * 7_000_000}])
    made["stops of 7 MB"] = _body(stop=["y" * 7_000_000], max_tokens=40)
    made["a key of 7 MB"] = _body(**{"x" * 7_000_000: 1})
    made["a trillion tokens of a million replies"] = _body(max_tokens=10**12, n=10**6)
    return made


def request(
    route: str, key: str, body: bytes = b"", method: str = "POST", *lines: bytes, length: Any = None
) -> bytes:
    """A whole request. `lines`: further headers; `length`: what is said of the body's."""
    head = [
        f"{method} {route} HTTP/1.1".encode(),
        b"Host: 127.0.0.1",
        f"Authorization: Bearer {key}".encode(),
        b"Content-Type: application/json",
        b"Content-Length: %s" % str(len(body) if length is None else length).encode(),
        *lines,
    ]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


_SMALL = _body()
REQUESTS: dict[str, Callable[[str, str], bytes]] = {
    "a length of 10^30": lambda route, key: request(route, key, _SMALL, length=10**30),
    "a length below nothing": lambda route, key: request(route, key, _SMALL, length=-5),
    "a length in other digits": lambda route, key: request(route, key, _SMALL, length="\u0663"),
    "a length with a sign": lambda route, key: request(route, key, _SMALL, length="+5"),
    "a length that is too short": lambda route, key: request(route, key, _SMALL, length=5),
    "two lengths": lambda route, key: request(route, key, _SMALL, "POST", b"Content-Length: 3"),
    "a length and chunks": lambda route, key: request(
        route, key, _SMALL, "POST", b"Transfer-Encoding: chunked"
    ),
    "chunks of a size of 10^30": lambda route, key: request(
        route, key, b"F" * 26 + b"\r\nx\r\n", "POST", b"Transfer-Encoding: chunked"
    ).replace(b"Content-Length", b"X"),
    "chunks of a byte each": lambda route, key: request(
        route, key, b"1\r\n[\r\n" * 100_000, "POST", b"Transfer-Encoding: chunked"
    ).replace(b"Content-Length", b"X"),
    "an encoding twice": lambda route, key: request(
        route, key, _SMALL, "POST", b"Transfer-Encoding: chunked, chunked"
    ).replace(b"Content-Length", b"X"),
    "a packed body": lambda route, key: request(
        route, key, _SMALL, "POST", b"Content-Encoding: gzip"
    ),
    "a header of 1 MB": lambda route, key: request(
        route, key, _SMALL, "POST", b"X: " + b"x" * 1_000_000
    ),
    "ten thousand headers": lambda route, key: request(
        route, key, _SMALL, "POST", *[b"X: x"] * 10_000
    ),
    "a header without a colon": lambda route, key: request(route, key, _SMALL, "POST", b"nonsense"),
    "a header of half characters": lambda route, key: request(
        route, key, _SMALL, "POST", b"X: \xff\xfe\x00"
    ),
    "a key of half characters": lambda route, key: request(route, "x", _SMALL).replace(
        b"Bearer x", b"Bearer \xff\xfe"
    ),
    "no key": lambda route, key: request(route, key, _SMALL).replace(b"Authorization", b"X"),
    "another key": lambda route, key: request(route, key[:-1] + "x", _SMALL),
    "two keys": lambda route, key: request(
        route, "x" * 20, _SMALL, "POST", b"Authorization: Bearer " + key.encode()
    ),
    "a key of 60 kB": lambda route, key: request(route, "x" * 60_000, _SMALL),
    "a path of 60 kB": lambda route, key: request("/" + "x" * 60_000, key, _SMALL),
    "a path of 1 MB": lambda route, key: request("/" + "x" * 1_000_000, key, _SMALL),
    "a path that climbs": lambda route, key: request("/../../../etc/passwd", key, _SMALL),
    "a path of escapes": lambda route, key: request("/%00%ff%2e%2e/", key, _SMALL),
    "another method": lambda route, key: request(route, key, _SMALL, "DELETE"),
    "a method of 60 kB": lambda route, key: request(route, key, _SMALL, "X" * 60_000),
    "a preflight": lambda route, key: request(
        route,
        key,
        b"",
        "OPTIONS",
        b"Origin: http://evil.example",
        b"Access-Control-Request-Method: POST",
    ),
    "a page": lambda route, key: request(
        route, key, _SMALL, "POST", b"Origin: http://evil.example"
    ),
    "an old version": lambda route, key: request(route, key, _SMALL).replace(b"1.1", b"1.0", 1),
    "no version": lambda route, key: b"GET " + route.encode() + b"\r\n\r\n",
    "a version of its own": lambda route, key: request(route, key, _SMALL).replace(
        b"1.1", b"9.9", 1
    ),
    "another language": lambda route, key: b"SSH-2.0-OpenSSH_9.9\r\n",
    "TLS": lambda route, key: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "zeros": lambda route, key: b"\0" * 70_000,
    "an upgrade": lambda route, key: request(
        route,
        key,
        b"",
        "GET",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Key: eA==",
        b"Sec-WebSocket-Version: 13",
    ),
    "a hundred requests at once": lambda route, key: request(route, key, _SMALL) * 100,
    "a request in a request": lambda route, key: request(route, key, request(route, key, _SMALL)),
}


def said_to(address: tuple[str, int], data: bytes, *, wait_s: float = 8.0) -> tuple[bytes, float]:
    """(the first bytes of the answer, b"" where the connection was closed, and seconds until then)"""
    started = time.monotonic()
    line = socket.create_connection(address, timeout=wait_s)
    with line:
        with suppress(ConnectionError, BrokenPipeError):
            line.sendall(data)
        received = b""
        with suppress(ConnectionError, TimeoutError):
            while len(received) < 65_536 and (piece := line.recv(65_536)):
                received += piece
                if b"\r\n\r\n" in received and _is_whole(received):
                    break
    return received, time.monotonic() - started


def _is_whole(received: bytes) -> bool:
    head, _, body = received.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(body) >= int(value)
    return body.endswith(b"0\r\n\r\n")
