"""What holds for every job of a grid: it has one thread, no network and the GPUs that it was assigned, and may be lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.basics.beside import look_here
from workbench.values.errors import WorkbenchError

LOCAL = "local"
SLURM = "slurm"
RAY = "ray"
# What a killed process had started ends by itself within so many seconds: workers look for their sender twice a second,
# the kernels of Jupyter for their parent once.
AFTERLIFE_S = 3.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Lost:
    """The outcome of a job that ended without a result.

    why: in words.
    is_sent_again: False where it was lost MOST_LOSSES times, or nothing is sent any more.
    """

    why: str
    is_sent_again: bool = False


def do_assigned(gpus: int, by: str, do: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function where a cluster runs it, with one thread, on the GPUs that it was assigned."""
    os.environ.update(ONE_THREAD | OFFLINE)
    look_here()
    check_assigned(gpus, by)
    return do(*arguments)


def check_assigned(wanted: int, by: str) -> None:
    """Look at what a cluster gave this process: as many GPUs as were asked for, and none where none were. WorkbenchError
    where they are fewer or more: then they might be somebody else's, too."""
    if not wanted:
        os.environ[VISIBLE] = ""
        return
    given = [name for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    if len(given) != wanted:
        raise WorkbenchError(
            f"{by} was asked for {wanted} GPUs a job and made {len(given)} visible ({VISIBLE}="
            f"{os.environ.get(VISIBLE)!r}); it has to assign them (SLURM: GresTypes=gpu and gres.conf)"
        )
