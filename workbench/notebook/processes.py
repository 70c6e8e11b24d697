"""The process that trains a run: found again by a handle that can never mean another one, and how it stands or ended.

A process id alone is not enough to stop something: ids are used again. An `Identity` is the id together with when that
process was started, on which machine; a handle is opened for an identity only while that very process is alive, and on
Linux it then holds a pidfd, which the kernel ties to the process and to nothing else. Waiting is done by the kernel
too: nobody looks every few milliseconds.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.rollouts.metrics import fault_share
from workbench.run.code import named_code
from workbench.run.follow import RunFollower
from workbench.run.writer import process_state
from workbench.training.config import Config, to_dict
from workbench.training.kinds import check_importable
from workbench.training.prompts import refuse_config_without_room
from workbench.types.plugins import load_named
from workbench.types.regular_files import open_regular

ON_REQUEST = (
    -15,
    -2,
    143,
    130,
)  # exit statuses of a process that was asked to end, by SIGTERM or Ctrl-C
STOPPED = ": stopped "  # in the last line that such a process prints
LOG_SHOWN = 3000  # characters
PROMPT = "$ workbench "  # begins the line of a log that says what was started
# What `writer.FolderLock` writes into its file; when that process was started, where its system says it.
_LOCK_TEXT = re.compile(r"process (\d+) on (\S+) since \S+\s*(?:started (\S+))?")


@dataclass(frozen=True)
class Identity:
    """One process among all that ever were: its id, when it was started (as its system says it), on which machine."""

    pid: int
    started: str
    machine: str


def identity(pid: int) -> Identity | None:
    """The process that has this id now; None where there is none, or only what is left of one that has ended."""
    found = process_state(pid)
    if found is None and not Path("/proc/self/stat").exists():
        command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
        said = subprocess.run(command, capture_output=True, text=True).stdout.split()
        found = (said[0], " ".join(said[1:])) if said else None
    return (
        None
        if found is None or found[0][0] in "ZX"
        else Identity(pid, found[1], socket.gethostname())
    )


class Process:
    """A handle on a process that was alive, and the one that was meant, when this was made (`Process.find`)."""

    def __init__(self, who: Identity, child: subprocess.Popen | None = None):
        self.who, self._child = who, child
        try:
            self._fd: int | None = os.pidfd_open(who.pid)
        except (AttributeError, OSError):  # not Linux, or it has ended already
            self._fd = None

    @classmethod
    def find(cls, who: Identity | None) -> Process | None:
        """The process `who` if it is alive, else None; also where its id now belongs to another process."""
        if who is None:
            return None
        found = cls(who)
        return (
            found if identity(who.pid) == who else None
        )  # asked after the handle was opened: no gap between

    @classmethod
    def of_child(cls, child: subprocess.Popen) -> Process:
        """A child of ours: also its exit status will be known."""
        return cls(identity(child.pid) or Identity(child.pid, "ended", socket.gethostname()), child)

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs, and where it is not our child."""
        return None if self._child is None else self._child.poll()

    def ended(self, within_s: float = 0.0) -> bool:
        """Wait until it has ended, but not longer than `within_s` seconds; True if it has."""
        end = time.monotonic() + within_s
        while not self._gone(max(0.0, end - time.monotonic())):
            if time.monotonic() >= end:
                return False
        return True

    def _gone(self, within_s: float) -> bool:
        if self._child is not None and self._child.poll() is not None:
            return True
        if self._fd is not None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            return bool(poll.poll(1000 * within_s)) and (self._child is None or self._reaped())
        time.sleep(min(0.5, within_s))
        return identity(self.who.pid) != self.who

    def _reaped(self) -> bool:
        self._child.wait()  # it has ended: this only fetches its status
        return True

    def ask(self) -> None:
        """Ask it to end (SIGTERM). One that has ended is left in peace."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, and what it has started where it leads a group of its own."""
        if self.ended():
            return
        if os.getpgid(self.who.pid) == self.who.pid != os.getpgid(0):
            os.killpg(self.who.pid, signal.SIGKILL)
        else:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.ended():
            return
        try:
            if self._fd is not None:
                signal.pidfd_send_signal(self._fd, number)
            else:
                os.kill(self.who.pid, number)
        except ProcessLookupError:
            pass  # it ended just now

    def __del__(self, close=os.close) -> None:  # `os` may be gone when the interpreter ends
        if getattr(self, "_fd", None) is not None:
            close(self._fd)


