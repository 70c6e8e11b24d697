"""Start a process that follows a run; the one that trains goes on at once and never hears of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from workbench.basics.beside import SAFE
from workbench.extensions.track.trackers import check_tracker
from workbench.look import text_view
from workbench.run.store import Run, open_run
from workbench.values import View
from workbench.values.errors import StoreError


def start_tracking(path: str | os.PathLike, to: str) -> str:
    """Start to send a run that this process is about to make, or goes on with; returns a line of words. Of several processes
    that train together, the first one starts it.

    Raises ConfigError for a tracker that there is not or that is not installed, StoreError where no log can be written.
    """
    if os.environ.get("RANK", "0") != "0":
        return ""
    return _start(Path(path), ["--to", to, "--while-process", str(os.getpid())], to)


def track(
    run: Run | str | os.PathLike,
    to: str,
    *,
    project: str | None = None,
    dest: str | os.PathLike | None = None,
) -> View:
    """Send a run to a tracker, from a process of its own, while it trains and until it ends.

    to: "trackio", "wandb", "mlflow" or "tensorboard". project, dest: as of `workbench track`.

    Returns at once. What went wrong is in the log beside the run; calling it again goes on where it was. Raises ConfigError
    for a tracker that there is not or that is not installed, StoreError where there is no run.
    """
    path = open_run(getattr(run, "path", run)).path
    words = ["--to", to]
    if project is not None:
        words += ["--project", project]
    if dest is not None:
        words += ["--dest", os.fspath(dest)]
    return text_view(_start(path, words, to), title=f"{path.name}, sent to {to}")


def _start(path: Path, words: list[str], to: str) -> str:
    check_tracker(to)
    log_path = Path(f"{path}.track-{to}.log")
    command = [sys.executable, SAFE, "-m", "workbench.cli", "track", str(path), *words]
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(log_path, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(),
            )
    except OSError as error:
        raise StoreError(
            f"{log_path}: {error.strerror}. The tracker's log is written beside the run: choose a place that you "
            "may write to and that has room"
        ) from error
    return f"process {process.pid} sends it to {to}; what it says: {log_path}"


def _environment() -> dict[str, str]:
    """Ours, without what makes a process one of several that train."""
    environment = dict(os.environ)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        environment.pop(name, None)
    return environment
