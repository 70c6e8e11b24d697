"""What this machine can do at most, and whether anything else was running on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

IDLE = 0.05  # of one core: what others may take on a machine that is called idle


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since boot: of all cores busy with anything, of those waiting for the hypervisor, and of some processes."""

    at: float
    busy: float
    stolen: float
    own: float


def cpu_times(processes: Iterable[int] = ()) -> CpuTimes | None:
    """None where there is no /proc to read. `own` counts this process, its ended children, and `processes`."""
    try:
        fields = [
            int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        ]
    except (OSError, ValueError, IndexError):
        return None
    user, nice, system, _, _, hard, soft, stolen = fields
    ticks, own = os.sysconf("SC_CLK_TCK"), os.times()
    others = 0
    for process in processes:
        try:
            after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            others += int(after_name[11]) + int(after_name[12])
        except (OSError, IndexError):  # it has ended: then it counts among the ended children
            continue
    return CpuTimes(
        time.monotonic(),
        (user + nice + system + hard + soft) / ticks,
        stolen / ticks,
        own.user + own.system + own.children_user + own.children_system + others / ticks,
    )


def others_took(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """Cores, on average, that other processes and the hypervisor took in between; None where nobody could say."""
    if before is None or after is None:
        return None
    taken = (after.busy - before.busy) + (after.stolen - before.stolen) - (after.own - before.own)
    return max(0.0, taken / (after.at - before.at))


def matrix_peak(dtype: torch.dtype, size: int = 1536, tries: int = 7) -> float:
    """Floating-point operations per CPU second of a square matrix product on one thread: the best of a few."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    best = float("inf")
    for _ in range(tries):
        began = time.process_time()
        a @ b
        best = min(best, time.process_time() - began)
    return 2 * size**3 / best


def facts() -> dict[str, Any]:
    names = ("torch", "transformers", "accelerate", "trl", "numpy")
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )
