"""A run that trains in a process of its own, and the handle a notebook has on it.

    run = train(config, "runs/first")     at once; the run goes on whatever happens to this kernel
    run                                   curves with their baselines, live, with a button that stops it
    run = attach("runs/first")            the same handle again, after a restart of the kernel

The kernel never becomes a rank: what it holds is a folder and a process. Beside the folder lie three small files: the
settings it was started with (`.config.json`), what it prints (`.log`), and which process it is (`.process.json`).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any

from workbench.basics.annotated import checked_methods
from workbench.basics.beside import SAFE
from workbench.basics.regular_files import MOST_SETTINGS_BYTES, parse_json, read_regular
from workbench.look import progress, text_view
from workbench.look.cells.processes import (
    LOG_SHOWN,
    PROMPT,
    Identity,
    Process,
    elapsed,
    ending,
    identity,
    last_line,
    log_end,
    problems,
    process_file,
    refuse_elsewhere,
    writer_of,
)
from workbench.look.cells.stored import lint_words
from workbench.look.live import COARSE_S, LiveState, LiveView, Status, live_panels, live_view
from workbench.look.watch import follow
from workbench.run.follow import RunFollower
from workbench.run.store import Run, open_run, with_name
from workbench.run.writer import write_file
from workbench.tools.workers.supervisor import PR_SET_PDEATHSIG, prctl
from workbench.training.config import Config, to_dict
from workbench.values import View
from workbench.values.errors import DataError, LearnerError, MissingNameError, StoreError, nearest

LOOK_S = 1.0  # between two looks at the folder while waiting


@checked_methods
@dataclass(frozen=True, eq=False)
class RunningRun:
    """A run and the process that trains it. It shows itself: as the last line of a cell it is followed live.

    `process`: None where it had ended before this handle was made. `planned`: the steps it was asked for, as far as known.
    """

    path: Path
    process: Process | None
    planned: int | None = None
    _asked: threading.Event = field(default_factory=threading.Event, repr=False)
    _views: list[LiveView] = field(default_factory=list, repr=False)

    @property
    def run(self) -> Run:
        """What is committed so far."""
        return open_run(self.path)

    def __getattr__(self, name: str) -> Any:
        """What a `Run` has, of what is committed so far: `run.metrics()`, `run.groups(1)`."""
        if name.startswith("_") or not hasattr(Run, name):
            raise MissingNameError(f"a RunningRun has no {name!r}; {nearest(name, dir(Run))}")
        return getattr(self.run, name)

    def __fspath__(self) -> str:
        """So that it is taken wherever the path of a run is."""
        return str(self.path)

    @cached_property
    def _follower(self) -> RunFollower:
        """For whoever asks from a cell; a view that draws in a thread has its own."""
        return RunFollower(self.path)

    @property
    def status(self) -> Status:
        """How it stands now: state, step, phase, elapsed time, what went wrong."""
        self._follower.read()
        return self.status_of(self._follower)

    def status_of(self, follower: RunFollower) -> Status:
        """The same by what somebody who follows the run has read already."""
        ended = self.process is None or self.process.ended()
        status = None if self.process is None else self.process.status
        if ended:
            follower.read()  # what it wrote between the last look and its end
        state = (
            "running"
            if not ended
            else ending(follower, status, self._asked.is_set(), last_line(self.path))
        )
        if state == "running" and self._asked.is_set():
            state = "stopping"
        steps = follower.steps if follower.steps is not None else self.planned
        return Status(
            self.path.name,
            state,
            follower.step,
            steps,
            follower.phase(),
            elapsed(self.path, follower, ended),
            tuple(problems(self.path, follower, state, status)),
            follower.idle(),
            lint_words(self.run) if ended and follower.rows else "",
        )

    @property
    def log(self) -> View:
        """The end of what its process printed."""
        return text_view(
            log_end(self.path, 4 * LOG_SHOWN) or "nothing yet",
            title=f"the end of {self.path.name}.log",
        )

    def _ipython_display_(self) -> None:
        """Curves with baselines, state and problems, followed by a thread: the kernel stays free. Where nobody looks (papermill,
        nbclient) it is a picture that `wait` brings up to date."""
        view = LiveView(WatchedRun(self))
        self._views.append(view)
        view._ipython_display_()

    def wait(self, step: int | None = None) -> Run:
        """Block until it ends, or until `step` is committed, with a progress line; a run that was stopped is returned
        as far as it came. Raises LearnerError with the end of its log if it failed.

        An interrupt (Ctrl-C, or the kernel's stop button) ends the waiting, not the run.
        """
        with progress(self.planned, self.path.name) as bar:
            try:
                self._follower.read()
                bar.found(self._follower.step)
                follow(bar, self._follower, self.planned)
                while not self._over(step) and not self.process.ended(LOOK_S):
                    follow(bar, self._follower, self.planned)
            except KeyboardInterrupt:
                bar.close("no longer waited for; the run goes on until it is done, or .stop()")
                raise
            follow(bar, self._follower, self.planned)
            status = self.status
            bar.close("" if status.state in ("done", "running") else status.state)
        for view in self._views:
            view.draw()
        if status.state in ("failed", "ended"):
            raise LearnerError(
                f"the run in {self.path} ended at step {status.step} of {status.steps}: "
                f"{status.problems[-1]}\n\nThe end of {self.path.name}.log:\n"
                f"{log_end(self.path, LOG_SHOWN) or '(it is empty)'}"
            )
        return self.run

    def _over(self, step: int | None) -> bool:
        return self.process is None or (step is not None and self._follower.step >= step)

    def stop(self, *, kill_after_s: float | None = None) -> None:
        """Ask it to end (SIGTERM): it abandons the step under way, committed steps stay. Returns at once; `wait` waits.

        A second call kills it, and so does `kill_after_s` seconds without an end (this call waits for them). That loses
        no committed step either (invariant 14).
        """
        if self.process is None or self.process.ended():
            return
        if self._asked.is_set():
            return self.process.kill()
        self._asked.set()
        self.process.ask()
        if kill_after_s is not None and not self.process.ended(kill_after_s):
            self.process.kill()

    def __repr__(self) -> str:
        return f"<{self.status}>"


class WatchedRun:
    """A run that trains or has trained, as a live view follows it: with a follower of its own, since it reads in a thread."""

    def __init__(self, running: RunningRun) -> None:
        self._running = running
        self._follower = RunFollower(running.path)
        self.stop = running.stop

    def ended(self, within_s: float = 0.0) -> bool:
        return self._running.process is None or self._running.process.ended(within_s)

    def moment(self) -> LiveState:
        status = self._status()
        rows = self._follower.rows
        evaluations = self._follower.evaluations
        return LiveState(
            status,
            (self._follower.version, status.state, status.phase, status.problems),
            lambda: {"panels": live_panels(rows, evaluations)},
            lambda hint, drawn: live_view(status, rows, evaluations, hint=hint, drawn=drawn),
            f"wb.attach({str(self._running.path)!r}) follows the run, which needs no notebook",
            "Stop" if status.state == "running" else "Force stop",
        )

    def _status(self) -> Status:
        """How the run stands. One that cannot be read has failed, and the reason is shown."""
        follower = self._follower
        try:
            follower.read()
            status = self._running.status_of(follower)
        except StoreError as error:
            name = self._running.path.name
            return Status(name, "failed", follower.step, follower.steps, "", None, (str(error),))
        if status.running and status.elapsed_s is not None:
            status = replace(status, elapsed_s=COARSE_S * (status.elapsed_s // COARSE_S))
        return status


# ------------------------------------------------------------------------------------------------ starting, attaching


def fresh_path(path: str | Path) -> Path:
    """`path`, or `path-2`, `path-3` ... if it is taken: a run is never overwritten."""
    path = with_name(path)
    if not path.name:
        raise DataError(f"a run's folder needs a name, such as 'runs/first'; got {str(path)!r}")
    number = 2
    free = path
    while free.exists() or Path(f"{free}.log").exists():
        free = path.with_name(f"{path.name}-{number}")
        number = number + 1
    return free


def train(config: Config, path: str | Path, *, outlives: bool = True) -> RunningRun:
    """Start training in a process of its own and return at once; `.wait()` gives the finished `Run`.

    Not `outlives`: it is asked to stop once the thread that calls this is gone, also by a kill (Linux). Raises
    StoreError where the run exists or is being trained already, and where nothing can be written; ConfigError where that
    process could not import what the config names, and where a first prompt leaves no room for an answer.
    """
    path = Path(path)
    _refuse_existing(path)
    refuse_elsewhere(config)
    with _claimed(path) as log:
        _refuse_existing(path)  # somebody else's may have come, and ended, since
        settings = path.parent / f"{path.name}.config.json"
        # one may lie there of a failed try, and so may its log
        write_file(settings, json.dumps(to_dict(config), indent=1).encode(), replace=True)
        log.truncate(0)
        words = ["train", str(settings), "--out", str(path)]
        return _start(words, path, config.train.steps, log, outlives)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise StoreError(
            f"{path} exists; a run is never overwritten. Choose another name, or remove the folder"
        )


def resume(
    path: str | Path,
    settings: Mapping[str, Any] = {},
    *,
    trust: bool = False,
    accept_changed_code: bool = False,
) -> RunningRun:
    """Go on with a run that was killed or stopped, in a process of its own, and return at once.

    `settings`: what may be changed on the way, by dotted name: `resume("runs/first", {"train.steps": 60})`. A run that
    is complete is left as it is. `trust`, `accept_changed_code`: as in `resume_here`. Raises StoreError where there is no
    such run or a process is still at it, ConfigError for a setting that cannot be changed.
    """
    from workbench.training.resume import resumption

    path = Path(path)
    plan = resumption(path, settings, trust=trust, accept_changed_code=accept_changed_code)
    words = {
        name: new if isinstance(new, str) else json.dumps(new)
        for name, (_, new) in plan.changed.items()
    }
    arguments = [f"--set={name}={word}" for name, word in words.items()]
    arguments += ["--trust"] * trust + ["--accept-changed-code"] * accept_changed_code
    with _claimed(path) as log:
        return _start(["resume", str(path), *arguments], path, plan.config.train.steps, log)


def attach(path: str | Path) -> RunningRun:
    """The handle on a run that was started earlier: by a kernel that is gone, by another notebook, by a terminal.

    Its process is the one that `train` noted, if that very process is still alive (its id may belong to another one by
    now), else the one that holds the run's lock. A run whose process has ended is given back all the same, to look at.
    Raises StoreError where there is no such run, or where this machine or process is not the one to ask.
    """
    path = Path(path)
    noted = _noted(path)
    if noted is None and not path.is_dir():
        open_run(path)  # says that there is none, and what to do
    who = (
        None
        if noted is None or noted.machine != socket.gethostname() or identity(noted.pid) != noted
        else noted
    )
    who = who or writer_of(path)
    if who is not None and who.machine != socket.gethostname():
        raise StoreError(
            f"{path} is being trained by process {who.pid} on machine {who.machine}; attach there. "
            "`learning_curves_view` shows it from here"
        )
    if who is not None and who.pid == os.getpid():
        raise StoreError(
            f"{path} is being written by this very process; there is no other to attach to"
        )
    if path.is_dir():
        open_run(path)
    return RunningRun(path, Process.find(who))


@contextmanager
def _claimed(path: Path) -> Iterator[IO[bytes]]:
    """The run's log, open and locked: meanwhile nobody else starts a process for it, also where it has no folder yet.

    A claim ends with whoever made it, so a stale one cannot exist. Raises StoreError where a process is at the run or
    just being started, and where nothing can be written beside it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{path}.log", "ab", buffering=0) as log:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"{path} is being started by somebody else just now; attach({str(path)!r}) gives its "
                    "handle in a moment, or choose another name"
                ) from None
            try:
                before = attach(path).process if path.is_dir() else Process.find(_noted(path))
                if before is not None and not before.ended():
                    raise StoreError(
                        f"{path} is being trained by process {before.who.pid}; attach({str(path)!r}) "
                        "gives its handle: stop it or wait for it first, or choose another name"
                    )
                yield log
            finally:
                fcntl.flock(
                    log, fcntl.LOCK_UN
                )  # told: the child's output is a copy of it and would keep the lock
    except OSError as error:
        raise StoreError(
            f"{path} was not started: {error}. Its log and settings are written beside it; choose a place "
            "that you may write to and that has room"
        ) from error


