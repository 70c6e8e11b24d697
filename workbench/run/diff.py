"""Where two runs part: nowhere, to the last bit, or the first setting, step, file, column and token that differs.

    difference = compare_runs(open_run("runs/a"), open_run("runs/b"), exact=True)
    difference.equal      True: not one hashed byte differs
    difference.first      the earliest difference in the order in which things are made, and so the one to look at first

A step is made in this order: trajectories, credit tables, metrics line, evaluation, checkpoint. What comes later is
mostly a consequence of what came before: look at the first difference first.

Two depths. By default a step's files are taken for what its metrics line seals them to be (size and sha256), and only
where two seals differ are the files read: enough to compare long runs at once. `exact=True` reads every byte of both
runs, checks it against its seal, and compares the checkpoints too; it is what `workbench diff --exact` exits by. The
clock (wall-clock times, processes, machines) is left out of both, as it is of `Run.digest` (law 14).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from workbench.run.equality import first_difference
from workbench.run.file_diff import (
    ColumnDifference,
    credit_columns,
    first_in_files,
    more,
    only_in,
    short,
)
from workbench.run.shapes import by_step
from workbench.run.store import CREDIT, LINT, TRAJECTORIES, Run, open_run, step_folders, step_name
from workbench.types import canonical_json
from workbench.types.canonical_json import seal_of
from workbench.types.errors import StoreError
from workbench.types.view import Shown
from workbench.views.records import flattened

PARTS = (
    "trajectories",
    "credit",
    "lint",
    "metrics",
    "evaluation",
    "checkpoint",
)  # in the order in which a step makes them
_MADE = (
    "trajectories",
    "credit",
    "metrics",
    "evaluation",
)  # what a run must have where the other has it
SAME, DIFFERENT, ONLY_A, ONLY_B = "=", "≠", "a", "b"
_MISSING = object()
_ANY_FORMAT = 10**6  # of a checkpoint: only its seals are read here


@dataclass(frozen=True)
class RunDifference:
    """One thing in which two runs differ. `part`: settings, steps, events, damage, bytes, or one of PARTS; `file`: its
    path in the run folder; `what`: where in the file, and what stands there in a and in b, in words."""

    part: str
    step: int | None
    file: str
    what: str

    def __str__(self) -> str:
        step = "" if self.step is None else f"step {self.step}, "
        return f"{step}{self.file}: {self.what}"


@dataclass(frozen=True, eq=False, repr=False)
class RunDiff(Shown):
    """What came of comparing run `a` with run `b`.

    `settings`: (name, value in a, value in b) of every setting that differs. `table`: part -> one mark per entry of
    `steps`: "=" equal, "≠" different, "a" or "b" only there, "" in neither. `differences`: the first of every part, the
    earliest cause first. `credit`: the columns of the first credit table that differs. `notes`: what was seen and does
    not count.
    """

    a: Path
    b: Path
    exact: bool
    settings: tuple[tuple[str, Any, Any], ...]
    steps: tuple[int, ...]
    table: Mapping[str, tuple[str, ...]]
    differences: tuple[RunDifference, ...]
    credit: tuple[ColumnDifference, ...]
    digests: tuple[str, str]
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Nothing differs. With `exact` that holds for every hashed byte."""
        return not self.differences

    @property
    def first(self) -> RunDifference | None:
        return self.differences[0] if self.differences else None


def compare_runs(a: Run | str | Path, b: Run | str | Path, *, exact: bool = False) -> RunDiff:
    """Compare two run folders; see the top of this file. `exact` reads every byte of both, checkpoints too. A step's file or a checkpoint that is damaged is a difference,
    not an error; StoreError where the run itself (its lines, config or evaluations) cannot be read."""
    a, b = open_run(a), open_run(b)
    facts = [_read(run) for run in (a, b)]
    settings = _settings(a.config, b.config)
    steps = sorted(facts[0].steps() | facts[1].steps())
    table = {
        part: tuple(
            _mark(*(fact.made.get((step, part), _MISSING) for fact in facts)) for step in steps
        )
        for part in PARTS
    }
    digests = (a.digest(), b.digest())
    found = [*_first_of_each(a, b, facts, settings, steps, table)]
    if exact and not any(d.part == "damage" for d in found):
        found += [*_damage(a, facts[0]), *_damage(b, facts[1])]
    if digests[0] != digests[1] and not found:
        found.append(_first_bytes(a, b))
    place = {
        part: index
        for index, part in enumerate(("settings", "damage", *PARTS, "steps", "events", "bytes"))
    }
    found.sort(
        key=lambda d: (
            -1 if d.part == "settings" else 10**9 if d.step is None else d.step,
            place[d.part],
        )
    )
    credit = next((credit_columns(a, b, d.step, d.file) for d in found if d.part == "credit"), ())
    return RunDiff(
        a.path,
        b.path,
        exact,
        settings,
        tuple(steps),
        table,
        tuple(found),
        credit,
        digests,
        tuple(_notes(facts)),
    )


