"""Rules for every client of somebody else's server, as hooks of httpx: bytes are counted, keys stay with their host.

    httpx.Client(event_hooks=hooks(address, deadline=deadline), follow_redirects=False)
    httpx.AsyncClient(event_hooks=async_hooks(address), follow_redirects=False)
    client.post(path, extensions={"deadline": deadline, "most_bytes": 1_000_000})        other bounds for one request

An asynchronous request is ended by its caller (`asyncio.timeout`), which closes its connection. httpx2, a package with
the classes of httpx, is served as well: `async_hooks(address, library=httpx2)`.

An answer is asked for as it is, not packed, and a packed one is refused: a small one may unpack to any size. A request
to another scheme, host or port than `address` is not sent at all: a redirect would take headers, and keys in them, along.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import httpx

from workbench.basics.deadlines import Deadline

MOST_BYTES = 16 << 20  # of one answer
MOST_VALUES = (
    100_000  # of one event of a stream: a library makes classes of them, up to 30 microseconds each
)
LONGEST_DETAIL = 300  # characters of a server's own words in an error


_MARKS = (b"{", b"[", b",")
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_NO_LINE_END = bytes(set(range(256)) - set(b"\r\n"))


class AnswerError(httpx.TransportError):
    """A server did what no client here accepts; the message says what."""


def hooks(
    address: str,
    *,
    deadline: Deadline | None = None,
    most: int = MOST_BYTES,
    most_values: int | None = None,
) -> dict[str, list[Callable[..., Any]]]:
    """The hooks of an `httpx.Client`. `deadline`: breaks every connection that is made. `most_values`: of
    one event of a stream, or of an answer that has no events; None: as many as there are bytes for."""

    def on_request(request: httpx.Request) -> None:
        _check_request(request, address)
        limit = request.extensions.get("deadline", deadline)
        if limit is not None:
            trace = partial(_watch, limit)
            request.extensions = {**request.extensions, "trace": trace}

    def on_response(response: httpx.Response) -> None:
        _check_answer(response, address)
        most_bytes = response.request.extensions.get("most_bytes", most)
        stream = _Counted(response.stream, address, most_bytes)
        if most_values is not None:
            stream = _CountedValues(stream, address, most_values)
        response.stream = stream

    return {"request": [on_request], "response": [on_response]}


def async_hooks(
    address: str, *, most: int = MOST_BYTES, library: ModuleType = httpx
) -> dict[str, list[Callable[..., Any]]]:
    """The hooks of an `AsyncClient` of `library`."""

    async def on_request(request: Any) -> None:
        _check_request(request, address)

    # The client wants a stream of its own library's class.
    counted = type("Counted", (_CountedAsync, library.AsyncByteStream), {})

    async def on_response(response: Any) -> None:
        _check_answer(response, address)
        most_bytes = response.request.extensions.get("most_bytes", most)
        response.stream = counted(response.stream, address, most_bytes)

    return {"request": [on_request], "response": [on_response]}


def _check_request(request: Any, address: str) -> None:
    allowed = httpx.URL(address)
    if _origin(request.url) != _origin(allowed):
        raise AnswerError(
            f"{address} sends on to {request.url.scheme}://{request.url.netloc.decode()}, which nobody named"
        )
    request.headers["Accept-Encoding"] = "identity"


def _origin(url: Any) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _check_answer(response: Any, address: str) -> None:
    if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise AnswerError(
            f"{address} sent an answer packed by {packed[:40]!r}, which was not asked for"
        )


def _watch(deadline: Deadline, name: str, info: dict[str, Any]) -> None:
    if name.endswith("connect_tcp.complete"):
        deadline.watch(info["return_value"].get_extra_info("socket"))


class _Count:
    """Counts the bytes of a stream: more than `most` are an error."""

    def __init__(self, stream: Any, address: str, most: int) -> None:
        self._stream = stream
        self._address = address
        self._most = most
        self._received = 0

    def _count(self, piece: bytes) -> bytes:
        self._received += len(piece)
        if self._received > self._most:
            raise AnswerError(f"{self._address} sent more than {self._most:,} bytes in one answer")
        return piece


class _Counted(_Count, httpx.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        return map(self._count, self._stream)

    def close(self) -> None:
        self._stream.close()


class _CountedValues(httpx.SyncByteStream):
    """Counts what may begin an object, a list or the next of its values, from one empty line to the next: there an event of a stream ends, and what
    makes values of it is not interrupted by any deadline."""

    def __init__(self, stream: httpx.SyncByteStream, address: str, most: int) -> None:
        self._stream = stream
        self._address = address
        self._most = most
        self._begun = 0
        self._tail = b""

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._count(piece)
            yield piece

    def _count(self, piece: bytes) -> None:
        whole = self._tail + piece
        events = _EVENT_END.split(whole)
        events[0] = events[0][len(self._tail) :]  # a tail holds nothing that is counted
        for event in events[:-1]:
            self._add(event)
            self._begun = 0
        self._add(events[-1])
        self._tail = b"" if whole[-1:] not in (b"\r", b"\n") else whole[-3:].lstrip(_NO_LINE_END)

    def _add(self, part: bytes) -> None:
        self._begun += sum(map(part.count, _MARKS))
        if self._begun > self._most:
            raise AnswerError(f"{self._address} sent more than {self._most:,} values at a time")

    def close(self) -> None:
        self._stream.close()


class _CountedAsync(_Count):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield self._count(piece)

    async def aclose(self) -> None:
        await self._stream.aclose()


def in_short(value: Any) -> str:
    """One line of at most 300 characters; of nothing, what kind of nothing."""
    return " ".join(str(value).split())[:LONGEST_DETAIL] or type(value).__name__
