"""Several games on grids for one small policy: a lake in two sets of symbols, and Sokoban.

What is demonstrated is said here once, beside what is not, for the recipe and for `experiments/transfer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from data.make.demonstrations import LakeDemonstrator, SokobanDemonstrator
from workbench.worlds.frozen_lake import FrozenLake, FrozenLakeEnv
from workbench.worlds.grid_game import GridFamily
from workbench.worlds.sokoban import Sokoban, SokobanEnv

# Every other character of a lake than the first set's; the never shown ones stand in no text of a demonstration at all.
OTHER_SYMBOLS, NEVER_SHOWN = "M-KTDE", "&~%$^+"
MIXED_SYMBOLS = "M_KGD√"  # each was shown, in its own part; never in one lake

SHOWN: Mapping[str, GridFamily] = MappingProxyType(
    {
        "lake": FrozenLake(),
        "lake, other symbols": FrozenLake(symbols=OTHER_SYMBOLS),
        "Sokoban": Sokoban(size=5, max_solution=5, max_moves=10),
    }
)
HELD_BACK: Mapping[str, GridFamily] = MappingProxyType(
    {
        "lake, mixed symbols": FrozenLake(symbols=MIXED_SYMBOLS),
        "lake, symbols never shown": FrozenLake(symbols=NEVER_SHOWN),
    }
)


@dataclass(frozen=True)
class GridDemonstrator:
    """Plays each game as the demonstrator of that game does."""

    lake: LakeDemonstrator = LakeDemonstrator()
    sokoban: SokobanDemonstrator = SokobanDemonstrator()

    def action(self, env: FrozenLakeEnv | SokobanEnv, rng: np.random.Generator) -> str:
        """The text of one turn in the current state of `env`."""
        return (self.lake if isinstance(env, FrozenLakeEnv) else self.sokoban).action(env, rng)
