"""How a run in a process of its own stands, by what it left behind: why it ended, what went wrong, since when."""
from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.run.follow import RunFollower

ON_REQUEST = (-15, -2, 143, 130)  # exit statuses of a process that was asked to end, by SIGTERM or Ctrl-C
STOPPED = ": stopped "  # in the last line that such a process prints
LOG_SHOWN = 3000  # characters
PROMPT = "$ workbench "  # begins the line of a log that says what was started


def ending(follower: RunFollower, status: int | None, asked: bool, last_line: str) -> str:
    """Why a process that has ended did so: by its exit status, or where that is not known, by what it left."""
    if follower.done and (status in (0, None, *ON_REQUEST) or asked):
        return "done"  # also where the request came after the last thing was written
    if status in ON_REQUEST or (asked and status in (0, -9, None)) or (status is None and STOPPED in last_line):
        return "stopped"
    return "ended" if status in (0, None) else "failed"


def elapsed(path: Path, follower: RunFollower, ended: bool) -> float | None:
    """Seconds since its process began, until now or its last sign of life."""
    opened = [_when(line) for line in follower.clock if line.get("what") in ("created", "reopened")]
    began, last = _changed(process_file(path)), _changed(Path(f"{path}.log"))
    if opened and (began is None or sum(time_ > began for time_ in opened) > 1):
        began = opened[-1]  # a terminal went on with it after our process: what we noted is about an earlier one
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
    faults = sum(row.get(f"stop_{kind}") or 0.0 for kind in ("env_error", "env_timeout", "engine_error"))
    if faults:
        found.append(f"step {row['step']}: {faults:.0%} of the attempts were ended by a fault")
    skipped = [event for event in follower.events if event.get("kind") == "skipped_update"]
    if skipped:
        last = skipped[-1]
        found.append(f"{len(skipped)} updates were skipped, the last in step {last['step']}: {last['reason']}")
    if state in ("failed", "ended"):
        last = last_line(path)
        cure = f" resume({str(path)!r}) goes on after step {follower.step}." if follower.config is not None else ""
        found.append(f"{_cause(status)}.{cure} {f'The last it said: {last}' if last else 'It said nothing'}")
    return found


def _cause(status: int | None) -> str:
    """Why a process ended that was not asked to, as far as its exit status says."""
    if status is None:
        return "its process is gone before the last step, with an exit status that only its parent knows"
    if status >= 0:
        return f"its process ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    memory = ("; if nobody did that, the machine ran out of memory (`workbench doctor --plan` estimates what a run "
              "needs)" if -status == signal.SIGKILL else "")
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
    last = next((line for line in reversed(log_end(path, LOG_SHOWN).splitlines()) if line.strip()), "")
    return "" if last.startswith(PROMPT) else last.strip()


def process_file(path: Path) -> Path:
    """Where the process that was started for a run is noted."""
    return path.parent / f"{path.name}.process.json"
