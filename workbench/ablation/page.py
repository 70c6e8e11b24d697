"""The page of a grid while its jobs are done: OUT/NAME.html, which loads itself again as long as a driver is at it.

It asks no machine but the disk that it lies on. The last one that a driver writes stays as it is; the report puts the
table in its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from workbench.ablation.drive import DONE, RUNNING, WAITING, JobState, tally
from workbench.run.writer import make_folder, write_file
from workbench.types import View
from workbench.types.errors import WorkbenchError
from workbench.views import show_jobs

EVERY_S = 5.0  # between two looks at the jobs, and between two loads of the page
SHARE = 0.1  # of a core, at most


def jobs_view(found: Sequence[JobState]) -> View:
    """How many jobs stand where; those that run or failed, with the reason."""
    return show_jobs(
        tally(found),
        [(str(one.job), one.state, one.why) for one in found if one.state not in (DONE, WAITING)],
    )


class LivePage:
    """Writes the page from a thread for as long as it is entered, and once more at the end. `look`: where the jobs
    stand."""

    def __init__(self, path: Path, title: str, look: Callable[[], Sequence[JobState]]):
        self.path, self.title, self.look = path, title, look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> LivePage:
        make_folder(self.path.parent)
        self.write(goes_on=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
        self.write(goes_on=False)

    def write(self, goes_on: bool) -> None:
        """The page as the jobs stand now; it loads itself again where this driver goes on, or another one is at it."""
        try:
            found = self.look()
            again = goes_on or any(one.state == RUNNING for one in found)
            title, load_again = (
                escape(self.title),
                f'<meta http-equiv="refresh" content="{EVERY_S:g}">' if again else "",
            )
            write_file(
                self.path,
                f'<!doctype html><meta charset="utf-8"><title>{title}</title>{load_again}<h1>{title}</h1>'
                f"{jobs_view(found).html}".encode(),
                replace=True,
            )
        except (
            WorkbenchError
        ):  # of a full disk, or a record that is damaged, the jobs themselves will tell
            return

    def _keep(self) -> None:
        pause = EVERY_S
        while not self._over.wait(pause):
            began = time.monotonic()
            self.write(goes_on=True)
            pause = max(EVERY_S, (time.monotonic() - began) / SHARE)
