"""trackio: a database on this machine (TRACKIO_DIR), or a Space or server that trackio's own variables name."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from typing import Any

from workbench.extensions.track.items import COLUMNS, CURVES, TRAJECTORIES, Item
from workbench.extensions.track.tracker import TrackedRun, require
from workbench.values.errors import WorkbenchError

PACKAGE = "trackio"


class Trackio:
    """A run in trackio's database. A batch is a session, because only the end of one waits until all is written."""

    def __init__(self, tracked: TrackedRun):
        require(PACKAGE, "trackio")
        if tracked.dest is not None:
            os.environ["TRACKIO_DIR"] = tracked.dest
        self._project = tracked.project
        self._name = f"{tracked.name}-{tracked.cursor.id}"
        self._settings = dict(tracked.settings)
        self._is_local = not any(
            os.environ.get(name) for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
        )

    def pause_s(self, elapsed_s: float) -> float:
        return 5.0

    def held(self, item: Item) -> set[str] | None:
        if not self._is_local:
            return None
        from trackio.sqlite_storage import SQLiteStorage

        parts = set()
        for name in item.parts:
            if SQLiteStorage.get_metric_values(self._project, self._name, name, step=item.step):
                parts.add(name)
        return parts

    def send(self, items: Sequence[tuple[int, Item]]) -> None:
        import trackio

        # It prints where it writes at every session.
        with contextlib.redirect_stdout(io.StringIO()):
            trackio.init(
                project=self._project,
                name=self._name,
                config=self._settings,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            for _, item in items:
                trackio.log(_values(item), step=item.step)
            trackio.finish()
        if self._is_local:
            self._check_written([item for _, item in items])

    def _check_written(self, items: Sequence[Item]) -> None:
        """trackio only warns where its database cannot be written."""
        for item in items:
            if item.without(self.held(item)) is not None:
                raise WorkbenchError(
                    f"trackio did not write {item.key}; is there room in its folder (TRACKIO_DIR, or "
                    "~/.cache/huggingface/trackio)?"
                )

    def close(self) -> None:
        """Every batch closes its own session."""


def _values(item: Item) -> dict[str, Any]:
    import pandas
    import trackio
    from PIL import Image

    values: dict[str, Any] = dict(item.numbers)
    if item.rows is not None:
        frame = pandas.DataFrame(list(item.rows), columns=list(COLUMNS))
        values[TRAJECTORIES] = trackio.Table(dataframe=frame)
    if item.picture is not None:
        values[CURVES] = trackio.Image(Image.open(io.BytesIO(item.picture)))
    return values
