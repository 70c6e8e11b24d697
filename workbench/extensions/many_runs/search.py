"""A search over all steps of a run, or of many: for words, stop reasons and findings of the lint.

matches = wb.search("runs/first", "Answer: 42", stop="max_turns")
matches.frame()                 a row a trajectory, with its address
matches.explore(3)              the navigator, opened at the fourth
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.basics.annotated import checked_methods
from workbench.extensions.many_runs.table import runs as runs_in
from workbench.look import doc, words
from workbench.look.cells.explore import Navigator
from workbench.look.cells.step_record import StepRecord
from workbench.look.escape import visible
from workbench.look.html import view_from
from workbench.run.store import Run, open_run
from workbench.values import StopReason, Trajectory, View
from workbench.values.address import Address
from workbench.values.errors import DataError, nearest
from workbench.values.view import Shown

if TYPE_CHECKING:
    import pandas

MOST = 200  # matches that are kept; of the others only the number
AROUND = 40  # characters of an excerpt before what was searched for
LONGEST = 120  # characters of an excerpt


@dataclass(frozen=True, eq=False)
class Match:
    """One trajectory that was found.

    number    of its run among those that were searched
    at        its address
    where     the message that holds the text: "prompt, user", "turn 3" (the policy's), "turn 3, user"; "" without a text
    excerpt   the text with what stands around it
    findings  of the lint that lie in it
    """

    run: Run
    number: int
    at: Address
    where: str
    excerpt: str
    stop: str
    reward: float | None
    success: bool | None
    findings: tuple[str, ...]

    def row(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "run": self.number,
            "at": str(self.at),
            "where": visible(self.where),
            "excerpt": visible(self.excerpt, newline=" "),
            "stop": self.stop,
            "reward": self.reward,
            "success": self.success,
            "findings": [visible(finding) for finding in self.findings],
        }


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class MatchTable(Shown):
    """What a search found: the first of them, and how many more there were."""

    matches: tuple[Match, ...]
    hidden: int

    def __len__(self) -> int:
        return len(self.matches)

    def rows(self) -> list[dict[str, Any]]:
        """Each match as JSON values."""
        return [match.row() for match in self.matches]

    def frame(self) -> pandas.DataFrame:
        """A row a match: run, path, at (its address), step, task, attempt, where, excerpt, stop, reward, success, findings.
        Needs pandas."""
        import pandas

        rows = []
        for match in self.matches:
            place = {"step": match.at.step, "task": match.at.task, "attempt": match.at.attempt}
            named = {"run": match.run.name, "path": str(match.run.path)}
            rows.append(match.row() | named | place)
        order = ("run", "path", "at", "step", "task", "attempt", "where", "excerpt")
        columns = [*order, "stop", "reward", "success", "findings"]
        return pandas.DataFrame(rows, columns=columns)

    def explore(self, number: int = 0) -> Navigator:
        """The navigator at this match. DataError where there are fewer."""
        if not 0 <= number < len(self):
            raise DataError(
                f"there is no match {number}; they are counted from 0 to {len(self) - 1}"
            )
        return Navigator([self.matches[number].run], self.matches[number].at)

    def view(self) -> View:
        """You will see a row per match: its run and address, reward, why it stopped, and the text that was found."""
        total = len(self) + self.hidden
        heading = doc.Heading(words.count(total, "trajectory", "trajectories"))
        columns = [
            *doc.numbers(""),
            "run",
            "at",
            *doc.numbers("reward"),
            "stopped",
            "found in",
            "excerpt",
        ]
        rows = [_table_row(number, match) for number, match in enumerate(self.matches)]
        table = doc.Table(columns, rows) if rows else None
        hidden = doc.first_shown(len(self), total, "matches")
        note = doc.Note("next: matches.explore(0), matches.frame()") if rows else None
        return view_from(heading, table, hidden, note)


def _table_row(number: int, match: Match) -> list[str]:
    row = match.row()
    below = "; ".join(match.findings)
    excerpt = row["excerpt"] or below
    reward = words.signed(match.reward)
    return [str(number), match.run.name, row["at"], reward, match.stop, match.where, excerpt]


def search(
    where: Run | str | os.PathLike | Sequence[Run | str | os.PathLike],
    text: str = "",
    *,
    stop: str = "",
    finding: str = "",
    most: int = MOST,
) -> MatchTable:
    """The trajectories of all committed steps that hold `text` (in any case), stopped for the reason `stop`, and have a
    finding of the lint whose rule or words hold `finding`. What is left empty is not asked for.

    `where`: a run, a folder of runs, or several. Raises DataError for a stop reason that there is not, and where nothing is
    asked for; StoreError for what is no run."""
    if not text and not stop and not finding:
        raise DataError("wb.search takes a text, stop=... or finding=...; got none of them")
    reasons = [reason.value for reason in StopReason]
    if stop and stop not in reasons:
        raise DataError(f"there is no stop reason {stop!r}; {nearest(stop, reasons)}")
    matches = []
    count = 0
    for number, run in enumerate(_runs_of(where)):
        for match in _matches_of_run(run, number, text.lower(), stop, finding.lower()):
            count += 1
            if len(matches) < most:
                matches.append(match)
    return MatchTable(tuple(matches), count - len(matches))


def _runs_of(where: Any) -> list[Run]:
    listed = where if isinstance(where, (list, tuple)) else [where]
    runs: list[Run] = []
    for member in listed:
        if not isinstance(member, (Run, str, os.PathLike)):
            raise DataError(f"wb.search takes runs, or folders of runs; got {member!r:.100}")
        is_folder = not isinstance(member, Run) and Path(member).is_dir()
        if is_folder and not (Path(member) / "run.json").exists():
            runs += runs_in(member)
        else:
            runs.append(open_run(member))
    return runs


def _matches_of_run(run: Run, number: int, text: str, stop: str, finding: str) -> Iterator[Match]:
    for step in run.steps():
        if finding and run.lint_values(step) is None:
            continue
        record = StepRecord.of(run, step)
        for task, group in enumerate(record.groups):
            for attempt, trajectory in enumerate(group):
                place = Address(step, task, attempt)
                match = _match(run, number, place, trajectory, record, (text, stop, finding))
                if match is not None:
                    yield match


def _match(
    run: Run,
    number: int,
    at: Address,
    trajectory: Trajectory,
    record: StepRecord,
    wanted: tuple[str, str, str],
) -> Match | None:
    """The match that this trajectory is; None where it is none."""
    text, stop, finding = wanted
    if stop and trajectory.stop_reason.value != stop:
        return None
    findings = _findings_in(record, at)
    if finding and not any(finding in words.lower() for words in findings):
        return None
    where = ""
    excerpt = ""
    if text:
        place = _place_of(trajectory, text)
        if place is None:
            return None
        where, excerpt = place
    reason = trajectory.stop_reason.value
    reward = trajectory.reward
    success = trajectory.success
    return Match(run, number, at, where, excerpt, reason, reward, success, findings)


def _findings_in(record: StepRecord, at: Address) -> tuple[str, ...]:
    lines = []
    for rule, finding, place in record.findings:
        if place is not None and (place.task, place.attempt) == (at.task, at.attempt):
            lines.append(f"{rule} {finding.what}")
    return tuple(lines)


def _place_of(trajectory: Trajectory, text: str) -> tuple[str, str] | None:
    """(where the text stands first, what stands around it)."""
    for where, message in trajectory.messages():
        begin = message.lower().find(text)
        if begin >= 0:
            start = max(0, begin - AROUND)
            return where, message[start : start + LONGEST]
    return None
