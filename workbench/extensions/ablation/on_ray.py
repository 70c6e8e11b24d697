"""Jobs as tasks of a Ray cluster (extra `ray`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from workbench.extensions.ablation.jobs import RAY, Lost, do_assigned
from workbench.values.errors import ConfigError, WorkbenchError

POLL_S = 1.0
OPTIONS = ("address", "namespace")


class RayCluster:
    """Tasks of one CPU each, whose nodes Ray chooses. `options`: `address` of the cluster (default: the one that runs
    here), `namespace`. Ray ends the tasks of a process that is gone."""

    def __init__(self, _: Path, name: str, gpus_per_job: int, options: Mapping[str, Any]):
        _connect(options)
        self.gpus_per_job = gpus_per_job
        self._task = ray.remote(do_assigned).options(
            num_cpus=1, num_gpus=gpus_per_job, max_retries=0, scheduling_strategy="SPREAD"
        )

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: Any) -> None:
        """The connection stays: it is one for the whole process."""

    def submit(self, do: Callable[..., Any], *arguments: Any) -> Any:
        return self._task.remote(self.gpus_per_job, RAY, do, *arguments)

    def ended(self, tasks: Collection[Any]) -> Sequence[Any]:
        ready, _ = ray.wait([*tasks], num_returns=1, timeout=POLL_S)
        return ready

    def outcome(self, task: Any) -> Any:
        try:
            return ray.get(task)
        except TaskCancelledError:
            return Lost("its task was cancelled")
        except RayTaskError as error:
            raise WorkbenchError(f"a job ended with an error of its own:\n{error}") from error
        except RayError as error:  # its worker or node ended
            return Lost(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")

    def cancel(self, tasks: Collection[Any]) -> None:
        for task in tasks:
            ray.cancel(task, force=True)


def _connect(options: Mapping[str, Any]) -> None:
    if unknown := [name for name in options if name not in OPTIONS]:
        raise ConfigError(f"--launch {unknown[0]}=...: Ray takes {' and '.join(OPTIONS)}")
    if ray.is_initialized():
        return
    given = {"address": "auto"} | dict(options)
    try:
        ray.init(**given, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"--on ray: expected a Ray cluster that runs, and found none ({error}); start one (`ray start --head`), "
            "or name it: --launch address=HOST:PORT"
        ) from error
