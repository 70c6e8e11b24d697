"""One arm at one seed, in this process: a notebook, a run folder, and a small file that says how it ended.

    OUT/jobs/ARM-seedN-KEY.json           how it ended; here so that a failed arm is shown as failed
    OUT/notebooks/ARM-seedN-KEY.ipynb     the notebook as it was run
    OUT/runs/ARM-seedN-KEY-CODE           the run folder: everything the table says is read from it (law 13)

KEY hashes the configuration, CODE the source of the package: a run never goes on under other code. A job that was cut
off goes on from its run folder; one that is done with the same configuration and code is not done again. The result of
a notebook of the user's own is read from that notebook, once, when it ends."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from workbench.ablation.cell import result_in
from workbench.ablation.leases import Lease, newest_in
from workbench.ablation.notebooks import ERROR, Failure, run_notebook
from workbench.ablation.plan import Job, Plan, config_of, key_of, notebook_of, parameters_of
from workbench.run.store import open_run
from workbench.run.writer import make_folder, write_file
from workbench.types.canonical_json import read_sealed_json, sealed_json
from workbench.types.errors import WorkbenchError
from workbench.types.fingerprint import code_fingerprint

KIND, VERSION = "ablation-job", 1


def ended(plan: Plan, job: Job, out: Path) -> dict[str, Any] | None:
    """How a job ended, by whatever code: {"code", "cpu_seconds", "notebook", "tries"} and "run", "result" (of an own
    notebook) or "failed" with "state" and "cell". None: not at all."""
    path = record_of(plan, job, out)
    return read_sealed_json(path, kind=KIND, version=VERSION) if path.is_file() else None


def finished(plan: Plan, job: Job, out: Path) -> dict[str, Any] | None:
    """The same for a job that came to its end with today's code, and whose run is still there; else None."""
    found = ended(plan, job, out)
    return found if found is not None and is_finished(found, out) else None


def is_finished(found: dict[str, Any], out: Path) -> bool:
    if "failed" in found or found["code"] != code_fingerprint():
        return False
    return "result" in found or (out / "runs" / found["run"]).is_dir()


def do(
    job: Job,
    plan: Plan,
    out: Path,
    cwd: Path,
    cell_limit_s: float | None = None,
    leased: bool = False,
) -> dict[str, Any]:
    """Run a job now and write down how it ended. What is wrong with an arm is its result, {"failed": words}.

    `leased`: its driver holds the newest lease of the job; where that was lost meanwhile nothing is written: whoever
    took it over does the job, {"elsewhere": words}."""
    name, before = name_of(plan, job), _cpu_seconds()
    lease = Lease(newest) if leased and (newest := newest_in(out / "jobs", name)) else None
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
        found = _found(plan, job, out / facts["notebook"], run) if failed is None else failed
    except WorkbenchError as error:
        found = Failure(ERROR, f"{type(error).__name__}: {error}")
    if leased and (lease is None or not lease.is_held()):
        return {"elsewhere": "another driver took it over"}
    tries = (ended(plan, job, out) or {}).get("tries", 0) + 1
    facts |= (
        {"failed": f"{found}", "state": found.state, "cell": found.cell}
        if isinstance(found, Failure)
        else found
    )
    facts |= {"cpu_seconds": _cpu_seconds() - before, "tries": tries}
    path = record_of(plan, job, out)
    make_folder(path.parent)
    write_file(path, sealed_json(facts, kind=KIND, version=VERSION), replace=True)
    return facts


def _found(plan: Plan, job: Job, notebook: Path, run: Path) -> dict[str, Any] | Failure:
    """What a notebook that came to its end has to show for it."""
    if plan.notebook:
        return {"result": result_in(notebook)}
    from workbench.training.resume import (
        is_complete,
    )  # it needs torch, which planning and listing do not

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
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
