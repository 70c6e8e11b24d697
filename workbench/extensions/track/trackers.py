"""The trackers that there are, by name: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workbench.extensions.track import to_mlflow, to_tensorboard, to_trackio, to_wandb
from workbench.extensions.track.tracker import TrackedRun, Tracker, require
from workbench.values.errors import ConfigError, nearest

TRACKERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "trackio": to_trackio.Trackio,
    "wandb": to_wandb.Wandb,
    "mlflow": to_mlflow.MLflow,
    "tensorboard": to_tensorboard.TensorBoard,
}
PACKAGES: Mapping[str, str] = {
    "trackio": to_trackio.PACKAGE,
    "wandb": to_wandb.PACKAGE,
    "mlflow": to_mlflow.PACKAGE,
    "tensorboard": to_tensorboard.PACKAGE,
}


def check_tracker(name: str) -> None:
    """Raises ConfigError for a tracker that there is not, and for one whose package is not installed."""
    if name not in TRACKERS:
        raise ConfigError(f"no tracker {name!r}; {nearest(name, TRACKERS)}")
    require(PACKAGES[name], name)
