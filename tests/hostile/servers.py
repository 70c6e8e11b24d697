"""Misbehaving servers, one connection after the other, raw: name -> what is done with a connection.

with serving(MISBEHAVING["drips a header"]) as (address, requests):
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OK = b"HTTP/1.1 200 OK\r\n"
EVENTS = OK + b"Content-Type: text/event-stream\r\n\r\n"
JSON = OK + b"Content-Type: application/json\r\n"
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,"delta":{"content":"%s"},'
    b'"finish_reason":null}]}\n\n'
)


def say(data: bytes) -> Callable[[socket.socket], None]:
    return lambda sock: sock.sendall(data)


def drip(first: bytes, then: bytes, every_s: float = 0.2) -> Callable[[socket.socket], None]:
    """Something now, and then a little again and again."""

    def work(sock: socket.socket) -> None:
        sock.sendall(first)
        while True:
            time.sleep(every_s)
            sock.sendall(then)

    return work


def flood(first: bytes, then: bytes) -> Callable[[socket.socket], None]:
    def work(sock: socket.socket) -> None:
        sock.sendall(first)
        piece = then * (65_536 // len(then) + 1)
        while True:
            sock.sendall(piece)

    return work


@cache
def bomb(name: bytes) -> Callable[[socket.socket], None]:
    """200 MB of blanks, packed a little at a time: what the server takes is not what the client takes."""
    packer = zlib.compressobj(wbits=31 if name == b"gzip" else 15)
    body = b"".join([*(packer.compress(b" " * 1_000_000) for _ in range(200)), packer.flush()])
    return say(
        JSON + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (name, len(body)) + body
    )


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def nothing(sock: socket.socket) -> None:
    time.sleep(30)


MISBEHAVING: dict[str, Callable[[socket.socket], None]] = {
    "says nothing": nothing,
    "drips its status line": drip(b"H", b"T"),
    "drips a header": drip(OK + b"X: ", b"x"),
    "sends headers for ever, slowly": drip(OK, b"X-A: b\r\n", 0.05),
    "sends headers for ever": flood(OK, b"X-A: b\r\n"),
    "sends one header without end": flood(OK + b"X: ", b"x"),
    "sends comments for ever": drip(EVENTS, b": ping\n\n"),
    "drips a body": drip(EVENTS, b"x"),
    "drips a long announced body": drip(JSON + b"Content-Length: 100000000\r\n\r\n", b" "),
    "sends one line without end": flood(EVENTS + b"data: ", b"x"),
    "sends chunks without end": flood(
        JSON + b"Transfer-Encoding: chunked\r\n\r\n", b"10\r\n" + b" " * 16 + b"\r\n"
    ),
    "sends white space without end": flood(JSON + b"\r\n", b" \n"),
    "says it goes on, for ever": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "talks without end": flood(EVENTS, CHUNK % b"x"),
    "packs a bomb by gzip": lambda sock: bomb(b"gzip")(sock),
    "packs a bomb by deflate": lambda sock: bomb(b"deflate")(sock),
    "fails at length": flood(b"HTTP/1.1 500 Oh\r\nContent-Length: 300000000\r\n\r\n", b"x"),
    "announces 200 MB": flood(JSON + b"Content-Length: 200000000\r\n\r\n", b" "),
    "hangs up": lambda sock: sock.close(),
    "resets": reset,
    "speaks another language": say(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "announces less than nothing": say(JSON + b"Content-Length: -5\r\n\r\n{}"),
    "nests deeply": say(JSON + b"Content-Length: 200000\r\n\r\n" + b"[" * 100_000 + b"]" * 100_000),
    "sends itself on": lambda sock: sock.sendall(
        b"HTTP/1.1 307 T\r\nLocation: http://127.0.0.1:%d/v1/x\r\nContent-Length: 0\r\n\r\n"
        % sock.getsockname()[1]
    ),
}


def sends_on(address: str) -> Callable[[socket.socket], None]:
    return say(
        f"HTTP/1.1 307 T\r\nLocation: {address}/stolen\r\nContent-Length: 0\r\n\r\n".encode()
    )


@contextmanager
def serving(work: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """The address of such a server, and the first bytes of every request."""
    listening, requests = socket.create_server(("127.0.0.1", 0)), []

    def handle(sock: socket.socket) -> None:
        with suppress(OSError), sock:
            requests.append(sock.recv(65_536))
            work(sock)
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(1.0)
                sock.recv(65_536)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=handle, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
    finally:
        listening.close()


class _Mcp(BaseHTTPRequestHandler):
    """An MCP server without tools: sound, and begun in no time."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": {"tools": []},
        }
        known = asked.get("method") in results
        said = (
            {"result": results[asked["method"]]}
            if known
            else {"error": {"code": -32601, "message": "no such method"}}
        )
        body = (
            json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}).encode()
            if "id" in asked
            else b""
        )
        self.send_response(200 if body else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_error(405)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def sound_mcp_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Mcp) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
