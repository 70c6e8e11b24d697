"""A run that trains in a process of its own, and the handle a notebook has on it.

The kernel never becomes a rank: what it holds is a folder and a process id. So a restart of the kernel, a notebook that
is closed and a cell that is interrupted do not touch the training.
"""
from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workbench.cells.watch import follow
from workbench.config import Config, to_dict
from workbench.errors import LearnerError, StoreError
from workbench.store import Run, open_run
from workbench.views import progress
from workbench.writer import write_file


@dataclass(frozen=True, eq=False)
class RunningRun:
    """A run that trains in its own process: a kernel never becomes a rank, and its restart does not end the run."""

    path: Path
    process: subprocess.Popen
    steps: int  # that it was asked for

    @property
    def run(self) -> Run:
        """What is committed so far."""
        return open_run(self.path)

    def wait(self) -> Run:
        """Block until it ends, with a progress line; a run that was stopped is returned as far as it came. Raises
        LearnerError with the end of its log if it failed.

        An interrupt (Ctrl-C, or the kernel's stop button) ends the waiting, not the run.
        """
        with progress(self.steps, self.path.name) as bar:
            try:
                while self.process.poll() is None:
                    follow(bar, self.path)
                    with suppress(subprocess.TimeoutExpired):
                        self.process.wait(timeout=0.5)
            except KeyboardInterrupt:
                bar.close("no longer waited for; the run goes on until it is done, or .stop()")
                raise
            follow(bar, self.path)
            stopped, failed = self.process.returncode == -signal.SIGTERM, self.process.returncode != 0
            bar.close("stopped" if stopped else f"failed with status {self.process.returncode}" if failed else "")
        if failed and not stopped:
            log = Path(f"{self.path}.log").read_text(errors="replace")
            raise LearnerError(f"the run in {self.path} ended with status {self.process.returncode}; "
                               f"its log ends:\n{log[-3000:]}")
        return self.run

    def stop(self) -> None:
        """Ask it to end (SIGTERM). Committed steps stay."""
        self.process.terminate()


def fresh_path(path: str | Path) -> Path:
    """`path`, or `path-2`, `path-3` ... if it is taken: a run is never overwritten."""
    path, number = Path(path), 2
    free = path
    while free.exists() or Path(f"{free}.log").exists():
        free, number = path.with_name(f"{path.name}-{number}"), number + 1
    return free


def train(config: Config, path: str | Path) -> RunningRun:
    """Start training in a process of its own and return at once; `.wait()` gives the finished `Run`."""
    path = Path(path)
    if path.exists():
        raise StoreError(f"{path} exists; a run is never overwritten. Choose another name, or remove the folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = path.parent / f"{path.name}.config.json"
    # one may lie there of a failed try
    write_file(settings, json.dumps(to_dict(config), indent=1).encode(), replace=True)
    with open(f"{path}.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "workbench.cli", "train", str(settings), "--out", str(path)],
                                   stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    return RunningRun(path, process, config.train.steps)
