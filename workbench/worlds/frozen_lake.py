"""FrozenLake: cross a slippery lake from P to G without falling into a hole. Text only; several moves in one answer.

    P _ _ O        P you · _ ice · O hole · G goal · X you in a hole · √ you on the goal
    _ O _ _
    _ _ _ _        Moves: Left, Down, Right, Up. A move against the edge is used up and changes nothing.
    O _ _ G        `symbols` shows the same lakes in six other characters; tasks and snapshots keep these.

Slip, exactly: with probability `slip` a move goes to one of the two directions perpendicular to the intended one (each
half the time), otherwise as intended. Gymnasium's "slippery" lake, 1/3 each, is slip = 2/3.

Seeds (invariants 7, 8): `task_seed` makes the map; the slip of move number i is drawn at the address (dynamics_seed, i), so
there is no generator state to save, and a snapshot is a few numbers.

What a turn pays: +1 (`goal`) when G is reached, `format_penalty` (`format`) when the text cannot be read or names an
unknown move; then no move is made and the reply says what was wrong. Moves beyond `max_moves_per_action` are not made
and cost nothing; the reply says so. The trajectory ends in a hole or on the goal (terminated) or when the last of
`max_moves` is used (truncated); `max_turns` counts answers and is enforced by the collect loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import at_least, probability
from workbench.tools.action_format import format_action
from workbench.values import Observation, Task
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds import lake_solver, reasoning
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

MOVES = ("Left", "Down", "Right", "Up")  # neighbours in this ring are perpendicular
PLAYER = "P"
ICE = "_"
HOLE = "O"
GOAL = "G"
STANDARD = "P_OGX√"
CELLS = "you, ice, hole, goal, you in a hole, you on the goal"  # in the order of the symbols


@dataclass(frozen=True)
class FrozenLake(GridFamily):
    """A family of lakes. The fields are its only configuration.

    The bonus for reasoning is earned by a thought that states where the goal lies or where moves lead, all of it true.
    The prompt does not tell. See `reasoning.py`, also for how this can be farmed; `info["reasoning"]` says how it went,
    whatever the bonus.
    """

    size: Annotated[int, at_least(2, most=64), "rows and columns"] = 4
    slip: Annotated[
        float, probability(), "that a move goes sideways; stated in the prompt unless 0"
    ] = 0.0
    hole_density: Annotated[
        float,
        at_least(0, most=0.9, why="with more holes hardly any map has a path"),
        "probability that a cell other than start and goal is a hole (maps without a path are "
        "redrawn)",
    ] = 0.2
    max_moves: MaxMoves = 10
    max_moves_per_action: MovesPerAction = 5
    max_turns: MaxTurns = 10
    think: Think = True
    format_penalty: FormatPenalty = -0.1
    show_rewards: ShowRewards = False
    coordinates: Annotated[bool, "also name the cells of player and goal in words"] = False
    reasoning_bonus: ReasoningBonus = 0.0
    symbols: Annotated[str, f"six characters: {CELLS}"] = STANDARD

    name: ClassVar[str] = "frozenlake"
    moves: ClassVar[tuple[str, ...]] = MOVES
    standard: ClassVar[str] = STANDARD
    cells: ClassVar[str] = CELLS

    # -------------------------------------------------------------------------------------------- tasks

    def task(self, task_seed: int) -> Task:
        """The map of this seed: start and goal anywhere, every other cell a hole with probability `hole_density`,
        redrawn until a path exists. Depends on size, hole_density and the seed alone, so that families which differ
        in slip or limits are compared on the same maps."""
        rng = rng_at("frozen_lake.map", self.size, task_seed)
        for _ in range(10_000):
            start, goal = rng.choice(self.size * self.size, size=2, replace=False)
            cells = np.where(rng.random(self.size * self.size) < self.hole_density, HOLE, ICE)
            cells[start] = PLAYER
            cells[goal] = GOAL
            rows = tuple(map("".join, cells.reshape(self.size, self.size)))
            distance = lake_solver.distance(rows)
            if distance is not None:
                task_id = f"frozenlake-{self.size}x{self.size}/{task_seed}"
                return Task(
                    task_id, self.name, int(task_seed), {"grid": list(rows)}, {"distance": distance}
                )
        raise EnvError(
            f"no map with a path in 10000 draws (size {self.size}, hole_density {self.hole_density}); "
            "use fewer holes"
        )

    def split_of(self, task: Task) -> str:
        """ "train" or "held-out", by the map itself: no map is in both, whatever the seeds."""
        return content_split("/".join(task.payload["grid"]))

    def make(self) -> FrozenLakeEnv:
        return FrozenLakeEnv(self)

    # -------------------------------------------------------------------------------------------- baselines

    def random_action(self, env: FrozenLakeEnv, rng: np.random.Generator) -> str:
        """One move, uniformly at random."""
        return format_action([MOVES[rng.integers(4)]], think=self.think)

    def solver_action(self, env: FrozenLakeEnv, rng: np.random.Generator) -> str:
        """The best move for the moves that are left, exactly (dynamic programming over slips and limits).

        Replanned after every move on slippery ice; without slips a whole answer is planned at once, as nothing can
        come in between.
        """
        count = 1 if self.slip else self.max_moves_per_action
        return format_action(self.solver_moves(env, count), think=self.think)

    def solver_moves(self, env: FrozenLakeEnv, count: int) -> tuple[str, ...]:
        """Up to `count` best moves from the current state, if all went as intended (at least one)."""
        plan = lake_solver.plan(env.rows, env.position, env.horizon, self.slip, count)
        return tuple(MOVES[move] for move in plan)

    @property
    def solver_name(self) -> str:
        """What the solver may be called: "optimal" where that is proven, else "best known"."""
        return "optimal" if not self.slip or self.max_turns >= self.max_moves else "best known"

    # -------------------------------------------------------------------------------------------- words

    @property
    def label(self) -> str:
        """The whole setting in one line, for tables and plots."""
        return (
            f"FrozenLake {self.size}x{self.size}, slip {self.slip:.3g}, holes {self.hole_density:.3g}, "
            f"{self.label_of_limits}{self.label_of_rest}"
        )

    @cached_property
    def instructions(self) -> str:
        """The trusted part of the first prompt. The limits in it are those that are enforced."""
        slip = f"A move slips sideways with probability {self.slip:.3g}.\n" if self.slip else ""
        player, ice, hole, goal, *_ = self.symbols
        return (
            f"Go from {player} to {goal} over the ice {ice} and keep out of the holes {hole}.\n"
            f"{self.limits}{slip}Answer like this: {self.example}\n\n"
        )


class FrozenLakeEnv(GridEnv):
    """One trajectory."""

    reward_parts = ("goal", "format")

    def __init__(self, family: FrozenLake) -> None:
        super().__init__(family)
        self.rows: tuple[str, ...] = ()
        self.position = (0, 0)
        self.dynamics_seed = 0

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        rows = tuple(task.payload["grid"])
        lake_solver.check_rows(rows, self.family.size)
        self.rows = rows
        self.position = lake_solver.find(rows, PLAYER)
        self.dynamics_seed = int(dynamics_seed)
        return self._begun()

    # -------------------------------------------------------------------------------------------- optional parts

    @property
    def horizon(self) -> int:
        """Moves that a solver can still make, given the limits on moves and on answers."""
        per_answer = 1 if self.family.slip else self.family.max_moves_per_action
        turns_left = max(self.family.max_turns - self.turns, 0)
        return min(self._moves_left(), turns_left * per_answer)

    def snapshot(self) -> dict[str, Any]:
        """Everything that the future depends on, as JSON values."""
        return {
            "grid": list(self.rows),
            "position": list(self.position),
            **self._counters(),
            "dynamics_seed": self.dynamics_seed,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot of the same family, without a reset."""
        rows = tuple(snapshot["grid"])
        lake_solver.check_rows(rows, self.family.size)
        self.rows = rows
        self.position = tuple(snapshot["position"])
        self._set_counters(snapshot)
        self.dynamics_seed = snapshot["dynamics_seed"]

    def state_key(self) -> str:
        """Names the state: two trajectories with the same key face the same future chances."""
        rows = self.draw().replace(" ", "").replace("\n", "/")
        return f"{rows} {self._moves_left()}"

    def privileged(self) -> str:
        """For a critic: how many moves the goal is away, from here and after each move; a hole and a cell without a way are
        said as such. Slips are left out."""
        distances = lake_solver.distances(self.rows)

        def distance_from(row: int, column: int) -> str:
            if self.rows[row][column] == HOLE:
                return "hole"
            return str(distances.get((row, column), "none"))

        after_moves = []
        for number, move in enumerate(MOVES):
            cell = lake_solver.neighbour(self.family.size, *self.position, number)
            after_moves.append(f"{move} {distance_from(*cell)}")
        return f"Moves to the goal: {distance_from(*self.position)}. {', '.join(after_moves)}"

    def draw(self) -> str:
        """The grid as text: one character a cell, single spaces between, one line a row."""
        return self.family.in_symbols(lake_solver.draw(self.rows, self.position))

    # -------------------------------------------------------------------------------------------- inside

    def _cell(self) -> str:
        return self.rows[self.position[0]][self.position[1]]

    def _position(self) -> tuple[int, int]:
        return self.position

    def _move(self, intended: int) -> dict[str, float]:
        """Slips included."""
        direction = slipped(intended, self.family.slip, self.dynamics_seed, self.moves_used)
        self.position = lake_solver.neighbour(self.family.size, *self.position, direction)
        return {"goal": 1.0 if self._won() else 0.0}

    def _effective(self, positions: Sequence[tuple[int, int]]) -> bool:
        """Whether the player changed cells, be it there and back."""
        return any(before != after for before, after in zip(positions, positions[1:]))

    def _won(self) -> bool:
        return self._cell() == GOAL

    def _over(self) -> bool:
        return self._cell() in (HOLE, GOAL)

    def _statements(self, thought: str, before: tuple[int, int]) -> list[bool]:
        return reasoning.lake_statements(thought, self.rows, before, MOVES, self.family.symbols)

    def _facts(self, before: tuple[int, int]) -> dict[str, Any]:
        return {
            "state": self.draw(),
            "position_before": list(before),
            "position": list(self.position),
        }

    def _state_words(self) -> str:
        end = {HOLE: "You fell into a hole.", GOAL: "You reached the goal."}.get(self._cell())
        where = ""
        if self.family.coordinates:
            row, column = lake_solver.find(self.rows, GOAL)
            where = (
                f"You are in row {self.position[0] + 1}, column {self.position[1] + 1}; "
                f"the goal is in row {row + 1}, column {column + 1}.\n"
            )
        return f"{self.draw()}\n{where}{end or f'Moves left: {self._moves_left()}'}"


