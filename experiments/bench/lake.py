"""The frozen lake that both sides of the benchmark play: one set of rules, two doors.

    Lake       the rules: text in, text out, no framework
    ToolLake   our door: an environment family for `workbench.rollouts.collect`; the policy calls the tool `move`
    TrlLake    the peer's door: the class that TRL's `environment_factory` makes instances of

A board of 4 x 4 with three holes, the same for all trajectories of a group. The policy moves by calling a tool in its chat
template's own format, up to `turns` times; calls beyond that are not executed, so a trajectory has up to turns + 1
answers. The lake goes on after the goal or a hole (the player just stays), so that a trajectory's length does not depend
on its luck: what is compared is work.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.values import Message, Observation, StepResult, Task

DIRECTIONS: Mapping[str, tuple[int, int]] = {
    "Left": (0, -1),
    "Right": (0, 1),
    "Up": (-1, 0),
    "Down": (1, 0),
}
SIZE, HOLES = 4, 3
# What TRL derives from the signature and docstring of `TrlLake.move`; a test compares.
MOVE_SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Move the player one cell on the frozen lake.",
        "parameters": {
            "type": "object",
            "properties": {
                "direction": {"type": "string", "description": "one of Left, Right, Up, Down"}
            },
            "required": ["direction"],
        },
        "return": {"type": "string", "description": "the new observation"},
    },
}


class Lake:
    """One board in play. `steps` counts the executed moves of this board, `Lake.total_steps` those of the process."""

    total_steps = 0

    def reset(self, seed: int, turns: int = 5) -> str:
        cells = [(row, column) for row in range(SIZE) for column in range(SIZE)]
        random.Random(seed).shuffle(cells)
        self.player, self.goal, self.holes = cells[0], cells[1], frozenset(cells[2 : 2 + HOLES])
        self.turns, self.steps, self.over = turns, 0, False
        return self.text("Start.")

    def move(self, direction: str) -> str:
        """The observation after one move; an unknown direction costs the move."""
        Lake.total_steps += 1
        self.steps += 1
        if direction not in DIRECTIONS:
            return self.text("No such direction.")
        if not self.over:
            self.player = after(self.player, direction)
            self.over = self.player == self.goal or self.player in self.holes
        return self.text(f"You moved {direction}.")

    @property
    def success(self) -> bool:
        return self.player == self.goal

    @property
    def reward(self) -> float:
        """1 at the goal, less a hundredth per cell of distance, so that groups are seldom flat."""
        distance = abs(self.player[0] - self.goal[0]) + abs(self.player[1] - self.goal[1])
        return float(self.success) - 0.01 * distance

    def text(self, head: str) -> str:
        rows = (
            "".join(self._letter((row, column)) for column in range(SIZE)) for row in range(SIZE)
        )
        where = f"The player P stands at row {self.player[0]}, column {self.player[1]}."
        return (
            f"{head} {where} Turn {self.steps} of {self.turns}.\nBoard:\n"
            + "\n".join(rows)
            + "\nReach the goal G and avoid the holes H."
        )

    def _letter(self, cell: tuple[int, int]) -> str:
        return (
            "P"
            if cell == self.player
            else "G"
            if cell == self.goal
            else "H"
            if cell in self.holes
            else "_"
        )


def after(cell: tuple[int, int], direction: str) -> tuple[int, int]:
    """The cell that a move leads to; the rim holds the player back."""
    row, column = DIRECTIONS[direction]
    return min(max(cell[0] + row, 0), SIZE - 1), min(max(cell[1] + column, 0), SIZE - 1)


# ------------------------------------------------------------------------------------------------ reading calls


_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def calls_in(text: str, babble: bool = False) -> list[tuple[str, Mapping[str, Any]]]:
    """(tool, arguments) of the calls in an answer, in order; [] where any of them cannot be read, as TRL has it.

    `babble`: whatever the answer is, it counts as one call, whose direction its text decides.
    """
    if babble:
        return [("move", {"direction": sorted(DIRECTIONS)[zlib.crc32(text.encode()) % 4]})]
    found = []
    for body in _CALL.findall(text):
        try:
            call = json.loads(body)
        except ValueError:
            return []
        if (
            not isinstance(call, dict)
            or not isinstance(call.get("name"), str)
            or not isinstance(call.get("arguments"), dict)
        ):
            return []
        found.append((call["name"], call["arguments"]))
    return found


def execute(lake: Lake, name: str, arguments: Mapping[str, Any]) -> str:
    """The tool's reply; a call that names no tool or other arguments is answered with an error, as TRL does."""
    if name != "move":
        return str({"error": f"Tool {name} not found."})
    if set(arguments) != {"direction"}:
        return str({"error": f"move() takes 'direction', got {sorted(arguments)}"})
    return lake.move(str(arguments["direction"]))


