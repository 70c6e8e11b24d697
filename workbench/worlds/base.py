"""The contract of an environment: messages in and out, no token in sight.

Two things share a room: the *family* (a frozen dataclass: what kind of problem, with which settings) and the
*environment* (one running trajectory, with state). A family makes tasks and environments. It may bring its own baselines,
a random policy and the best solver known; where it has none, every table says "none known".
"""

from __future__ import annotations

from typing import Any, Protocol

from workbench.values import Observation, StepResult, Task


class Env(Protocol):
    """One trajectory in progress."""

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        """Start `task`. The observation depends on the task only; `dynamics_seed` drives chance from here on (invariant 7)."""

    def step(self, action_text: str) -> StepResult:
        """Take the whole text the policy wrote in its turn. Bad text is answered, not raised (invariant 10).

        `info["success"]` (true or false) says whether the trajectory has succeeded so far, in every
        StepResult. Where no StepResult has it, success is not known, and policies are compared by
        return. After the end (terminated, truncated) a further step raises EnvError.
        """

    # Optional, found by hasattr:  snapshot() -> JSON value;  restore(snapshot) -> None;  state_key() -> str;
    # privileged() -> str: what is known of the state it is in now and not shown to the policy, for a critic with
    # critic.sees = "state": nothing that depends on what the policy does next;
    # close() -> None: the trajectory is over, give back processes and connections. Called once on every way out (not where a
    # worker was killed), from another thread where a call hangs. reset, step and close may be coroutines


class EnvFamily(Protocol):
    """A kind of problem with its settings: a frozen dataclass, its fields are its only configuration."""

    name: str

    @property
    def max_turns(self) -> int: ...

    def task(self, task_seed: int) -> Task:
        """The problem of this seed, the same in every process."""

    def make(self) -> Env:
        """A fresh environment. Never shared between trajectories; what serves many says so (`workbench.worlds.shared`)."""

    # Optional, found by hasattr; a family without one simply does not define it:
    #   random_action(env, rng: numpy Generator) -> str   action text of the uniform random policy, valid format always
    #   solver_action(env, rng) -> str                    of the best-known solver, replanning from the current state
    #   split_of(task) -> "train" | "held-out"            where a task belongs, by its content
    #   task_seeds(split, first, count, seed) -> ints     which draws come one after another in a run (rows.RowFamily)
    #   score(trajectory: Trajectory) -> number, parts or None   what it earned as a whole, computed after it (worlds.scoring)
    #   may_vary: tuple of str                            harmless variations of an answer that it pays: some of "spaces",
    #     "line breaks", "full stop", "case", "prose"; without it white space is tried (`workbench check-env`, rule R39)
    # Optional, False or True: deterministic (False: not the same twice from the same task, seed and actions), remote
    # (True: it talks to a server). The lint does not replay environments that say either.


class Wrapped:
    """Stands around a family, an environment or an engine, which does whatever this does not do itself."""

    def __init__(self, inside: Any) -> None:
        self._inside = inside

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while it is unpickled in a worker
            raise AttributeError(name)
        return getattr(self._inside, name)
