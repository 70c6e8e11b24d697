"""One arm at one seed, in this process: a notebook, a run folder, and a small file that says how it ended.

    OUT/jobs/ARM-seedN-KEY.json           how it ended; here so that a failed arm is shown as failed
    OUT/locks/ARM-seedN-KEY               held by the one process that does it
    OUT/notebooks/ARM-seedN-KEY.ipynb     the notebook as it was run
    OUT/runs/ARM-seedN-KEY-CODE           the run folder: everything the table says is read from it (invariant 13)

KEY hashes the configuration, CODE the source of the package: a run never goes on under other code. A job that was cut
off goes on from its run folder; one that is done with the same configuration and code is not done again. The result of
a notebook of the user's own is read from that notebook, once, when it ends."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.basics.canonical_json import read_sealed_json, sealed_json
from workbench.basics.fingerprint import code_fingerprint
from workbench.extensions.ablation.cell import result_in, result_said
from workbench.extensions.ablation.jobs import AFTERLIFE_S
from workbench.extensions.ablation.notebooks import ERROR, Failure, run_notebook
from workbench.extensions.ablation.plan import (
    Job,
    Plan,
    config_of,
    key_of,
    notebook_of,
    parameters_of,
)
from workbench.run.shapes import shaped
from workbench.run.store import open_run
from workbench.run.writer import FolderLock, claim_file, make_folder, remove_file, write_file
from workbench.values.errors import DataError, StoreError, WorkbenchError

KIND = "ablation-job"
VERSION = 1
LOCKS = "locks"
BUSY = "busy"
FOLDERS = ("jobs", LOCKS, "notebooks", "runs", "sent")
LONGEST_S = 1e12  # CPU seconds of a job
_RESULT = {
    "measure": str,
    "per_task": [float],
    "numbers": {"*": float},
    "curves": {"*": [float]},
    "run": (str, None),
}
RECORD = {
    "code": str,
    "cpu_seconds": float,
    "notebook": str,
    "tries": int,
    "run?": str,
    "result?": _RESULT,
    "failed?": str,
    "state?": str,
    "cell?": str,
}


def ended(plan: Plan, job: Job, out: Path) -> dict[str, Any] | None:
    """How a job ended, by whatever code: {"code", "cpu_seconds", "notebook", "tries"} and "run", "result" (of an own
    notebook) or "failed" with "state" and "cell". None: not at all. Raises StoreError for a record that no job wrote."""
    path = record_of(plan, job, out)
    if not path.is_file():
        return None
    facts = read_sealed_json(path, kind=KIND, version=VERSION)
    try:
        return checked_record(facts, path)
    except (StoreError, DataError) as error:
        raise StoreError(f"{error}; or remove {path}, and the job is done again") from error


def checked_record(facts: Any, path: Path) -> dict[str, Any]:
    """What a record says, as far as a job could have written it: its seal anybody can make. Raises StoreError and
    DataError."""
    shaped(facts, RECORD, path, "the record of a job")
    if not facts.keys() & {"run", "result", "failed"}:
        raise StoreError(f"{path} does not say how its job ended; restore the file from a copy")
    if not 0 <= facts["cpu_seconds"] < LONGEST_S:
        raise StoreError(f"{path} has {facts['cpu_seconds']} CPU seconds, which no job takes")
    if Path(facts.get("run", "")).name != facts.get("run", ""):
        raise StoreError(f"{path} names a run that lies elsewhere: {facts['run']!r:.80}")
    if "result" in facts:
        result_said(facts["result"])
    return facts


def check_folders(out: Path) -> None:
    """Raise StoreError for a folder of a grid that is a link: what is written through it is somebody else's."""
    links = [name for name in FOLDERS if (out / name).is_symlink()]
    if links:
        raise StoreError(
            f"{out / links[0]} is a symbolic link, and a grid is written below its own folder only: put the whole "
            "folder where there is room, and name it by --out"
        )


def finished(plan: Plan, job: Job, out: Path) -> dict[str, Any] | None:
    """The same for a job that came to its end with today's code, and whose run is still there; else None."""
    facts = ended(plan, job, out)
    return facts if facts is not None and is_finished(facts, out) else None


