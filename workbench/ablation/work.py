"""One arm at one seed, in this process: a notebook, a run folder, and a small file that says how it ended.

    OUT/jobs/ARM-seedN-KEY.json           how it ended; here so that a failed arm is shown as failed
    OUT/notebooks/ARM-seedN-KEY.ipynb     the notebook as it was run
    OUT/runs/ARM-seedN-KEY-CODE           the run folder: everything the table says is read from it (law 13)

KEY hashes the configuration, CODE the source of the package: a run never goes on under other code. A job that was cut
off goes on from its run folder; one that is done with the same configuration and code is not done again.
"""
from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from workbench.ablation.notebooks import run_notebook
from workbench.ablation.plan import Job, Plan, config_of, key_of, settings_of, written
from workbench.learn.rounding import code_fingerprint
from workbench.run.store import open_run
from workbench.run.writer import make_folder, write_file
from workbench.training.resume import is_complete
from workbench.types.canonical_json import read_sealed_json, sealed_json
from workbench.types.errors import WorkbenchError

KIND, VERSION = "ablation-job", 1


def ended(plan: Plan, job: Job, out: Path) -> dict[str, Any] | None:
    """How a job ended, by whatever code: {"code", "cpu_seconds", "notebook"} and "run" or "failed". None: not at all.
    """
    path = _record(plan, job, out)
    return read_sealed_json(path, kind=KIND, version=VERSION) if path.is_file() else None


def finished(plan: Plan, job: Job, out: Path) -> dict[str, Any] | None:
    """The same for a job that came to its end with today's code, and whose run is still there; else None."""
    found = ended(plan, job, out)
    done = found is not None and "failed" not in found and found["code"] == code_fingerprint()
    return found if done and (out / "runs" / found["run"]).is_dir() else None


def do(job: Job, plan: Plan, out: Path, notebook: Path, cwd: Path) -> dict[str, Any]:
    """Run a job now and write down how it ended. What is wrong with an arm is its result, {"failed": words}; the next
    call tries it again."""
    name, before = f"{job.name}-{key_of(plan, job)}", _cpu_seconds()
    run = out / "runs" / f"{name}-{code_fingerprint()}"
    facts: dict[str, Any] = {"code": code_fingerprint(), "notebook": f"notebooks/{name}.ipynb"}
    try:
        failed = run_notebook(notebook, out / facts["notebook"], cwd=cwd, parameters={
            "base": plan.arm(job.arm).base, "settings": written(settings_of(plan, job)), "seed": job.seed,
            "out": str(run)})
        if failed is None and not (run.is_dir() and is_complete(open_run(run), config_of(plan, job))):
            failed = f"the notebook ended, but {run.name} is not a complete run"
    except WorkbenchError as error:
        failed = f"{type(error).__name__}: {error}"
    facts |= {"run": run.name} if failed is None else {"failed": failed}
    path = _record(plan, job, out)
    make_folder(path.parent)
    facts["cpu_seconds"] = _cpu_seconds() - before
    write_file(path, sealed_json(facts, kind=KIND, version=VERSION), replace=True)
    return facts


def _record(plan: Plan, job: Job, out: Path) -> Path:
    return out / "jobs" / f"{job.name}-{key_of(plan, job)}.json"


def _cpu_seconds() -> float:
    """Of this process and of those that it waited for: the kernel is one of them."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF,
                                                                                     resource.RUSAGE_CHILDREN)))