# ------------------------------------------------------------------------------------------------ what is there


@dataclass(frozen=True, eq=False)
class _Facts:
    """What one run made: (step, part) -> what is compared of it; and its events."""

    made: Mapping[tuple[int, str], Any]
    events: tuple[Mapping[str, Any], ...]

    def steps(self, part: str = "") -> set[int]:
        """The steps that have this part, or any."""
        return {step for step, name in self.made if part in ("", name)}


def _read(run: Run) -> _Facts:
    made: dict[tuple[int, str], Any] = {}
    path = run.path / "metrics.jsonl"
    for line in by_step(canonical_json.read_lines(path, below=run.path).records, path).values():
        made[line["step"], "metrics"] = line["metrics"]
        for name, seal in line["files"].items():
            part = {TRAJECTORIES: "trajectories", LINT: "lint"}.get(name, "credit")
            if part == "credit" and not CREDIT.fullmatch(name):
                raise StoreError(
                    f"{path}: step {line['step']} seals {name!r:.80}, which no file of a step is called; restore it from "
                    "a copy"
                )
            made.setdefault((line["step"], part), {})[name] = seal
    for name, content in run.evaluations().items():
        made.setdefault((int(content.get("step") or 0), "evaluation"), {})[name] = content
    for step in step_folders(run.path / "checkpoints"):
        made[step, "checkpoint"] = _manifest(run, step)
    return _Facts(made, tuple(run.events()))


def _manifest(run: Run, step: int) -> Any:
    """The seals of a checkpoint's files; the reason, as text, where there are none that can be read."""
    path = run.path / "checkpoints" / step_name(step) / canonical_json.MANIFEST
    try:
        return canonical_json.read_sealed_json(
            path, kind="checkpoint", version=_ANY_FORMAT, below=run.path
        )["files"]
    except (StoreError, TypeError, KeyError) as error:
        return str(error)


def _mark(a: Any, b: Any) -> str:
    if a is _MISSING or b is _MISSING:
        return "" if a is b else ONLY_B if a is _MISSING else ONLY_A
    return SAME if first_difference(a, b) is None else DIFFERENT


# ------------------------------------------------------------------------------------------------ first differences


def _settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    left, right = flattened(a), flattened(b)
    names = [*left, *(name for name in right if name not in left)]
    return tuple(
        (name, left.get(name, "not set"), right.get(name, "not set"))
        for name in names
        if first_difference(left.get(name, _MISSING), right.get(name, _MISSING)) is not None
    )


def _first_of_each(
    a: Run, b: Run, facts: list[_Facts], settings, steps, table
) -> Iterator[RunDifference]:
    if settings:
        name, left, right = settings[0]
        yield RunDifference(
            "settings", None, "config.json", short(f"{name}: {left!r} is not {right!r}")
        )
    for part in PARTS:
        at = next((step for step, mark in zip(steps, table[part]) if mark == DIFFERENT), None)
        if at is not None:
            yield _difference(a, b, part, at, *(fact.made[at, part] for fact in facts))
    missing = [
        (step, part, mark)
        for step, *marks in zip(steps, *(table[part] for part in _MADE))
        for part, mark in zip(_MADE, marks)
        if mark in (ONLY_A, ONLY_B)
    ]
    missing += [
        (step, "checkpoint", mark)
        for step, mark in zip(steps, table["checkpoint"])
        if mark in (ONLY_A, ONLY_B) and step == max(steps, default=0)
    ]
    if missing:
        step, part, mark = missing[0]
        where = "metrics.jsonl" if part in _MADE[:3] else f"{part}s"
        last = [max(fact.steps("metrics"), default=0) for fact in facts]
        yield RunDifference(
            "steps",
            step,
            where,
            f"its {part} is only in {mark}; a has steps up to {last[0]}, b up to {last[1]}",
        )
    at = first_difference(facts[0].events, facts[1].events, "events")
    if at is not None:
        yield RunDifference(
            "events", _event_step(*(fact.events for fact in facts)), "events.jsonl", short(at)
        )


