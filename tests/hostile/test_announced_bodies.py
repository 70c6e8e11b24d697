"""Clients that announce much and send little, or heads without an end, keep nobody out of our servers and take no memory; and a
server is refused in words where nothing can listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from served import served

from tests.hostile.clients import request, said_to
from workbench.extensions.servers import bounded_server
from workbench.extensions.servers.bounded_server import (
    LARGEST_HELD,
    MOST_HEAD_BYTES,
    REST_BYTES,
    BoundedHandler,
    BoundedServer,
)
from workbench.training.starting import device_of
from workbench.values.errors import ConfigError

LARGE = 1_000_000


class _Taking(BoundedHandler):
    most_body_bytes = LARGE

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        self.answer(200, {})

    def do_POST(self) -> None:
        body = self.body()
        self.server.has_asked(self.connection)
        if body is not None:
            self.answer(200, {"bytes": len(body)})


@contextmanager
def server_with_announced_bodies() -> Iterator[BoundedServer]:
    """As many bodies of the largest kind as there is room for are announced, and a byte of each is sent."""
    server = BoundedServer(_Taking, "127.0.0.1", 0, key=None, danger="x")
    with served(server):
        address = server.server_address[:2]
        lines = [socket.create_connection(address, timeout=5) for _ in range(LARGEST_HELD)]
        for line in lines:
            line.sendall(request("/", "", b"x", length=LARGE))
        assert refused_once(server)
        try:
            yield server
        finally:
            for line in lines:
                line.close()


def refused_once(server: BoundedServer) -> bool:
    """Whether a large body is refused: all that were announced are held by now."""
    return any(b" 503 " in posted(server, LARGE) for _ in range(20))


def posted(server: BoundedServer, size: int) -> bytes:
    return said_to(server.server_address[:2], request("/", "", b"x" * size), wait_s=5.0)[0]


def test_a_small_body_needs_no_room():
    with server_with_announced_bodies() as server:
        assert posted(server, REST_BYTES).startswith(b"HTTP/1.1 200")


def test_a_large_body_gets_the_room_of_those_that_come_slowly(monkeypatch):
    monkeypatch.setattr(bounded_server, "TAKEN_S", 1e9)
    with server_with_announced_bodies() as server:
        assert b" 503 " in posted(server, LARGE)  # negative control: slow is what takes 30 years
        monkeypatch.setattr(bounded_server, "TAKEN_S", 0.0)
        assert posted(server, LARGE).startswith(b"HTTP/1.1 200")
        assert server._held <= LARGEST_HELD * LARGE


def head_of(size: int) -> bytes:
    """A request whose header lines take about `size` bytes, none of them more than 8 kB."""
    line = b"X: " + b"x" * 8_000
    return request("/", "", b"", "GET", *[line] * (size // len(line)))


def test_the_lines_of_a_head_have_a_bound_together(monkeypatch):
    server = BoundedServer(_Taking, "127.0.0.1", 0, key=None, danger="x")
    with served(server):
        address = server.server_address[:2]
        assert said_to(address, head_of(MOST_HEAD_BYTES // 2))[0].startswith(b"HTTP/1.1 200")
        too_much = head_of(2 * MOST_HEAD_BYTES)
        assert b" 431 " in said_to(address, too_much)[0][:20]
        monkeypatch.setattr(bounded_server, "MOST_HEAD_BYTES", 1 << 30)  # negative control
        assert said_to(address, too_much)[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("port", [-1, 65_536, 10**30])
def test_a_port_that_is_none_is_refused_in_words(port):
    with pytest.raises(ConfigError, match=r"from 0 .* to 65535, got"):
        BoundedServer(_Taking, "127.0.0.1", port, key=None, danger="x")


@pytest.mark.parametrize("host", ["\ud800", "a\0b", "x" * 300])
def test_a_host_that_is_none_is_refused_in_words(host):
    with pytest.raises(ConfigError, match="host|listen on"):
        BoundedServer(_Taking, host, 0, key="k" * 20, danger="x")


@pytest.mark.parametrize("device", ["nope", "meta", "fpga:0", "cpu:-1", "\x1b]0;t\a", "\ud800"])
def test_a_device_on_which_nothing_computes_is_refused_in_words(device):
    with pytest.raises(ConfigError, match=r"policy.device = .*expected auto, cpu") as error:
        device_of(device)
    assert "\x1b" not in str(error.value)


def test_negative_control_a_device_that_computes_is_taken():
    assert device_of("cpu") == "cpu" and device_of("cpu:0") == "cpu:0"
