"""An environment of somebody's own, as a run names it: a lake whose server is away now and then.

load_config("frozenlake", {"env.kind": "tests.silent_bugs.own_world:Away"})
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.values import StepResult
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.frozen_lake import FrozenLake, FrozenLakeEnv

OFTEN = 0.04  # of the answers find nobody


@dataclass(frozen=True)
class Away(FrozenLake):
    """FrozenLake; whether it is away goes by the trajectory and the turn, so that the same trajectory breaks again."""

    def make(self) -> AwayEnv:
        return AwayEnv(self)


class AwayEnv(FrozenLakeEnv):
    def step(self, action_text: str) -> StepResult:
        if rng_at("away", self.dynamics_seed, self.turns).random() < OFTEN:
            raise EnvError("the lake is away, on purpose")
        return super().step(action_text)
