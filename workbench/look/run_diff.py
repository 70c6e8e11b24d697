"""Where two runs diverge: nowhere, to the last bit, or the first setting, step, file, column and token that differs.

    difference = compare_runs(open_run("runs/a"), open_run("runs/b"), exact=True)
    difference.equal      True: not one hashed byte differs
    difference.first      the earliest difference in the order in which things are made, and so the one to look at first

A step is made in this order: trajectories, credit tables, metrics line, evaluation, checkpoint. What comes later is
mostly a consequence of what came before: look at the first difference first.

Two depths. By default a step's files are taken for what its metrics line seals them to be (size and sha256), and only
where two seals differ are the files read: enough to compare long runs at once. `exact=True` reads every byte of both
runs, checks it against its seal, and compares the checkpoints too; it is what `workbench diff --exact` exits by. The
clock (wall-clock times, processes, machines) is left out of both, as it is of `Run.digest` (invariant 14).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from workbench.basics import canonical_json
from workbench.basics.canonical_json import seal_of
from workbench.basics.extensions import service
from workbench.look import doc, words
from workbench.look.escape import capped
from workbench.look.html import view_from
from workbench.look.looks import CARD, GREEN, GREY, INK, MUTED, ORANGE, Look
from workbench.look.overlay import RunCurves, overlay_picture
from workbench.look.records import flattened
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
from workbench.values import View
from workbench.values.errors import StoreError
from workbench.values.view import Shown

# In the order in which a step makes them.
PARTS = ("trajectories", "credit", "lint", "metrics", "evaluation", "checkpoint")
# What a run must have where the other has it.
_MADE = ("trajectories", "credit", "metrics", "evaluation")
# The order of differences in one step.
_ORDER = ("settings", "damage", *PARTS, "steps", "events", "bytes")
SAME = "="
DIFFERENT = "≠"
ONLY_A = "a"
ONLY_B = "b"
RunOrPath = Run | str | Path
_MISSING = object()
_ANY_FORMAT = 10**6  # of a checkpoint: only its seals are read here
LONGEST = 160  # characters of a setting's value
WIDEST = 60  # steps in the table; more are put together, several steps a column
MARKS = {
    SAME: ("#d9efe3", "equal"),
    DIFFERENT: (ORANGE, "different"),
    ONLY_A: (GREY, "only in a"),
    ONLY_B: (GREY, "only in b"),
    "": (CARD, "in neither"),
}
# Of several steps in one column, the first of these is shown.
WORST = (DIFFERENT, ONLY_A, ONLY_B, SAME, "")
MONO = Look(mono=True)
CREDIT_HEADER = ("credit column", "tokens that differ", "largest difference", "first")
LEGEND = "= equal, ≠ different, a or b: only there"


@dataclass(frozen=True)
class RunDifference:
    """One thing in which two runs differ.

    part  settings, steps, events, damage, bytes, or one of PARTS
    step  that it is of; None: of the run as a whole
    file  its path in the run folder
    what  where in the file, and what stands there in a and in b, in words
    """

    part: str
    step: int | None
    file: str
    what: str

    def __str__(self) -> str:
        step = "" if self.step is None else f"step {self.step}, "
        return f"{step}{self.file}: {self.what}"

    @property
    def order(self) -> tuple[int, int]:
        """The earliest cause first: settings, then step by step in the order in which a step is made, then the rest."""
        if self.part == "settings":
            step = -1
        else:
            step = 10**9 if self.step is None else self.step
        return step, _ORDER.index(self.part)


@dataclass(frozen=True, eq=False, repr=False)
class RunDiff(Shown):
    """What came of comparing run `a` with run `b`.

    a, b         their folders
    exact        whether every byte was compared
    settings     (name, value in a, value in b) of every setting that differs
    steps        of either run
    table        part -> one mark per entry of `steps`: "=" equal, "≠" different, "a" or "b" only there, "" in neither
    differences  the first of every part, the earliest cause first
    credit       the columns of the first credit table that differs
    digests      of both runs
    notes        what was seen and does not count
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

    def view(self) -> View:
        """`diff_view` with the curves of both runs, read from their folders."""
        a = open_run(self.a)
        b = open_run(self.b)
        return diff_view(self, a.metrics_rows(), b.metrics_rows(), a.evaluations())


