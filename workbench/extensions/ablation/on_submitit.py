"""Jobs as processes of this machine, or as jobs of SLURM: both are sent and fetched by submitit."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import submitit

from workbench.basics.beside import PYTHON, look_here
from workbench.extensions.ablation.gpus import gpus_here
from workbench.extensions.ablation.jobs import (
    AFTERLIFE_S,
    OFFLINE,
    ONE_THREAD,
    SLURM,
    VISIBLE,
    Lost,
    do_assigned,
)
from workbench.run.processes import Identity, identity
from workbench.run.writer import make_folder, remove_file
from workbench.values.errors import ConfigError, WorkbenchError

POLL_S = 0.1
QUEUE_POLL_S = 5.0
LATE_S = 15.0  # how long a result may need from another machine's disk to this one
DAY = 24 * 60  # minutes
YEAR = 365 * 24 * 60
WATCH_S = 0.5  # between two looks of a process for the one that sent it
CANCEL_S = 10.0  # within which a killed process has ended


class _Submitit:
    """What both have in common: a call is pickled into a folder, and so is what it returned.

    executor: of submitit.
    folder: of its files; a job's are removed once its outcome is known.
    """

    executor: Any
    folder: Path

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing is held."""

    def outcome(self, job: submitit.Job) -> Any:
        if not job.paths.result_pickle.exists():
            outcome: Any = Lost(self._why(job))
        elif (error := job.exception()) is None:
            outcome = job.result()
        else:
            raise WorkbenchError(f"a job ended with an error of its own:\n{error}") from error
        # Ids of processes are used again: what is left of this job must not become another's.
        for path in self.folder.glob(f"{job.job_id}_*"):
            remove_file(path)
        return outcome

    def _why(self, job: submitit.Job) -> str:
        raise NotImplementedError


class LocalProcesses(_Submitit):
    """Processes of one thread each, which end with this one, however that ends.

    gpus_per_job: that no other of these jobs has; with 0 a job sees none.
    """

    def __init__(self, _: Path, name: str, gpus_per_job: int, options: Mapping[str, Any]):
        self._files = tempfile.TemporaryDirectory(prefix="jobs-", ignore_cleanup_errors=True)
        self.folder = Path(self._files.name)
        self.executor = submitit.LocalExecutor(self.folder, python=PYTHON)
        self.executor.update_parameters(timeout_min=YEAR)
        self.gpus_per_job = gpus_per_job
        self._free_gpus = list(gpus_here()) if gpus_per_job else []
        self._given: dict[str, list[str]] = {}  # id of a job -> its GPUs
        os.environ.update(ONE_THREAD | OFFLINE)  # what the processes begin with

    def __exit__(self, *_: Any) -> None:
        self._files.cleanup()

    def submit(self, do: Callable[..., Any], *arguments: Any) -> submitit.Job:
        given = [self._free_gpus.pop(0) for _ in range(self.gpus_per_job)]
        job = self.executor.submit(do_beside, identity(os.getpid()), given, do, *arguments)
        self._given[job.job_id] = given
        return job

    def ended(self, jobs: Collection[submitit.Job]) -> Sequence[submitit.Job]:
        time.sleep(POLL_S)
        return [job for job in jobs if job.done()]

    def outcome(self, job: submitit.Job) -> Any:
        outcome = super().outcome(job)
        if isinstance(outcome, Lost):
            time.sleep(AFTERLIFE_S)  # what it had started may still be on its GPUs
        self._free_gpus += self._given.pop(job.job_id)
        return outcome

    def cancel(self, jobs: Collection[submitit.Job]) -> None:
        family: list[psutil.Process] = []
        for controller in (psutil.Process(int(job.job_id)) for job in jobs if not job.done()):
            family += [controller, *controller.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=CANCEL_S)

    def _why(self, job: submitit.Job) -> str:
        return "its process was killed, perhaps for want of memory"


def do_beside(
    sender: Identity, gpus: Sequence[str], do: Callable[..., Any], *arguments: Any
) -> Any:
    """Call a function in a process of submitit, on these GPUs, which ends within a second once its sender is gone."""
    os.environ[VISIBLE] = ",".join(gpus)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent and identity(sender.pid) == sender:
            time.sleep(WATCH_S)
        os._exit(1)  # what is under way is abandoned; what was committed stays

    threading.Thread(target=watch, daemon=True).start()
    look_here()
    return do(*arguments)


class Slurm(_Submitit):
    """Jobs of SLURM; `options`: submitit's own, such as slurm_partition or timeout_min."""

    def __init__(self, folder: Path, name: str, gpus_per_job: int, options: Mapping[str, Any]):
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "--on slurm: expected SLURM's commands (sbatch, squeue, scancel) on this machine, and there is no "
                "sbatch; call it where jobs are sent from, or --on local"
            )
        make_folder(folder)
        self.folder = folder
        self.gpus_per_job = gpus_per_job
        self.executor = submitit.AutoExecutor(folder, cluster=SLURM, slurm_python=PYTHON)
        parameters: dict[str, Any] = {"name": name, "timeout_min": DAY, "cpus_per_task": 1}
        if gpus_per_job:
            parameters["gpus_per_node"] = gpus_per_job
        try:
            self.executor.update_parameters(**parameters | dict(options))
        except (NameError, TypeError, ValueError) as error:
            raise ConfigError(
                f"--launch: submitit does not take {dict(options)}: {error}"
            ) from error
        self._queued_at: dict[str, float] = {}  # id of a job -> when SLURM was last seen to have it
        self._asked_at = time.monotonic()

    def submit(self, do: Callable[..., Any], *arguments: Any) -> submitit.Job:
        job = self.executor.submit(do_assigned, self.gpus_per_job, SLURM, do, *arguments)
        self._queued_at[job.job_id] = time.monotonic()
        return job

    def ended(self, jobs: Collection[submitit.Job]) -> Sequence[submitit.Job]:
        """Those with a result, and those that left the queue a while ago. SLURM's accounting, which submitit would ask,
        is not everywhere."""
        time.sleep(POLL_S)
        now = time.monotonic()
        if now - self._asked_at > QUEUE_POLL_S:
            self._asked_at = now
            self._queued_at |= dict.fromkeys(_queued([job.job_id for job in jobs]), now)
        return [
            job
            for job in jobs
            if job.paths.result_pickle.exists() or now - self._queued_at[job.job_id] > LATE_S
        ]

    def cancel(self, jobs: Collection[submitit.Job]) -> None:
        if not jobs:
            return
        command = ["scancel", *(job.job_id for job in jobs)]
        try:
            subprocess.run(command, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            raise WorkbenchError(
                f"what was sent to SLURM could not be taken back: {error}; scancel it"
            ) from error

    def _why(self, job: submitit.Job) -> str:
        return (
            f"SLURM's job {job.job_id} ended without a word: it was cancelled, out of time or memory, or its machine "
            "went down"
        )


def _queued(names: Collection[str]) -> Collection[str]:
    """The ids of the jobs that SLURM has, waiting or running; these names where it does not answer."""
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return names
    return listed.stdout.split()
