"""The runs of a folder side by side: a table to sort, filter, group by a setting, and search.

found = wb.runs()                          those in "runs" and one folder further down, the newest first
found.frame()                              a row a run, with the settings in which they differ
found.filter("frozenlake learner.lr=0.001").sort("success")
found.group_by("algorithm.kind")           runs that share a setting, with mean and std over them
wb.show(found[0])
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.basics.annotated import checked_methods
from workbench.extensions.many_runs.facts import (
    POLICIES,
    RunFacts,
    differing_settings,
    facts_of,
    numbers_of,
    setting_words,
)
from workbench.extensions.many_runs.page import runs_page, runs_widget
from workbench.look import doc, words
from workbench.look.curves import BASELINES
from workbench.look.escape import capped
from workbench.look.html import view_from
from workbench.look.live import STATES, has_widgets, widget_bundle
from workbench.look.looks import BOLD, GREY
from workbench.look.progress_line import CellOutput
from workbench.run.store import Run, open_run
from workbench.run.writer import make_folder, write_file
from workbench.values import View
from workbench.values.errors import DataError, StoreError, WorkbenchError, nearest
from workbench.values.view import Shown, ShownTuple

if TYPE_CHECKING:
    import pandas

LONGEST_NAME = 60  # characters
LONGEST_SETTING = 24
MOST_SETTINGS = 6  # columns of a view; the frame has them all
CURVE_WIDTH = 16  # characters
NEXT = (
    "next: wb.show(runs[0]), runs.frame(), runs.sort('success'), runs.group_by('learner.lr'), "
    "wb.explore(runs); rates: sampled decoding (solver: as is)"
)


@checked_methods
class Runs(ShownTuple[Run]):
    """Runs in order. As the last line of a cell: a table to sort, filter and group; where there is no kernel, the same rows."""

    def facts(self) -> list[RunFacts]:
        """What each folder holds now."""
        return [facts_of(run) for run in self]

    def view(self) -> View:
        """A row per run: state, committed steps, the settings in which they differ, the course of success in training, and
        held-out success (or return) when it was last measured, beside random play, the untrained policy and the solver."""
        listed = self.facts()
        names = differing_settings(listed)
        return runs_view([_row_of(facts, names) for facts in listed], names)

    def frame(self) -> pandas.DataFrame:
        """A row a run. Needs pandas.

        name, path, state   of the run
        step, steps         how far it came, and how many steps there are to be
        measured            the step after which the next columns were measured
        success             of the trained policy on the held-out tasks, sampled; missing where nobody knows it
        reward              its mean return there
        random_success, untrained_success, solver_success, and the same with _reward: of the baselines
        train_first, train_last   success (or reward) in training at the first and the last step

        Then a column for each setting in which the runs differ.
        """
        import pandas

        listed = self.facts()
        names = differing_settings(listed)
        rows = []
        for facts in listed:
            settings = {name: facts.settings.get(name) for name in names}
            rows.append(numbers_of(facts) | settings)
        return pandas.DataFrame(rows)

    def filter(self, text: str) -> Runs:
        """The runs in which every word of `text` occurs: in the name, the state, or a setting written as `learner.lr=0.001`."""
        wanted = text.lower().split()
        kept = []
        for facts in self.facts():
            if all(word in facts.searched_text for word in wanted):
                kept.append(facts.run)
        return Runs(kept)

    def sort(self, by: str, *, descending: bool = True) -> Runs:
        """The runs in the order of a column of `frame`; those without a value last. DataError for a name that is none."""
        listed = self.facts()
        known = []
        others = []
        for facts in listed:
            row = numbers_of(facts) | dict(facts.settings)
            if by not in row:
                names = {*numbers_of(facts), *facts.settings}
                raise DataError(f"runs have no column {by!r}; {nearest(by, sorted(names))}")
            missing = row[by] is None or row[by] != row[by]
            (others if missing else known).append((row[by], facts.run))
        known.sort(key=lambda pair: _order(pair[0]), reverse=descending)
        return Runs([run for _, run in (*known, *others)])

    def group_by(self, *settings: str) -> RunGroups:
        """The runs put together by the values of these settings, such as "learner.lr"; DataError for one that no run has."""
        listed = [facts for facts in self.facts() if facts.settings]
        known = {name for facts in listed for name in facts.settings}
        for name in settings:
            if name not in known:
                raise DataError(f"no run has a setting {name!r}; {nearest(name, sorted(known))}")
        if not settings:
            raise DataError("group_by takes a setting or more, such as 'learner.lr'; got none")
        groups: dict[tuple[str, ...], list[RunFacts]] = {}
        for facts in listed:
            key = tuple(setting_words(facts.settings.get(name, "not set")) for name in settings)
            groups.setdefault(key, []).append(facts)
        return RunGroups(settings, tuple(RunGroup(key, tuple(own)) for key, own in groups.items()))

    def save(self, path: str | os.PathLike) -> Path:
        """Write one page with the table, to sort, filter and group without a kernel (.html), or the view as .png or .txt."""
        if Path(path).suffix != ".html":
            return self.view().save(path)
        make_folder(Path(path).absolute().parent)
        write_file(Path(path), replace=True, content=runs_page(self.facts()))
        return Path(path)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if has_widgets():
            display(widget_bundle(runs_widget(self.facts), repr(self)), raw=True)
        CellOutput().put(self.view()._repr_mimebundle_())

    def __repr__(self) -> str:
        names = ", ".join(run.name for run in self[:8])
        return f"<{words.count(len(self), 'run')}: {names}{', ...' * (len(self) > 8)}>"


def _order(value: Any) -> tuple[int, Any]:
    """Numbers in their order, then everything else in that of its text."""
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))


def runs(folder: str | os.PathLike = "runs") -> Runs:
    """The runs that lie in `folder`, and one folder further down, the newest first; `folder` itself where it is a run.

    Links are not followed. What only looks like a run is left out. Raises StoreError where there is no such folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise StoreError(
            f"there is no folder {folder}; runs are where `wb.train(config, path)` wrote them, by default in runs/"
        )
    below = _folders(folder)
    folders = [folder, *below]
    for inner in below:
        folders += _folders(inner)
    changed = {path: at for path in folders if (at := _last_change(path)) is not None}
    opened = []
    for path in sorted(changed, key=lambda path: -changed[path]):
        try:
            opened.append(open_run(path))
        except WorkbenchError:
            continue
    return Runs(opened)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _last_change(path: Path) -> float | None:
    """When the metrics of the run there were written last, 0 where that cannot be read; None where there is no run."""
    try:
        if not (path / "run.json").is_file():
            return None
        return (path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return 0.0


# ------------------------------------------------------------------------------------------------ the view


@dataclass(frozen=True)
class RunRow:
    """What a view says of a run, in words.

    steps     how far it came
    measured  when `reached` was
    reached   success or return of the trained policy and of its baselines (`BASELINES`)
    settings  values of the settings in which the runs differ
    curve     success (or reward) in training over the steps, as a sparkline
    problem   why it could not be read
    """

    name: str
    state: str
    steps: str = ""
    measured: str = ""
    reached: Sequence[str] = ()
    settings: Sequence[str] = ()
    curve: str = ""
    problem: str = ""


def _row_of(facts: RunFacts, names: Sequence[str]) -> RunRow:
    if facts.problem:
        return RunRow(facts.run.name, facts.state, problem=facts.problem)
    settings = [setting_words(facts.settings.get(name, "not set")) for name in names]
    values = np.array([np.nan if value is None else value for value in facts.curve], float)
    return RunRow(
        facts.run.name,
        facts.state,
        f"{facts.step} of {facts.steps}",
        "" if facts.measured is None else f"after step {facts.measured}",
        [facts.reached(policy) for policy in POLICIES],
        settings,
        words.sparkline(values, CURVE_WIDTH) if len(values) else "",
    )


def runs_view(rows: Sequence[RunRow], settings: Sequence[str] = ()) -> View:
    """A row per run: state, committed steps, `settings` that differ, the course of success (or reward) in training, and
    held-out success (or return) when it was last measured, sampled, beside random play, the untrained policy and the
    solver. A dash: not measured. What a damaged run says of itself is below."""
    heading = doc.Heading(words.count(len(rows), "run"))
    if not rows:
        return view_from(heading)
    columns = [
        *doc.numbers(""),
        doc.Column("run", look=BOLD),
        doc.Column("state"),
        *doc.numbers("step"),
        *(doc.Column(capped(name, LONGEST_NAME)) for name in settings[:MOST_SETTINGS]),
        doc.Column("training"),
        doc.Column("measured"),
        *doc.numbers("trained", *BASELINES),
    ]
    count = len(settings[:MOST_SETTINGS])
    table = doc.Table(columns, [_table_row(number, row, count) for number, row in enumerate(rows)])
    hidden = doc.first_shown(MOST_SETTINGS, len(settings), "settings that differ")
    return view_from(heading, table, hidden, doc.Note(NEXT))


def _table_row(number: int, row: RunRow, settings: int) -> doc.TableRow:
    state = doc.Cell(row.state, parts=(doc.Badge(row.state, STATES.get(row.state, GREY)),))
    reached = [*row.reached, *[""] * (1 + len(BASELINES) - len(row.reached))]
    values = [capped(value, LONGEST_SETTING) for value in row.settings[:settings]]
    values += [""] * (settings - len(values))
    name = capped(row.name, LONGEST_NAME)
    cells = [str(number), name, state, row.steps, *values, row.curve, row.measured, *reached]
    return doc.TableRow(cells, [row.problem] if row.problem else [])


# ------------------------------------------------------------------------------------------------ groups


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs that share the values of some settings."""

    values: tuple[str, ...]
    runs: tuple[RunFacts, ...]

    def numbers(self, policy: str) -> tuple[int, float | None, float | None]:
        """(runs that were measured, mean, std (n - 1) over them) of a policy's success, or return; None: not known."""
        known = [value for facts in self.runs if (value := facts.rate(policy)) is not None]
        mean = float(np.mean(known)) if known else None
        std = float(np.std(known, ddof=1)) if len(known) > 1 else None
        return len(known), mean, std


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class RunGroups(Shown):
    """Runs put together by settings: `groups` in the order in which their first runs came."""

    settings: tuple[str, ...]
    groups: tuple[RunGroup, ...]

    def frame(self) -> pandas.DataFrame:
        """A row a group: its settings, how many runs, and mean and std (n - 1) over runs of the trained policy and of its
        baselines."""
        import pandas

        rows = []
        for group in self.groups:
            row: dict[str, Any] = dict(zip(self.settings, group.values))
            row["runs"] = len(group.runs)
            for policy in POLICIES:
                _, row[f"{policy}_mean"], row[f"{policy}_std"] = group.numbers(policy)
            rows.append(row)
        return pandas.DataFrame(rows)

    def view(self) -> View:
        """You will see a row per group: how many runs, the trained policy's held-out success (or return), mean and std (n - 1)
        over the runs, beside the means of random play, the untrained policy and the solver; and which runs they are."""
        columns = [
            *map(doc.Column, self.settings),
            *doc.numbers("runs", "measured", "trained, mean", "std (n - 1)", *BASELINES),
            doc.Column("which"),
        ]
        rows = [_group_row(group) for group in self.groups]
        title = f"{words.count(len(self.groups), 'group')} by {', '.join(self.settings)}"
        return view_from(doc.Heading(title), doc.Table(columns, rows))


def _group_row(group: RunGroup) -> list[str]:
    measured, mean, std = group.numbers("trained")
    beside = [words.fixed(group.numbers(policy)[1], 3) for policy in BASELINES]
    names = ", ".join(facts.run.name for facts in group.runs)
    values = [capped(value, LONGEST_NAME) for value in group.values]
    numbers = [str(len(group.runs)), str(measured), words.fixed(mean, 3), words.fixed(std, 3)]
    return [*values, *numbers, *beside, capped(names, 2 * LONGEST_NAME)]
