"""Exact arithmetic of Sokoban: one step, the distance of every state to the end, and shortest plans.

A *room* is a tuple of strings of `#` wall, `_` floor and `O` target, closed by walls all around. A *state* is
(player, boxes): cells numbered row by row, boxes in rising order. Moves are numbered 0 Up, 1 Down, 2 Left, 3 Right.

Distances are found backwards: from every solved state, by walking and pulling instead of pushing. One search answers
for all states of a room at once, so it makes levels of a wanted length as well as it plays them.

Axes: M moves (4) · F states of the frontier · B boxes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from workbench.values.errors import EnvError

WALL = "#"
FLOOR = "_"
TARGET = "O"
Room = tuple[str, ...]
State = tuple[int, tuple[int, ...]]
UNKNOWN = -1  # no way to the end, or none within the limit
_LONGEST = 10_000


def deltas(size: int) -> tuple[int, int, int, int]:
    """What each move adds to a cell's number."""
    return (-size, size, -1, 1)


def targets_of(room: Room) -> tuple[int, ...]:
    return tuple(index for index, cell in enumerate("".join(room)) if cell == TARGET)


def step(room: Room, state: State, move: int) -> State:
    """The state after one move: a walk, a push, or the same state where a wall or a second box stands in the way."""
    cells = "".join(room)
    change = deltas(len(room))[move]
    player, boxes = state
    ahead = player + change
    if cells[ahead] == WALL:
        return state
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + change
    if cells[beyond] == WALL or beyond in boxes:
        return state
    return ahead, tuple(sorted(beyond if box == ahead else box for box in boxes))


# Up to a megabyte each; a solver that plays asks for its few rooms again and again.
@lru_cache(maxsize=16)
def distances(room: Room, limit: int = _LONGEST) -> np.ndarray:
    """Moves to the end from every state, as an array indexed [player, first box, second box ...]; UNKNOWN (-1) where
    the end cannot be reached, or not within `limit` moves. Exact: a breadth-first search over all states."""
    size = len(room)
    targets = targets_of(room)
    if not targets:
        raise EnvError(f"a room without a target O has no end: {list(room)}")
    free = np.array([cell != WALL for cell in "".join(room)])
    change_M1 = np.array(deltas(size))[:, None]
    shape = (len(free),) * (1 + len(targets))
    moves = np.full(shape, UNKNOWN, dtype=np.int16)
    player_F = np.setdiff1d(np.flatnonzero(free), targets)
    boxes_BF = np.repeat(np.array(targets, dtype=np.int64)[:, None], len(player_F), axis=1)
    moves[(player_F, *boxes_BF)] = 0
    for distance in range(1, limit + 1):
        player_F, boxes_BF = _before(free, change_M1, player_F, boxes_BF)
        new_F = moves[(player_F, *boxes_BF)] == UNKNOWN
        new_states = (player_F[new_F], *boxes_BF[:, new_F])
        flat_F = np.unique(np.ravel_multi_index(new_states, shape))
        if not len(flat_F):
            break
        moves.reshape(-1)[flat_F] = distance
        player_F, *boxes = np.unravel_index(flat_F, shape)
        boxes_BF = np.stack(boxes)
    moves.flags.writeable = False
    return moves


def _before(
    free: np.ndarray, change_M1: np.ndarray, player_F: np.ndarray, boxes_BF: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Every state that one move turns into one of these, some of them several times over."""
    came_MF = player_F - change_M1
    open_MF = free[came_MF] & ~(came_MF[:, None] == boxes_BF).any(axis=1)
    move_E, state_E = np.nonzero(open_MF)
    came_E = came_MF[open_MF]
    was_BE = boxes_BF[:, state_E]
    players = [came_E]  # walked, no box touched
    boxes = [was_BE]
    ahead_E = player_F[state_E] + change_M1[move_E, 0]
    for box in range(len(boxes_BF)):  # or pushed this box from where the player stands now
        pushed_E = was_BE[box] == ahead_E
        pulled = was_BE[:, pushed_E].copy()
        pulled[box] = player_F[state_E][pushed_E]
        players.append(came_E[pushed_E])
        boxes.append(np.sort(pulled, axis=0))
    return np.concatenate(players), np.concatenate(boxes, axis=1)


def distance(room: Room, state: State) -> int | None:
    """Moves of a shortest solution from `state`; None where there is none (a deadlock)."""
    player, boxes = state
    moves = int(distances(room)[(player, *boxes)])
    return None if moves == UNKNOWN else moves


def best_moves(room: Room, state: State) -> tuple[int, ...]:
    """All moves that begin a shortest solution; none at the end and in a deadlock."""
    left = distance(room, state)
    if not left:
        return ()
    following = [distance(room, step(room, state, move)) for move in range(4)]
    return tuple(move for move, moves_left in enumerate(following) if moves_left == left - 1)


def plan(room: Room, state: State, count: int) -> tuple[int, ...]:
    """The first `count` moves of a shortest solution, or all of it if it is shorter; empty in a deadlock."""
    moves: list[int] = []
    while len(moves) < count and (best := best_moves(room, state)):
        moves.append(best[0])
        state = step(room, state, best[0])
    return tuple(moves)
