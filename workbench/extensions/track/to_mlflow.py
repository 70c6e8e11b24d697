"""MLflow: a server, a database, or a folder (--dest, or MLFLOW_TRACKING_URI)."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.extensions.track.items import COLUMNS, CURVES, TRAJECTORIES, Item
from workbench.extensions.track.tracker import TrackedRun, require

PACKAGE = "mlflow"
TAG = "workbench_id"
MOST_METRICS = 1_000  # of one request
MOST_SETTINGS = 100  # of one request
LONGEST_SETTING = 500  # characters


class MLflow:
    """A run of an experiment, found again by a tag. Every call returns once the server has what it was given."""

    def __init__(self, tracked: TrackedRun):
        require(PACKAGE, "mlflow")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        address = tracked.dest
        if address is not None and "://" not in address:
            address = Path(address).absolute().as_uri()
        if (address or "").startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=address)
        self._run = self._run_of(tracked)
        self._client.update_run(self._run, status="RUNNING")

    def _run_of(self, tracked: TrackedRun) -> str:
        """The id of the run with our tag; one that is new gets the settings as parameters."""
        experiment = self._client.get_experiment_by_name(tracked.project)
        if experiment is None:
            experiment_id = self._client.create_experiment(tracked.project)
        else:
            experiment_id = experiment.experiment_id
        wanted = f"tags.{TAG} = '{tracked.cursor.id}'"
        runs = self._client.search_runs([experiment_id], filter_string=wanted)
        if runs:
            return runs[0].info.run_id
        tags = {TAG: tracked.cursor.id}
        made = self._client.create_run(experiment_id, run_name=tracked.name, tags=tags)
        self._write_settings(made.info.run_id, tracked)
        return made.info.run_id

    def _write_settings(self, run_id: str, tracked: TrackedRun) -> None:
        from mlflow.entities import Param

        settings = []
        for name, value in tracked.settings.items():
            settings.append(Param(metric_name(name), str(value)[:LONGEST_SETTING]))
        for at in range(0, len(settings), MOST_SETTINGS):
            self._client.log_batch(run_id, params=settings[at : at + MOST_SETTINGS])

    def pause_s(self, elapsed_s: float) -> float:
        return 5.0

    def held(self, item: Item) -> set[str]:
        parts = set()
        for name in item.numbers:
            history = self._client.get_metric_history(self._run, metric_name(name))
            if any(metric.step == item.step for metric in history):
                parts.add(name)
        for name, ending in ((TRAJECTORIES, "json"), (CURVES, "png")):
            files = self._client.list_artifacts(self._run, name)
            if _file(name, item.step, ending) in {file.path for file in files}:
                parts.add(name)
        return parts

    def send(self, items: Sequence[tuple[int, Item]]) -> None:
        from PIL import Image

        for _, item in items:
            metrics = _metrics(item)
            for at in range(0, len(metrics), MOST_METRICS):
                self._client.log_batch(self._run, metrics=metrics[at : at + MOST_METRICS])
            if item.rows is not None:
                path = _file(TRAJECTORIES, item.step, "json")
                self._client.log_table(self._run, _columns(item.rows), path)
            if item.picture is not None:
                picture = Image.open(io.BytesIO(item.picture))
                self._client.log_image(self._run, picture, _file(CURVES, item.step, "png"))

    def close(self) -> None:
        self._client.set_terminated(self._run)


def metric_name(name: str) -> str:
    """A name of ours as MLflow allows it."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _metrics(item: Item) -> list[Any]:
    from mlflow.entities import Metric

    now = int(1000 * time.time())
    return [
        Metric(metric_name(name), value, now, item.step) for name, value in item.numbers.items()
    ]


def _columns(rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    columns = {}
    for number, name in enumerate(COLUMNS):
        columns[name] = [row[number] for row in rows]
    return columns


def _file(name: str, step: int, ending: str) -> str:
    return f"{name}/step-{step:08d}.{ending}"
