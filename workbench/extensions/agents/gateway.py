"""The HTTP server that programs ask in place of a model: on loopback, an address and a key for each trajectory.

    http://127.0.0.1:PORT/ID/v1/chat/completions        ID is not to be guessed, and the key is asked for as well

Requests become `HttpCall`s in the inbox of their attempt; whoever collects answers them there. Nothing is sampled here and
nothing is known of tokens.

A client that did not get its answer asks again. The same call delivered twice is one call: a request is taken as a repeated
one where it carries the idempotency key of an earlier one, where its client says that it is a retry and the same body was
sent before, or where the same body was sent before by a client that went away without its answer. Two equal requests of
clients that both wait are two calls.

Whatever a client sends, it is answered: what nobody foresaw by status 500. Values are read within
bounds of depth and memory, and half a surrogate pair in a text, which has no bytes, becomes U+FFFD.
Connections have bounds, too (`bounded_protocol`), and so have bodies that are still read, of an
attempt and of all: slow clients fill no memory.

One server serves all attempts of a process; it ends with the process.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import queue
import re
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from types import ModuleType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from workbench.basics.regular_files import json_memory, parse_json
from workbench.extensions.agents.bounded_protocol import BoundedLine
from workbench.extensions.agents.messages import MODEL, AskedCall, GivenAnswer, RefusedCall
from workbench.extensions.agents.wires import (
    anthropic_messages,
    openai_chat,
    openai_responses,
)
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.values.errors import EngineError, where_raised

MOST_BYTES = 16 << 20  # of a request
MOST_VALUES_BYTES = 256 << 20  # that the values of a request's JSON may take
MOST_KEPT_BYTES = (
    256 << 20
)  # of all calls of one attempt: each is kept for a retry until the attempt ends
MOST_READ_BYTES = 64 << 20  # of one attempt's bodies that are read at once
MOST_READ_BYTES_IN_ALL = 512 << 20  # and of all attempts'
MOST_OPEN = 64  # calls of one attempt that wait at once
KNOWN_KEYS = 4096  # attempts that have ended and are still told so
START_S = 20.0
WIRES: tuple[ModuleType, ...] = (openai_chat, openai_responses, anthropic_messages)
HOSTS = ("127.0.0.1", "localhost")  # what a program here calls this machine


@dataclass(eq=False)
class HttpCall:
    """One call of a program. `answer` is set once, by whoever collects, after the call is stored."""

    attempt: OpenAttempt
    asked: AskedCall
    wire: str
    answer: Future[GivenAnswer] = field(default_factory=Future)
    # By number: those that are there, while others of the same call are sampled.
    choices: dict[int, GivenAnswer] = field(default_factory=dict)
    gone: bool = False  # its client went away before the answer
    repeats: int = 0  # times that it was delivered once more

    def __post_init__(self) -> None:
        self.answer.set_running_or_notify_cancel()  # a client that goes away cancels nothing


@dataclass(eq=False)
class OpenAttempt:
    """What the gateway knows of a trajectory.

    key     of the trajectory
    inbox   where its calls go
    rules   what is made of the fields of a request
    tools   runs a tool of the task by name; None: it has none
    task    what a program in another process is told of the task
    """

    key: str
    inbox: queue.SimpleQueue
    rules: FieldRules
    task: Mapping[str, Any] = field(default_factory=dict)
    tools: Callable[[str, Mapping[str, Any]], str] | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    secret: str = field(default_factory=lambda: f"sk-{secrets.token_hex(24)}")
    closed: bool = False
    refused: list[RefusedCall] = field(default_factory=list)
    late: int = 0  # calls that came after the end
    active: float = field(default_factory=time.monotonic)  # when it last did something
    waiting: int = 0  # calls that are not answered yet
    kept: int = 0  # bytes of its calls
    read: int = 0  # bytes of its bodies that are read now, or whose tool runs
    _by_body: dict[str, list[HttpCall]] = field(default_factory=dict)
    _by_idempotency: dict[str, HttpCall] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(
        self, asked: AskedCall, wire: str, body: bytes, headers: Mapping[str, str]
    ) -> HttpCall:
        """The call that a request is: a new one, or one that was delivered before. Raises RefusedCall."""
        digest = sha256(wire.encode() + body).hexdigest()
        named = headers.get("idempotency-key", "")
        retried = headers.get("x-stainless-retry-count", "0") not in ("", "0")
        with self._lock:
            if self.closed:
                raise ended(self.key)
            self.active = time.monotonic()
            earlier = self._by_body.setdefault(digest, [])
            same = self._by_idempotency.get(named) if named else None
            if same is None and retried and earlier:
                same = earlier[-1]
            if same is None:
                same = next((call for call in earlier if call.gone), None)
            if same is not None:
                same.repeats += 1
                same.gone = False
                return same
            if self.kept + len(body) > MOST_KEPT_BYTES:
                most = f"{MOST_KEPT_BYTES >> 20} MB"
                raise RefusedCall(
                    413, "too_large", f"all calls of a trajectory have at most {most}"
                )
            self.kept += len(body)
            call = HttpCall(self, asked, wire)
            self.waiting += 1
            call.answer.add_done_callback(self._is_answered)
            earlier.append(call)
            if named:
                self._by_idempotency[named] = call
        if self.waiting > MOST_OPEN:
            call.answer.set_exception(
                RefusedCall(400, "too_many_calls", f"at most {MOST_OPEN} calls wait at once")
            )
            return call
        self.inbox.put(call)
        return call

    def _is_answered(self, answer: Future) -> None:
        with self._lock:
            self.waiting -= 1

    def end(self) -> None:
        """Nothing more is answered; calls that wait are told so."""
        with self._lock:
            self.closed = True
            calls = [call for calls in self._by_body.values() for call in calls]
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(ended(self.key))


def ended(key: str) -> RefusedCall:
    return RefusedCall(
        410, "attempt_ended", f"the trajectory {key} has ended; no call of it is answered any more"
    )


class Gateway:
    """The server of this process; `gateway()` gives it."""

    def __init__(self) -> None:
        self._attempts: dict[str, OpenAttempt] = {}
        self._read_bytes = 0  # as `OpenAttempt.read`, of all attempts
        self._ended: dict[str, OpenAttempt] = {}
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._app(),
            http=BoundedLine,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True, name="agents' gateway")
        self._thread.start()
        until = time.monotonic() + START_S
        while not self._server.started:
            if time.monotonic() > until or not self._thread.is_alive():
                raise EngineError(f"the gateway did not start within {START_S:g} s")
            time.sleep(0.002)

    def open(self, attempt: OpenAttempt) -> str:
        """Its address, without the version: programs add /v1 where their form wants it."""
        self._attempts[attempt.id] = attempt
        return f"http://127.0.0.1:{self.port}/{attempt.id}"

    def close(self, attempt: OpenAttempt) -> None:
        attempt.end()
        self._attempts.pop(attempt.id, None)
        self._ended[attempt.id] = attempt
        while len(self._ended) > KNOWN_KEYS:
            self._ended.pop(next(iter(self._ended)))

    # -------------------------------------------------------------------------------------------- serving

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(self._server.serve(sockets=[self._socket]))

    def _app(self) -> Starlette:
        routes = [
            Route(f"/{{id}}/v1{wire.PATH}", self._endpoint(wire), methods=["POST"])
            for wire in WIRES
        ]
        routes += [
            Route("/{id}/v1/models", self._models, methods=["GET"]),
            Route("/{id}/task", self._task, methods=["GET"]),
            Route("/{id}/tools/{name}", self._tool, methods=["POST"]),
            Route("/{path:path}", self._nothing, methods=["GET", "POST"]),
        ]
        return Starlette(routes=routes)

    def _endpoint(self, wire: ModuleType) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            attempt: OpenAttempt | None = None
            try:
                attempt = self._attempt(request)
                call, stream = await self._call(request, attempt, wire)
                given = await _answer(call, request)
            except RefusedCall as refused:
                if attempt is not None:
                    attempt.refused.append(refused)
                return JSONResponse(wire.error(refused), refused.status)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                return JSONResponse(wire.error(_unforeseen(error)), 500)
            if stream:
                chunks = wire.chunks(given, call.asked)
                return StreamingResponse(chunks, media_type="text/event-stream")
            return JSONResponse(wire.answer(given, call.asked))

        return endpoint

    async def _call(
        self, request: Request, attempt: OpenAttempt, wire: ModuleType
    ) -> tuple[HttpCall, bool]:
        """The call that a request is, and whether its answer is streamed. Neither its body nor its
        values are held by the request any more: those of a call delivered twice are there once."""
        with self._reading(attempt) as count:
            body = await _read(request, count)
            asked = wire.read(_json(body), attempt.rules)
            return attempt.take(asked, wire.PATH, body, request.headers), asked.stream

    @contextmanager
    def _reading(self, attempt: OpenAttempt) -> Iterator[Callable[[int], None]]:
        """Counts the bytes of a body while it is held and not kept, against those of its attempt
        and of all. All of it happens in the server's thread."""
        held = 0

        def count(size: int) -> None:
            nonlocal held
            _check_room(attempt.kept + attempt.read + size, MOST_KEPT_BYTES, "a trajectory", 413)
            _check_room(attempt.read + size, MOST_READ_BYTES, "a trajectory at once", 429)
            _check_room(
                self._read_bytes + size, MOST_READ_BYTES_IN_ALL, "all trajectories at once", 429
            )
            held += size
            attempt.read += size
            self._read_bytes += size

        try:
            yield count
        finally:
            attempt.read -= held
            self._read_bytes -= held

    def _attempt(self, request: Request) -> OpenAttempt:
        """The attempt of an address, where the key is right. An unknown address and a wrong key are told alike."""
        check_no_page(request.headers)
        id = request.path_params["id"]
        attempt = self._attempts.get(id) or self._ended.get(id)
        given = request.headers.get("x-api-key", "")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = token
        wanted = attempt.secret if attempt is not None else secrets.token_hex(24)
        if not hmac.compare_digest(given.strip().encode(), wanted.encode()):
            raise RefusedCall(
                401, "invalid_api_key", "the key is not that of an attempt at this address"
            )
        if attempt.closed:
            attempt.late += 1
            raise ended(attempt.key)
        return attempt

    async def _models(self, request: Request) -> Response:
        try:
            self._attempt(request)
        except RefusedCall as refused:
            return JSONResponse(openai_chat.error(refused), refused.status)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "workbench"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _task(self, request: Request) -> Response:
        try:
            return JSONResponse(dict(self._attempt(request).task))
        except RefusedCall as refused:
            return JSONResponse(openai_chat.error(refused), refused.status)

    async def _tool(self, request: Request) -> Response:
        """A tool of the task, for programs in other processes: arguments as JSON, the result as text."""
        try:
            attempt = self._attempt(request)
            with self._reading(attempt) as count:
                arguments = _json(await _read(request, count))
                if attempt.tools is None or not isinstance(arguments, dict):
                    raise RefusedCall(
                        400, "no_tools", "the task has tools and their arguments are an object"
                    )
                attempt.active = time.monotonic()
                name = request.path_params["name"]
                text = await asyncio.to_thread(attempt.tools, name, arguments)
            data = text.encode("utf-8", "replace")
            return Response(data, media_type="text/plain")
        except RefusedCall as refused:
            return JSONResponse(openai_chat.error(refused), refused.status)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return JSONResponse(openai_chat.error(_unforeseen(error)), 500)

    async def _nothing(self, request: Request) -> Response:
        forms = ", ".join(f"/v1{wire.PATH}" for wire in WIRES)
        refused = RefusedCall(
            404, "unknown_url", f"there is nothing at this address; an attempt has {forms}"
        )
        return JSONResponse(openai_chat.error(refused), 404)


