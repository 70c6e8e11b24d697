"""Which job computes on which GPU: each on those that it was given, and no GPU has two jobs.

On this machine a job takes the locks of as many GPUs as it is to have, for as long as it lives; other drivers of this
user, of other grids too, see them. SLURM and Ray assign GPUs themselves: here it is only held against what was asked.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workbench.ablation.pool import AFTERLIFE_S
from workbench.run.writer import FolderLock, claim_file, make_folder, remove_file
from workbench.types.errors import ConfigError, StoreError, WorkbenchError

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCKS = (
    Path(tempfile.gettempdir())
    / f"agent-rl-workbench-gpus-{os.getuid() if hasattr(os, 'getuid') else 0}"
)
POLL_S = 0.5
BUSY = "busy"


def free_gpus(all_of: Sequence[str], taken: Collection[str], wanted: int) -> tuple[str, ...] | None:
    """The first `wanted` that nobody has; None where there are not as many."""
    free = [gpu for gpu in all_of if gpu not in taken]
    return tuple(free[:wanted]) if len(free) >= wanted else None


def most_at_once(all_of: Sequence[str], wanted: int) -> int:
    """How many jobs of `wanted` GPUs each fit. ConfigError where not even one does."""
    if len(all_of) < wanted:
        raise ConfigError(
            f"gpus_per_job = {wanted}, and this machine has {len(all_of)} GPUs that this process may use; "
            f"take at most {len(all_of)}, or --on slurm or ray"
        )
    return len(all_of) // wanted


def gpus_here() -> tuple[str, ...]:
    """What this process may use, by names that do not depend on who counts; () without NVIDIA's driver."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    uuid = dict(
        tuple(part.strip() for part in line.split(",", 1))
        for line in said.splitlines()
        if "," in line
    )
    if VISIBLE not in os.environ:
        return tuple(uuid.values())
    return tuple(
        uuid.get(name.strip(), name.strip())
        for name in os.environ[VISIBLE].split(",")
        if name.strip()
    )


@contextmanager
def held_gpus(wanted: int, all_of: Sequence[str], locks: Path = LOCKS) -> Iterator[tuple[str, ...]]:
    """This process and what it starts see `wanted` GPUs that no other job has; waits until there are as many. With 0:
    none."""
    before = os.environ.get(VISIBLE)
    held = _wait_for(wanted, all_of, locks) if wanted else {}
    os.environ[VISIBLE] = ",".join(held)
    try:
        yield tuple(held)
    finally:
        for gpu, lock in held.items():
            remove_file(_folder(locks, gpu) / BUSY)
            lock.release()
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before


def _wait_for(wanted: int, all_of: Sequence[str], locks: Path) -> dict[str, FolderLock]:
    most_at_once(all_of, wanted)
    while (held := _take(wanted, all_of, locks)) is None:
        time.sleep(POLL_S)
    return held


def _take(wanted: int, all_of: Sequence[str], locks: Path) -> dict[str, FolderLock] | None:
    """All or none of them: two jobs that each hold half would wait for ever."""
    held: dict[str, FolderLock] = {}
    taken: set[str] = set()
    while len(held) < wanted and (choice := free_gpus(all_of, taken | {*held}, 1)):
        folder = _folder(locks, choice[0])
        make_folder(folder)
        try:
            held[choice[0]] = FolderLock(folder)
        except StoreError:
            taken.add(choice[0])
    if len(held) < wanted:
        for lock in held.values():
            lock.release()
        return None
    if not all([claim_file(_folder(locks, gpu) / BUSY, b"") for gpu in held]):
        time.sleep(
            AFTERLIFE_S
        )  # its last holder was killed, and what that had started may be ending
    return held


def _folder(locks: Path, gpu: str) -> Path:
    return locks / "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in gpu)


def check_assigned(wanted: int, by: str) -> None:
    """What a scheduler gave this process: as many GPUs as were asked for, and none where none were. WorkbenchError
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
