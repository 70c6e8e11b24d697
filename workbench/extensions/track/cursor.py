"""What was sent already: a file of lines beside the run, one for each tracker.

    first.track-mlflow.jsonl      {"what": "opened", "id": ..., "run": ...}   the name that the tracker knows the run by
                                  {"what": "sending", "first": 7, "items": [...]}
                                  {"what": "folder", "folder": ...}        of a tracker that makes one for each session
                                  {"what": "sent"}

`sending` is on the disk before a tracker hears of the items, `sent` once it has them. A process that is killed in between
leaves a `sending` alone: the next one asks the tracker what it holds, and sends the rest. The run's own folder is only read.
"""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from workbench.basics import canonical_json
from workbench.run.store import Run
from workbench.run.writer import append_line
from workbench.values.errors import StoreError


def cursor_path(run: Path, tracker: str) -> Path:
    return run.parent / f"{run.name}.track-{tracker}.jsonl"


@dataclass
class TrackerCursor:
    """How far a run was sent to one tracker.

    path: of the file.
    id: under which the tracker knows the run: made once.
    sent: keys of the items that the tracker has.
    unfinished: keys of items that may have arrived or not, in the order they were sent in.
    first: number of the first of these among all items, or of the next one.
    folders: that the tracker wrote these into, where it has one for each session.
    """

    path: Path
    id: str
    sent: set[str] = field(default_factory=set)
    unfinished: list[str] = field(default_factory=list)
    first: int = 0
    folders: list[str] = field(default_factory=list)

    @property
    def has_begun(self) -> bool:
        """Whether the tracker may have something of the run."""
        return bool(self.sent or self.unfinished)

    def begin(self, keys: Sequence[str]) -> int:
        """Write down that these items are about to be sent, or are sent again; returns the number of the first one among all
        items. Raises StoreError where the disk has no room."""
        if list(keys) != self.unfinished:
            append_line(self.path, {"what": "sending", "first": self.first, "items": list(keys)})
            self.unfinished = list(keys)
        return self.first

    def finish(self) -> None:
        """Write down that the tracker has them."""
        append_line(self.path, {"what": "sent"})
        self.take_as_sent()

    def take_as_sent(self) -> None:
        """What was being sent has arrived."""
        self.sent |= set(self.unfinished)
        self.first += len(self.unfinished)
        self.unfinished = []
        self.folders = []

    def note_folder(self, folder: str) -> None:
        """Write down where the tracker writes what is being sent."""
        append_line(self.path, {"what": "folder", "folder": folder})
        self.folders.append(folder)


@contextmanager
def open_cursor(run: Run, tracker: str) -> Iterator[TrackerCursor]:
    """The cursor of a run for a tracker, locked meanwhile. Raises StoreError where another process has it.

    A file that was left by an earlier run of this name counts for nothing: its id is that of another run.
    """
    path = cursor_path(run.path, tracker)
    try:
        lock = open(f"{path}.lock", "ab")
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}. What was sent is written down beside the run, so its folder must be "
            "writable and have room"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{run.path} is being sent to {tracker} by another process; it goes on by itself, or stop "
                "that one first"
            ) from None
        yield _read(path, _birth(run))


def _birth(run: Run) -> str:
    """What tells a run from an earlier one of the same name: its first settings, and the first line of its clock."""
    first = run.processes()[:1]
    return sha256(
        canonical_json.line_bytes({"config": run.first_config, "first": first})
    ).hexdigest()


def _read(path: Path, birth: str) -> TrackerCursor:
    cursor = None
    lines = canonical_json.read_lines(path).records if path.exists() else ()
    for line in lines:
        if line["what"] == "opened":
            same = line["run"] == birth
            cursor = TrackerCursor(path, line["id"]) if same else None
        elif cursor is not None and line["what"] == "sending":
            cursor.unfinished = list(line["items"])
            cursor.first = line["first"]
        elif cursor is not None and line["what"] == "folder":
            cursor.folders.append(line["folder"])
        elif cursor is not None and line["what"] == "sent":
            cursor.take_as_sent()
    if cursor is None:
        cursor = TrackerCursor(path, secrets.token_hex(6))
        append_line(path, {"what": "opened", "id": cursor.id, "run": birth})
    return cursor
