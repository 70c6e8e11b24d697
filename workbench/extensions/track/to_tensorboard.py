"""TensorBoard: event files in a folder. Nothing is sent anywhere, and neither torch nor TensorFlow is needed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.extensions.track.items import COLUMNS, CURVES, TRAJECTORIES, Item
from workbench.extensions.track.tracker import TrackedRun, require
from workbench.values.errors import StoreError

PACKAGE = "tensorboard"


class TensorBoard:
    """The folder of a run below a folder of logs. Raises StoreError where something else is there."""

    def __init__(self, tracked: TrackedRun):
        require(PACKAGE, "tensorboard")
        self._folder = Path(tracked.dest or "tensorboard") / tracked.name
        if not tracked.cursor.has_begun and self._folder.exists():
            raise StoreError(
                f"{self._folder} is there already; TensorBoard would draw both runs as one. Choose another "
                "--dest, or remove it"
            )
        self._settings = tracked.settings
        self._writer: Any = None

    def pause_s(self, elapsed_s: float) -> float:
        return 5.0

    def held(self, item: Item) -> set[str]:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        tags = set()
        for path in sorted(self._folder.glob("events.out.*")):
            for event in LegacyEventFileLoader(str(path)).Load():
                if event.step == item.step:
                    tags |= {value.tag for value in event.summary.value}
        return tags

    def send(self, items: Sequence[tuple[int, Item]]) -> None:
        try:
            if self._writer is None:
                self._writer = self._opened()
            for _, item in items:
                for event in events_of(item):
                    self._writer.add_event(event)
            self._writer.flush()
        except BaseException:
            self._writer = None  # its file may end within a record: nothing is added to that one
            raise

    def _opened(self) -> Any:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        is_first = not list(self._folder.glob("events.out.*"))
        writer = EventFileWriter(str(self._folder))
        if is_first:
            writer.add_event(settings_event(self._settings))
        return writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def settings_event(settings: Mapping[str, bool | int | float | str]) -> Any:
    """The settings as hyperparameters."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    start = SessionStartInfo(start_time_secs=time.time())
    for name, value in settings.items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, str):
            start.hparams[name].string_value = value
        else:
            start.hparams[name].number_value = value
    content = HParamsPluginData(
        session_start_info=start, version=metadata.PLUGIN_DATA_VERSION
    ).SerializeToString()
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
    value = Summary.Value(
        tag=metadata.SESSION_START_INFO_TAG, metadata=SummaryMetadata(plugin_data=plugin)
    )
    return Event(wall_time=time.time(), summary=Summary(value=[value]))


def events_of(item: Item) -> list[Any]:
    """An event for each part of an item."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in item.numbers.items()]
    if item.rows is not None:
        values.append(_table(item.rows))
    if item.picture is not None:
        values.append(_picture(item.picture))
    events = []
    for value in values:
        event = Event(wall_time=time.time(), step=item.step, summary=Summary(value=[value]))
        events.append(event)
    return events


def _table(rows: Sequence[Sequence[Any]]) -> Any:
    """A table of texts, [row, column], with the names of the columns on top."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    cells = list(COLUMNS)
    for row in rows:
        cells += [markdown_text(value) for value in row]
    shape = [TensorShapeProto.Dim(size=len(rows) + 1), TensorShapeProto.Dim(size=len(COLUMNS))]
    tensor = TensorProto(
        dtype="DT_STRING",
        string_val=[cell.encode("utf-8", "replace") for cell in cells],
        tensor_shape=TensorShapeProto(dim=shape),
    )
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    metadata = SummaryMetadata(plugin_data=plugin)
    return Summary.Value(tag=TRAJECTORIES, metadata=metadata, tensor=tensor)


def markdown_text(value: Any) -> str:
    """A value as Markdown that can only be text: lines of code, whatever stands in it."""
    if not isinstance(value, str):
        return "" if value is None else str(value)
    lines = [f"    {line}" for line in value.split("\n")]
    return "\n".join(lines)


def _picture(png: bytes) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    # Width and height stand at fixed places of a PNG.
    width = int.from_bytes(png[16:20], "big")
    height = int.from_bytes(png[20:24], "big")
    image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
    return Summary.Value(tag=CURVES, image=image)
