"""Weights & Biases: its service (WANDB_API_KEY), or with WANDB_MODE=offline files for `wandb sync`.

A batch is a session, because only the end of one (`finish`) waits until everything is written: what a killed process
had logged stays in the memory of wandb's own process, and is gone. Every item has a number of its own, which is W&B's step;
W&B keeps the first row of a number, so that an item that arrived is not drawn twice when it is sent again. Offline nobody
compares numbers: the files of a session that did not end are renamed, so that `wandb sync` leaves them out, and sent anew.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.extensions.track.items import COLUMNS, CURVES, TRAJECTORIES, Item
from workbench.extensions.track.tracker import TrackedRun, require

PACKAGE = "wandb"
OFFLINE = "offline-run-"  # begins the folder of a session without network
UNFINISHED = "unfinished-"


class Wandb:
    """A run of a project, under an id of ours."""

    def __init__(self, tracked: TrackedRun):
        require(PACKAGE, "wandb")
        self._tracked = tracked
        self._cursor = tracked.cursor

    def pause_s(self, elapsed_s: float) -> float:
        """A session takes seconds, and offline it leaves a folder: the longer a run, the fewer."""
        return max(30.0, elapsed_s / 20)

    def held(self, item: Item) -> set[str]:
        for name in self._cursor.folders:
            folder = Path(name)
            is_synced = bool(list(folder.glob("*.synced")))
            if folder.name.startswith(OFFLINE) and folder.is_dir() and not is_synced:
                folder.rename(folder.with_name(UNFINISHED + folder.name))
        return set()

    def send(self, items: Sequence[tuple[int, Item]]) -> None:
        import wandb

        try:
            run = self._begun(wandb)
            for number, item in items:
                run.log(_values(wandb, item), step=number)
            run.finish()
        except BaseException:
            with suppress(Exception):
                wandb.teardown(exit_code=1)  # writes nothing more of this session
            raise

    def _begun(self, wandb: Any) -> Any:
        quiet = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,  # of this process, not of the one that trains
            x_disable_meta=True,
        )
        run = wandb.init(
            project=self._tracked.project,
            id=self._cursor.id,
            name=self._tracked.name,
            dir=self._tracked.dest,
            config=dict(self._tracked.settings),
            resume="allow",
            allow_val_change=True,
            settings=quiet,
        )
        self._cursor.note_folder(str(Path(run.dir).absolute().parent))
        run.define_metric("*", step_metric="step")
        return run

    def close(self) -> None:
        """Every batch closes its own session."""


def _values(wandb: Any, item: Item) -> dict[str, Any]:
    from PIL import Image

    values: dict[str, Any] = {"step": item.step, **item.numbers}
    if item.rows is not None:
        values[TRAJECTORIES] = wandb.Table(columns=list(COLUMNS), data=list(item.rows))
    if item.picture is not None:
        values[CURVES] = wandb.Image(Image.open(io.BytesIO(item.picture)))
    return values
