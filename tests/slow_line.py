"""What makes a live view hard to draw: a slow line for what the kernel sends, busy cores, a slow page."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from tests.lab_kit import Lab

AT_ONCE = 4096  # bytes that are handed on at once


@contextmanager
def slow_socket(lab: Lab, bytes_per_s: float) -> Iterator[Lab]:
    """The same server behind a line on which websockets (what a kernel sends) come no faster than this."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, lab, bytes_per_s), daemon=True).start()
        yield replace(lab, address=f"http://127.0.0.1:{listener.getsockname()[1]}")


def _accept(listener: socket.socket, lab: Lab, bytes_per_s: float) -> None:
    host, port = lab.address.removeprefix("http://").split(":")
    with suppress(OSError):  # closed: the test is over
        while True:
            page = listener.accept()[0]
            server = socket.create_connection((host, int(port)))
            threading.Thread(target=_join, args=(page, server, bytes_per_s), daemon=True).start()


def _join(page: socket.socket, server: socket.socket, bytes_per_s: float) -> None:
    request = page.recv(1 << 16)
    server.sendall(request)
    is_websocket = b"upgrade: websocket" in request.lower()
    limit = bytes_per_s if is_websocket else float("inf")
    threading.Thread(target=_pump, args=(page, server, float("inf")), daemon=True).start()
    _pump(server, page, limit)


def _pump(source: socket.socket, sink: socket.socket, bytes_per_s: float) -> None:
    with suppress(OSError), closing(source), closing(sink):
        while data := source.recv(AT_ONCE if bytes_per_s < float("inf") else 1 << 16):
            sink.sendall(data)
            time.sleep(len(data) / bytes_per_s)


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute, beside server and kernel."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def slow_page(page, times: float) -> None:
    """The page's processor, so many times slower (Chromium)."""
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": times})
