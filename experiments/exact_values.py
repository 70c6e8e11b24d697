"""Exact success probabilities on a frozen lake, by dynamic programming: of the solver, and of uniformly random moves."""

from __future__ import annotations

import numpy as np

from workbench.values import Task
from workbench.worlds import lake_solver
from workbench.worlds.frozen_lake import FrozenLake


def solver_value(family: FrozenLake, task: Task) -> float:
    per_answer = 1 if family.slip else family.max_moves_per_action
    horizon = min(family.max_moves, family.max_turns * per_answer)
    return lake_solver.solve(tuple(task.payload["grid"]), horizon, family.slip).value


def random_value(family: FrozenLake, task: Task) -> float:
    """One move per answer. Slips change nothing here: a uniform move that slips is still uniform."""
    rows = tuple(task.payload["grid"])
    step_MCC, goal_C, over_C = lake_solver.transitions(rows, family.slip)
    step_CC = step_MCC.mean(axis=0)
    value_C = goal_C
    for _ in range(min(family.max_moves, family.max_turns)):
        value_C = np.where(over_C, goal_C, step_CC @ value_C)
    return float(value_C["".join(rows).index("P")])
