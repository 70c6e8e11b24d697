"""Jobs on other machines, by engines that know how: SLURM through submitit, Ray. Neither decides here what runs when.

Each job of the grid is a job of theirs. It claims itself, by the same lease as everywhere, when it begins: so a driver
may be killed, and several may send the same job, and it is done once. A job that its engine lost is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from workbench.ablation.sent import JobPlace, RemoteJob
from workbench.types.errors import ConfigError

MOST_LOSSES = (
    3  # of one job, by one driver: a job that ends its machine each time is not sent for ever
)
AT_ONCE = 64  # jobs, unless something else is asked for
LOCAL, SLURM, RAY = "local", "slurm", "ray"

Launcher = Callable[
    [Iterable[RemoteJob], JobPlace, int, Mapping[str, str], Callable[[], bool]],
    Iterator[tuple[RemoteJob, dict[str, Any]]],
]


def launcher_named(on: str) -> Launcher:
    """What sends jobs there: (jobs, where, how many at once, its own options, is it over?) -> (job, result), as they
    end; {"lost": words} for one that ended without a word. ConfigError where its package is missing."""
    try:
        if on == SLURM:
            from workbench.ablation.on_slurm import each_on_slurm as found
        elif on == RAY:
            from workbench.ablation.on_ray import each_on_ray as found
        else:
            raise ConfigError(f"jobs run on {LOCAL}, {SLURM} or {RAY}, got {on!r}")
    except ImportError as error:
        raise ConfigError(
            f"--on {on} needs a package that is not installed: pip install 'agent-rl-workbench[{on}]' "
            f"({error})"
        ) from error
    return found
