"""What is installed, which engines and devices work here, and what to do about the rest: `workbench doctor`.

Nothing is believed because it is installed: engines sample from a toy model, devices multiply, two processes add up a
number (`probes`, each run in a process of its own by `trials`). Standard library only up to there: this page must open
where nothing else does.

    report   findings, and how they show        packages   versions, ranges, safety floors
    trials   runs the probes                    machine    threads, disk, browser
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from workbench.extensions.doctor import machine
from workbench.extensions.doctor.packages import (
    installed_versions,
    package_findings,
    read_requirements,
)
from workbench.extensions.doctor.report import AREAS, MachineFact, Report
from workbench.extensions.doctor.trials import (
    probes_to_run,
    run_probe,
    training_absent,
    vllm_absent,
)

__all__ = ["MachineFact", "Report", "doctor"]


def doctor(policy: str | None = None) -> Report:
    """Look and try, in about ten seconds. `policy`: also try the embedded engine on this model (name or path)."""
    load = os.getloadavg()[0]  # before the trials add to it
    with ThreadPoolExecutor(2) as pool:
        jobs = {name: pool.submit(run_probe, name) for name in probes_to_run()}
        if policy is not None:
            jobs["policy"] = pool.submit(run_probe, "policy", policy)
        probed = {name: job.result() for name, job in jobs.items()}
    requirements = read_requirements()
    findings = [
        machine.python(),
        *package_findings(requirements, installed_versions(requirements)),
        *chain.from_iterable(probed.values()),
        *training_absent(),
        *vllm_absent(probed.get("devices", [])),
        *machine.threads(machine.usable_cores(), os.environ.get("OMP_NUM_THREADS"), load),
        machine.disk(Path.cwd()),
        machine.durable_writes(Path.cwd()),
        machine.shipped_policies(),
        machine.browser(),
    ]
    return Report(tuple(sorted(findings, key=lambda finding: AREAS.index(finding.area))))
