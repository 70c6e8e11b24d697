"""The GPUs of this machine. SLURM and Ray know theirs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from workbench.extensions.ablation.jobs import VISIBLE
from workbench.values.errors import ConfigError


def gpus_here() -> tuple[str, ...]:
    """The names of those that this process may use, as CUDA_VISIBLE_DEVICES takes them; () without NVIDIA's driver."""
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    names = os.environ.get(VISIBLE, listed.stdout.replace("\n", ",")).split(",")
    return tuple(name.strip() for name in names if name.strip())


def most_at_once(all_of: Sequence[str], wanted: int) -> int:
    """How many jobs of `wanted` GPUs each fit. ConfigError where not even one does."""
    if len(all_of) < wanted:
        raise ConfigError(
            f"gpus_per_job = {wanted}, and this machine has {len(all_of)} GPUs that this process may use; "
            f"take at most {len(all_of)}, or --on slurm or ray"
        )
    return len(all_of) // wanted