def _start(
    arguments: list[str], path: Path, steps: int | None, log: IO[bytes], outlives: bool = True
) -> RunningRun:
    """One `workbench` command in a session of its own, so that no signal to the kernel reaches it. The log begins with
    it: what an earlier process said last is not said by this one. A process that cannot be noted is not left running:
    nobody could find it again."""
    log.write(f"{PROMPT}{' '.join(arguments)}\n".encode())
    child = subprocess.Popen(
        [sys.executable, SAFE, "-m", "workbench.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=_environment(),
        preexec_fn=None if outlives else partial(_end_with, os.getpid()),
    )
    try:
        process = Process.of_child(child)
        write_file(process_file(path), json.dumps(asdict(process.who)).encode(), replace=True)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    return RunningRun(path, process, steps)


def _end_with(parent: int) -> None:
    """In a child: it gets a SIGTERM where the thread that started it is gone."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def _environment() -> dict[str, str]:
    """Ours, but its progress goes into a log: a notebook's way of showing it is not for there. It looks for modules where
    this process does, so that code by name which was imported here is found there."""
    asked = os.environ.get("WORKBENCH_PROGRESS")
    own = str(Path(__file__).resolve().parents[3])
    added = [
        entry
        for entry in (*sys.path, own)
        if entry and not entry.startswith((sys.prefix, sys.base_prefix))
    ]
    return {
        **os.environ,
        "WORKBENCH_PROGRESS": "quiet" if asked == "quiet" else "terminal",
        "PYTHONPATH": os.pathsep.join(
            dict.fromkeys([*added, *filter(None, [os.environ.get("PYTHONPATH")])])
        ),
    }


def _noted(path: Path) -> Identity | None:
    """The process that was started for a run; None where no (readable) note says so."""
    try:
        return Identity(**parse_json(read_regular(process_file(path), most=MOST_SETTINGS_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