# ------------------------------------------------------------------------------------------------ our door


@dataclass(frozen=True)
class ToolLake:
    """The family for `workbench.rollouts.collect`. `turns`: moves that are executed; one more answer is sampled after them."""

    turns: int = 5
    babble: bool = False

    name = "bench-lake"

    @property
    def max_turns(self) -> int:
        return self.turns + 1

    def task(self, task_seed: int) -> Task:
        return Task(f"lake-{task_seed}", self.name, task_seed)

    def make(self) -> ToolLakeEnv:
        return ToolLakeEnv(self.turns, self.babble)

    def random_action(self, env: ToolLakeEnv, rng: np.random.Generator) -> str:
        return call_text(str(rng.choice(sorted(DIRECTIONS))))

    def solver_action(self, env: ToolLakeEnv, rng: np.random.Generator) -> str:
        return call_text(towards(env.lake, rng))


class ToolLakeEnv:
    """One trajectory. A turn without a readable call ends it, as in TRL's loop."""

    def __init__(self, turns: int, babble: bool = False) -> None:
        self.lake, self.turns, self.babble, self.answers = Lake(), turns, babble, 0

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        text = self.lake.reset(task.task_seed, self.turns)
        return Observation((Message("user", text),), tools=(MOVE_SCHEMA,))

    def step(self, action_text: str) -> StepResult:
        self.answers += 1
        before, calls = (
            self.lake.reward if self.answers > 1 else 0.0,
            calls_in(action_text, self.babble),
        )
        over = not calls or self.answers > self.turns  # the last answer's call is not executed
        replies = (
            ()
            if over
            else tuple(
                Message("tool", execute(self.lake, name, arguments), name=name)
                for name, arguments in calls
            )
        )
        # Turns pay differences, so that a trajectory earns what TRL's side gives it once, at the end.
        return StepResult(
            Observation(replies),
            self.lake.reward - before,
            terminated=over,
            info={"success": self.lake.success, "moves": [name for name, _ in calls]},
        )


def call_text(direction: str, thought: str = "") -> str:
    """A call as the chat template of Qwen3 writes it."""
    call = f'<tool_call>\n{{"name": "move", "arguments": {{"direction": "{direction}"}}}}\n</tool_call>'
    return f"{thought}\n{call}" if thought else call


def towards(lake: Lake, rng: np.random.Generator) -> str:
    """A direction that leads nearer to the goal, around holes where one step shows it; any if there is none."""

    def distance(direction: str) -> int:
        cell = after(lake.player, direction)
        return abs(cell[0] - lake.goal[0]) + abs(cell[1] - lake.goal[1]) + 9 * (cell in lake.holes)

    best = min(distance(direction) for direction in DIRECTIONS)
    return str(rng.choice([direction for direction in DIRECTIONS if distance(direction) == best]))


# ------------------------------------------------------------------------------------------------ the peer's door


class TrlLake:
    """What TRL makes one of per trajectory: `reset` returns text that it appends to the prompt, methods are tools."""

    def __init__(self) -> None:
        self._lake = Lake()

    def reset(self, seed: int = 0, **row: Any) -> str:
        return self._lake.reset(seed)

    def move(self, direction: str) -> str:
        """
        Move the player one cell on the frozen lake.

        Args:
            direction: one of Left, Right, Up, Down

        Returns:
            the new observation
        """
        return self._lake.move(direction)

    def get_reward(self) -> float:
        return self._lake.reward
