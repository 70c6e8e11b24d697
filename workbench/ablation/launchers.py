"""Jobs on other machines, by engines that know how: SLURM through submitit, Ray. Neither decides here what runs when.

Each job of the grid is a job of theirs. It claims itself, by the same lease as everywhere, when it begins: so a driver
may be killed, and several may send the same job, and it is done once. A job that its engine lost is sent again.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.ablation import work
from workbench.ablation.gpus import check_assigned
from workbench.ablation.leases import Leases
from workbench.ablation.plan import Job, Plan
from workbench.ablation.pool import OFFLINE, ONE_THREAD
from workbench.types.errors import ConfigError

MOST_LOSSES = 3  # of one job, by one driver: a job that ends its machine each time is not sent for ever
AT_ONCE = 64  # jobs, unless something else is asked for
LOCAL, SLURM, RAY = "local", "slurm", "ray"


@dataclass(frozen=True)
class SentJob:
    """A job as it is sent. `tries`: of its record when it was sent; `over`: the number of the lease that its driver found
    abandoned, 0: nobody held it."""

    job: Job
    tries: int = 0
    over: int = 0


@dataclass(frozen=True)
class WhereJobsRun:
    """What a sent job needs to know: of which plan, where, how long a cell may take, GPUs, and by what it is done."""

    plan: Plan
    out: Path
    cwd: Path
    cell_limit_s: float | None
    gpus: int
    by: str
    do: Callable[..., dict[str, Any]] = work.do


def do_sent(sent: SentJob, where: WhereJobsRun) -> dict[str, Any]:
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


Launcher = Callable[[Iterable[SentJob], WhereJobsRun, int, Mapping[str, str], Callable[[], bool]],
                    Iterator[tuple[SentJob, dict[str, Any]]]]


def launcher_named(on: str) -> Launcher:
    """What sends jobs there: (jobs, where, how many at once, its own options, is it over?) -> (job, result), as they
    end; {"lost": words} for one that ended without a word. ConfigError where its package is missing."""
    try:
        if on == SLURM:
            from workbench.ablation.on_slurm import each_on_slurm as found
        elif on == RAY:
            from workbench.ablation.on_ray import each_on_ray as found
        else:
            raise ConfigError(f"jobs run on {LOCAL}, {SLURM} or {RAY}, got {on!r}")
    except ImportError as error:
        raise ConfigError(f"--on {on} needs a package that is not installed: pip install 'agent-rl-workbench[{on}]' "
                          f"({error})") from error
    return found