def compare_runs(a: RunOrPath, b: RunOrPath, *more_runs: RunOrPath, exact: bool = False) -> Any:
    """Compare two run folders, as a `RunDiff`; see the top of this file. With `more_runs` each is compared with the first: what
    comes of it holds a `RunDiff` for each.

    `exact` reads every byte of both, checkpoints too. A step's file or a checkpoint that is damaged is a difference, not an
    error; StoreError where the run itself (its lines, config or evaluations) cannot be read."""
    if more_runs:
        compare_many = service("compare_many", "a comparison of more than two runs")
        return compare_many([a, b, *more_runs], exact=exact)
    a = open_run(a)
    b = open_run(b)
    contents = (_read(a), _read(b))
    settings = _settings(a.config, b.config)
    steps = sorted(contents[0].steps() | contents[1].steps())
    table = {part: _marks_of(part, steps, contents) for part in PARTS}
    digests = (a.digest(), b.digest())
    differences = [*_first_of_each(a, b, contents, settings, steps, table)]
    if exact and not any(difference.part == "damage" for difference in differences):
        differences += [*_damage(a, contents[0]), *_damage(b, contents[1])]
    if digests[0] != digests[1] and not differences:
        differences.append(_first_bytes(a, b))
    differences.sort(key=lambda difference: difference.order)
    return RunDiff(
        a.path,
        b.path,
        exact,
        settings,
        tuple(steps),
        table,
        tuple(differences),
        _first_credit_columns(a, b, differences),
        digests,
        tuple(_notes(contents)),
    )


def _first_credit_columns(
    a: Run, b: Run, differences: Sequence[RunDifference]
) -> tuple[ColumnDifference, ...]:
    """Columns of the first credit table that differs; none where all are equal."""
    for difference in differences:
        if difference.part == "credit":
            return credit_columns(a, b, difference.step, difference.file)
    return ()


# ------------------------------------------------------------------------------------------------ what is there


@dataclass(frozen=True, eq=False)
class _Contents:
    """What one run made: (step, part) -> what is compared of it; and its events."""

    made: Mapping[tuple[int, str], Any]
    events: tuple[Mapping[str, Any], ...]

    def steps(self, part: str = "") -> set[int]:
        """The steps that have this part, or any."""
        return {step for step, name in self.made if part in ("", name)}


_Both = tuple[_Contents, _Contents]


def _read(run: Run) -> _Contents:
    made: dict[tuple[int, str], Any] = {}
    path = run.path / "metrics.jsonl"
    for line in by_step(canonical_json.read_lines(path, below=run.path).records, path).values():
        step = line["step"]
        made[step, "metrics"] = line["metrics"]
        for name, seal in line["files"].items():
            part = {TRAJECTORIES: "trajectories", LINT: "lint"}.get(name, "credit")
            if part == "credit" and not CREDIT.fullmatch(name):
                raise StoreError(
                    f"{path}: step {step} seals {name!r:.80}, which no file of a step is called; restore it from "
                    "a copy"
                )
            made.setdefault((step, part), {})[name] = seal
    for name, content in run.evaluations().items():
        step = int(content.get("step") or 0)
        made.setdefault((step, "evaluation"), {})[name] = content
    for step in step_folders(run.path / "checkpoints"):
        made[step, "checkpoint"] = _manifest(run, step)
    return _Contents(made, tuple(run.events()))


def _manifest(run: Run, step: int) -> Any:
    """The seals of a checkpoint's files; the reason, as text, where there are none that can be read."""
    path = run.path / "checkpoints" / step_name(step) / canonical_json.MANIFEST
    try:
        return canonical_json.read_sealed_json(
            path, kind="checkpoint", version=_ANY_FORMAT, below=run.path
        )["files"]
    except (StoreError, TypeError, KeyError) as error:
        return str(error)


def _marks_of(part: str, steps: Sequence[int], contents: _Both) -> tuple[str, ...]:
    marks = []
    for step in steps:
        a, b = (run.made.get((step, part), _MISSING) for run in contents)
        marks.append(_mark(a, b))
    return tuple(marks)


def _mark(a: Any, b: Any) -> str:
    if a is _MISSING and b is _MISSING:
        return ""
    if a is _MISSING:
        return ONLY_B
    if b is _MISSING:
        return ONLY_A
    return SAME if first_difference(a, b) is None else DIFFERENT


# ------------------------------------------------------------------------------------------------ first differences


