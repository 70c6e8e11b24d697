"""A job of a grid as it is sent to another machine, and what is done with it there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.ablation import work
from workbench.ablation.gpus import check_assigned
from workbench.ablation.leases import Leases
from workbench.ablation.plan import Job, Plan
from workbench.ablation.pool import OFFLINE, ONE_THREAD


@dataclass(frozen=True)
class RemoteJob:
    """A job as it is sent. `tries`: of its record when it was sent; `over`: the number of the lease that its driver found
    abandoned, 0: nobody held it."""

    job: Job
    tries: int = 0
    over: int = 0


@dataclass(frozen=True)
class JobPlace:
    """What a sent job needs to know: of which plan, where, how long a cell may take, GPUs, and by what it is done."""

    plan: Plan
    out: Path
    cwd: Path
    cell_limit_s: float | None
    gpus: int
    by: str
    do: Callable[..., dict[str, Any]] = work.do


def do_sent(sent: RemoteJob, where: JobPlace) -> dict[str, Any]:
    """On the machine that runs it: claim the job, do it, give it back. {"elsewhere": words} where it is another's, or
    was done meanwhile."""
    os.environ.update(ONE_THREAD | OFFLINE)
    check_assigned(where.gpus, where.by)
    name = work.name_of(where.plan, sent.job)
    with Leases(where.out / "jobs") as leases:
        if leases.take(name, sent.over) is None:
            return {"elsewhere": "another driver does it"}
        if (work.ended(where.plan, sent.job, where.out) or {}).get("tries", 0) != sent.tries:
            return {"elsewhere": "it was done meanwhile"}
        return where.do(sent.job, where.plan, where.out, where.cwd, where.cell_limit_s, True)
