"""Jobs of a grid as jobs of SLURM, sent and fetched by submitit (extra `slurm`)."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import submitit

from workbench.ablation.sent import JobPlace, RemoteJob, do_sent
from workbench.run.writer import make_folder
from workbench.types.errors import ConfigError, WorkbenchError

ARRAY = 500  # jobs in one of SLURM's arrays; it takes 1,000 unless it is told otherwise
RESULT_POLL_S, QUEUE_POLL_S = 0.5, 5.0
LATE_S = 15.0  # how long a result may need from another machine's disk to this one
MINUTES = 24 * 60


def each_on_slurm(
    jobs: Iterable[RemoteJob],
    where: JobPlace,
    at_once: int,
    options: Mapping[str, Any],
    is_over: Callable[[], bool],
) -> Iterator[tuple[RemoteJob, dict[str, Any]]]:
    """Send all of them as arrays, of which SLURM runs `at_once` at a time. `options`: submitit's own, such as
    slurm_partition or timeout_min. Once it is over, those that wait are taken from the queue."""
    executor = _executor(where, at_once, options)
    waiting, queue = {}, iter(jobs)
    while portion := list(islice(queue, ARRAY)):
        sent = executor.map_array(do_sent, portion, [where] * len(portion))
        waiting |= dict(zip((one.job_id for one in sent), zip(portion, sent)))
    seen = dict.fromkeys(waiting, time.monotonic())
    asked = time.monotonic()
    try:
        while waiting:
            for name in [
                name for name, (_, job) in waiting.items() if job.paths.result_pickle.exists()
            ]:
                sent, job = waiting.pop(name)
                yield sent, job.result()  # what is wrong in `do_sent` itself is raised here
            if waiting and time.monotonic() - asked > QUEUE_POLL_S:
                asked = time.monotonic()
                if is_over():
                    _cancel(waiting, "--state=PENDING")
                seen |= dict.fromkeys(_queued(waiting), asked)
                yield from _lost(waiting, seen, asked)
            time.sleep(RESULT_POLL_S if waiting else 0)
    except BaseException:
        _cancel(waiting)
        raise


def _executor(where: JobPlace, at_once: int, options: Mapping[str, Any]) -> submitit.AutoExecutor:
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "--on slurm: expected SLURM's commands (sbatch, squeue, scancel) on this machine, and there is no "
            "sbatch; call it where jobs are sent from, or --on local"
        )
    folder = where.out / "sent"
    make_folder(folder)
    executor = submitit.AutoExecutor(folder, cluster="slurm")
    given = {
        "name": where.plan.name,
        "timeout_min": MINUTES,
        "cpus_per_task": 1,
        "slurm_array_parallelism": at_once,
    }
    try:
        executor.update_parameters(
            **given | ({"gpus_per_node": where.gpus} if where.gpus else {}) | dict(options)
        )
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"--launch: submitit does not take {dict(options)}: {error}") from error
    return executor


def _queued(waiting: Mapping[str, Any]) -> list[str]:
    """Those that SLURM still has, waiting or running; all of them where it does not answer."""
    try:
        said = subprocess.run(
            ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return [*waiting]
    return [name for name in waiting if name in {*said}]


def _lost(
    waiting: dict[str, Any], seen: Mapping[str, float], now: float
) -> Iterator[tuple[RemoteJob, dict[str, Any]]]:
    """Those that left the queue and left no result."""
    for name in [
        name
        for name in waiting
        if now - seen[name] > LATE_S and not waiting[name][1].paths.result_pickle.exists()
    ]:
        sent, _ = waiting.pop(name)
        yield (
            sent,
            {
                "lost": f"SLURM's job {name} ended without a word: it was cancelled, out of time or memory, or its machine "
                "went down"
            },
        )


def _cancel(waiting: Mapping[str, Any], *which: str) -> None:
    if waiting:
        try:
            subprocess.run(["scancel", *which, *waiting], capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            raise WorkbenchError(
                f"what was sent to SLURM could not be taken back: {error}; scancel it"
            ) from error
