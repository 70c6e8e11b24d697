"""Whether what a policy states about the world is true: its thought, compared with the state that it thought in.

Only statements of fact that the environment can decide are read; anything else in a thought is passed over, so that a
thought may be in any words. An environment pays for agreement only where its family's `reasoning_bonus` says so.

A statement of fact is not a reason. Where it is paid for, it can be farmed: a true sentence that changes nothing about
the answer earns as much as one that does, and a trajectory that takes more turns can say more of them. Therefore one turn
is paid once, however much it says; a false statement costs what a true one earns; a turn whose format is invalid is
not read at all; and a bonus times the number of turns should stay far below what the task itself pays.

Nothing here raises and the time is linear in what is read: the first 1000 words (invariant 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product, starmap

from workbench.worlds import lake_solver, sokoban_solver

AGREES = "agrees"
DISAGREES = "disagrees"
SILENT = "not stated"
MOST_WORDS = 1000

Cell = tuple[int, int]


def verdict(statements: Sequence[bool]) -> str:
    """One false statement is enough to disagree."""
    if not statements:
        return SILENT
    return AGREES if all(statements) else DISAGREES


def payment(agreement: str, bonus: float) -> float:
    """What a turn earns by its reasoning: `bonus` where it agrees, minus that where it disagrees, else nothing."""
    return {AGREES: bonus, DISAGREES: -bonus}.get(agreement, 0.0)


def label(bonus: float) -> str:
    """The setting in a few words, for a family's label."""
    return f", reasoning +-{bonus:.3g}" if bonus else ""


def words_of(thought: str) -> list[str]:
    """Words as written, without the punctuation around them; colons and semicolons, which part a thought, are words of
    their own."""
    for sign in ":;":
        thought = thought.replace(sign, f" {sign} ")
    parts = thought.split(None, MOST_WORDS)[:MOST_WORDS]
    stripped = [part.strip(".,!?()\"'") for part in parts]
    return [word for word in stripped if word]


# ------------------------------------------------------------------------------------------------ the lake


def lake_statements(
    thought: str,
    rows: tuple[str, ...],
    position: Cell,
    moves: Sequence[str],
    symbols: str = "P_OGX√",
) -> list[bool]:
    """Which of the statements in a thought are true, on a lake of these rows with the player at `position`:

    down right : ...            before the first colon nothing but directions: where the goal lies from the player
    ... down O right _          a move and a cell (O _ G, as `symbols` show them, or hole, ice, goal): where that
                                move leads, if it does not slip. The next one goes on from there, except after a
                                hole: that is not entered
    I am in row 2, column 3     the player's place (I, you, player), the goal's (goal) or a hole's (hole), from 1
    """
    words = words_of(thought)
    return [
        *_bearing_statements(words, ":", [(position, lake_solver.find(rows, "G"))]),
        *_path_statements(words, rows, position, moves, symbols),
        *_place_statements(words, rows, position),
    ]


def _path_statements(
    words: Sequence[str], rows: tuple[str, ...], position: Cell, moves: Sequence[str], symbols: str
) -> Iterator[bool]:
    numbers = {move.lower(): number for number, move in enumerate(moves)}
    cells = dict(zip(symbols[1:4], "_OG")) | {"hole": "O", "ice": "_", "goal": "G"}
    path = words[words.index(":") + 1 :] if ":" in words else words
    for word, following in zip(path, [*path[1:], ""]):
        if word.lower() not in numbers:
            continue
        row, column = lake_solver.neighbour(len(rows), *position, numbers[word.lower()])
        stated = cells.get(following)
        if stated is None:
            goes_on = ":" in words
        else:
            goes_on = stated != "O"
            yield stated == rows[row][column].replace("P", "_")
        if goes_on:
            position = (row, column)


def _place_statements(
    words: Sequence[str], rows: tuple[str, ...], position: Cell
) -> Iterator[bool]:
    subjects = {"i": "player", "you": "player", "player": "player", "goal": "goal", "hole": "hole"}
    subject = None
    for at, word in enumerate(words):
        subject = subjects.get(word.lower(), subject)
        nouns = [noun.lower() for noun in words[at : at + 3 : 2]]
        if subject is None or nouns != ["row", "column"]:
            continue
        place = _place(words[at + 1 : at + 4 : 2])
        if place is None:
            continue
        cell = (place[0] - 1, place[1] - 1)
        inside = all(0 <= number < len(rows) for number in cell)
        yield {
            "player": cell == position,
            "goal": cell == lake_solver.find(rows, "G"),
            "hole": inside and rows[cell[0]][cell[1]] == "O",
        }[subject]


# ------------------------------------------------------------------------------------------------ Sokoban


