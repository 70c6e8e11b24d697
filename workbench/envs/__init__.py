"""Environments: messages in and out, no token in sight; Python and numpy only.

`ENVS` are the kinds of families, `PRESETS` families under a name. A preset's name promises nothing that its `label`
does not spell out.
"""
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from workbench.envs.bandit import CODE_NAMES, HELDOUT_NAMES, PAPER_HELDOUT_NAMES, PAPER_NAMES, Bandit
from workbench.envs.base import Env, EnvFamily
from workbench.envs.file_qa import FileQA
from workbench.envs.frozen_lake import FrozenLake
from workbench.envs.sokoban import Sokoban
from workbench.envs.sokoban_levels import ALTERNATIVE
from workbench.envs.splits import split_of, tasks
from workbench.envs.world_qa import WorldQA

# Kinds of environment by the name that a config gives them; a new one is one more line here.
ENVS: Mapping[str, type] = MappingProxyType({
    FrozenLake.name: FrozenLake, Bandit.name: Bandit, Sokoban.name: Sokoban, WorldQA.name: WorldQA,
    FileQA.name: FileQA})

PRESETS: Mapping[str, EnvFamily] = MappingProxyType({
    "frozenlake-4x4": FrozenLake(),  # the demo's: slip 0, holes 0.2, 10 moves
    "frozenlake-4x4-nothink": FrozenLake(think=False),
    "frozenlake-4x4-slip": FrozenLake(slip=0.2),
    "frozenlake-4x4-gymnasium": FrozenLake(slip=2 / 3),  # RAGEN's first versions: 1/3 intended, 1/3 to each side
    "sokoban-6x6": Sokoban(),
    "sokoban-6x6-coordinates": Sokoban(observation="coordinates"),  # the same levels, as the shipped policy reads them
    "sokoban-6x6-symbols": Sokoban(symbols=ALTERNATIVE),            # the same levels again
    "sokoban-8x8-2": Sokoban(size=8, boxes=2, min_solution=3, max_solution=14, max_moves=30),
    "bandit": Bandit(),
    "bandit-paper": Bandit(safe_payout=0.15, names=PAPER_NAMES, heldout_names=PAPER_HELDOUT_NAMES),
    "bandit-code": Bandit(safe_payout=0.1, names=CODE_NAMES, heldout_names=()),
    "bandit-rev": Bandit(safe_payout=0.15, names=PAPER_NAMES, heldout_names=PAPER_HELDOUT_NAMES, reversed_names=True),
    "bandit-test": Bandit(names=HELDOUT_NAMES, heldout_names=()),
    "world-qa": WorldQA(),
    "world-qa-hard": WorldQA(world="hard", documents=4, long_share=0.5, turns=6),
})

__all__ = ["ENVS", "PRESETS", "Bandit", "Env", "EnvFamily", "FrozenLake", "Sokoban", "WorldQA", "split_of", "tasks"]
