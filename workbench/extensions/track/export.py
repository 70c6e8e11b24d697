"""All numbers of a run as files that TensorBoard opens, at once: what `workbench export RUN --to tensorboard` makes."""

from __future__ import annotations

from pathlib import Path

from workbench.extensions.track.items import Item, RunItems
from workbench.extensions.track.to_tensorboard import PACKAGE, events_of, settings_event
from workbench.extensions.track.tracker import require
from workbench.run.store import Run
from workbench.run.writer import make_folder


def write_tensorboard(run: Run, folder: Path) -> tuple[int, int]:
    """Write the numbers of all steps into a new folder; returns how many, and of how many steps. Raises ConfigError where
    TensorBoard is not installed."""
    require(PACKAGE, "tensorboard")
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    items = number_items(run)
    make_folder(folder.absolute())
    writer = EventFileWriter(str(folder))
    writer.add_event(settings_event(RunItems(run).settings() | {"digest": run.digest()}))
    for item in items:
        for event in events_of(item):
            writer.add_event(event)
    writer.close()
    return sum(len(item.numbers) for item in items), len({item.step for item in items})


def number_items(run: Run) -> list[Item]:
    """The numbers of a run, in the order of steps; evaluations stand at the step after which they were made."""
    source = RunItems(run)
    items = []
    for place in source.places(ended=True):
        if place.has_numbers:
            items.append(source.item(place))
    return items
