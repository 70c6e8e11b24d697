"""What is run: three kinds of collapse and three kinds of health, each a file of settings, over training seeds.

Thresholds are chosen on the runs with even seeds and judged on those with odd ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from workbench.basics.canonical_json import json_bytes
from workbench.training.config import Config, changed_config, load_config, to_dict

HERE = Path(__file__).parent
ILL = ("echo", "retreat", "risk-aversion")
HEALTHY = ("healthy-search", "healthy-lake", "healthy-bandit")
# Of `make collapse`: 30 runs that are meant to collapse and 21 that are meant to look ill and learn.
SEEDS = {**dict.fromkeys(ILL, 10), **dict.fromkeys(HEALTHY, 7)}
# A look at whether the command works: it measures nothing.
QUICK = {
    "train.steps": 3,
    "train.tasks_per_step": 2,
    "train.group_size": 2,
    "train.evaluate_every": 1,
    "evaluation.num_tasks": 2,
}
QUICK_SEEDS = 2
# Measures mutual information, retrieval and the gradient's signal over noise in every step: dear, and trains the same.
INFORMATION = {"train.information_every": 1}


@dataclass(frozen=True)
class Job:
    """One training run: a file of settings beside this one, and a seed."""

    kind: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}-seed{self.seed}"

    @property
    def chooses(self) -> bool:
        """Thresholds are chosen on this run; else they are judged on it."""
        return self.seed % 2 == 0


def jobs(kinds: Sequence[str] = (*ILL, *HEALTHY), most: int | None = None) -> list[Job]:
    """All of them, seed by seed, so that whatever part is done has every kind in it. `most`: so many seeds of each."""
    seeds = {kind: SEEDS[kind] if most is None else min(most, SEEDS[kind]) for kind in kinds}
    return [
        Job(kind, seed)
        for seed in range(max(seeds.values()))
        for kind in kinds
        if seed < seeds[kind]
    ]


def config_of(job: Job, changes: Mapping[str, Any] = {}) -> Config:
    base = load_config(HERE / f"{job.kind}.toml", {"seed": job.seed})
    return changed_config(to_dict(base), changes)[0] if changes else base


def key_of(config: Config) -> str:
    """Stands for the settings of a run: one with another key was made with others and is not reused."""
    return blake2b(json_bytes(to_dict(config), "a run's settings"), digest_size=4).hexdigest()
