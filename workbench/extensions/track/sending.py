"""Follow a run and send what is new, until nobody writes the run any more.

    send_run("runs/first", "mlflow", project="workbench")

The run is only read. A tracker that raises is tried again, after a pause that doubles; one that hangs past the time limit
ends this process, which is not the one that trains. Either way `workbench track` goes on where it was.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workbench.extensions.track.cursor import TrackerCursor, open_cursor
from workbench.extensions.track.items import EVERY, Item, RunItems
from workbench.extensions.track.tracker import TrackedRun, Tracker
from workbench.extensions.track.trackers import TRACKERS, check_tracker
from workbench.run.store import open_run
from workbench.run.writer import lock_holder
from workbench.values.errors import StoreError, WorkbenchError

MOST_ITEMS = 100  # of a batch
TIMEOUT_S = 300.0  # that a batch may take
FIRST_PAUSE_S = 5.0  # after a batch that failed; doubled after each further one
LONGEST_PAUSE_S = 300.0
MOST_FAILURES = 4  # in a row, of a run that has ended
LOOK_S = 1.0  # between two looks whether a run has ended


class RunSender:
    """One run on its way to one tracker.

    `is_written`: whether the run may still grow. `say`: is told what went wrong, in words.
    """

    def __init__(
        self,
        items: RunItems,
        cursor: TrackerCursor,
        open_tracker: Callable[[], Tracker],
        *,
        is_written: Callable[[], bool],
        say: Callable[[str], None],
        timeout_s: float = TIMEOUT_S,
        first_pause_s: float = FIRST_PAUSE_S,
    ):
        self._items = items
        self._cursor = cursor
        self._open_tracker = open_tracker
        self._tracker: Tracker | None = None
        self._is_written = is_written
        self._timeout_s = timeout_s
        self._first_pause_s = first_pause_s
        self._say = say
        self._began = time.monotonic()

    def run(self) -> None:
        """Send until the run has ended and all of it was sent. Raises WorkbenchError where a run that has ended cannot be
        sent, StoreError for a run that is damaged."""
        failures = 0
        while True:
            written = self._is_written()
            batch, is_full = self._batch(ended=not written)
            if not batch and not self._cursor.unfinished:
                if not written:
                    break
                self._wait(self._pause_s())
                continue
            try:
                with time_limit(self._timeout_s):
                    self._send(batch)
            except StoreError:
                raise
            except Exception as error:  # whatever somebody else's package raises
                failures += 1
                self._after_failure(error, failures, written)
                continue
            failures = 0
            if not is_full:
                self._wait(self._pause_s())
        with time_limit(self._timeout_s):
            if self._tracker is not None:
                self._tracker.close()

    def _batch(self, *, ended: bool) -> tuple[list[Item], bool]:
        """The items to send now, first those that may have arrived or not; and whether more are waiting."""
        places = self._items.places(ended=ended)
        if self._cursor.unfinished:
            by_key = {place.key: place for place in places}
            wanted = [by_key[key] for key in self._cursor.unfinished if key in by_key]
            return [self._items.item(place) for place in wanted], True
        new = [place for place in places if place.key not in self._cursor.sent]
        return [self._items.item(place) for place in new[:MOST_ITEMS]], len(new) > MOST_ITEMS

    def _send(self, items: Sequence[Item]) -> None:
        if self._tracker is None:
            self._tracker = self._open_tracker()
        if self._cursor.unfinished:
            self._send_again(self._tracker, items)
        else:
            first = self._cursor.begin([item.key for item in items])
            self._tracker.send(list(enumerate(items, first)))
        self._cursor.finish()

    def _send_again(self, tracker: Tracker, items: Sequence[Item]) -> None:
        """Send what the tracker lacks of a batch that broke off, under the numbers that it had."""
        lacking = []
        for item in items:
            held = tracker.held(item)
            if held is None:
                self._say(f"{item.key} may be missing: it was on its way when sending broke off")
                continue
            rest = item.without(held)
            if rest is not None:
                number = self._cursor.first + self._cursor.unfinished.index(item.key)
                lacking.append((number, rest))
        if lacking:
            tracker.send(lacking)

    def _pause_s(self) -> float:
        if self._tracker is None:
            return LOOK_S
        return self._tracker.pause_s(time.monotonic() - self._began)

    def _after_failure(self, error: Exception, failures: int, written: bool) -> None:
        self._tracker = None
        words = f"not sent: {type(error).__name__}: {error}"
        if not written and failures >= MOST_FAILURES:
            raise WorkbenchError(
                f"{words}. After {failures} tries it is left at that; the same command goes on where it was"
            ) from error
        pause_s = min(LONGEST_PAUSE_S, self._first_pause_s * 2 ** (failures - 1))
        self._say(f"{words}; next try in {pause_s:g} s. The run is not affected")
        time.sleep(pause_s)

    def _wait(self, seconds: float) -> None:
        """Wait, but not past the end of the run."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._is_written():
            time.sleep(min(LOOK_S, seconds))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer: what hangs in somebody else's package cannot be interrupted."""
    timer = threading.Timer(seconds, _give_up, [seconds])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float) -> None:
    print(
        f"the tracker did not answer for {seconds:g} s, so sending ends here; the run is not affected, and the same "
        "command goes on where it was",
        file=sys.stderr,
        flush=True,
    )
    os._exit(2)


def send_run(
    path: str | os.PathLike,
    to: str,
    *,
    project: str,
    dest: str | None = None,
    every: int = EVERY,
    timeout_s: float = TIMEOUT_S,
    is_alive: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = print,
) -> int:
    """Send a run to a tracker until it has ended; returns how many items were sent.

    `is_alive`: whether the process that makes the run lives, although it may not have begun to write.
    Raises ConfigError for a tracker that is not there, StoreError where there is no run or another process sends it.
    """
    check_tracker(to)
    path = Path(path)
    while not (path / "run.json").is_file() and is_alive():
        time.sleep(LOOK_S)
    run = open_run(path)
    with open_cursor(run, to) as cursor:
        before = len(cursor.sent)
        items = RunItems(run, every)

        def open_tracker() -> Tracker:
            return TRACKERS[to](TrackedRun(run.name, project, dest, items.settings(), cursor))

        def is_written() -> bool:
            return is_alive() or lock_holder(run.path) is not None

        RunSender(
            items,
            cursor,
            open_tracker,
            is_written=is_written,
            say=say,
            timeout_s=timeout_s,
            first_pause_s=FIRST_PAUSE_S,
        ).run()
        return len(cursor.sent) - before
