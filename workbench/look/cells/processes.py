"""The process that trains a run: found again by a handle that can never mean another one, and how it stands or ended.

A process id alone is not enough to stop something: ids are used again. An `Identity` is the id together with when that
process was started, on which machine; a handle is made for an identity only while that very process is alive, and signals
go through psutil, which sends none to whoever has the id later.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from workbench.basics.plugins import load_named
from workbench.rollouts.metrics import fault_share
from workbench.run.code import named_code
from workbench.run.follow import RunFollower
from workbench.run.processes import Identity, identity
from workbench.run.writer import lock_holder
from workbench.training.config import Config, to_dict
from workbench.training.kinds import check_importable
from workbench.training.prompts import refuse_config_without_room

ON_REQUEST = (
    -15,
    -2,
    143,
    130,
)  # exit statuses of a process that was asked to end, by SIGTERM or Ctrl-C
STOPPED = ": stopped "  # in the last line that such a process prints
LOG_SHOWN = 3000  # characters
POLL_S = 0.05  # between two looks at a process whose end is waited for
PROMPT = "$ workbench "  # begins the line of a log that says what was started
# What `writer.FolderLock` writes into its file; when that process was started, where its system says it.
_LOCK_TEXT = re.compile(r"process (\d+) on (\S+) since \S+\s*(?:started (\S+))?")


class Process:
    """A handle on a process that was alive, and the one that was meant, when this was made (`Process.find`)."""

    def __init__(self, who: Identity, child: subprocess.Popen | None = None):
        self.who = who
        self._child = child

    @classmethod
    def find(cls, who: Identity | None) -> Process | None:
        """The process `who` if it is alive, else None; also where its id now belongs to another process."""
        return cls(who) if who is not None and identity(who.pid) == who else None

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
        while not self._is_gone():
            if time.monotonic() >= end:
                return False
            time.sleep(min(POLL_S, within_s))
        return True

    def _is_gone(self) -> bool:
        if self._child is not None:
            return self._child.poll() is not None
        return identity(self.who.pid) != self.who

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
        try:
            process = psutil.Process(self.who.pid)  # signals nobody who has this id later
            if not self.ended():
                process.send_signal(number)
        except psutil.NoSuchProcess:
            pass  # it ended just now


def writer_of(folder: Path) -> Identity | None:
    """The process that writes a run folder just now, by the lock it holds; None where nobody does.

    A process that was started at another time than the one that took the lock only has its id.
    """
    holder = _LOCK_TEXT.match(lock_holder(folder) or "")
    if holder is None:
        return None
    if holder[2] != socket.gethostname():
        return Identity(int(holder[1]), "", holder[2])
    who = identity(int(holder[1]))
    return None if who is not None and holder[3] not in (None, who.started) else who


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
    began = _changed(process_file(path))
    last = _changed(Path(f"{path}.log"))
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
    sentences = []
    row = follower.rows[-1] if follower.rows else {}
    if faults := fault_share(row):
        sentences.append(
            f"step {row['step']}: {faults:.0%} of the trajectories were ended by a fault"
        )
    skipped = [event for event in follower.events if event.get("kind") == "skipped_update"]
    if skipped:
        last = skipped[-1]
        sentences.append(
            f"{len(skipped)} updates were skipped, the last in step {last['step']}: {last['reason']}"
        )
    if state in ("failed", "ended"):
        last = last_line(path)
        cure = (
            f" resume({str(path)!r}) goes on after step {follower.step}."
            if follower.config is not None
            else ""
        )
        sentences.append(
            f"{_cause(status)}.{cure} {f'The last it said: {last}' if last else 'It said nothing'}"
        )
    return sentences


def _cause(status: int | None) -> str:
    """Why a process ended that was not asked to, as far as its exit status says."""
    if status is None:
        return "its process is gone before the last step, with an exit status that only its parent knows"
    if status >= 0:
        return f"its process ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    memory = (
        "; if nobody did that, the machine ran out of memory (`workbench doctor --plan` measures what a step "
        "takes)"
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
