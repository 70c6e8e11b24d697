"""What of a run goes to a tracker: items, each of which is sent once.

    numbers       of a step: every metric (`train/...`) and the seconds of each phase (`clock/...`)
    evaluation    every rate with its interval (`held_out/POLICY/MODE/...`), every paired difference (`paired/...`)
    table         of the step's trajectories, with their text
    picture       the curves up to a step, as `wb.show(run)` draws them

Names and order depend on the run folder alone, so that whoever goes on later finds the same items. What was not computed
is left out, not sent as zero (invariant 5).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.look import curves_view
from workbench.look.escape import capped, visible
from workbench.look.records import flattened
from workbench.run.follow import RunFollower
from workbench.run.store import Run
from workbench.values import Trajectory, trajectories_of

CURVES = "curves"  # the key that a picture is sent under
TRAJECTORIES = "trajectories"  # ... and a table
EVERY = 10  # steps between two tables and two pictures
TABLE_ROWS = 64
CELL_CHARACTERS = 6_000
COLUMNS = ("step", "task", "attempt", "reward", "success", "stop_reason", "turns", "tokens", "text")
_ORDER = ("evaluation", "numbers", "table", "picture")


@dataclass(frozen=True, order=True)
class ItemName:
    """An item by name: its step, its kind (an index into `_ORDER`), and of an evaluation its name."""

    step: int
    kind: int
    name: str = ""

    @property
    def key(self) -> str:
        """As the cursor has it: "numbers 3"."""
        return f"{_ORDER[self.kind]} {self.name or self.step}"

    @property
    def has_numbers(self) -> bool:
        return _ORDER[self.kind] in ("evaluation", "numbers")


@dataclass(frozen=True)
class Item:
    """What is sent at once.

    key: its name, for the cursor.
    step: of the run.
    numbers: by the names that the tracker shows.
    rows: of a table, in the order of `COLUMNS`; None: no table.
    picture: a PNG; None: no picture.
    """

    key: str
    step: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    rows: Sequence[Sequence[Any]] | None = None
    picture: bytes | None = field(default=None, repr=False)

    @property
    def parts(self) -> set[str]:
        """The names under which a tracker holds it."""
        names = set(self.numbers)
        if self.rows is not None:
            names.add(TRAJECTORIES)
        if self.picture is not None:
            names.add(CURVES)
        return names

    def without(self, held: Collection[str]) -> Item | None:
        """What of it a tracker that holds these names still lacks; None where that is nothing."""
        numbers = {name: value for name, value in self.numbers.items() if name not in held}
        rows = None if TRAJECTORIES in held else self.rows
        picture = None if CURVES in held else self.picture
        rest = Item(self.key, self.step, numbers, rows, picture)
        return rest if rest.parts else None


class RunItems:
    """The items that a run folder holds so far. `every`: steps between two tables and two pictures."""

    def __init__(self, run: Run, every: int = EVERY):
        self._run = run
        self._every = every
        self._follower = RunFollower(run.path)
        self._values: dict[int, dict[str, Any]] = {}  # step -> name -> metric or seconds

    def places(self, *, ended: bool) -> list[ItemName]:
        """Where there is something to send, in the order of steps. `ended`: nobody writes the run any more, so that the last
        step counts among those with a table and a picture. Reads what is new."""
        self._follower.read()
        self._values = self._values_by_step()
        places = []
        for name, report in self._follower.evaluations.items():
            places.append(ItemName(_step_of(report), _ORDER.index("evaluation"), name))
        last = self._follower.step
        for row in self._follower.rows:
            step = row["step"]
            places.append(ItemName(step, _ORDER.index("numbers")))
            is_last = ended and step == last
            if not (step == 1 or step % self._every == 0 or is_last):
                continue
            places.append(ItemName(step, _ORDER.index("table")))
            # A step's evaluation is there before the next step is: the picture waits for it.
            if step < last or is_last:
                places.append(ItemName(step, _ORDER.index("picture")))
        return sorted(places)

    def item(self, place: ItemName) -> Item:
        """Make the item. Raises StoreError where the run is damaged."""
        kind = _ORDER[place.kind]
        if kind == "evaluation":
            report = self._follower.evaluations[place.name]
            return Item(place.key, place.step, known_numbers(evaluation_values(report)))
        if kind == "numbers":
            return Item(place.key, place.step, known_numbers(self._values[place.step]))
        if kind == "table":
            return Item(place.key, place.step, rows=self._table(place.step))
        return Item(place.key, place.step, picture=self._picture(place.step))

    def settings(self) -> dict[str, bool | int | float | str]:
        """The settings in force, one per dotted name; what is none is spelled out, lists too."""
        return plain_settings(self._run)

    def _values_by_step(self) -> dict[int, dict[str, Any]]:
        values: dict[int, dict[str, Any]] = {}
        for row in self._follower.rows:
            metrics = {f"train/{name}": value for name, value in row.items() if name != "step"}
            values[row["step"]] = metrics
        for line in self._follower.clock:
            if line["what"] == "step" and line["step"] in values:
                seconds = {f"clock/{name}": value for name, value in line["clock"].items()}
                values[line["step"]] |= seconds
        return values

    def _table(self, step: int) -> list[list[Any]]:
        trajectories = trajectories_of(self._run.groups(step))
        return [_row(step, trajectory) for trajectory in trajectories[:TABLE_ROWS]]

    def _picture(self, step: int) -> bytes | None:
        rows = [row for row in self._follower.rows if row["step"] <= step]
        evaluations = {}
        for name, report in self._follower.evaluations.items():
            if _step_of(report) <= step:
                evaluations[name] = report
        return curves_view(rows, evaluations, title=self._run.name).png


def _step_of(report: Mapping[str, Any]) -> int:
    return int(report.get("step") or 0)


def _row(step: int, trajectory: Trajectory) -> list[Any]:
    return [
        step,
        _whole_characters(trajectory.task.id),
        trajectory.attempt,
        trajectory.reward,
        trajectory.success,
        trajectory.stop_reason.value,
        len(trajectory.turns),
        trajectory.num_sampled,
        _whole_characters(capped(visible(transcript(trajectory)), CELL_CHARACTERS)),
    ]


def _whole_characters(text: str) -> str:
    """A policy may write half a character, which no tracker can store: it becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def transcript(trajectory: Trajectory) -> str:
    """The conversation as text: who wrote it in brackets, then what."""
    lines = [
        f"[{message.role}] {message.text}" for message in trajectory.first_observation.messages
    ]
    for turn in trajectory.turns:
        lines.append(f"[policy] {turn.text}")
        lines += [f"[{message.role}] {message.text}" for message in turn.reply]
    return "\n".join(lines)


def evaluation_values(report: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one evaluation by the names that trackers show."""
    values = {}
    for row in report.get("rows", ()):
        for name, value in row.items():
            if not isinstance(value, str):
                values[f"held_out/{row['policy']}/{row['mode']}/{name}"] = value
    for pair in report.get("paired", ()):
        # TensorBoard changes blanks in names.
        which = f"{pair['b']}_minus_{pair['a']}".replace(" ", "-")
        for name in ("difference", "low", "high"):
            values[f"paired/{which}/{name}"] = pair[name]
    return values


def known_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those that are numbers; what was not computed (None, NaN) is left out."""
    numbers = {}
    for name, value in values.items():
        if isinstance(value, (bool, int, float)) and value == value:
            numbers[name] = float(value)
    return numbers


def plain_settings(run: Run) -> dict[str, bool | int | float | str]:
    """The settings in force, one per dotted name, as values that every tracker takes."""
    settings: dict[str, bool | int | float | str] = {}
    for name, value in flattened(run.config).items():
        if value is None:
            settings[name] = "none"
        elif isinstance(value, (bool, int, float, str)):
            settings[name] = value
        else:
            settings[name] = json.dumps(value)
    return settings
