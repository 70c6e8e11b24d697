"""What the HTTP servers of this package have in common: who may ask, and how little one client can hold up the others.

Whoever can reach the port is served, so a server listens on the loopback device unless there is a key, which every
request then carries: `Authorization: Bearer KEY`. Bodies have a bound, each and all that are held at a time; a request
that does not come in time is not waited for, nor is a client that does not take its answer while others wait. What nobody
foresaw is an answer with status 500, and a line on stderr. No page in a browser is answered: it says where it comes from (`Origin`), and one whose name was bound to this address
meanwhile says that name (`Host`), where whoever means this server says an address or localhost. The content type is
demanded because a page cannot send it to another origin without being allowed to, which nothing here does. Standard library only.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from workbench.basics.regular_files import json_memory, parse_json
from workbench.values.errors import ConfigError, where_raised

IDLE_S = 30.0  # for a request as a whole, and without one, before a connection is given up
MOST_CONNECTIONS = 256  # at a time; for one beyond, the one that has been waiting longest for its request is closed
ROOM_S = 1.5  # that a new connection waits until there is room
TAKEN_S = 1.0  # in which a client takes a piece of its answer, where another one waits for room
LARGEST_HELD = 4  # bodies of the largest kind at a time: the memory of all large requests under way
MOST_VALUES_BYTES = 128 << 20  # that the values of one body's JSON may take
REST_BYTES = 64_000  # of a body that will be refused: so much is read first, so that the refusal arrives; one as small needs no room
MOST_HEAD_BYTES = 65_536  # of all header lines of a request together
LAST_PORT = 65_535
SHORTEST_KEY = 12


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_plain_host(host: str) -> bool:
    """Whether a request's `Host` is an address or localhost, with or without a port: no name that somebody could bind."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost":
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class BoundedServer(ThreadingHTTPServer):
    """Serves on `host`:`port` (0: any free port) until `shutdown` or an exception; a thread a connection. Raises ConfigError for a
    host that others can reach without a key (`danger` says what they could do), and for a port that is taken."""

    daemon_threads = True
    request_queue_size = 1024  # a connection that finds no place here comes again a second later

    def __init__(
        self,
        handler: type[BoundedHandler],
        host: str,
        port: int,
        *,
        key: str | None,
        danger: str,
        most_connections: int | None = None,
    ) -> None:
        if key is None and not is_loopback(host):
            raise ConfigError(
                f"{host!r} can be reached from other machines, and whoever reaches it {danger}; "
                "give a key that every request must carry, or listen on 127.0.0.1"
            )
        if key is not None and not _is_key(key):
            raise ConfigError(
                f"a key is at least {SHORTEST_KEY} printable ASCII characters without spaces; got "
                f"{len(key)} characters"
            )
        self.key = key
        self._free = threading.BoundedSemaphore(most_connections or MOST_CONNECTIONS)
        # Connections that wait for a request, or its rest: since when; the longest first.
        self._waiting: dict[socket.socket, float] = {}
        self._sending: dict[socket.socket, float] = {}  # that are handed a piece: since when
        self._held = 0  # bytes of large bodies
        # Large bodies that are still coming: their sizes, and since when; the longest first.
        self._coming: dict[socket.socket, tuple[int, float]] = {}
        self._guard = threading.Lock()
        self._room = threading.Condition(self._guard)
        if not 0 <= port <= LAST_PORT:
            raise ConfigError(
                f"a port is a number from 0 (any free one) to {LAST_PORT}, got {port}"
            )
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host} port {port}: {error.strerror or error}; name another --port (0: "
                "any free one)"
            ) from error
        except (TypeError, ValueError) as error:  # characters that no host has
            raise ConfigError(f"expected a host's name or address, got {host!r}") from error

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
        if not self._free.acquire(blocking=False) and not self._make_room():
            return self.shutdown_request(request)
        self.waits(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._free.release()

    def _make_room(self) -> bool:
        """Whether another connection could be ended for a new one."""
        tries = 3
        for _ in range(tries):
            self._give_up(longest=True)
            if self._free.acquire(timeout=ROOM_S / tries):
                return True
        return False

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
            self._coming.pop(connection, None)

    @contextmanager
    def sends(self, connection: socket.socket) -> Iterator[None]:
        """Within the block a piece of an answer is handed over, as soon as the client takes it."""
        with self._guard:
            self._sending[connection] = time.monotonic()
        try:
            yield
        finally:
            with self._guard:
                self._sending.pop(connection, None)

    def hold(self, connection: socket.socket, size: int, most: int) -> bool:
        """Whether there is room for a body of `size` bytes among the `most` of all; then it counts until it is let go. Bodies
        that have been coming for longer than TAKEN_S give way: whoever announces much and sends little keeps nobody out."""
        with self._room:
            over = self._held + size - most
            if over > 0 and self._end_slow_bodies(over):
                self._room.wait_for(lambda: self._held + size <= most, ROOM_S)
            has_room = self._held + size <= most
            if has_room:
                self._held += size
                self._coming[connection] = (size, time.monotonic())
        return has_room

    def _end_slow_bodies(self, over: int) -> bool:
        """Break connections until `over` bytes will be free, those first whose bodies have been coming the longest; False:
        there are not enough of them, and none was broken."""
        before = time.monotonic() - TAKEN_S
        slow = [(line, size) for line, (size, since) in self._coming.items() if since < before]
        if sum(size for _, size in slow) < over:
            return False
        for line, size in slow:
            if over <= 0:
                break
            over -= size
            self._break(line)
        return True

    def let_go(self, size: int) -> None:
        with self._room:
            self._held -= size
            self._room.notify_all()

    def _give_up(self, *, longest: bool = False) -> None:
        """Break the connections that have waited IDLE_S. `longest`: else that which waited longest for its request, else those
        whose clients do not take their answers."""
        with self._guard:
            now = time.monotonic()
            over = _before(now - IDLE_S, self._waiting)
            if longest and not over:
                over = list(self._waiting)[:1] or _before(now - TAKEN_S, self._sending)
            for connection in over:
                self._break(connection)

    def _break(self, connection: socket.socket) -> None:
        """Its thread notices; the guard is held."""
        self._waiting.pop(connection, None)
        self._sending.pop(connection, None)
        self._coming.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no news; anything else is said on stderr by the base class."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def _before(moment: float, connections: Mapping[socket.socket, float]) -> list[socket.socket]:
    """Those that have been at it since before `moment`."""
    return [connection for connection, since in connections.items() if since < moment]


class _Head:
    """The lines of a request's head, as far as they may reach together. Each reader of lines has a bound of its own for one
    line and for their number: 6 MB a connection."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = MOST_HEAD_BYTES

    def readline(self, size: int) -> bytes:
        line = self._file.readline(min(size, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("the head of the request")
        return line


def _is_key(key: str) -> bool:
    return len(key) >= SHORTEST_KEY and key.isascii() and key.isprintable() and " " not in key


class BoundedHandler(BaseHTTPRequestHandler):
    """One connection. A subclass answers GET and POST; `refuse` says how an error is written."""

    protocol_version = "HTTP/1.1"
    server_version = "workbench"
    sys_version = ""
    timeout = IDLE_S
    # Head and body are two writes; the second would wait 40 ms for the client's word.
    disable_nagle_algorithm = True
    most_body_bytes = 32_000
    server: BoundedServer

    def refuse(self, status: int, words: str) -> None:
        self.answer(status, {"error": words})

    def handle_one_request(self) -> None:
        """One request. What nobody foresaw is an answer, and a line for whoever runs the server."""
        self.server.waits(self.connection)
        self._has_begun = False
        self._held = 0
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            words = f"the server failed: {type(error).__name__} ({where_raised(error)})"
            print(f"workbench: {words}", file=sys.stderr, flush=True)
            self.close_connection = True
            if not self._has_begun:
                self.refuse(500, words)
        finally:
            self.server.let_go(self._held)

    def parse_request(self) -> bool:
        whole = self.rfile
        self.rfile = _Head(whole)
        try:
            return super().parse_request()
        finally:
            self.rfile = whole

    def send_response(self, code: int, message: str | None = None) -> None:
        self._has_begun = True
        super().send_response(code, message)

    def send(self, data: bytes) -> None:
        """Hand over a piece of the answer."""
        with self.server.sends(self.connection):
            self.wfile.write(data)

    def body(self) -> bytes | None:
        """The request's body; None where it was refused, and the connection with it: its rest was not read."""
        lengths = self.headers.get_all("Content-Length", [""])
        length = lengths[0]
        is_number = length.isascii() and length.isdecimal() and len(length) <= 12
        if not is_number or len(lengths) > 1 or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            return self.refuse(411, "expected one Content-Length, and no Transfer-Encoding")
        size = int(length)
        refusal = self._refusal() if size > REST_BYTES else None
        if size > self.most_body_bytes:
            refusal = 413, f"expected at most {self.most_body_bytes} bytes, got {size}"
        elif refusal is None and size > REST_BYTES:
            if self.server.hold(self.connection, size, LARGEST_HELD * self.most_body_bytes):
                self._held = size
            else:
                refusal = 503, "too many large requests are under way; ask again later"
        if refusal is not None:
            self.close_connection = True
            return self.refuse(*refusal)
        return self.rfile.read(size)

    def may_ask(self) -> bool:
        """Whether the request carries the key, and no page sent it; if not, it was refused."""
        refusal = self._refusal()
        if refusal is not None:
            self.refuse(*refusal)
        return refusal is None

    def _refusal(self) -> tuple[int, str] | None:
        """(status, words) for a request that may not be sent."""
        key = self.server.key
        if "Origin" in self.headers:
            return 403, "pages of a browser are not answered (the request has an Origin)"
        if key is None:
            hosts = self.headers.get_all("Host", ["localhost"])
            if all(map(is_plain_host, hosts)):
                return None
            return 403, "expected an address or localhost as Host: there is no key"
        authorization = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(authorization, f"Bearer {key}".encode()):
            return None
        return 401, (
            "expected the key that the server was started with, as Authorization: Bearer KEY"
        )

    def is_json(self) -> bool:
        """Whether the body is declared as JSON; if not, it was refused."""
        if self.headers.get_content_type() == "application/json":
            return True
        self.refuse(415, "expected Content-Type: application/json")
        return False

    def answer(self, status: int, value: Mapping[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.send(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: what is asked is the users' own."""


def json_of(body: bytes) -> Any:
    """The value of a body, within bounds of depth and memory. Raises ValueError, whatever is wrong."""
    if json_memory(body) > MOST_VALUES_BYTES:
        raise ValueError(f"it holds more values than {MOST_VALUES_BYTES >> 20} MB have room for")
    return parse_json(body)
