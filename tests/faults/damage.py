"""Damaged checkpoints: one thing in a folder is changed, and it must be refused, naming the place."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import torch

from workbench.training import checkpoint
from workbench.values.errors import StoreError

KINDS = (
    "flip",
    "flip",
    "flip",
    "cut",
    "zeros",
    "grow",
    "missing",
    "swap",
    "other",
    "link",
    "rename",
)


def tensors_of(seed: int) -> dict[str, dict[str, torch.Tensor]]:
    """Weights and optimizer of a toy model."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {
            "layer.weight": torch.randn(5, 3, generator=generator),
            "layer.bias": torch.randn(3, generator=generator),
        },
        "optimizer": {
            "0.step": torch.tensor(float(seed)),
            "0.exp_avg": torch.randn(5, 3, generator=generator),
        },
    }


def same(a, b) -> bool:
    """Two sets of tensors, in every value and type."""
    return a.keys() == b.keys() and all(
        a[f].keys() == b[f].keys()
        and all(a[f][n].dtype == b[f][n].dtype and torch.equal(a[f][n], b[f][n]) for n in a[f])
        for f in a
    )


def mutate(folder: Path, other: Path, rng: random.Random) -> str:
    """Change one thing in a checkpoint folder; says what. `other`: the folder of another checkpoint of the run."""
    files = sorted(folder.iterdir())
    path = rng.choice(files)
    data = path.read_bytes()
    kind = rng.choice(KINDS)
    if kind == "flip":
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
    elif kind == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif kind == "zeros":
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + bytes(len(data[at : at + 64])) + data[at + 64 :])
    elif kind == "grow":
        path.write_bytes(data + b"\0")
    elif kind == "missing":
        path.unlink()
    elif kind == "swap":
        second = rng.choice(files)
        path.write_bytes(second.read_bytes())
        second.write_bytes(data)
    elif kind == "other":
        path.write_bytes((other / path.name).read_bytes())
    elif kind == "link":
        path.unlink()
        path.symlink_to(other / path.name)
    else:
        path.rename(path.with_name("elsewhere"))
    return f"{kind} {path.name}"


def accepted_although_damaged(
    folder: Path, count: int, rng: random.Random
) -> tuple[list[str], int]:
    """Damage `count` checkpoints, one at a time; which were loaded all the same, refused without naming the place, or did
    not lead back to the one before them; and how many were refused as they should be."""
    run = folder / "damaged"
    for step in (1, 2):
        checkpoint.save(run, step, tensors_of(step), {"version": step})
    good, other = (run / f"checkpoints/step-0000000{step}" for step in (2, 1))
    content = {path.name: path.read_bytes() for path in good.iterdir()}
    faults, damaged = [], 0
    while damaged < count:
        what = mutate(good, other, rng)
        links = any(path.is_symlink() for path in good.iterdir())
        if (
            links or {path.name: path.read_bytes() for path in good.iterdir()} != content
        ):  # zeros over zeros: no damage
            damaged += 1
            try:
                checkpoint.load(run, 2)
            except StoreError as error:
                if str(good) not in str(error):
                    faults.append(
                        f"damage {damaged} ({what}) is refused without its place: {error}"
                    )
                if not same(checkpoint.load_newest(run).tensors, tensors_of(1)):
                    faults.append(
                        f"damage {damaged} ({what}): the checkpoint before it was not used"
                    )
            else:
                faults.append(f"damage {damaged} ({what}) was accepted")
        shutil.rmtree(good)
        good.mkdir()
        for name, data in content.items():
            (good / name).write_bytes(data)
    return faults, damaged - len(faults)