def is_finished(facts: dict[str, Any], out: Path) -> bool:
    if "failed" in facts or facts["code"] != code_fingerprint():
        return False
    return "result" in facts or (out / "runs" / facts["run"]).is_dir()


def do(
    job: Job, plan: Plan, out: Path, cwd: Path, cell_limit_s: float | None = None
) -> dict[str, Any]:
    """Run a job now and write down how it ended. What is wrong with an arm is its result, {"failed": words}."""
    name = name_of(plan, job)
    before = _cpu_seconds()
    facts: dict[str, Any] = {"code": code_fingerprint(), "notebook": f"notebooks/{name}.ipynb"}
    run = out / "runs" / f"{name}-{code_fingerprint()}"
    try:
        failed = run_notebook(
            notebook_of(plan),
            out / facts["notebook"],
            cwd=cwd,
            cell_limit_s=cell_limit_s,
            parameters=parameters_of(plan, job, run),
        )
        outcome = failed or _outcome(plan, job, out / facts["notebook"], run)
    except WorkbenchError as error:
        outcome = Failure(ERROR, f"{type(error).__name__}: {error}")
    tries = (ended(plan, job, out) or {}).get("tries", 0) + 1
    if isinstance(outcome, Failure):
        outcome = {"failed": f"{outcome}", "state": outcome.state, "cell": outcome.cell}
    facts |= outcome
    facts |= {"cpu_seconds": _cpu_seconds() - before, "tries": tries}
    path = record_of(plan, job, out)
    make_folder(path.parent)
    write_file(path, sealed_json(facts, kind=KIND, version=VERSION), replace=True)
    return facts


@dataclass(frozen=True)
class SentJob:
    """A job as it is sent to whatever does it.

    tries: of its record when it was sent.
    """

    job: Job
    tries: int = 0


@dataclass(frozen=True)
class JobPlace:
    """What a sent job needs to know.

    plan, out: which plan, and its folder.
    cwd: the working directory of its kernel.
    cell_limit_s: wall seconds that a cell may take.
    do: what does a job.
    """

    plan: Plan
    out: Path
    cwd: Path
    cell_limit_s: float | None = None
    do: Callable[..., dict[str, Any]] = do


def do_alone(sent: SentJob, where: JobPlace) -> dict[str, Any]:
    """Do a job while no other process does it. One that was killed behind its record, or that an earlier driver had
    sent, may have done it meanwhile: then that is how the job ended, and it is not done twice."""
    check_folders(where.out)
    with _held(where.out / LOCKS / name_of(where.plan, sent.job)):
        before = ended(where.plan, sent.job, where.out)
        if before is not None and before["tries"] != sent.tries:
            return before
        return where.do(sent.job, where.plan, where.out, where.cwd, where.cell_limit_s)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder, which is waited for. Where its last holder was killed, what that had started is given time to end."""
    if folder.is_symlink():
        raise StoreError(f"{folder} is a symbolic link; remove it, and the job is done")
    make_folder(folder)
    lock = FolderLock(folder, wait=True)
    try:
        if not claim_file(folder / BUSY, b""):
            time.sleep(AFTERLIFE_S)
        yield
        remove_file(folder / BUSY)
    finally:
        lock.release()


def _outcome(plan: Plan, job: Job, notebook: Path, run: Path) -> dict[str, Any] | Failure:
    """What a notebook that came to its end has to show for it."""
    if plan.notebook:
        return {"result": result_in(notebook)}
    # It needs torch, which planning and listing do not.
    from workbench.training.resume import is_complete

    if not (run.is_dir() and is_complete(open_run(run), config_of(plan, job))):
        return Failure(ERROR, f"the notebook ended, but {run.name} is not a complete run")
    return {"run": run.name}


def name_of(plan: Plan, job: Job) -> str:
    """Of a job's files."""
    return f"{job.name}-{key_of(plan, job)}"


def record_of(plan: Plan, job: Job, out: Path) -> Path:
    return out / "jobs" / f"{name_of(plan, job)}.json"


def _cpu_seconds() -> float:
    """Of this process and of those that it waited for: the kernel is one of them."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
