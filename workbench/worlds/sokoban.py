"""Sokoban: push every box onto a target. Text only; several moves in one answer.

    # # # # # #      # wall · _ floor · O target · √ box on a target · X box · P you · S you on a target
    # _ _ O # #
    # _ X _ _ #      Moves: Up, Down, Left, Right. Walking into a box pushes it, unless a wall or a box is behind it.
    # _ _ P _ #      A move that is blocked is used up and changes nothing. Boxes cannot be pulled: a box in a wrong
    # _ _ _ _ #      corner stays there, and the trajectory runs on until its moves are used up.
    # # # # # #

What a turn pays, in parts: `moves`, -0.1 a move; `boxes`, +1 for a box pushed onto a target and -1 for one pushed off;
`solved`, +10 when the last one is on; `format`, `format_penalty` when the text cannot be read or names an unknown move;
then no move is made and the reply says what was wrong. Moves beyond `max_moves_per_action` are not made and cost
nothing; the reply says so. The trajectory ends when all boxes are on targets (terminated) or when the last of `max_moves`
is used (truncated); `max_turns` counts answers and is enforced by the collect loop.

`observation` says how the agent is shown the room: the "grid", "coordinates" (row and column of everything that is not
plain floor, counted from 1 at the top left), or "both".

The game has no chance in it: `dynamics_seed` changes nothing. `task_seed` makes the level (`sokoban_levels.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import Inert, at_least, one_of
from workbench.tools.action_format import format_action
from workbench.values import Observation, Task
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds import reasoning
from workbench.worlds import sokoban_levels as levels
from workbench.worlds import sokoban_solver as solver
from workbench.worlds.game_settings import (
    FormatPenalty,
    MaxMoves,
    MaxTurns,
    MovesPerAction,
    ReasoningBonus,
    ShowRewards,
    Think,
)
from workbench.worlds.grid_game import GridEnv, GridFamily
from workbench.worlds.splits import content_split

MOVES = ("Up", "Down", "Left", "Right")
CELLS = "wall, floor, target, box on target, box, player, player on target"  # in the order of the symbols
# Rewards of gym-sokoban, and of RAGEN.
PER_MOVE = -0.1
ONTO_TARGET = 1.0
OFF_TARGET = -1.0
ALL_ON_TARGETS = 10.0


@dataclass(frozen=True)
class Sokoban(GridFamily):
    """A family of levels. The fields are its only configuration. The bonus for reasoning is as in FrozenLake."""

    size: Annotated[int, at_least(5, most=9), "rows and columns, the outer wall included"] = 6
    boxes: Annotated[int, at_least(1, most=2), "with as many targets"] = 1
    wall_density: Annotated[
        float,
        at_least(0, most=0.4, why="with more walls hardly any floor is in one piece"),
        "probability that a cell inside is a wall",
    ] = 0.15
    min_solution: Annotated[
        int, at_least(1, most=1_000), "moves of the shortest solution, at least"
    ] = 2
    max_solution: Annotated[
        int, at_least(1, most=40), "and at most; every length in between equally likely"
    ] = 8
    max_moves: MaxMoves = 15
    max_moves_per_action: MovesPerAction = 5
    max_turns: MaxTurns = 10
    think: Think = True
    format_penalty: FormatPenalty = -0.1
    show_rewards: ShowRewards = False
    observation: Annotated[str, one_of("grid", "coordinates", "both"), "how a level is told"] = (
        "grid"
    )
    symbols: Annotated[str, f"seven characters: {CELLS}"] = levels.STANDARD
    reasoning_bonus: ReasoningBonus = 0.0

    name: ClassVar[str] = "sokoban"
    moves: ClassVar[tuple[str, ...]] = MOVES
    standard: ClassVar[str] = levels.STANDARD
    cells: ClassVar[str] = CELLS
    solver_name: ClassVar[str] = "optimal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_solution > self.max_solution:
            raise ConfigError(
                f"Sokoban.min_solution is at most max_solution, got {self.min_solution} and "
                f"{self.max_solution}"
            )
        reachable = min(self.max_moves, self.max_turns * self.max_moves_per_action)
        if reachable < self.max_solution:
            raise ConfigError(
                f"Sokoban.max_solution = {self.max_solution} moves cannot be made: the limits allow "
                f"{reachable}; raise max_moves (or max_turns), or lower max_solution"
            )

    def inert_settings(self) -> list[Inert]:
        return [
            *super().inert_settings(),
            Inert(
                "symbols",
                self.observation == "coordinates",
                "coordinates are told in words; set env.observation='grid' or 'both'",
            ),
        ]

    # -------------------------------------------------------------------------------------------- tasks

    def task(self, task_seed: int) -> Task:
        """The level of this seed. Depends on size, boxes, walls, lengths and the seed alone, so that families which
        differ in limits, symbols or observation are compared on the same levels."""
        lengths = range(self.min_solution, self.max_solution + 1)
        level = levels.make_level(self.size, self.boxes, self.wall_density, lengths, task_seed)
        task_id = f"sokoban-{self.size}x{self.size}-{self.boxes}/{task_seed}"
        return self.task_of(level, task_id, int(task_seed))

    def task_of(
        self, level: levels.Level, task_id: str = "sokoban/drawn", task_seed: int = 0
    ) -> Task:
        """A task of this level (`sokoban_levels.level_from_rows` reads one that was drawn by hand). Its metadata tells
        people, not the agent: the length of a shortest solution, and the grid before the first move."""
        metadata = {"solution": level.moves, "state": self.state_for_people(level.rows)}
        return Task(task_id, self.name, task_seed, {"level": list(level.rows)}, metadata)

    def picture(self, rows: Sequence[str]) -> str:
        """A level in this family's symbols: one symbol a cell, single spaces between, one line a row."""
        return self.in_symbols("\n".join(" ".join(row) for row in rows))

    def state_for_people(self, rows: Sequence[str]) -> str:
        """The grid for views; it says so where the agent itself never sees one."""
        note = "\n(told to the policy as coordinates)" if self.observation == "coordinates" else ""
        return self.picture(rows) + note

    def split_of(self, task: Task) -> str:
        """ "train" or "held-out", by the level itself: no level is in both, whatever the seeds."""
        return content_split("/".join(task.payload["level"]))

    def make(self) -> SokobanEnv:
        return SokobanEnv(self)

    # -------------------------------------------------------------------------------------------- baselines

    def random_action(self, env: SokobanEnv, rng: np.random.Generator) -> str:
        """Moves uniformly at random out of the four, as many as an answer may hold: the limit on answers then takes
        nothing from random play, and what comes after a solution is not carried out."""
        drawn = rng.integers(4, size=self.max_moves_per_action)
        return format_action([MOVES[move] for move in drawn], think=self.think)

    def solver_action(self, env: SokobanEnv, rng: np.random.Generator) -> str:
        """As much of a shortest solution as fits into one answer; Up in a deadlock, where nothing helps."""
        moves = solver.plan(env.room, env.state, self.max_moves_per_action)
        return format_action([MOVES[move] for move in moves] or MOVES[:1], think=self.think)

    # -------------------------------------------------------------------------------------------- words

    @property
    def label(self) -> str:
        """The whole setting in one line, for tables and plots."""
        boxes = "1 box" if self.boxes == 1 else f"{self.boxes} boxes"
        return (
            f"Sokoban {self.size}x{self.size}, {boxes}, solutions of "
            f"{self.min_solution} to {self.max_solution}, walls {self.wall_density:.3g}, "
            f"{self.label_of_limits}, {self.observation}{self.label_of_rest}"
        )

    @property
    def instructions(self) -> str:
        """The trusted part of the first prompt. The limits in it are those that are enforced."""
        wall, floor, target, done, box, player, standing = self.symbols
        wanted = "the box onto the target" if self.boxes == 1 else "every box onto a target"
        goal = f"Push {wanted}.\n"
        grid = (
            f"{wall} wall, {floor} floor, {target} target, {box} box, {done} box on target, {player} you, "
            f"{standing} you on target.\n"
        )
        places = "Places are row and column, from 1 at the top left; the outer ring is wall.\n"
        legend = {"grid": grid, "coordinates": places, "both": grid + places}[self.observation]
        return f"{goal}{legend}{self.limits}Answer like this: {self.example}\n\n"