def check_no_page(headers: Mapping[str, str]) -> None:
    """Refuse what a page in a browser sends, were it to know the key: it has an origin, or comes by a name of its own that
    somebody has bound to this machine (DNS rebinding). Raises RefusedCall."""
    host, _, _ = headers.get("host", "").partition(":")
    if host not in HOSTS or "origin" in headers:
        raise RefusedCall(
            403,
            "foreign_page",
            f"calls come from programs on this machine, to {' or '.join(HOSTS)}",
        )


def _check_room(size: int, most: int, whose: str, status: int) -> None:
    if size > most:
        words = f"the bodies of {whose} have at most {most >> 20} MB, and this one has no room left"
        cure = "; ask again later" if status == 429 else ""
        raise RefusedCall(status, "too_large" if status == 413 else "too_many_bytes", words + cure)


async def _read(request: Request, count: Callable[[int], None]) -> bytes:
    """The body, as far as it may reach. `count` is told of each piece before it is kept, and may
    refuse it."""
    pieces = bytearray()
    async for piece in request.stream():
        count(len(piece))
        pieces += piece
        if len(pieces) > MOST_BYTES:
            raise RefusedCall(413, "too_large", f"a call has at most {MOST_BYTES} bytes")
    return bytes(pieces)


# Half a surrogate pair, as JSON escapes it; both halves look alike.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _json(body: bytes) -> Any:
    """The value of a body. Raises RefusedCall for what is no JSON, or more than has room."""
    try:
        if json_memory(body) > MOST_VALUES_BYTES:
            raise ValueError(f"more values than {MOST_VALUES_BYTES >> 20} MB have room for")
        value = parse_json(body)
    except ValueError as error:
        words = f"the body is not read as JSON: {str(error)[:200]}"
        raise RefusedCall(400, "invalid_json", words) from error
    return _with_bytes(value) if _SURROGATE.search(body) else value


def _with_bytes(value: Any) -> Any:
    """The value with texts that can be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, list):
        return list(map(_with_bytes, value))
    if isinstance(value, dict):
        return {_with_bytes(name): _with_bytes(inner) for name, inner in value.items()}
    return value


def _unforeseen(error: Exception) -> RefusedCall:
    words = f"the gateway failed: {type(error).__name__} ({where_raised(error)})"
    return RefusedCall(500, "gateway_error", words)


async def _answer(call: HttpCall, request: Request) -> GivenAnswer:
    """Wait for the answer. A client that goes away is noted; its call is answered all the same, for the retry."""
    answered = asyncio.wrap_future(call.answer)
    left = asyncio.ensure_future(_left(request))
    await asyncio.wait({answered, left}, return_when=asyncio.FIRST_COMPLETED)
    if not answered.done():
        call.gone = True
        raise ClientDisconnect
    left.cancel()
    return answered.result()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


_lock = threading.Lock()
_gateways: dict[int, Gateway] = {}  # by process: a fork has none of its parent's threads


def gateway() -> Gateway:
    """The gateway of this process, started when it is first asked for."""
    with _lock:
        own = os.getpid()
        if own not in _gateways:
            _gateways[own] = Gateway()
        return _gateways[own]