def slipped(intended: int, slip: float, dynamics_seed: int, move_index: int) -> int:
    """The direction that move number `move_index` really takes: a function of its address alone."""
    if not slip:
        return intended
    draw = rng_at("frozen_lake.slip", dynamics_seed, move_index).random()
    if draw >= slip:
        return intended
    return (intended + (1 if draw < slip / 2 else 3)) % 4


def task_from_grid(rows: Sequence[str], task_id: str = "frozenlake/drawn") -> Task:
    """A task drawn by hand, one string a row: `task_from_grid(["P_", "OG"])`; spaces between the cells may stay."""
    rows = tuple(row.replace(" ", "") for row in rows)
    lake_solver.check_rows(rows, len(rows))
    metadata = {"distance": lake_solver.distance(rows)}
    return Task(task_id, FrozenLake.name, 0, {"grid": list(rows)}, metadata)


PRESETS: Mapping[str, FrozenLake] = MappingProxyType(
    {
        "frozenlake-4x4": FrozenLake(),  # the demo's: slip 0, holes 0.2, 10 moves
        "frozenlake-4x4-nothink": FrozenLake(think=False),
        "frozenlake-4x4-slip": FrozenLake(slip=0.2),
        # RAGEN's first versions: 1/3 intended, 1/3 to each side
        "frozenlake-4x4-gymnasium": FrozenLake(slip=2 / 3),
    }
)
