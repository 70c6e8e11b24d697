"""What every client of somebody else's server keeps to, as hooks of httpx: bytes are counted, keys stay with their host.

    httpx.Client(event_hooks=hooks(address, deadline=deadline), follow_redirects=False)
    httpx.AsyncClient(event_hooks=async_hooks(address), follow_redirects=False)
    client.post(path, extensions={"deadline": deadline, "most_bytes": 1_000_000})        other bounds for one request

An asynchronous request is ended by its caller (`asyncio.timeout`), which closes its connection. httpx2, a package with
the classes of httpx, is served as well: `async_hooks(address, library=httpx2)`.

An answer is asked for as it is, not packed, and a packed one is refused: a small one may unpack to any size. A request
to another scheme, host or port than `address` is not sent at all: a redirect would take headers, and keys in them, along.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

import httpx

from workbench.types.deadlines import Deadline

MOST_BYTES = 16 << 20  # of one answer
LONGEST_DETAIL = 300  # characters of a server's own words in an error


class AnswerError(httpx.TransportError):
    """A server did what no client here goes along with; the message says what."""


def hooks(
    address: str, *, deadline: Deadline | None = None, most: int = MOST_BYTES
) -> dict[str, list[Callable[..., Any]]]:
    """The hooks of an `httpx.Client`. `deadline`: breaks every connection that is made."""

    def asked(request: httpx.Request) -> None:
        _check_request(request, address)
        if (limit := request.extensions.get("deadline", deadline)) is not None:
            request.extensions = {
                **request.extensions,
                "trace": lambda name, info: _watch(limit, name, info),
            }

    def answered(response: httpx.Response) -> None:
        _check_answer(response, address)
        response.stream = _Counted(
            response.stream, address, response.request.extensions.get("most_bytes", most)
        )

    return {"request": [asked], "response": [answered]}


def async_hooks(
    address: str, *, most: int = MOST_BYTES, library: ModuleType = httpx
) -> dict[str, list[Callable[..., Any]]]:
    """The hooks of an `AsyncClient` of `library`."""

    async def asked(request: Any) -> None:
        _check_request(request, address)

    counted = type(
        "Counted", (_CountedAsync, library.AsyncByteStream), {}
    )  # the client asks for its own class

    async def answered(response: Any) -> None:
        _check_answer(response, address)
        response.stream = counted(
            response.stream, address, response.request.extensions.get("most_bytes", most)
        )

    return {"request": [asked], "response": [answered]}


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
    """Of the bytes that a stream brings: more than `most` are an error."""

    def __init__(self, stream: Any, address: str, most: int) -> None:
        self._stream, self._address, self._most, self._came = stream, address, most, 0

    def _count(self, piece: bytes) -> bytes:
        self._came += len(piece)
        if self._came > self._most:
            raise AnswerError(f"{self._address} sent more than {self._most:,} bytes in one answer")
        return piece


class _Counted(_Count, httpx.SyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        return map(self._count, self._stream)

    def close(self) -> None:
        self._stream.close()


class _CountedAsync(_Count):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield self._count(piece)

    async def aclose(self) -> None:
        await self._stream.aclose()


def own_words(answer: httpx.Response) -> str:
    """What a server itself says about what failed, in one line."""
    try:
        said = answer.json()
        error = said.get("error", said) if isinstance(said, dict) else said
        return in_short(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, RecursionError):
        return in_short(answer.text)


def in_short(value: Any) -> str:
    """One line of at most 300 characters; of nothing, what kind of nothing."""
    return " ".join(str(value).split())[:LONGEST_DETAIL] or type(value).__name__
