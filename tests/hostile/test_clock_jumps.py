"""The wall clock may be set by years at any moment: nothing waits longer, ends sooner or is counted wrong by it."""

from __future__ import annotations

import ast
import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.clients import request, said_to
from tests.measures import sources
from workbench.basics.deadlines import Deadline
from workbench.extensions.servers import bounded_server
from workbench.extensions.servers.bounded_server import BoundedHandler, BoundedServer

YEARS_S = 10 * 365 * 86_400.0
# Who asks what time it is, and what for: never how long something took, and never whether to wait on.
ASKED = {
    "cli/last_resort.py": "the name of the file that an unforeseen error is kept in",
    "extensions/sandbox/virtual.py": "is the clock that a program of an agent sees",
    "extensions/servers/chat_server.py": "`created`, as the protocol wants it",
    "extensions/track/to_mlflow.py": "moments that a tracker draws",
    "extensions/track/to_tensorboard.py": "moments that a tracker draws",
    "extensions/vllm_server/opening.py": "the age of a folder, beside the lock that decides",
    "look/cells/processes.py": "seconds since a process began, as another one sees its files: shown, at least 0",
    "run/recording.py": "moments in clock.jsonl, which is compared with nothing",
    "run/writer.py": "since when a lock is held: shown",
}
WALL = {"time", "time_ns", "now", "utcnow", "today", "ctime", "localtime", "gmtime"}


def asks(text: str) -> bool:
    """Whether a source reads the wall clock."""
    for node in ast.walk(ast.parse(text)):
        is_read = isinstance(node, ast.Attribute) and node.attr in WALL
        if is_read and isinstance(node.value, ast.Name) and node.value.id in ("time", "datetime"):
            return True
    return False


def test_who_asks_what_time_it_is():
    assert {name for name, text in sources().items() if asks(text)} == ASKED.keys()


def test_negative_control_a_duration_by_the_wall_clock_is_seen():
    assert asks("import time\nuntil = time.time() + 5") and not asks(
        "import time\ntime.monotonic()"
    )


@pytest.fixture
def jumping(monkeypatch) -> Iterator[None]:
    """Every look at the wall clock is ten years before or behind the last one."""
    ahead = itertools.cycle((YEARS_S, -YEARS_S, 3.0))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(ahead))
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * time.time()))
    assert abs(time.time() - time.time()) > YEARS_S
    yield


def test_a_deadline_passes_when_it_should(jumping):
    with Deadline(0.2) as deadline:
        a, b = socket.socketpair()
        deadline.watch(a)
        started = time.monotonic()
        assert a.recv(1) == b"" and deadline.passed
        assert 0.1 < time.monotonic() - started < 2.0
        a.close()
        b.close()


class _Small(BoundedHandler):
    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        self.answer(200, {})


def test_a_server_gives_up_idle_clients_and_no_others(jumping, monkeypatch):
    from served import served

    monkeypatch.setattr(bounded_server, "IDLE_S", 0.3)
    with served(BoundedServer(_Small, "127.0.0.1", 0, key=None, danger="x")) as server:
        address = server.server_address[:2]
        assert said_to(address, request("/", "", b"", "GET"))[0].startswith(b"HTTP/1.1 200")
        with socket.create_connection(address, timeout=5) as idle:
            started = time.monotonic()
            assert idle.recv(1) == b""
            assert 0.2 < time.monotonic() - started < 3.0


@pytest.mark.full
def test_a_run_is_the_same_to_the_bit(monkeypatch, request, tmp_path):
    from workbench.look.cells.train import train_here
    from workbench.training.config import load_config

    settings = {
        "train.steps": 2,
        "lint.start": False,
        "train.tasks_per_step": 2,
        "train.group_size": 4,
        "evaluation.num_tasks": 4,
        "train.checkpoint_every": 1,
    }

    def trained(folder: Path) -> dict[str, bytes]:
        train_here(load_config("bandit", settings), folder, on_note=None)
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name not in ("clock.jsonl", ".lock", "run.json")
        }
        return files

    still = trained(tmp_path / "still")
    request.getfixturevalue("jumping")
    assert trained(tmp_path / "jumping") == still and len(still) > 5
