"""The contract of an environment: messages in and out, no token in sight.

Two things share a room: the *family* (a frozen dataclass: what kind of problem, with which settings) and the
*environment* (one running attempt, with state). A family makes tasks and environments and brings its own baselines:
a random policy and the best solver known.
"""
from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from workbench.types import Observation, StepResult, Task


class Env(Protocol):
    """One attempt in progress."""

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        """Start `task`. The observation depends on the task only; `dynamics_seed` drives chance from here on (law 7).
        """

    def step(self, action_text: str) -> StepResult:
        """Take the whole text the policy wrote in its turn. Bad text is answered, not raised (law 10)."""

    # Optional, found by hasattr:  snapshot() -> JSON value;  restore(snapshot) -> None;  state_key() -> str;
    # close() -> None: the attempt is over, give back processes and connections (not called where a worker was killed)


class EnvFamily(Protocol):
    """A kind of problem with its settings: a frozen dataclass, its fields are its only configuration."""

    name: str

    @property
    def max_turns(self) -> int: ...

    def task(self, task_seed: int) -> Task:
        """The problem of this seed, the same in every process."""

    def make(self) -> Env:
        """A fresh environment. Never shared between attempts."""

    def random_action(self, env: Any, rng: np.random.Generator) -> str:
        """Action text of the uniform random policy (valid format always)."""

    def solver_action(self, env: Any, rng: np.random.Generator) -> str:
        """Action text of the best-known solver, replanning from the current state."""

    # Optional, False or True: deterministic (False: not the same twice from the same task, seed and actions), remote
    # (True: it talks to a server). The lint does not replay environments that say either.
