"""What a tracker holds, read with its own package, in a process of its own: `python -m tests.track_reader NAME FOLDER`.

Prints JSON: a list of [name, step, value] of everything that is there, as often as it is there. The value of a table is its
number of rows, of a picture "picture".
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Held = tuple[str, int, Any]


def tensorboard(folder: Path) -> Iterator[Held]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for path in sorted(folder.glob("*/events.out.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                if kind == "simple_value":
                    yield value.tag, event.step, value.simple_value
                elif kind == "image":
                    yield value.tag, event.step, "picture"
                elif value.metadata.plugin_data.plugin_name == "text":
                    yield value.tag, event.step, value.tensor.tensor_shape.dim[0].size - 1


def trackio(folder: Path) -> Iterator[Held]:
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.sqlite_storage import SQLiteStorage

    for project in SQLiteStorage.get_projects():
        for run in SQLiteStorage.get_runs(project):
            for row in SQLiteStorage.get_logs(project, run):
                for name, value in row.items():
                    if name in ("step", "timestamp"):
                        continue
                    if isinstance(value, dict):
                        is_table = value["_type"] == "trackio.table"
                        value = len(value["_value"]) if is_table else "picture"
                    yield name, row["step"], value


def mlflow(folder: Path) -> Iterator[Held]:
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=folder.absolute().as_uri())
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            for name in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, name):
                    yield name, metric.step, metric.value
            for name in ("trajectories", "curves"):
                for file in client.list_artifacts(run.info.run_id, name):
                    step = int(Path(file.path).stem.removeprefix("step-"))
                    value: Any = "picture"
                    if name == "trajectories":
                        path = client.download_artifacts(run.info.run_id, file.path)
                        value = len(json.loads(Path(path).read_text())["data"])
                    yield name, step, value


def wandb(folder: Path) -> Iterator[Held]:
    """Offline files as W&B writes them: a log of blocks in the manner of LevelDB, a protobuf a record."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in _log_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            values: dict[str, Any] = {}
            for item in record.history.item:
                name, *inner = [item.key] if item.key else item.nested_key
                value = json.loads(item.value_json)
                if inner:  # of a table or picture
                    values.setdefault(name, {})[inner[0]] = value
                else:
                    values[name] = value
            for name, value in values.items():
                if name == "step" or name.startswith("_"):
                    continue
                if isinstance(value, dict):
                    value = value["nrows"] if value["_type"] == "table-file" else "picture"
                yield name, values["step"], value


def _log_records(data: bytes) -> Iterator[bytes]:
    at = 7
    part = b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield part
            part = b""


READERS = {"tensorboard": tensorboard, "trackio": trackio, "mlflow": mlflow, "wandb": wandb}

if __name__ == "__main__":
    print(json.dumps(list(READERS[sys.argv[1]](Path(sys.argv[2])))))
