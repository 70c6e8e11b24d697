"""What there is to do: one job per environment, algorithm and seed, and the configuration of each.

The settings of an algorithm are its own defaults, whatever the preset says, plus what `settings.toml` adjusts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from workbench.basics.canonical_json import json_bytes
from workbench.basics.fingerprint import code_fingerprint
from workbench.learn.algorithms import ALGORITHMS
from workbench.training.config import (
    Config,
    changed_config,
    from_dict,
    load_config,
    nearest,
    to_dict,
)
from workbench.values import Task
from workbench.values.errors import ConfigError
from workbench.worlds import PRESETS

SETTINGS = Path(__file__).with_name("settings.toml")
ENVIRONMENTS = ("frozenlake", "bandit")  # presets of workbench.training.config
OWN = ("algorithm", "critic", "learner")  # what may differ between algorithms


@dataclass(frozen=True)
class Terms:
    """What all jobs have in common: `tasks` held-out tasks, leaving out the first `first`, and the settings' file."""

    tasks: int = 512
    first: int = 0
    seed: int = 0  # of the noise while measuring
    settings: Path = SETTINGS


@dataclass(frozen=True)
class Job:
    """Train one algorithm in one environment and measure it; without an algorithm, measure what is there before."""

    environment: str
    algorithm: str | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.environment}-{'start' if self.algorithm is None else f'{self.algorithm}-seed{self.seed}'}"

    def __str__(self) -> str:
        what = (
            "before training" if self.algorithm is None else f"{self.algorithm}, seed {self.seed}"
        )
        return f"{self.environment}, {what}"


def jobs(environments: Sequence[str], algorithms: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """All of them, what there is before training first, then seed by seed."""
    before = [Job(environment) for environment in environments]
    return before + [Job(e, a, s) for s in seeds for e in environments for a in algorithms]


def cluster_of(environment: str, task: Task) -> str:
    """Which tasks go together in an interval: the bandit's by the pair of names, which is all that tells them apart."""
    return "/".join(sorted(task.payload["arms"])) if environment == "bandit" else task.id


def config_of(job: Job, path: Path = SETTINGS) -> Config:
    """The configuration of a job. ConfigError for settings that are unknown or without effect (invariant 11)."""
    base = load_config(job.environment)
    if (
        job.environment == "bandit"
    ):  # known names, drawn anew: the presets hold other names out, or have one pair
        base = replace(base, env=replace(PRESETS["bandit"], heldout_names=()))
    tree = to_dict(base) | {"seed": job.seed}
    if job.algorithm is not None:
        tree["algorithm"] = {"kind": job.algorithm}
    # The table is measured on the same terms for all, after training; the run's own evaluations are a formality, and
    # one checkpoint, of the end, is enough: what is cut off is repeated from its stored trajectories. A policy that has
    # found a rut may stay in it: every run gets its whole budget.
    own = {
        "train.evaluate_every": 0,
        "train.checkpoint_every": 10_000,
        "train.max_empty_steps": 10_000,
        "evaluation.num_tasks": 2,
    }
    return changed_config(
        to_dict(from_dict(tree)), own | read_settings(path)[job.environment] | adjusted(job, path)
    )[0]


def adjusted(job: Job, path: Path = SETTINGS) -> dict[str, Any]:
    """What is set for this algorithm in this environment and not for all: dotted keys."""
    found: dict[str, Any] = {}
    for entry in read_settings(path)["adjust"]:
        if job.algorithm in entry["algorithms"] and job.environment in entry["environments"]:
            found |= entry["set"]
    return found


@cache
def read_settings(path: Path) -> dict[str, Any]:
    """The file, checked: known environments and algorithms, and a reason for everything that is not the same for all."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read settings from {path}: {error}") from error
    missing = [name for name in ENVIRONMENTS if name not in tree]
    if missing or not isinstance(tree.setdefault("adjust", []), list):
        raise ConfigError(
            f"{path} holds a table for each of {', '.join(ENVIRONMENTS)} and entries [[adjust]]; "
            f"missing: {', '.join(missing) or 'the entries'}"
        )
    for number, entry in enumerate(tree["adjust"], 1):
        if set(entry) != {"algorithms", "environments", "why", "set"}:
            raise ConfigError(
                f"{path}: entry {number} of [[adjust]] needs algorithms, environments, why and set, got "
                f"{', '.join(entry)}"
            )
        unequal = [name for name in entry["set"] if name.split(".")[0] not in OWN]
        if unequal:
            raise ConfigError(
                f"{path}: entry {number} of [[adjust]] sets {', '.join(unequal)} for some only, and "
                "budget, tasks and sampling are the same for all; it may set "
                f"{', '.join(f'{name}.*' for name in OWN)}"
            )
        for key, known in (("algorithms", ALGORITHMS), ("environments", ENVIRONMENTS)):
            for name in entry[key]:
                if name not in known:
                    raise ConfigError(
                        f"{path}: entry {number} of [[adjust]] names {name!r} among its {key}; "
                        f"{nearest(name, known)}"
                    )
    return tree


def key_of(job: Job, terms: Terms) -> str:
    """Stands for everything that a result depends on, the code included: a result with another key is an old one."""
    facts = {
        "job": job.name,
        "config": to_dict(config_of(job, terms.settings)),
        "code": code_fingerprint(),
        "terms": [terms.tasks, terms.first, terms.seed],
    }
    return blake2b(json_bytes(facts, "a job"), digest_size=6).hexdigest()
