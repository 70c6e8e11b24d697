"""The machine itself: Python, cores and threads, disk and durable writes, shipped policies, a browser for the tests."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from workbench.basics.digits import whole_in
from workbench.basics.shipped import shipped_folder
from workbench.extensions.doctor.report import MachineFact

LOW_DISK_GB = 3.0

machine_fact = partial(MachineFact, "Machine")


def python() -> MachineFact:
    virtual = sys.prefix != sys.base_prefix or "CONDA_PREFIX" in os.environ
    fact = (
        f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.machine()}"
    )
    version = partial(MachineFact, "Python", "version")
    if not virtual:
        return version(
            "warning", f"{fact}; not in a virtual environment", "`make demo` makes one in .venv"
        )
    return version("ok", fact)


def usable_cores() -> float:
    """Cores this process may really use: its affinity, and the quota of its container."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(allowed, int(quota) / int(period)) if quota != "max" else allowed
    except (OSError, ValueError):
        return allowed


def threads(cores: float, omp_num_threads: str | None, load: float) -> list[MachineFact]:
    """Threads per process against the cores there are, and what else is running (`load`: busy threads)."""
    fact = f"{cores:g} cores usable, OMP_NUM_THREADS={omp_num_threads or 'not set'}"
    wanted = whole_in(omp_num_threads or "") or os.cpu_count() or 1
    if wanted > cores:
        findings = [
            machine_fact(
                "threads",
                "warning",
                f"{fact}: {wanted} threads would share them, and mostly wait",
                f"export OMP_NUM_THREADS={max(1, int(cores))}; 1 is fastest for the tiny policies",
            )
        ]
    else:
        findings = [machine_fact("threads", "ok", fact)]
    if load > cores + 0.5:
        findings.append(
            machine_fact(
                "load",
                "warning",
                f"{load:.1f} busy threads on {cores:g} cores",
                "times measured now will be too long; results stay the same",
            )
        )
    return findings


def disk(folder: Path) -> MachineFact:
    free = shutil.disk_usage(folder).free / 1e9
    return machine_fact(
        "disk",
        "ok" if free >= LOW_DISK_GB else "warning",
        f"{free:.0f} GB free in {folder}",
        "a checkpoint takes about 16 bytes a parameter; old folders in runs/ may be removed",
    )


def durable_writes(folder: Path) -> MachineFact:
    """Whether a run can be written in `folder` the way runs are written: file, fsync, rename."""
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as name:
            with open(Path(name, "a"), "wb") as file:
                file.write(bytes(1 << 16))
                file.flush()
                os.fsync(file.fileno())
            os.rename(Path(name, "a"), Path(name, "b"))
    except OSError as error:
        return machine_fact(
            "durable writes",
            "broken",
            f"cannot write in {folder}: {error}",
            "change to a folder that can be written, or name one with --out",
        )
    return machine_fact(
        "durable writes",
        "ok",
        f"write, fsync, rename: {1e3 * (time.perf_counter() - began):.0f} ms",
    )


def shipped_policies(folder: Path = shipped_folder()) -> MachineFact:
    names = sorted(path.name for path in folder.glob("*") if path.is_dir())
    return machine_fact(
        "shipped policies",
        "ok" if names else "broken",
        ", ".join(names) or f"none in {folder}",
        "install the package again: a wheel and a checkout both have them",
    )


def browser() -> MachineFact:
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    return machine_fact(
        "browser for tests",
        "ok" if path else "absent",
        path or "no chromium; the browser tests skip",
        "apt-get install chromium fonts-dejavu-core",
    )
