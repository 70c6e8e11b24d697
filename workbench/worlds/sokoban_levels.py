"""Sokoban levels: drawn by hand or made for a seed, with a shortest solution of a wanted length.

A level is a tuple of strings in the standard symbols:

    # wall · _ floor · O target · √ box on a target · X box · P player · S player on a target

Difficulty is not hoped for but chosen: first the length of the shortest solution, then rooms until one has a state that
far from its end, then one such state. Lengths are therefore distributed exactly as stated. Every draw has an address;
nothing depends on the process (`hash(str)` is salted: with it, each process would have levels of its own).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.sokoban_solver import (
    FLOOR,
    TARGET,
    WALL,
    Room,
    State,
    distance,
    distances,
    targets_of,
)

BOX_ON_TARGET = "√"
BOX = "X"
PLAYER = "P"
PLAYER_ON_TARGET = "S"
# RAGEN's order of symbols
STANDARD = WALL + FLOOR + TARGET + BOX_ON_TARGET + BOX + PLAYER + PLAYER_ON_TARGET
ALTERNATIVE = "W.GCBA@"  # RAGEN's second vocabulary
_MOST_ROOMS = 10_000


@dataclass(frozen=True)
class Level:
    """`rows` in the standard symbols; `moves`: length of the shortest solution, None if there is none."""

    rows: tuple[str, ...]
    moves: int | None


def make_level(
    size: int, boxes: int, wall_density: float, lengths: Sequence[int], seed: int
) -> Level:
    """The level of this seed: its length is one of `lengths`, each as likely as it stands there.

    Walls inside the room are drawn with `wall_density` a cell; a room whose floor is not in one piece is redrawn.
    EnvError where rooms of this kind have no solution of the wanted length.
    """
    rng = rng_at("sokoban.level", size, boxes, seed)
    wanted = int(lengths[rng.integers(len(lengths))])
    for _ in range(_MOST_ROOMS):
        room = _draw_room(size, boxes, wall_density, rng)
        if room is None:
            continue
        states = np.argwhere(distances.__wrapped__(room, wanted) == wanted)
        if len(states):
            player, *cells = (int(cell) for cell in states[rng.integers(len(states))])
            return Level(draw(room, (player, tuple(cells))), wanted)
    raise EnvError(
        f"no room of {size} x {size} with {boxes} boxes and walls {wall_density:.3g} has a shortest "
        f"solution of {wanted} moves, in {_MOST_ROOMS} draws; lower max_solution or make the room larger"
    )


def _draw_room(size: int, boxes: int, wall_density: float, rng: np.random.Generator) -> Room | None:
    """A closed room with its targets; None where the floor is too small or in several pieces."""
    cells = np.full((size, size), WALL)
    is_wall = rng.random((size - 2, size - 2)) < wall_density
    cells[1:-1, 1:-1] = np.where(is_wall, WALL, FLOOR)
    floor = np.flatnonzero(cells.reshape(-1) == FLOOR)
    if len(floor) < boxes + 2 or not _in_one_piece(floor, size):
        return None
    cells.reshape(-1)[rng.choice(floor, size=boxes, replace=False)] = TARGET
    return tuple("".join(row) for row in cells)


def _in_one_piece(floor: np.ndarray, size: int) -> bool:
    left = set(floor.tolist())
    edge = [int(floor[0])]
    left.discard(edge[0])
    while edge:
        cell = edge.pop()
        for following in (cell - size, cell + size, cell - 1, cell + 1):
            if following in left:
                left.remove(following)
                edge.append(following)
    return not left


# ------------------------------------------------------------------------------------------------ reading and drawing


def draw(room: Room, state: State) -> tuple[str, ...]:
    """The rows of a level: a room with its boxes and its player, in the standard symbols."""
    player, boxes = state
    size = len(room)
    cells = list("".join(room))
    for box in boxes:
        cells[box] = BOX_ON_TARGET if cells[box] == TARGET else BOX
    cells[player] = PLAYER_ON_TARGET if cells[player] == TARGET else PLAYER
    return tuple("".join(cells[start : start + size]) for start in range(0, len(cells), size))


def read(rows: Sequence[str]) -> tuple[Room, State]:
    """Room and state of a level in the standard symbols. EnvError, with the reason, for what is no level."""
    rows = tuple(rows)
    size = len(rows)
    text = "".join(rows)
    is_square = all(len(row) == size for row in rows)
    if size < 3 or not is_square or set(text) - set(STANDARD):
        raise EnvError(
            f"expected a square level of the symbols {' '.join(STANDARD)}, got {list(rows)}"
        )
    edge = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
    if set(edge) != {WALL}:
        raise EnvError(f"a level is closed by walls {WALL} all around, got {list(rows)}")
    boxes = tuple(index for index, cell in enumerate(text) if cell in BOX + BOX_ON_TARGET)
    players = [index for index, cell in enumerate(text) if cell in PLAYER + PLAYER_ON_TARGET]
    under = {BOX_ON_TARGET: TARGET, PLAYER_ON_TARGET: TARGET, BOX: FLOOR, PLAYER: FLOOR}
    room_text = text.translate(str.maketrans(under))
    room = tuple(room_text[start : start + size] for start in range(0, len(text), size))
    if len(players) != 1 or not boxes or len(boxes) != len(targets_of(room)):
        raise EnvError(
            f"a level has one player, and as many targets as boxes (at least one), got {list(rows)}"
        )
    return room, (players[0], boxes)


def level_from_rows(rows: Sequence[str]) -> Level:
    """A level drawn by hand, one string a row; spaces between the cells may stay."""
    rows = tuple(row.replace(" ", "") for row in rows)
    room, state = read(rows)
    return Level(rows, distance(room, state))
