"""A run in the form that other packages read.

    export_run("runs/first", "first.jsonl", to="trl-sft")     its attempts: `exports`, docs/guides/export.md
    export_run("runs/first", to="tensorboard")                its numbers, through the trackers of accelerate; then:
                                                              tensorboard --logdir runs/tensorboard

The run folder stays the truth: this copies it out, afterwards, as often as one likes, and training knows nothing of it.
What goes out to a tracker: every metric of every step (`train/...`), every evaluation with its intervals
(`held_out/POLICY/MODE/...`, `paired/...`), the seconds of each phase (`clock/...`), and the settings as
hyperparameters. What was not computed is left out, not written as zero (law 5). Nothing is sent anywhere: W&B is
written offline unless WANDB_MODE says otherwise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.notebook.exports.attempts import FORMATS, export_attempts, refuse_inside
from workbench.run.store import Run, open_run
from workbench.run.writer import make_folder
from workbench.types import View
from workbench.types.errors import ConfigError, StoreError, WorkbenchError
from workbench.views import show_text
from workbench.views.records import flattened

# target -> (package to install, how to look at what was exported)
TARGETS = {
    "tensorboard": ("tensorboard", "tensorboard --logdir {out}"),
    "trackio": ("trackio", "TRACKIO_DIR={out} trackio show --project {project}"),
    "wandb": (
        "wandb",
        "wandb sync {out}/wandb/offline-run-*   (uploads it; written offline so far)",
    ),
}
PROJECT = "workbench"


def export_run(
    run: Run | str | Path,
    dest: str | Path | None = None,
    out: str | Path | None = None,
    *,
    to: str | None = None,
    steps: Sequence[int] | None = None,
    min_reward: float | None = None,
    project: str = PROJECT,
) -> View:
    """A run in the form that another package reads: its numbers for a tracker, or its attempts.

    `to`: a tracker (tensorboard, trackio, wandb), or one of `FORMATS` (docs/guides/export.md tells what is in each).
    `dest`: the file or folder to make; of a tracker the folder that it writes in (default: one named after it, beside
    the run). Nothing is ever written over. `steps`: of these committed steps (default: all). `min_reward`: formats to
    learn from take attempts that earned at least this (default: those that succeeded). A tracker may also be named
    second and its folder third: export_run(run, "tensorboard", folder).

    What was left out is said. Raises ConfigError for what is not known or fits no format, WorkbenchError naming what to
    install where a tracker's package is missing, StoreError where `dest` is there already.
    """
    if to is None:
        to, dest = str(dest) if dest is not None else None, out
    elif out is not None:
        raise ConfigError("give the folder once: export_run(run, dest, to=...)")
    if to not in TARGETS and to not in FORMATS:
        raise ConfigError(
            f"cannot export to {to!r}; expected one of {', '.join((*TARGETS, *FORMATS))}, as in "
            "export_run(run, dest, to='trl-sft')"
        )
    run = open_run(run)
    if to in FORMATS:
        return export_attempts(run, to, dest, steps=steps, min_reward=min_reward)
    if steps is not None or min_reward is not None:
        raise ConfigError(
            f"steps and min_reward choose attempts, and {to} gets the numbers of all steps; leave them out"
        )
    return _to_tracker(run, to, dest, project)


def _to_tracker(run: Run, to: str, out: str | Path | None, project: str) -> View:
    package, look = TARGETS[to]
    if find_spec(package) is None:
        raise WorkbenchError(
            f"exporting to {to} needs the package {package}, which is not installed here: "
            f"pip install {package}"
        )
    out = Path(out) if out is not None else run.path.parent / to
    refuse_inside(run, out)
    records = records_of(run)
    make_folder(out.absolute())
    tracker = _tracker(to, run.name, out, project)
    tracker.start()
    try:
        tracker.store_init_configuration(hyperparameters(run))
        for step, values in records.items():
            tracker.log(values, step=step)
    finally:
        tracker.finish()
    numbers = sum(map(len, records.values()))
    return show_text(
        f"{numbers:,} numbers of {len(records)} steps are in {out}\n"
        f"look at them: {look.format(out=out, project=project)}",
        title=f"{run.name} exported to {to}",
    )


def records_of(run: Run) -> dict[int, dict[str, float]]:
    """Step -> name -> number, in the order of steps; evaluations stand at the step after which they were made."""
    records: dict[int, dict[str, Any]] = {}
    for report in run.evaluations().values():
        records.setdefault(int(report.get("step") or 0), {}).update(_evaluation(report))
    clock = run.clock()
    for prefix, frame in (
        ("train", run.metrics()),
        ("clock", clock.drop(columns="at", errors="ignore")),
    ):
        for step, row in frame.iterrows():
            records.setdefault(int(step), {}).update(
                {f"{prefix}/{name}": value for name, value in row.items()}
            )
    known = {
        step: {name: float(value) for name, value in values.items() if _is_known(value)}
        for step, values in records.items()
    }
    return {step: known[step] for step in sorted(known) if known[step]}


def _is_known(value: Any) -> bool:
    """A number. A metric that a step did not have is NaN in a table: not computed, so left out."""
    return (
        isinstance(value, (int, float))
        and value == value
        or hasattr(value, "item")
        and value.item() == value.item()
    )


def _evaluation(report: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for row in report.get("rows", ()):
        values |= {
            f"held_out/{row['policy']}/{row['mode']}/{name}": value
            for name, value in row.items()
            if not isinstance(value, str)
        }
    for pair in report.get("paired", ()):
        # trackers change blanks in names, each in its own way
        which = f"{pair['b']}_minus_{pair['a']}".replace(" ", "-")
        values |= {f"paired/{which}/{name}": pair[name] for name in ("difference", "low", "high")}
    return values


def hyperparameters(run: Run) -> dict[str, bool | int | float | str]:
    """The settings in force, one per dotted name, and the run's digest; what is none is spelled out, lists too."""
    known = {
        name: "none" if value is None else value for name, value in flattened(run.config).items()
    }
    plain = {
        name: value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
        for name, value in known.items()
    }
    return plain | {"digest": run.digest()}


def _tracker(to: str, name: str, out: Path, project: str) -> Any:
    from accelerate import PartialState
    from accelerate.tracking import TensorBoardTracker, TrackioTracker, WandBTracker

    PartialState()  # the trackers log through it, and two of the three fail where nobody has made it
    if to == "tensorboard":
        if (out / name).exists():
            raise StoreError(
                f"{out / name} is there already; TensorBoard would draw both exports as one. Choose "
                "another --out, or remove it"
            )
        return TensorBoardTracker(name, out)
    if to == "wandb":
        return WandBTracker(
            project, name=name, dir=str(out), mode=os.environ.get("WANDB_MODE", "offline")
        )
    os.environ["TRACKIO_DIR"] = str(out.absolute())  # read when trackio is imported
    return TrackioTracker(project, name=name)
