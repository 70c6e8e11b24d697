"""Imperfect demonstrators: what the tiny policies imitate before they learn from rewards.

A demonstrator writes whole action texts, thought included, and is bad at its job *on purpose*, in a way that its own
thoughts give away. That is what makes the warm start worth training further:

* on the lake it plays a turn in one of three habits. It *guesses* (random moves), *walks* (heads for the goal and
  ignores holes) or *looks* (names the cell that each move leads to, and turns away from a hole). Rewards tell the
  habits apart; the demonstrator does not.
* at Sokoban it *guesses* or *plans*: names where the target lies from the box, the next push and the place to push
  from, and says after each move where that leads, so that a model can think in text what it cannot see at a glance;
* at the bandit it knows which names sound safe and which sound bold, and mostly takes the safe arm, which pays less.

Everybody slips in the format now and then. Nobody here sees a held-out map.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError
from workbench.worlds import sokoban_solver
from workbench.worlds.bandit import (
    CODE_NAMES,
    HELDOUT_NAMES,
    PAPER_HELDOUT_NAMES,
    PAPER_NAMES,
    TRAIN_NAMES,
    BanditEnv,
)
from workbench.worlds.frozen_lake import MOVES, FrozenLakeEnv
from workbench.worlds.lake_solver import find, neighbour
from workbench.worlds.sokoban import MOVES as SOKOBAN_MOVES
from workbench.worlds.sokoban import SokobanEnv
from workbench.worlds.sokoban_solver import State

Cell = tuple[int, int]


def format_slip(move: str, rng: np.random.Generator) -> str:
    """One of the ways to get the format wrong: no thought, no answer, no tags, tags the wrong way round."""
    slips = (
        f"<answer>{move}</answer>",
        f"<think>{move.lower()}</think>",
        move,
        f"<answer>{move}</answer><think></think>",
    )
    return slips[rng.integers(len(slips))]


# ------------------------------------------------------------------------------------------------ frozen lake


@dataclass(frozen=True)
class LakeDemonstrator:
    """Plays a turn in one of three habits, drawn anew each turn.

    guess, look    probabilities of guessing and of looking; the rest is walking
    stray          probability that a walker or looker considers a random move instead of one towards the goal
    slip           probability of a format slip
    one_move       probability of one move in the answer; else two
    """

    guess: float = 0.45
    look: float = 0.20
    stray: float = 0.10
    slip: float = 0.04
    one_move: float = 0.50

    def __post_init__(self) -> None:
        if not 0 <= self.guess + self.look <= 1:
            raise ConfigError(
                f"guess + look are shares of the turns and at most 1, got {self.guess} + {self.look}"
            )

    def action(self, env: FrozenLakeEnv, rng: np.random.Generator) -> str:
        """The text of one turn in the current state of `env`."""
        if rng.random() < self.slip:
            return format_slip(MOVES[rng.integers(4)], rng)
        count = 1 if rng.random() < self.one_move else 2
        habit = rng.random()
        if habit < self.guess:
            return format_action(
                [MOVES[rng.integers(4)] for _ in range(count)], think=True, thought="guess"
            )
        return self._towards_goal(env, rng, count, looks=habit < self.guess + self.look)

    def _towards_goal(
        self, env: FrozenLakeEnv, rng: np.random.Generator, count: int, *, looks: bool
    ) -> str:
        """`down right : down right`, or, looking: `down right : down O right _ right _`, with no `down` in the answer."""
        rows, size, goal = env.rows, len(env.rows), find(env.rows, "G")
        around, through = steps_to_goal(rows, holes=True), steps_to_goal(rows, holes=False)
        cell, moves = env.position, []
        thought = [*bearing(cell, goal), ":"]
        for _ in range(count):
            move = (
                MOVES[rng.integers(4)]
                if rng.random() < self.stray
                else nearest_move(cell, through, size, rng)
            )
            thought.append(move.lower())
            if looks:
                ahead = self._seen(rows, size, cell, move)
                thought.append(env.family.in_symbols(ahead))
                if ahead == "O":
                    move = nearest_move(cell, around, size, rng)
                    thought += [
                        move.lower(),
                        env.family.in_symbols(self._seen(rows, size, cell, move)),
                    ]
            moves.append(move)
            cell = neighbour(size, *cell, MOVES.index(move))
            if rows[cell[0]][cell[1]] in "GO":
                break
        return format_action(moves, think=True, thought=" ".join(thought))

    @staticmethod
    def _seen(rows: tuple[str, ...], size: int, cell: Cell, move: str) -> str:
        """The cell that a move leads to, in the standard symbols: O, G or _."""
        row, column = neighbour(size, *cell, MOVES.index(move))
        return rows[row][column].replace("P", "_")


def bearing(cell: Cell, goal: Cell) -> list[str]:
    """Where the goal lies, vertically first: ["down", "right"]."""
    words = []
    if goal[0] != cell[0]:
        words.append("down" if goal[0] > cell[0] else "up")
    if goal[1] != cell[1]:
        words.append("right" if goal[1] > cell[1] else "left")
    return words


def steps_to_goal(rows: tuple[str, ...], *, holes: bool) -> dict[Cell, int]:
    """Moves from each cell to the goal: around the holes, or (`holes=False`) straight through them. Cells without a
    path are missing."""
    size, goal = len(rows), find(rows, "G")
    steps, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for move in range(4):
            # Moves are symmetric, so cells one move before are the neighbours.
            before = neighbour(size, *cell, move)
            if before not in steps and not (holes and rows[before[0]][before[1]] == "O"):
                steps[before] = steps[cell] + 1
                queue.append(before)
    return steps


def nearest_move(cell: Cell, steps: dict[Cell, int], size: int, rng: np.random.Generator) -> str:
    """A move that brings the goal nearer by `steps`, one of several at random; any move where none does."""
    here = steps.get(cell, 0)
    good = [
        move
        for index, move in enumerate(MOVES)
        if steps.get(neighbour(size, *cell, index), here) < here
    ]
    return (good or MOVES)[rng.integers(len(good or MOVES))]


# ------------------------------------------------------------------------------------------------ sokoban


@dataclass(frozen=True)
class SokobanDemonstrator:
    """Plays one box in one of two habits, drawn anew each turn; where nothing helps any more it says `stuck`.

    guess   probability of one to three random moves
    slip    probability of a format slip
    """

    guess: float = 0.5
    slip: float = 0.04

    def action(self, env: SokobanEnv, rng: np.random.Generator) -> str:
        """The text of one turn in the current state of `env`."""
        if rng.random() < self.slip:
            return format_slip(SOKOBAN_MOVES[rng.integers(4)], rng)
        if sokoban_solver.distance(env.room, env.state) is None:
            return self._random(env.family.max_moves_per_action, "stuck", rng)
        if rng.random() < self.guess:
            return self._random(1 + int(rng.integers(3)), "guess", rng)
        return self._planned(env, env.family.max_moves_per_action)

    @staticmethod
    def _random(count: int, thought: str, rng: np.random.Generator) -> str:
        return format_action(
            [SOKOBAN_MOVES[move] for move in rng.integers(4, size=count)],
            think=True,
            thought=thought,
        )

    @staticmethod
    def _planned(env: SokobanEnv, most: int) -> str:
        """`down right ; down from 2 3 : up 2 2 right 2 3 : down 4 3`: the target lies down and right of the box, which
        is next pushed down from row 2, column 3; the walk, with where it leads; the pushes, with where the box comes.
        The walk and all pushes in that direction are one answer, as far as `most` moves go."""
        size = len(env.room)
        walk, pushes = walk_and_pushes(env.room, env.state)
        box, target = env.state[1][0], sokoban_solver.targets_of(env.room)[0]
        stand = walk[-1][1][0] if walk else env.state[0]
        walked, pushed = walk[:most], pushes[: most - len(walk[:most])]
        thought = [
            *bearing(divmod(box, size), divmod(target, size)),
            ";",
            SOKOBAN_MOVES[pushes[0][0]].lower(),
            "from",
            _place(stand, size),
            ":",
        ]
        thought += [
            f"{SOKOBAN_MOVES[move].lower()} {_place(player, size)}" for move, (player, _) in walked
        ]
        if pushed:
            thought += [":"] + [
                f"{SOKOBAN_MOVES[move].lower()} {_place(boxes[0], size)}"
                for move, (_, boxes) in pushed
            ]
        moves = [SOKOBAN_MOVES[move] for move, _ in walked + pushed]
        return format_action(moves, think=True, thought=" ".join(thought))


def walk_and_pushes(
    room: sokoban_solver.Room, state: State
) -> tuple[list[tuple[int, State]], list[tuple[int, State]]]:
    """The beginning of a shortest solution: moves up to the first push, and the pushes that go on in its direction,
    each with the state after it. Of several best moves the last direction goes on, else the first in order is taken:
    what is imitated should not be a matter of taste."""
    walk: list[tuple[int, State]] = []
    pushes: list[tuple[int, State]] = []
    last = None
    while best := sokoban_solver.best_moves(room, state):
        if pushes and last not in best:
            break
        last = last if last in best else best[0]
        after = sokoban_solver.step(room, state, last)
        (pushes if after[1] != state[1] else walk).append((last, after))
        state = after
    return walk, pushes


def _place(cell: int, size: int) -> str:
    """Row and column, as the environment counts them: from 1."""
    return f"{cell // size + 1} {cell % size + 1}"


# ------------------------------------------------------------------------------------------------ bandit

# What names sound like: the environments' own pairs (held-out ones too: a policy knows words before it plays) and more.
_PAIRS = TRAIN_NAMES + HELDOUT_NAMES + PAPER_NAMES + PAPER_HELDOUT_NAMES + CODE_NAMES
SAFE_NAMES = tuple(
    dict.fromkeys(
        [safe for safe, _ in _PAIRS]
        + [
            "Banker",
            "Notary",
            "Butler",
            "Miller",
            "Potter",
            "Scribe",
            "Dentist",
            "Janitor",
            "Printer",
            "Barber",
            "Grocer",
            "Curator",
        ]
    )
)
BOLD_NAMES = tuple(
    dict.fromkeys(
        [risky for _, risky in _PAIRS]
        + [
            "Stuntman",
            "Hunter",
            "Sailor",
            "Acrobat",
            "Raider",
            "Outlaw",
            "Wizard",
            "Rebel",
            "Boxer",
            "Skydiver",
            "Bandit",
            "Knight",
        ]
    )
)
_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


@dataclass(frozen=True)
class BanditDemonstrator:
    """Says how each name sounds, says which kind it will take, and takes it.

    safe       probability of the safe-sounding arm (names without a sound: either)
    careless   probability that the thought is skipped
    slip       probability of a format slip
    """

    safe: float = 0.71
    careless: float = 0.08
    slip: float = 0.04

    def action(self, env: BanditEnv, rng: np.random.Generator) -> str:
        arms = env.arms
        sounds = [sound_of(name) for name in arms]
        wanted = "safe" if rng.random() < self.safe else "bold"
        chosen = sounds.index(wanted) if wanted in sounds else int(rng.integers(2))
        if rng.random() < self.slip:
            return format_slip(arms[chosen], rng)
        thought = f"{arms[0]} {sounds[0]} , {arms[1]} {sounds[1]} : {sounds[chosen]}"
        return format_action(
            [arms[chosen]], think=True, thought="" if rng.random() < self.careless else thought
        )


def sound_of(name: str) -> str:
    """ "safe", "bold", or "new" for a name that says nothing."""
    return "safe" if name in SAFE_NAMES else "bold" if name in BOLD_NAMES else "new"


def invented_name(rng: np.random.Generator) -> str:
    """Two or three syllables that mean nothing: `Zoru`, `Mipake`."""
    return "".join(
        _SYLLABLES[rng.integers(len(_SYLLABLES))] for _ in range(rng.integers(2, 4))
    ).capitalize()


def any_arms(rng: np.random.Generator) -> tuple[tuple[str, str], ...]:
    """One pair of names for a demonstration: any safe with any bold one, or (one in ten) two invented names."""
    if rng.random() < 0.1:
        first, second = invented_name(rng), invented_name(rng)
        return ((first, second if second != first else second + "na"),)
    return ((SAFE_NAMES[rng.integers(len(SAFE_NAMES))], BOLD_NAMES[rng.integers(len(BOLD_NAMES))]),)
