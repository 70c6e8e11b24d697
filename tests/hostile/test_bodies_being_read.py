"""Bodies that a gateway still reads count against what their trajectory, and all of them, may
hold."""

from __future__ import annotations

import queue
import socket
import time
from contextlib import ExitStack, contextmanager

import pytest

from workbench.extensions.agents import gateway as gateway_module
from workbench.extensions.agents.gateway import OpenAttempt, gateway
from workbench.extensions.agents.wires.fields import FieldRules

PIECE = 300_000  # bytes that a slow client has sent of its body
SOON_S = 10.0


@contextmanager
def attempts(count):
    made = [OpenAttempt(f"task#{k}", queue.SimpleQueue(), FieldRules()) for k in range(count)]
    for attempt in made:
        gateway().open(attempt)
    try:
        yield made
    finally:
        for attempt in made:
            gateway().close(attempt)


def begun(attempt, size=PIECE, route="chat/completions"):
    """The connection of a client that sends no more than this of its body."""
    path = f"/{attempt.id}/v1/{route}" if "tools" not in route else f"/{attempt.id}/{route}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {attempt.secret}\r\n"
        f"Content-Length: {2 * PIECE}\r\n\r\n"
    )
    line = socket.create_connection(("127.0.0.1", gateway().port), timeout=SOON_S)
    line.sendall(head.encode() + b"x" * size)
    return line


def becomes(read, wanted):
    until = time.monotonic() + SOON_S
    while read() != wanted and time.monotonic() < until:
        time.sleep(0.01)
    return read() == wanted


def refusal(line):
    """Head and body, which may come one after the other."""
    answer = b""
    while b"ask again later" not in answer and (piece := line.recv(65536)):
        answer += piece
    return answer.decode()


@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages", "tools/x"])
def test_slow_bodies_of_a_trajectory_have_a_bound(route, monkeypatch):
    monkeypatch.setattr(gateway_module, "MOST_READ_BYTES", 2 * PIECE + 1000)
    with attempts(2) as (attempt, other), ExitStack() as lines:
        slow = [lines.enter_context(begun(attempt, route=route)) for _ in range(2)]
        assert becomes(lambda: attempt.read, 2 * PIECE)
        said = refusal(lines.enter_context(begun(attempt, route=route)))
        assert said.startswith("HTTP/1.1 429") and "ask again later" in said
        lines.enter_context(begun(other, route=route))  # negative control: it has bytes of its own
        assert becomes(lambda: other.read, PIECE)
        for line in slow:
            line.close()
        assert becomes(lambda: attempt.read, 0)
        lines.enter_context(begun(attempt, route=route))
        assert becomes(lambda: attempt.read, PIECE)
    assert becomes(lambda: gateway()._read_bytes, 0)


def test_slow_bodies_of_all_trajectories_have_a_bound(monkeypatch):
    monkeypatch.setattr(gateway_module, "MOST_READ_BYTES_IN_ALL", 2 * PIECE + 1000)
    with attempts(3) as (first, second, third), ExitStack() as lines:
        for attempt in (first, second):
            lines.enter_context(begun(attempt))
            assert becomes(lambda: attempt.read, PIECE)  # noqa: B023
        said = refusal(lines.enter_context(begun(third)))
        assert said.startswith("HTTP/1.1 429") and "all trajectories" in said
        assert third.read == 0
        lines.enter_context(begun(third, size=500))  # negative control: a small one has room
        assert becomes(lambda: third.read, 500)
    assert becomes(lambda: gateway()._read_bytes, 0)


def test_bodies_being_read_count_with_those_that_are_kept(monkeypatch):
    monkeypatch.setattr(gateway_module, "MOST_KEPT_BYTES", 2 * PIECE)
    with attempts(1) as (attempt,), ExitStack() as lines:
        attempt.kept = PIECE + 1
        said = refusal(lines.enter_context(begun(attempt)))
        assert said.startswith("HTTP/1.1 413") and "a trajectory" in said
        attempt.kept = 0  # negative control
        lines.enter_context(begun(attempt))
        assert becomes(lambda: attempt.read, PIECE)