def _differing_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The keys of either whose values differ, or which the other lacks."""
    return [
        key
        for key in {**a, **b}
        if first_difference(a.get(key, _MISSING), b.get(key, _MISSING)) is not None
    ]


def _settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    left = flattened(a)
    right = flattened(b)
    return tuple(
        (name, left.get(name, "not set"), right.get(name, "not set"))
        for name in _differing_keys(left, right)
    )


def _first_of_each(
    a: Run,
    b: Run,
    contents: _Both,
    settings: Sequence[tuple[str, Any, Any]],
    steps: Sequence[int],
    table: Mapping[str, tuple[str, ...]],
) -> Iterator[RunDifference]:
    if settings:
        name, left, right = settings[0]
        what = short(f"{name}: {left!r} is not {right!r}")
        yield RunDifference("settings", None, "config.json", what)
    for part in PARTS:
        if DIFFERENT in table[part]:
            step = steps[table[part].index(DIFFERENT)]
            made = (run.made[step, part] for run in contents)
            yield _difference(a, b, part, step, *made)
    missing = next(_missing_parts(steps, table), None)
    if missing is not None:
        step, part, mark = missing
        where = "metrics.jsonl" if part in _MADE[:3] else f"{part}s"
        last = [max(run.steps("metrics"), default=0) for run in contents]
        what = f"its {part} is only in {mark}; a has steps up to {last[0]}, b up to {last[1]}"
        yield RunDifference("steps", step, where, what)
    events = [run.events for run in contents]
    what = first_difference(*events, "events")
    if what is not None:
        yield RunDifference("events", _event_step(*events), "events.jsonl", short(what))


def _missing_parts(
    steps: Sequence[int], table: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[int, str, str]]:
    """(step, part, which run has it) of what only one run has; of checkpoints the last: older ones are removed."""
    for number, step in enumerate(steps):
        for part in _MADE:
            if table[part][number] in (ONLY_A, ONLY_B):
                yield step, part, table[part][number]
    if steps and table["checkpoint"][-1] in (ONLY_A, ONLY_B):
        yield steps[-1], "checkpoint", table["checkpoint"][-1]


def _event_step(a: tuple, b: tuple) -> int | None:
    for x, y in zip_longest(a, b, fillvalue={}):
        if first_difference(x, y) is not None:
            return (x or y).get("step", 0)
    return None


def _difference(a: Run, b: Run, part: str, step: int, left: Any, right: Any) -> RunDifference:
    """The first difference of one part of one step, to the token. `left` and `right`: what was made of it."""
    if part == "metrics":
        return _metric_difference(step, left, right)
    if part == "evaluation":
        return _evaluation_difference(step, left, right)
    folder = f"{'checkpoints' if part == 'checkpoint' else 'steps'}/{step_name(step)}"
    for side in (left, right):
        if not isinstance(
            side, Mapping
        ):  # the reason why it cannot be read, or what a damaged file holds
            return RunDifference(part, step, folder, short(str(side)))
    name = next(name for name in sorted({*left, *right}) if left.get(name) != right.get(name))
    file = f"{folder}/{name}"
    if name not in left or name not in right:
        return RunDifference(part, step, file, only_in(name in left))
    try:
        return RunDifference(part, step, file, short(first_in_files(a, b, part, step, name)))
    except StoreError as error:
        return RunDifference("damage", step, file, short(str(error)))


def _metric_difference(
    step: int, left: Mapping[str, Any], right: Mapping[str, Any]
) -> RunDifference:
    names = _differing_keys(left, right)
    name = names[0]
    values = [repr(side[name]) if name in side else "absent" for side in (left, right)]
    what = short(f"{name}: {' is not '.join(values)}") + more(len(names), "metric")
    return RunDifference("metrics", step, "metrics.jsonl", what)


def _evaluation_difference(
    step: int, left: Mapping[str, Any], right: Mapping[str, Any]
) -> RunDifference:
    name = min(_differing_keys(left, right))
    if name in left and name in right:
        what = first_difference(left[name], right[name], "evaluation")
    else:
        what = only_in(name in left)
    return RunDifference("evaluation", step, f"evaluations/{name}.json", short(what))


# ------------------------------------------------------------------------------------------------ every byte


def _damage(run: Run, contents: _Contents) -> Iterator[RunDifference]:
    """The first file of a run that does not hold what its seal says."""
    step = None
    file = ""
    try:
        for (step, part), made in contents.made.items():
            file = f"checkpoints/{step_name(step)}"
            if part == "checkpoint":
                canonical_json.verify_folder(
                    run.path / file, kind="checkpoint", version=_ANY_FORMAT, below=run.path
                )
            seals = made if part in ("trajectories", "credit", "lint") else {}
            for name, seal in seals.items():
                file = f"steps/{step_name(step)}/{name}"
                path = run.path / file
                seal_of(seal, path).check(path, canonical_json.read_file(path, below=run.path))
    except StoreError as error:
        yield RunDifference("damage", step, file, short(str(error)))


def _first_bytes(a: Run, b: Run) -> RunDifference:
    """The digests differ and no value does: which file, which line."""
    for name in ("config.json", "metrics.jsonl", "events.jsonl"):
        contents = [canonical_json.read_file(run.path / name, below=run.path) for run in (a, b)]
        lines = zip_longest(*(content.split(b"\n") for content in contents))
        for number, (x, y) in enumerate(lines, 1):
            if x != y:
                what = f"line {number}: every value is equal, but the bytes are not"
                return RunDifference("bytes", None, name, what)
    what = "every value is equal, but the bytes or the names are not"
    return RunDifference("bytes", None, "evaluations", what)


def _notes(contents: _Both) -> Iterator[str]:
    """Older checkpoints that only one run kept: how many are kept says nothing of what was computed."""
    a, b = (run.steps("checkpoint") for run in contents)
    for name, own in (("a", a - b), ("b", b - a)):
        if own:
            yield f"checkpoints of steps {', '.join(map(str, sorted(own)))} are only in {name}"


# ------------------------------------------------------------------------------------------------ the view


def diff_view(
    diff: RunDiff,
    rows_a: Sequence[Mapping[str, Any]] = (),
    rows_b: Sequence[Mapping[str, Any]] = (),
    evaluations: Mapping[str, Any] = {},
) -> View:
    """What two runs have in common and where they diverge.

    You will see the verdict; the settings that differ; a table with one column per step, in the order in which a step
    is made, so that the leftmost and topmost difference is the cause and the rest its wake; the first difference of
    every part, to the token; how far the columns of the first differing credit table are apart; and both runs' curves,
    one over the other, with the baselines of `evaluations` (invariant 12).
    """
    word, reason = _verdict(diff)
    badge = doc.Badge(word, GREEN if diff.equal else ORANGE, plain=f"{word}: ")
    return view_from(
        doc.Heading((badge, reason)),
        doc.Note(f"a: {diff.a}"),
        doc.Note(f"b: {diff.b}"),
        *_settings_parts(diff),
        *_steps_parts(diff),
        *_differences_parts(diff),
        *_credit_parts(diff),
        overlay_picture(
            [
                RunCurves(f"a  {diff.a.name}", rows_a, evaluations),
                RunCurves(f"b  {diff.b.name}", rows_b, evaluations),
            ]
        ),
        *map(doc.WarningLine, diff.notes),
    )


def _verdict(diff: RunDiff) -> tuple[str, str]:
    if not diff.equal:
        return "different", str(diff.first)
    if diff.exact:
        digest = diff.digests[0][:16]
        return (
            "equal",
            f"to the last bit; every hashed byte was read and compared (digest {digest}…)",
        )
    return (
        "equal",
        "same settings, same seals on every file, same metrics and evaluations (--exact reads every byte)",
    )


def _settings_parts(diff: RunDiff) -> Iterator[doc.Part]:
    if diff.settings:
        header = ("setting", doc.Column("a", look=MONO), doc.Column("b", look=MONO))
        rows = [(name, _short(left), _short(right)) for name, left, right in diff.settings]
        yield from (doc.BlankLine(), doc.Table(header, rows))


def _short(value: Any) -> str:
    return capped(str(value).replace("\n", "⏎"), LONGEST)


def _steps_parts(diff: RunDiff) -> Iterator[doc.Part]:
    """A row a part and a column a step; of several steps in a column the worst is shown."""
    if not diff.steps:
        return
    size = -(-len(diff.steps) // WIDEST)
    starts = range(0, len(diff.steps), size)
    columns = [str(diff.steps[start]) for start in starts]
    rows = []
    for part, marks in diff.table.items():
        worst = [min(marks[start : start + size], key=WORST.index) for start in starts]
        rows.append([part, _mark_boxes(columns, worst)])
    binned = f", {size} steps a column" if size > 1 else ""
    yield doc.BlankLine()
    yield doc.Note(f"step {columns[0]} to {columns[-1]}{binned} ({LEGEND})")
    yield doc.Table(("", ""), rows, header=False)


def _mark_boxes(steps: Sequence[str], marks: Sequence[str]) -> doc.Cell:
    """A small box per step, a mark in each: colour is not needed to read it."""
    inks = {SAME: INK, "": MUTED}
    boxes = []
    for step, mark in zip(steps, marks):
        paper, meaning = MARKS[mark]
        look = Look(paper, inks.get(mark, CARD), mono=True, right=f"1px solid {CARD}")
        title = f"step {step}: {meaning}"
        boxes.append(doc.Styled(f"\u00a0{mark or '·'}\u00a0", look, title=title))
    text = "".join(mark or "·" for mark in marks)
    return doc.Cell(text, Look(nowrap=True), parts=tuple(boxes))


def _differences_parts(diff: RunDiff) -> Iterator[doc.Part]:
    if diff.differences:
        yield doc.BlankLine()
        yield doc.Note("the first difference of each part, the cause first:")
        yield from (doc.Block(f"  {difference}") for difference in diff.differences)


def _credit_parts(diff: RunDiff) -> Iterator[doc.Part]:
    if diff.credit:
        header = (CREDIT_HEADER[0], *doc.numbers(*CREDIT_HEADER[1:3]), CREDIT_HEADER[3])
        rows = [
            (column.column, f"{column.tokens:,}", words.number(column.largest, 3), column.first)
            for column in diff.credit
        ]
        yield doc.BlankLine()
        yield doc.Fold("How far the credit tables are apart", (doc.Table(header, rows),))
