"""What the last bit of a number depends on besides the configuration: threads, processes, versions, processor, code.

A run writes these facts down when it begins and when it goes on. Where two of its processes differ in them, the result
need not be, bit for bit, that of a run that was never interrupted; and a replayed step that is not reproduced
has an explanation. Where they are the same, it has none, and that is an error.
"""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from workbench.basics.fingerprint import code_fingerprint

NEAR = 0.01  # relative to 1 + |value|: what a few updates make of another rounding, and far below any real change


def machine_facts(device: torch.device, processes: int) -> dict[str, Any]:
    """JSON values; equal facts promise equal bits (on the CPU, for the same configuration)."""
    return {
        "threads": torch.get_num_threads(),
        "processes": processes,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "accelerate", "numpy")},
        "code": code_fingerprint(),
    }


def is_rounding(stored: np.ndarray, again: np.ndarray) -> bool:
    """True where two columns of numbers differ by no more than another rounding explains. Whole numbers and truths must
    be equal; so must the places of NaN."""
    if stored.dtype != again.dtype or stored.shape != again.shape:
        return False
    if stored.dtype.kind != "f":
        return bool((stored == again).all())
    exact = stored.astype(np.float64)
    near = np.abs(exact - again) <= NEAR * (1 + np.abs(exact))
    both_nan = np.isnan(stored) & np.isnan(again)
    return bool((near | both_nan | (stored == again)).all())
