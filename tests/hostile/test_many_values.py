"""An endpoint may send as many bytes as it likes within the bound, but not so many values that whoever makes classes of them is not
done: no deadline interrupts that."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from workbench.basics import bounded_http
from workbench.basics.bounded_http import AnswerError, _CountedValues
from workbench.engines.endpoint import Endpoint
from workbench.values.errors import EngineError

DENSE = {
    "objects": b'data: {"choices":[' + b'{"a":{}},' * 1_500_000 + b"{}]}\n\n",
    "lists": b'data: {"choices":[' + b"[]," * 4_000_000 + b"[]]}\n\n",
    "numbers": b'data: {"choices":[' + b"1," * 6_000_000 + b"1]}\n\n",
    "on many lines": b'data: {"choices":[\n' + b'data: {"a":{}},\n' * 800_000 + b"data: {}]}\n\n",
    "behind a sound one": b'data: {"choices":[]}\n\ndata: [' + b"{}," * 4_000_000 + b"{}]\n\n",
}


@contextmanager
def server(body: bytes) -> Iterator[str]:
    """Answers one request with these bytes."""
    listening = socket.create_server(("127.0.0.1", 0))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

    def answer() -> None:
        try:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(head + body)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # else what is left unread breaks the connection
                    pass
        except OSError:  # the client has gone
            pass

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        listening.close()
        thread.join(5)


def ask(body: bytes) -> list:
    with server(body) as url:
        asked = Endpoint(url, "m", deadline_s=30.0).stream(
            [{"role": "user", "content": "hi"}], temperature=1.0, top_p=1.0, max_tokens=5
        )
        return list(asked)


def event(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize("what", DENSE)
def test_too_many_values_at_a_time_are_an_error_before_they_are_made(what):
    pytest.importorskip("openai")
    begun = time.process_time()
    with pytest.raises(EngineError, match="values at a time"):
        ask(DENSE[what])
    assert time.process_time() - begun < 10


def test_negative_control_many_events_and_long_texts_are_taken(monkeypatch):
    pytest.importorskip("openai")
    text = "all, of it [is] {text} " * 1_000
    monkeypatch.setattr(bounded_http, "MOST_VALUES", 5_000)
    pieces = ask(event("a") * 2_000 + event(text) + event("", "stop"))
    assert pieces[-1].text == "a" * 2_000 + text


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_event_ends_at_an_empty_line_wherever_the_pieces_are_cut(end, size):
    def passes(data: bytes) -> bool:
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        counted = _CountedValues(httpx.ByteStream(b""), "here", 4)
        counted._stream = pieces
        try:
            return b"".join(counted) == data
        except AnswerError:
            return False

    assert passes((b"data: {[,{" + end) * 5)
    assert passes(b"data: {" + end[: len(end) // 2] + b"data: {[{")  # one line end is none
    assert not passes(b"data: {[,{" + end[: len(end) // 2] + b"data: {")
    assert not passes((b"data: {[,{" + end) * 5 + b"{{{{{")
