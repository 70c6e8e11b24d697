"""What must outlive a step: weights handed to the engine, a checkpoint, a run that was left and is resumed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from experiments.bench.ours import OurStepper
from experiments.bench.work import OurSide, Work
from experiments.gpu_check.device import Figures, Keep, random_policy, seconds_of
from experiments.gpu_check.plan import Setting
from workbench.engines import TransformersEngineConfig
from workbench.look.cells.train import resume_here, train_here
from workbench.run.store import Run
from workbench.training import checkpoint
from workbench.training.config import load_config

LAST = 4
LEFT_AT = 2


def states(setting: Setting, keep: Keep) -> Figures:
    """Seconds of a sync and of a checkpoint by shape; then a run of four steps, and the same one left after two and resumed:
    equal bit for bit or not, and in which tensor first. The same without an interruption says what the device itself
    repeats."""
    found: Figures = {"rows": []}
    for shape in ("tiny",) if setting.tiny else ("0.5b", "1.7b"):
        found["rows"].append({"shape": shape, **_handed_over(setting, shape)})
        keep(found)
    found["resume"] = _resumed(setting)
    return found


def _handed_over(setting: Setting, shape: str) -> Figures:
    side = OurSide(shape, precision=setting.precision, device=setting.device)
    engine = TransformersEngineConfig(
        dtype=setting.dtype, device=setting.device, max_context=256, cache_tokens=4096, max_rows=8
    )
    stepper = OurStepper(random_policy(setting, shape), Work(), side, engine=engine)
    learner = stepper.learner
    versions = iter(range(1, 100))

    def sync() -> None:
        stepper.engine.sync(learner.weights(), next(versions))

    sync()
    synced = seconds_of(setting, sync)
    tensors, state = learner.state()
    with tempfile.TemporaryDirectory() as folder:
        written = seconds_of(setting, lambda: checkpoint.save(folder, 1, tensors, state))
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        read = seconds_of(setting, lambda: checkpoint.load(folder, 1))
    copied = seconds_of(setting, learner.state)
    return {
        "sync_s": synced,
        "state_s": copied,
        "checkpoint_s": written,
        "checkpoint_gb": size / 1e9,
        "read_s": read,
    }


def _resumed(setting: Setting) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        first, again = (_trained(setting, place / name, LAST) for name in ("first", "again"))
        _trained(setting, place / "left", LEFT_AT)
        resumed = resume_here(place / "left", {"train.steps": LAST}, on_note=None)
        other = _trained(setting, place / "other", LAST, seed=1)
        repeats = _difference(first, again)
        return {
            "repeats": repeats == "",
            "first difference of the repeat": repeats,
            "resume is equal": _difference(first, resumed) == "",
            "first difference of the resume": _difference(first, resumed),
            "another seed is equal": _difference(first, other) == "",
        }


def _trained(setting: Setting, path: Path, steps: int, seed: int = 0) -> Run:
    settings: dict[str, Any] = {
        "policy.device": setting.device,
        "seed": seed,
        "train.steps": steps,
        "train.evaluate_every": 0,
        "train.checkpoint_every": LEFT_AT,
        "train.tasks_per_step": 2,
        "train.group_size": 4,
        "evaluation.num_tasks": 2,
        "lint.start": False,
    }
    return train_here(load_config("frozenlake", settings), path, on_note=None)


def _difference(one: Run, two: Run) -> str:
    """The first tensor of the last checkpoints that is not the same bits, with how far it is off; "": none."""
    ours, theirs = (checkpoint.load(run.path, LAST).tensors for run in (one, two))
    for part in sorted(ours):
        for name, tensor in ours[part].items():
            other = theirs[part][name]
            if not torch.equal(tensor, other):
                apart = float((tensor.double() - other.double()).abs().max())
                return f"{part}: {name} by {apart:.2g}"
    return ""