class SokobanEnv(GridEnv):
    """One trajectory."""

    reward_parts = ("moves", "boxes", "solved", "format")

    def __init__(self, family: Sokoban) -> None:
        super().__init__(family)
        self.room: solver.Room = ()
        self.state: solver.State = (0, ())

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        self._open(task.payload["level"])
        if self._won():
            raise EnvError(
                f"task {task.id!r} is solved before the first move; give it a box that is off its target"
            )
        return self._begun()

    # -------------------------------------------------------------------------------------------- optional parts

    def snapshot(self) -> dict[str, Any]:
        """Everything that the future depends on, as JSON values."""
        return {"level": list(levels.draw(self.room, self.state)), **self._counters()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot of the same family, without a reset."""
        self._open(snapshot["level"])
        self._set_counters(snapshot)

    def state_key(self) -> str:
        """Names the state: two trajectories with the same key have the same future."""
        return f"{'/'.join(levels.draw(self.room, self.state))} {self._moves_left()}"

    def draw(self) -> str:
        """The grid as text: one symbol a cell, single spaces between, one line a row."""
        return self.family.picture(levels.draw(self.room, self.state))

    def places(self) -> str:
        """The same facts as rows and columns, from 1 at the top left; the outer wall goes without saying."""
        player, boxes = self.state
        return "\n".join(
            [
                self._places_of("You", (player,)),
                self._places_of("Box", boxes),
                self._places_of("Target", solver.targets_of(self.room)),
                self._places_of("Wall", self._inner_walls()),
            ]
        )

    def _places_of(self, name: str, cells: Sequence[int]) -> str:
        size = len(self.room)
        places = [f"{cell // size + 1} {cell % size + 1}" for cell in cells]
        return f"{name} {', '.join(places) or 'none'}"

    def _inner_walls(self) -> list[int]:
        size = len(self.room)
        inner = range(1, size - 1)
        places = product(inner, inner)
        return [r * size + c for r, c in places if self.room[r][c] == solver.WALL]

    # -------------------------------------------------------------------------------------------- inside

    def _open(self, rows: Sequence[str]) -> None:
        self.room, self.state = levels.read(rows)
        size = len(self.room)
        boxes = len(self.state[1])
        if (size, boxes) != (self.family.size, self.family.boxes):
            raise EnvError(
                f"expected a level of {self.family.size} x {self.family.size} with {self.family.boxes} "
                f"box(es), got {size} x {size} with {boxes}; the task must come from a family of the same "
                "kind"
            )

    def _position(self) -> solver.State:
        return self.state

    def _won(self) -> bool:
        return self.state[1] == solver.targets_of(self.room)

    def _on_targets(self) -> int:
        return len(set(self.state[1]) & set(solver.targets_of(self.room)))

    def _move(self, move: int) -> dict[str, float]:
        before = self._on_targets()
        self.state = solver.step(self.room, self.state, move)
        change = self._on_targets() - before
        boxes = 0.0
        if change > 0:
            boxes = ONTO_TARGET
        elif change < 0:
            boxes = OFF_TARGET
        return {"boxes": boxes, "solved": ALL_ON_TARGETS if self._won() else 0.0}

    def _price(self, count: int) -> dict[str, float]:
        return {"moves": PER_MOVE * count}

    def _statements(self, thought: str, before: solver.State) -> list[bool]:
        return reasoning.sokoban_statements(thought, self.room, before, MOVES)

    def _facts(self, before: solver.State) -> dict[str, Any]:
        return {
            "on_targets": self._on_targets(),
            "state": self.family.state_for_people(levels.draw(self.room, self.state)),
        }

    def _state_words(self) -> str:
        shown = {
            "grid": [self.draw()],
            "coordinates": [self.places()],
            "both": [self.draw(), self.places()],
        }
        end = f"Moves left: {self._moves_left()}"
        if self._won():
            end = (
                "All boxes are on targets."
                if self.family.boxes > 1
                else "The box is on the target."
            )
        return "\n".join([*shown[self.family.observation], end])


PRESETS: Mapping[str, Sokoban] = MappingProxyType(
    {
        "sokoban-6x6": Sokoban(),
        "sokoban-6x6-coordinates": Sokoban(
            observation="coordinates"
        ),  # the same levels, as the shipped policy reads them
        "sokoban-6x6-symbols": Sokoban(symbols=levels.ALTERNATIVE),  # the same levels again
        "sokoban-8x8-2": Sokoban(size=8, boxes=2, min_solution=3, max_solution=14, max_moves=30),
    }
)