def sokoban_statements(
    thought: str, room: sokoban_solver.Room, state: sokoban_solver.State, moves: Sequence[str]
) -> list[bool]:
    """The same for a Sokoban room; places are row and column, from 1, as the environment writes them:

    down right ; ...            before the first semicolon nothing but directions: where a target lies from a box
    down from 2 3               going down from there pushes a box
    : up 2 2 right 2 3          after a colon: where a move brings the player ...
    : ... : down 4 3            ... and after the next colon, a box. Each goes on from the one before
    you 2 3, box 3 3, target 4 4, wall 1 1
    """
    words = words_of(thought)
    size = len(room)
    numbers = {move.lower(): number for number, move in enumerate(moves)}
    boxes = [divmod(cell, size) for cell in state[1]]
    targets = [divmod(cell, size) for cell in sokoban_solver.targets_of(room)]
    return [
        *_bearing_statements(words, ";", list(product(boxes, targets))),
        *_room_statements(words, room, state, numbers),
        *_move_statements(words, room, state, numbers),
    ]


def _room_statements(
    words: Sequence[str],
    room: sokoban_solver.Room,
    state: sokoban_solver.State,
    numbers: dict[str, int],
) -> Iterator[bool]:
    """Statements about the room as it stands."""
    size = len(room)
    player, boxes = state
    facts: dict[str, Callable[[int], bool]] = {
        "you": lambda cell: cell == player,
        "i": lambda cell: cell == player,
        "box": lambda cell: cell in boxes,
        "target": lambda cell: cell in sokoban_solver.targets_of(room),
        "wall": lambda cell: "".join(room)[cell] == sokoban_solver.WALL,
    }
    for at, word in enumerate(words):
        before = words[at - 1].lower() if at else ""
        pushes = word.lower() == "from" and before in numbers
        if not pushes and word.lower() not in facts:
            continue
        place = _place(words[at + 1 : at + 3])
        if place is None:
            continue
        cell = _cell(place, size)
        if cell is None:
            yield False
        elif pushes:
            yield cell + sokoban_solver.deltas(size)[numbers[before]] in boxes
        else:
            yield facts[word.lower()](cell)


def _move_statements(
    words: Sequence[str],
    room: sokoban_solver.Room,
    state: sokoban_solver.State,
    numbers: dict[str, int],
) -> Iterator[bool]:
    """Statements about where moves lead, one after the other."""
    colons = 0
    for at, word in enumerate(words):
        colons += word == ":"
        if not colons or word.lower() not in numbers:
            continue
        before = state
        state = sokoban_solver.step(room, state, numbers[word.lower()])
        if (place := _place(words[at + 1 : at + 3])) is not None:
            cell = _cell(place, len(room))
            moved = set(state[1]) - set(before[1])
            yield cell == state[0] if colons == 1 else cell in moved


# ------------------------------------------------------------------------------------------------ the bandit


def bandit_statements(thought: str, arms: Sequence[str], risky: str) -> list[bool]:
    """`Dragon bold , Phoenix safe`: an arm's name, and behind it whether it is the bold (or risky) one, or the safe one."""
    words = [word.lower() for word in words_of(thought.replace(",", " , "))]
    statements = []
    for arm in arms:
        name = arm.lower().split()
        for start in range(len(words) - len(name)):
            end = start + len(name)
            if words[start:end] == name and words[end] in ("bold", "risky", "safe"):
                statements.append((words[end] != "safe") == (arm == risky))
    return statements


# ------------------------------------------------------------------------------------------------ words and places


def _bearing_statements(
    words: Sequence[str], end: str, pairs: Sequence[tuple[Cell, Cell]]
) -> Iterator[bool]:
    """`down right` before `end`: the second place of one of the pairs lies there from the first. Nothing is stated
    where other words stand before `end`."""
    before = words[: words.index(end)] if end in words else []
    directions = {word.lower() for word in before}
    if directions and directions <= {"up", "down", "left", "right"}:
        yield directions in starmap(bearing, pairs)


def bearing(here: Cell, there: Cell) -> set[str]:
    """{"down", "right"}: in which directions `there` lies."""
    directions = set()
    if there[0] != here[0]:
        directions.add("down" if there[0] > here[0] else "up")
    if there[1] != here[1]:
        directions.add("right" if there[1] > here[1] else "left")
    return directions


def _place(words: Sequence[str]) -> Cell | None:
    """Two numbers, as row and column."""
    numbers = [_number(word) for word in words]
    return (numbers[0], numbers[1]) if len(numbers) == 2 and None not in numbers else None


def _number(word: str) -> int | None:
    """At most three digits: a wall of nines is no place, and costs nothing to pass over."""
    return int(word) if len(word) <= 3 and word.isascii() and word.isdecimal() else None


def _cell(place: Cell, size: int) -> int | None:
    """A cell's number in the room; None where the place, or what lies next to it, is outside."""
    row = place[0] - 1
    column = place[1] - 1
    return row * size + column if 0 <= row < size and 0 <= column < size else None
