"""A searcher behind HTTP: one index in one process, asked by many. JSON in, JSON out; standard library only.

    POST /search   {"query": "who built the mill", "k": 3}          k may be missing; Content-Type: application/json
                   {"results": [{"id": "309", "title": "Halcyon mill", "text": "...", "score": 3.88}, ...]}   best first
    GET  /health   {"status": "ok", "searches": 17, ...what the server was told to say of its corpus}
    otherwise      {"error": "what was expected, what came"} with status 400, 401, 404, 405, 411, 413 or 415

Whoever can reach the port can read the corpus, so it listens on the loopback device unless there is a key, which every
request then carries: `Authorization: Bearer KEY`. The content type is demanded because a page in a browser cannot send
it to another origin without being allowed to, which nothing here does.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from workbench.tools.retrieval.base import MOST_QUERY_CHARACTERS, Hit, Searcher
from workbench.values.errors import ConfigError

MOST_K = 100
MOST_BODY_BYTES = 32_000  # a query of 1,000 characters, however it is escaped
IDLE_S = 30.0  # for a request as a whole, and without one, before a connection is given up
MOST_CONNECTIONS = 256  # at a time; for one beyond, the one that has been waiting longest for its request is closed
ROOM_S = 1.0  # that a new connection waits until there is room
SHORTEST_KEY = 12


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RetrievalServer(ThreadingHTTPServer):
    """Serves `searcher` on `host`:`port` (0: any free port) until `shutdown` or an exception; a thread a connection, one
    search at a time. Raises ConfigError for a host that others can reach without a key, and for a port that is taken."""

    daemon_threads = True
    request_queue_size = 1024  # a connection that finds no place here comes again a second later

    def __init__(
        self,
        searcher: Searcher,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        k: int = 5,
        key: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if not 1 <= k <= MOST_K:
            raise ConfigError(f"a retriever answers with 1 to {MOST_K} documents, got k = {k}")
        if key is None and not is_loopback(host):
            raise ConfigError(
                f"{host!r} can be reached from other machines, and whoever reaches it reads the corpus; "
                "give a key that every request must carry, or listen on 127.0.0.1"
            )
        if key is not None and not _is_key(key):
            raise ConfigError(
                f"a key is at least {SHORTEST_KEY} printable ASCII characters without spaces; got "
                f"{len(key)} characters"
            )
        self.searcher = searcher
        self.k = k
        self.key = key
        self.about = dict(about or {})
        self.searches = 0
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        # Connections that wait for a request, or its rest: since when; the longest first.
        self._waiting: dict[socket.socket, float] = {}
        self._guard = threading.Lock()
        self.lock = threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host} port {port}: {error.strerror or error}; name another --port (0: "
                "any free one)"
            ) from error

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        if ":" in host:
            host = f"[{host}]"
        return f"http://{host}:{port}"

    def server_bind(self) -> None:
        """Without the reverse look-up of the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for this connection. Where all are taken, one that keeps its client's request waiting is freed: many
        slow clients close each other out, and none that asks at once."""
        if not self._free.acquire(blocking=False):
            self._give_up(longest=True)
            if not self._free.acquire(timeout=ROOM_S):
                return self.shutdown_request(request)
        self.waits(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._free.release()

    def service_actions(self) -> None:
        """Between connections, and ten times a second: a request that is not there in time will not be waited for."""
        self._give_up()

    def waits(self, connection: socket.socket) -> None:
        """From now on a request is waited for, as a whole."""
        with self._guard:
            self._waiting.pop(connection, None)
            self._waiting[connection] = time.monotonic()

    def has_asked(self, connection: socket.socket) -> None:
        """A whole request came."""
        with self._guard:
            self._waiting.pop(connection, None)

    def _give_up(self, *, longest: bool = False) -> None:
        """Break the connections that have waited IDLE_S, and that which waited `longest`."""
        with self._guard:
            late = time.monotonic() - IDLE_S
            over = [connection for connection, since in self._waiting.items() if since < late]
            if longest and not over:
                over = list(self._waiting)[:1]
            for connection in over:
                del self._waiting[connection]
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no news; anything else is said on stderr by the base class."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def serve(searcher: Searcher, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
    """Serve until the process is told to stop (see `RetrievalServer`)."""
    with RetrievalServer(searcher, host, port, **settings) as server:
        server.serve_forever(poll_interval=0.1)


def _is_key(key: str) -> bool:
    return len(key) >= SHORTEST_KEY and key.isascii() and key.isprintable() and " " not in key


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "workbench-retriever"
    sys_version = ""
    timeout = IDLE_S
    # Head and body are two writes; the second would wait 40 ms for the client's word.
    disable_nagle_algorithm = True
    server: RetrievalServer

    def handle_one_request(self) -> None:
        self.server.waits(self.connection)
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        if not self._may_ask():
            return
        if self.path != "/health":
            status = 405 if self.path == "/search" else 404
            words = f"expected GET /health or POST /search, got GET {self.path[:80]}"
            return self._answer(status, _error(words))
        health = {"status": "ok", "searches": self.server.searches, **self.server.about}
        self._answer(200, health)

    def do_POST(self) -> None:
        body = self._body()
        self.server.has_asked(self.connection)
        if body is None or not self._may_ask():
            return
        if self.path != "/search":
            return self._answer(404, _error(f"expected POST /search, got POST {self.path[:80]}"))
        if self.headers.get_content_type() != "application/json":
            return self._answer(415, _error("expected Content-Type: application/json"))
        query, k = self._question(body)
        if query is None:
            return
        with self.server.lock:
            hits = self.server.searcher.search(query, k)
            self.server.searches += 1
        self._answer(200, {"results": [_result(hit) for hit in hits]})

    def _body(self) -> bytes | None:
        """The request's body; None where it was refused, and the connection with it: its rest was not read."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 12:
            self.close_connection = True
            return self._answer(411, _error("expected a Content-Length"))
        if int(length) > MOST_BODY_BYTES:
            self.close_connection = True
            return self._answer(
                413, _error(f"expected at most {MOST_BODY_BYTES} bytes, got {int(length)}")
            )
        return self.rfile.read(int(length))

    def _may_ask(self) -> bool:
        key = self.server.key
        if key is None:
            return True
        authorization = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(authorization, f"Bearer {key}".encode()):
            return True
        words = "expected the key that the server was started with, as Authorization: Bearer KEY"
        self._answer(401, _error(words))
        return False

    def _question(self, body: bytes) -> tuple[str | None, int]:
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            asked = {}
        query = asked.get("query")
        k = asked.get("k", self.server.k)
        if not isinstance(query, str) or len(query) > MOST_QUERY_CHARACTERS:
            words = f'expected {{"query": text of at most {MOST_QUERY_CHARACTERS} characters, "k": number}}'
            self._answer(400, _error(words))
            return None, 0
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MOST_K:
            self._answer(400, _error(f"expected k from 1 to {MOST_K}, a whole number"))
            return None, 0
        return query, k

    def _answer(self, status: int, value: Mapping[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: queries are the users' own."""


def _result(hit: Hit) -> dict[str, Any]:
    return {
        "id": hit.document.id,
        "title": hit.document.title,
        "text": hit.document.text,
        "score": hit.score,
    }


def _error(words: str) -> dict[str, str]:
    return {"error": words}
