"""A run in the form that other packages read.

    export_run("runs/first", "first.jsonl", to="trl-sft")     its trajectories: `exports`, docs/guides/export.md
    export_run("runs/first", to="tensorboard")                its numbers, as files that TensorBoard opens:
                                                              tensorboard --logdir runs/tensorboard

The run folder stays the truth: this copies it out, afterwards, as often as one likes, and training knows nothing of it.
What goes out to TensorBoard: every metric of every step (`train/...`), every evaluation with its intervals
(`held_out/POLICY/MODE/...`, `paired/...`), the seconds of each phase (`clock/...`), and the settings as
hyperparameters. What was not computed is left out, not written as zero (invariant 5). Nothing is sent anywhere. The extension
`track` writes it; `workbench track` sends the same numbers while a run trains, and knows further trackers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.basics.extensions import service
from workbench.extensions.interop.exports.trajectories import (
    FORMATS,
    export_trajectories,
    refuse_inside,
)
from workbench.look import text_view
from workbench.run.store import Run, open_run
from workbench.values import View
from workbench.values.errors import ConfigError, StoreError

TENSORBOARD = "tensorboard"


def export_run(
    run: Run | str | Path,
    dest: str | Path | None = None,
    out: str | Path | None = None,
    *,
    to: str | None = None,
    steps: Sequence[int] | None = None,
    min_reward: float | None = None,
) -> View:
    """A run in the form that another package reads: its numbers for TensorBoard, or its trajectories.

    to: "tensorboard", or one of `FORMATS` (docs/guides/export.md tells what is in each).
    dest: the file or folder to make; of TensorBoard the folder of its logs (default: `tensorboard` beside the run).
        Nothing is ever written over.
    out: the folder, where the form is named second: export_run(run, "tensorboard", folder).
    steps: of these committed steps (default: all).
    min_reward: formats to learn from take trajectories that earned at least this (default: those that succeeded).

    What was left out is reported. Raises ConfigError for what is not known or fits no format, and naming what to install where
    TensorBoard is missing; StoreError where `dest` is there already.
    """
    if to is None:
        to = str(dest) if dest is not None else None
        dest = out
    elif out is not None:
        raise ConfigError("give the folder once: export_run(run, dest, to=...)")
    if to != TENSORBOARD and to not in FORMATS:
        raise ConfigError(
            f"cannot export to {to!r}; expected one of {', '.join((TENSORBOARD, *FORMATS))}, as in "
            "export_run(run, dest, to='trl-sft'). Trackers are sent a run by `workbench track`"
        )
    run = open_run(run)
    if to in FORMATS:
        return export_trajectories(run, to, dest, steps=steps, min_reward=min_reward)
    if steps is not None or min_reward is not None:
        raise ConfigError(
            f"steps and min_reward choose trajectories, and {to} gets the numbers of all steps; leave them out"
        )
    return _to_tensorboard(run, dest)


def _to_tensorboard(run: Run, out: str | Path | None) -> View:
    write = service("write_tensorboard", "exporting to tensorboard")
    out = Path(out) if out is not None else run.path.parent / TENSORBOARD
    refuse_inside(run, out)
    if (out / run.name).exists():
        raise StoreError(
            f"{out / run.name} is there already; TensorBoard would draw both exports as one. Choose "
            "another --out, or remove it"
        )
    numbers, steps = write(run, out / run.name)
    return text_view(
        f"{numbers:,} numbers of {steps} steps are in {out}\n"
        f"look at them: tensorboard --logdir {out}",
        title=f"{run.name} exported to {TENSORBOARD}",
    )
