"""Exact arithmetic of a frozen lake: neighbours, shortest paths, and the best policy by dynamic programming.

A map is a tuple of strings, one character a cell (P start, _ ice, O hole, G goal). Cells are numbered row by row.
Moves are numbered 0 Left, 1 Down, 2 Right, 3 Up: neighbours in this ring are perpendicular.
Axes: C cells · M moves (4) · H moves left (0 .. horizon).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workbench.values.errors import EnvError

_DELTAS = ((0, -1), (1, 0), (0, 1), (-1, 0))
_TIE = 1e-9


@dataclass(frozen=True, eq=False)
class Solution:
    """`best_HC[h, c]`: the best move in cell c with h moves left. `success_HC`: probability to reach the goal then.
    `value`: that probability from the start, with the whole horizon."""

    best_HC: np.ndarray
    success_HC: np.ndarray
    value: float


def check_rows(rows: tuple[str, ...], size: int) -> None:
    """EnvError unless the map is size x size, of known cells, with one start and one goal."""
    text = "".join(rows)
    is_square = len(rows) == size and all(len(row) == size for row in rows)
    if not is_square or set(text) - set("P_OG"):
        raise EnvError(
            f"expected a map of {size} x {size} cells of P _ O G, got {list(rows)}; the task must come from "
            "a family of the same size"
        )
    if text.count("P") != 1 or text.count("G") != 1:
        raise EnvError(f"a map has one P and one G, got {list(rows)}")


def find(rows: tuple[str, ...], cell: str) -> tuple[int, int]:
    index = "".join(rows).index(cell)
    return divmod(index, len(rows))


def neighbour(size: int, row: int, column: int, move: int) -> tuple[int, int]:
    """Where a move leads; the edge holds."""
    down, right = _DELTAS[move]
    next_row = min(max(row + down, 0), size - 1)
    next_column = min(max(column + right, 0), size - 1)
    return next_row, next_column


def draw(rows: tuple[str, ...], position: tuple[int, int]) -> str:
    """The map with the player at `position`: X in a hole, √ on the goal, P elsewhere. Single spaces between cells."""
    lines = [list(row.replace("P", "_")) for row in rows]
    under = lines[position[0]][position[1]]
    lines[position[0]][position[1]] = {"O": "X", "G": "√"}.get(under, "P")
    return "\n".join(" ".join(line) for line in lines)


def distance(rows: tuple[str, ...]) -> int | None:
    """Moves of the shortest path from start to goal that avoids the holes; None if there is none."""
    return distances(rows).get(find(rows, "P"))


def distances(rows: tuple[str, ...]) -> dict[tuple[int, int], int]:
    """Moves of the shortest path to the goal that avoids the holes, from each cell that has one."""
    size = len(rows)
    goal = find(rows, "G")
    steps = {goal: 0}
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for move in range(4):
            following = neighbour(size, *cell, move)
            if following not in steps and rows[following[0]][following[1]] != "O":
                steps[following] = steps[cell] + 1
                queue.append(following)
    return steps


def transitions(rows: tuple[str, ...], slip: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(probability [M, C, C] of the next cell, goal [C] 1.0 on the goal, over [C] True in holes and on the goal)."""
    size = len(rows)
    cells = "".join(rows)
    lead_MCC = np.zeros((4, size * size, size * size))
    for move in range(4):
        for cell in range(size * size):
            row, column = neighbour(size, *divmod(cell, size), move)
            lead_MCC[move, cell, row * size + column] = 1.0
    sideways_MCC = (np.roll(lead_MCC, 1, axis=0) + np.roll(lead_MCC, -1, axis=0)) / 2
    goal_C = np.array([cell == "G" for cell in cells], dtype=float)
    over_C = np.array([cell in "GO" for cell in cells])
    return (1 - slip) * lead_MCC + slip * sideways_MCC, goal_C, over_C


@lru_cache(maxsize=256)
def solve(rows: tuple[str, ...], horizon: int, slip: float) -> Solution:
    """The policy that is most likely to reach the goal within `horizon` moves, by backward induction; exact.

    Among equally likely moves (within 1e-9) the one that keeps most moves in hand on arrival, so that a solver walks
    straight instead of idling: with no slip its path is a shortest one.
    """
    step_MCC, goal_C, over_C = transitions(rows, slip)
    success_HC = np.zeros((horizon + 1, len(goal_C)))
    best_HC = np.zeros((horizon + 1, len(goal_C)), dtype=int)
    success_HC[0] = goal_C
    saved_C = np.zeros(len(goal_C))  # expected moves in hand on arrival (0 if never)
    for left in range(1, horizon + 1):
        success_MC = step_MCC @ success_HC[left - 1]
        saved_MC = step_MCC @ np.where(goal_C > 0, left - 1, saved_C)
        ties_MC = success_MC >= success_MC.max(axis=0) - _TIE
        best_HC[left] = np.where(ties_MC, saved_MC, -1.0).argmax(axis=0)
        cells = np.arange(len(goal_C))
        success_HC[left] = np.where(over_C, goal_C, success_MC[best_HC[left], cells])
        saved_C = np.where(over_C, 0.0, saved_MC[best_HC[left], cells])
    for array in (best_HC, success_HC):
        array.flags.writeable = False
    start = "".join(rows).index("P")
    return Solution(best_HC, success_HC, float(success_HC[horizon, start]))


def plan(
    rows: tuple[str, ...], position: tuple[int, int], horizon: int, slip: float, count: int
) -> tuple[int, ...]:
    """The best moves from `position` with `horizon` moves left, as long as each goes as intended; at least one, at most
    `count`, none beyond the goal."""
    size = len(rows)
    moves = []
    solution = solve(rows, max(horizon, 1), slip)
    for left in range(max(horizon, 1), max(horizon - count, 0), -1):
        moves.append(int(solution.best_HC[left, position[0] * size + position[1]]))
        position = neighbour(size, *position, moves[-1])
        if rows[position[0]][position[1]] in "GO":
            break
    return tuple(moves)
