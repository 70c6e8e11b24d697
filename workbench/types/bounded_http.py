"""What every client of somebody else's server keeps to, as hooks of httpx: bytes are counted, keys stay with their host.

    httpx.Client(event_hooks=hooks(address, deadline=deadline), follow_redirects=False)

An answer is asked for as it is, not packed, and a packed one is refused: a small one may unpack to any size. A request
to another scheme, host or port than `address` is not sent at all: a redirect would take headers, and keys in them, along.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx

from workbench.types.deadlines import Deadline

MOST_BYTES = 16 << 20  # of one answer


class AnswerError(httpx.TransportError):
    """A server did what no client here goes along with; the message says what."""


def hooks(address: str, *, deadline: Deadline | None = None, most: int = MOST_BYTES) -> dict[str, list[Callable[..., Any]]]:
    """The hooks of an `httpx.Client`. `deadline`: breaks every connection that is made."""
    def asked(request: httpx.Request) -> None:
        _check_request(request, address)
        if deadline is not None:
            request.extensions = {**request.extensions, "trace": lambda name, info: _watch(deadline, name, info)}

    def answered(response: httpx.Response) -> None:
        _check_answer(response, address)
        response.stream = _Counted(response.stream, address, most)

    return {"request": [asked], "response": [answered]}


def _check_request(request: httpx.Request, address: str) -> None:
    allowed = httpx.URL(address)
    if _origin(request.url) != _origin(allowed):
        raise AnswerError(f"{address} sends on to {request.url.scheme}://{request.url.netloc.decode()}, which nobody named", request=request)
    request.headers["Accept-Encoding"] = "identity"


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _check_answer(response: httpx.Response, address: str) -> None:
    if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise AnswerError(f"{address} sent an answer packed by {packed[:40]!r}, which was not asked for", request=response.request)


def _watch(deadline: Deadline, name: str, info: dict[str, Any]) -> None:
    if name.endswith("connect_tcp.complete"):
        deadline.watch(info["return_value"].get_extra_info("socket"))


class _Counted(httpx.SyncByteStream):
    """A stream that ends in an error once it has brought more than `most` bytes."""

    def __init__(self, stream: Any, address: str, most: int) -> None:
        self._stream, self._address, self._most, self._came = stream, address, most, 0

    def _count(self, piece: bytes) -> bytes:
        self._came += len(piece)
        if self._came > self._most:
            raise AnswerError(f"{self._address} sent more than {self._most:,} bytes in one answer")
        return piece

    def __iter__(self) -> Iterator[bytes]:
        return map(self._count, self._stream)

    def close(self) -> None:
        self._stream.close()
