"""Jobs of a grid as tasks of a Ray cluster (extra `ray`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from workbench.ablation.sent import JobPlace, RemoteJob, do_sent
from workbench.types.errors import ConfigError

NOTHING = object()
POLL_S = 1.0
OPTIONS = ("address", "namespace")


def each_on_ray(
    jobs: Iterable[RemoteJob],
    where: JobPlace,
    at_once: int,
    options: Mapping[str, Any],
    is_over: Callable[[], bool],
) -> Iterator[tuple[RemoteJob, dict[str, Any]]]:
    """At most `at_once` tasks of one CPU each are with Ray, which chooses their nodes. `options`: `address` of the
    cluster (default: the one that runs here). Once it is over nothing else is sent."""
    _connect(options)
    task = ray.remote(do_sent).options(
        num_cpus=1, num_gpus=where.gpus, max_retries=0, scheduling_strategy="SPREAD"
    )
    sent: dict[Any, RemoteJob] = {}
    queue = iter(jobs)
    try:
        while True:
            while (
                len(sent) < at_once
                and not is_over()
                and (job := next(queue, NOTHING)) is not NOTHING
            ):
                sent[task.remote(job, where)] = job
            if not sent:
                return
            ready, _ = ray.wait([*sent], num_returns=1, timeout=POLL_S)
            for one in ready:
                yield sent.pop(one), _outcome(one)
    except BaseException:
        for one in sent:
            ray.cancel(one, force=True)
        raise


def _connect(options: Mapping[str, Any]) -> None:
    if unknown := [name for name in options if name not in OPTIONS]:
        raise ConfigError(f"--launch {unknown[0]}=...: Ray takes {' and '.join(OPTIONS)}")
    if ray.is_initialized():
        return
    try:
        ray.init(
            **{"address": "auto"} | dict(options), logging_level=logging.ERROR, log_to_driver=False
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"--on ray: expected a Ray cluster that runs, and found none ({error}); start one (`ray start --head`), "
            "or name it: --launch address=HOST:PORT"
        ) from error


def _outcome(one: Any) -> dict[str, Any]:
    try:
        return ray.get(one)
    except TaskCancelledError:
        return {"lost": "its task was cancelled"}
    except RayTaskError:
        raise  # what is wrong in `do_sent` itself
    except RayError as error:  # its worker or node ended
        return {"lost": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