def _event_step(a: tuple, b: tuple) -> int | None:
    for x, y in zip_longest(a, b, fillvalue={}):
        if first_difference(x, y) is not None:
            return (x or y).get("step", 0)
    return None


def _difference(a: Run, b: Run, part: str, step: int, left: Any, right: Any) -> RunDifference:
    """The first difference of one part of one step, to the token. `left` and `right`: what was made of it."""
    if part == "metrics":
        names = [
            name
            for name in {**left, **right}
            if first_difference(left.get(name, _MISSING), right.get(name, _MISSING)) is not None
        ]
        name = names[0]
        values = " is not ".join(
            repr(side[name]) if name in side else "absent" for side in (left, right)
        )
        return RunDifference(
            part, step, "metrics.jsonl", short(f"{name}: {values}") + more(len(names), "metric")
        )
    if part == "evaluation":
        for name in sorted({*left, *right}):
            both = name in left and name in right
            what = (
                first_difference(left[name], right[name], "evaluation")
                if both
                else only_in(name in left)
            )
            if what is not None:
                return RunDifference(part, step, f"evaluations/{name}.json", short(what))
    folder = f"{'checkpoints' if part == 'checkpoint' else 'steps'}/{step_name(step)}"
    if isinstance(left, str) or isinstance(right, str):
        return RunDifference(
            part, step, folder, short(next(side for side in (left, right) if isinstance(side, str)))
        )
    name = next(n for n in sorted({*left, *right}) if left.get(n) != right.get(n))
    file = f"{folder}/{name}"
    if name not in left or name not in right:
        return RunDifference(part, step, file, only_in(name in left))
    try:
        return RunDifference(part, step, file, short(first_in_files(a, b, part, step, name)))
    except StoreError as error:
        return RunDifference("damage", step, file, short(str(error)))


# ------------------------------------------------------------------------------------------------ every byte


def _damage(run: Run, facts: _Facts) -> Iterator[RunDifference]:
    """The first file of a run that does not hold what its seal says."""
    step, file = None, ""
    try:
        for (step, part), made in facts.made.items():
            file = f"checkpoints/{step_name(step)}"
            if part == "checkpoint":
                canonical_json.verify_folder(
                    run.path / file, kind="checkpoint", version=_ANY_FORMAT, below=run.path
                )
            for name, seal in made.items() if part in ("trajectories", "credit", "lint") else ():
                file = f"steps/{step_name(step)}/{name}"
                seal_of(seal, run.path / file).check(
                    run.path / file, canonical_json.read_file(run.path / file, below=run.path)
                )
    except StoreError as error:
        yield RunDifference("damage", step, file, short(str(error)))


def _first_bytes(a: Run, b: Run) -> RunDifference:
    """The digests differ and no value does: which file, which line."""
    for name in ("config.json", "metrics.jsonl", "events.jsonl"):
        lines = [
            canonical_json.read_file(run.path / name, below=run.path).split(b"\n") for run in (a, b)
        ]
        for number, (x, y) in enumerate(zip_longest(*lines), 1):
            if x != y:
                return RunDifference(
                    "bytes",
                    None,
                    name,
                    f"line {number}: every value is equal, but the bytes are not",
                )
    return RunDifference(
        "bytes", None, "evaluations", "every value is equal, but the bytes or the names are not"
    )


def _notes(facts: list[_Facts]) -> Iterator[str]:
    """Older checkpoints that only one run kept: how many are kept says nothing of what was computed."""
    kept = [fact.steps("checkpoint") for fact in facts]
    for name, own in (("a", kept[0] - kept[1]), ("b", kept[1] - kept[0])):
        if own:
            yield f"checkpoints of steps {', '.join(map(str, sorted(own)))} are only in {name}"
