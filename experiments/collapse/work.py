"""One run in this process, or what was kept of it: its signals, what the probe set said, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.collapse.plan import Job, config_of, key_of
from workbench.basics.canonical_json import read_sealed_json, sealed_json
from workbench.extensions.collapse.signals import RunSignals, signals
from workbench.run.store import open_run
from workbench.run.writer import make_folder, write_file
from workbench.training.resume import resume_here
from workbench.training.train import train_here
from workbench.values.errors import WorkbenchError

COST, VERSION = "collapse-cost", 1


def place_of(job: Job, out: Path, changes: Mapping[str, Any]) -> Path:
    return out / f"{job.name}-{key_of(config_of(job, changes))}"


def finished(job: Job, out: Path, changes: Mapping[str, Any]) -> RunSignals | None:
    """The signals of a run that was made to its end before; else None."""
    path = place_of(job, out, changes)
    if not path.is_dir():
        return None
    run, steps = open_run(path), config_of(job, changes).train.steps
    ended = run.steps()[-1:] == [steps] and any(
        each["step"] == steps for each in run.evaluations().values()
    )
    return signals(run) if ended else None


def do(job: Job, out: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Train, or go on where it was left; {"failed": words} for an error of ours."""
    path, began = place_of(job, out, changes), time.process_time()
    whole = not path.is_dir()
    try:
        make_folder(path.parent)
        if whole:
            train_here(config_of(job, changes), path, on_note=None)
        else:
            resume_here(path, on_note=None)
    except WorkbenchError as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    if whole:  # of a run that was cut off, the seconds of its beginning are not known
        spent = {"cpu_seconds": time.process_time() - began}
        write_file(
            _cost(job, out, changes), sealed_json(spent, kind=COST, version=VERSION), replace=True
        )
    return {}


def cost(job: Job, out: Path, changes: Mapping[str, Any]) -> float | None:
    """CPU-seconds of a run with its evaluations; None where they are not known."""
    path = _cost(job, out, changes)
    return (
        read_sealed_json(path, kind=COST, version=VERSION)["cpu_seconds"]
        if path.is_file()
        else None
    )


def _cost(job: Job, out: Path, changes: Mapping[str, Any]) -> Path:
    return place_of(job, out, changes).with_suffix(".cost.json")
