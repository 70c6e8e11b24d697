"""Who does which job: a small file that its driver keeps alive, so that several drivers on one folder share the work.

    jobs/NAME.lease-1     who holds the job, and a beat that grows every BEAT_S seconds

A lease is taken by making its file, which of several that try at once one can (`run.writer.claim_file`). Whose driver
is known to have ended (a process of this machine), or whose beat stood still for STALE_S seconds as seen by the one who
asks, has lost it: the next one makes the file of the next number. No clock of another machine is asked. Whoever wakes
up late finds a higher number, or none, and keeps what he did to himself."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.ablation.pool import AFTERLIFE_S
from workbench.run.writer import claim_file, make_folder, process_state, remove_file, write_file
from workbench.types.canonical_json import check_name
from workbench.types.errors import StoreError

BEAT_S, STALE_S = 5.0, 60.0
_FILE = re.compile(r"(.+)\.lease-(\d+)")


@dataclass(frozen=True)
class Lease:
    """A job that is held: the file that says so."""

    path: Path

    def is_held(self) -> bool:
        """Whether nobody took it over."""
        name, number = _parsed(self.path)
        return (
            self.path.is_file() and not (self.path.parent / f"{name}.lease-{number + 1}").is_file()
        )


class Leases:
    """All that one driver holds in a folder, kept alive by a thread; used as a context, at whose end they are given
    back."""

    def __init__(self, folder: Path):
        self.folder = folder
        make_folder(folder)
        started = process_state(os.getpid())
        self._me = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "started": started[1] if started else None,
        }
        self._held: dict[str, Lease] = {}
        self._seen: dict[
            Path, tuple[Any, float]
        ] = {}  # another's lease -> (its beat, since when it has been that)
        self._lock, self._over, self._beat = threading.Lock(), threading.Event(), 0

    def __enter__(self) -> Leases:
        self._thread = threading.Thread(target=self._keep_alive, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
        for name in [*self._held]:
            self.give_back(name)

    def free(self, name: str) -> int | None:
        """The number of the newest lease of a job that nobody holds any more (0: there is none); None: somebody has it.
        A beat that stands still is told only by one who asks several times."""
        newest = newest_in(self.folder, name)
        return 0 if newest is None else _parsed(newest)[1] if self._abandoned(newest) else None

    def take(self, name: str, over: int = 0) -> Lease | None:
        """The lease of a job, or None: somebody else has it. Waits for the end of what a killed holder had started.
        `over`: the number of a lease that somebody else found abandoned (`free`)."""
        check_name(name)
        newest = newest_in(self.folder, name)
        if newest is not None:
            why = self._abandoned(newest) or ("silent" if _parsed(newest)[1] == over else "")
            if not why:
                return None
            if why == "ended":
                time.sleep(AFTERLIFE_S)
        lease = Lease(self.folder / f"{name}.lease-{_parsed(newest)[1] + 1 if newest else 1}")
        if not claim_file(lease.path, self._said()):
            return None
        with self._lock:
            self._held[name] = lease
        return lease

    def give_back(self, name: str) -> None:
        """Let go of a job, with what is left of earlier holders."""
        with self._lock:
            lease = self._held.pop(name, None)
        if lease is not None and lease.is_held():
            for number in range(1, _parsed(lease.path)[1] + 1):
                remove_file(self.folder / f"{name}.lease-{number}")

    def _abandoned(self, path: Path) -> str:
        """Why the holder of a lease has lost it; "" where it has not."""
        said = holder_of(path)
        if said is None:
            return "gone"
        if has_ended(said):
            return "ended"
        beat, since = self._seen.get(path, (None, 0.0))
        if beat != said["beat"]:
            self._seen[path] = said["beat"], time.monotonic()
            return ""
        return "silent" if time.monotonic() - since > STALE_S else ""

    def _said(self) -> bytes:
        return json.dumps(self._me | {"beat": self._beat}).encode()

    def _keep_alive(self) -> None:
        while not self._over.wait(BEAT_S):
            self._beat += 1
            with self._lock:
                for lease in self._held.values():
                    if (
                        lease.is_held()
                    ):  # one that was taken over stays as it is: the next number counts
                        try:
                            write_file(lease.path, self._said(), replace=True)
                        except StoreError:
                            continue  # a full disk: others may take it over, and then this driver keeps its result to itself


def newest_in(folder: Path, name: str) -> Path | None:
    """The lease that counts: that of the highest number."""
    found = [path for path in folder.glob(f"{name}.lease-*") if _FILE.fullmatch(path.name)]
    return max(found, key=lambda path: _parsed(path)[1], default=None)


def held_in(folder: Path) -> dict[str, Path]:
    """Every job that somebody holds, or held when it was killed -> its newest lease. One look at the folder."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.lease-*")) if folder.is_dir() else ():
        if _FILE.fullmatch(path.name):
            name, number = _parsed(path)
            if name not in found or number > _parsed(found[name])[1]:
                found[name] = path
    return found


def holder_of(path: Path) -> dict[str, Any] | None:
    """{"process", "host", "started", "beat"}; None where it was given back meanwhile."""
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return (
        said
        if isinstance(said, dict) and {"process", "host", "started", "beat"} <= {*said}
        else None
    )


def has_ended(holder: dict[str, Any]) -> bool:
    """Whether the holder is a process of this machine, and that is gone."""
    if holder["host"] != socket.gethostname() or holder["started"] is None:
        return False
    now = process_state(int(holder["process"]))
    return now is None or now[0] == "Z" or now[1] != holder["started"]


def _parsed(path: Path) -> tuple[str, int]:
    found = _FILE.fullmatch(path.name)
    return (found[1], int(found[2])) if found else (path.name, 0)