def writer_of(folder: Path) -> Identity | None:
    """The process that writes a run folder just now, by the lock it holds; None where nobody does.

    The lock's file stays when its holder ends, the lock does not: so it is tried, not believed. A process that was
    started at another time than the one that took it only has its id.
    """
    try:
        fd = open_regular(Path(folder) / ".lock")
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None  # nobody holds it
    except BlockingIOError:
        said = _LOCK_TEXT.match(os.read(fd, 500).decode("utf-8", "replace"))
    finally:
        os.close(fd)
    if said is None:
        return None
    if said[2] != socket.gethostname():
        return Identity(int(said[1]), "", said[2])
    who = identity(int(said[1]))
    return None if who is not None and said[3] not in (None, who.started) else who


# ------------------------------------------------------------------------------------------------ how it ended


def ending(follower: RunFollower, status: int | None, asked: bool, last_line: str) -> str:
    """Why a process that has ended did so: by its exit status, or where that is not known, by what it left."""
    if follower.done and (status in (0, None, *ON_REQUEST) or asked):
        return "done"  # also where the request came after the last thing was written
    if (
        status in ON_REQUEST
        or (asked and status in (0, -9, None))
        or (status is None and STOPPED in last_line)
    ):
        return "stopped"
    return "ended" if status in (0, None) else "failed"


def elapsed(path: Path, follower: RunFollower, ended: bool) -> float | None:
    """Seconds since its process began, until now or its last sign of life."""
    opened = [_when(line) for line in follower.clock if line.get("what") in ("created", "reopened")]
    began, last = _changed(process_file(path)), _changed(Path(f"{path}.log"))
    if opened and (began is None or sum(time_ > began for time_ in opened) > 1):
        began = opened[
            -1
        ]  # a terminal went on with it after our process: what we noted is about an earlier one
    if follower.clock:
        last = max(last or 0.0, _when(follower.clock[-1]))
    end = last if ended else time.time()
    return None if began is None or end is None else max(0.0, end - began)


def _when(line: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(line["at"]).timestamp()


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def problems(path: Path, follower: RunFollower, state: str, status: int | None) -> list[str]:
    """What went wrong, in words, the worst last."""
    found = []
    row = follower.rows[-1] if follower.rows else {}
    if faults := fault_share(row):
        found.append(f"step {row['step']}: {faults:.0%} of the attempts were ended by a fault")
    skipped = [event for event in follower.events if event.get("kind") == "skipped_update"]
    if skipped:
        last = skipped[-1]
        found.append(
            f"{len(skipped)} updates were skipped, the last in step {last['step']}: {last['reason']}"
        )
    if state in ("failed", "ended"):
        last = last_line(path)
        cure = (
            f" resume({str(path)!r}) goes on after step {follower.step}."
            if follower.config is not None
            else ""
        )
        found.append(
            f"{_cause(status)}.{cure} {f'The last it said: {last}' if last else 'It said nothing'}"
        )
    return found


def _cause(status: int | None) -> str:
    """Why a process ended that was not asked to, as far as its exit status says."""
    if status is None:
        return "its process is gone before the last step, with an exit status that only its parent knows"
    if status >= 0:
        return f"its process ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    memory = (
        "; if nobody did that, the machine ran out of memory (`workbench doctor --plan` estimates what a run "
        "needs)"
        if -status == signal.SIGKILL
        else ""
    )
    return f"its process was ended from outside, by {name}{memory}"


def log_end(path: Path, most: int) -> str:
    """The end of its log; empty where there is none."""
    try:
        with open(f"{path}.log", "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 4 * most))
            return log.read().decode("utf-8", "replace")[-most:].strip()
    except OSError:
        return ""


def last_line(path: Path) -> str:
    """What its process printed last; empty where it printed nothing."""
    last = next(
        (line for line in reversed(log_end(path, LOG_SHOWN).splitlines()) if line.strip()), ""
    )
    return "" if last.startswith(PROMPT) else last.strip()


def process_file(path: Path) -> Path:
    """Where the process that was started for a run is noted."""
    return path.parent / f"{path.name}.process.json"


def refuse_elsewhere(config: Config) -> None:
    """Raises ConfigError, or PolicyError, for what a process that is started with a configuration would stumble over at
    once, as far as it can be told here: code that it cannot import, and a first prompt that leaves no room."""
    for key, name in named_code(to_dict(config)).items():
        check_importable(name, key)
    if config.policy.loader:
        load_named(config.policy.loader, "policy.loader")
    refuse_config_without_room(config)
