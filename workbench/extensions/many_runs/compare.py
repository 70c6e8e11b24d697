"""More than two runs compared: each with the first, the settings of all in one table, their curves one over the other.

difference = wb.compare_runs("runs/a", "runs/b", "runs/c")
difference.diffs[0]           the `RunDiff` of the first run and the second
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.extensions.many_runs.facts import POLICIES, facts_of
from workbench.look import doc, words
from workbench.look.escape import capped
from workbench.look.html import view_from
from workbench.look.looks import GREEN, ORANGE
from workbench.look.overlay import overlay_picture, run_curves
from workbench.look.run_diff import RunDiff, compare_runs
from workbench.run.store import Run, open_run
from workbench.values import View
from workbench.values.view import Shown

if TYPE_CHECKING:
    import pandas

LONGEST = 60  # characters of a setting


@dataclass(frozen=True, eq=False, repr=False)
class RunDiffs(Shown):
    """What came of comparing runs with the first of them: a `RunDiff` for each of the others, in their order."""

    runs: tuple[Run, ...]
    diffs: tuple[RunDiff, ...]

    @property
    def equal(self) -> bool:
        """No run differs from the first."""
        return all(diff.equal for diff in self.diffs)

    def settings(self) -> dict[str, list[Any]]:
        """Every setting in which some run differs from the first -> its value in each run, the first one's first."""
        names: dict[str, Any] = {}
        for diff in self.diffs:
            for name, first, _ in diff.settings:
                names.setdefault(name, first)
        table = {}
        for name, first in names.items():
            values = [first]
            for diff in self.diffs:
                own = {setting: value for setting, _, value in diff.settings}
                values.append(own.get(name, first))
            table[name] = values
        return table

    def frame(self) -> pandas.DataFrame:
        """A row a run after the first: whether it equals it, the first difference, how many settings differ. Needs pandas."""
        import pandas

        rows = []
        for run, diff in zip(self.runs[1:], self.diffs):
            first = "" if diff.first is None else str(diff.first)
            row = {"run": run.name, "path": str(run.path), "equal": diff.equal}
            rows.append(row | {"first_difference": first, "settings": len(diff.settings)})
        return pandas.DataFrame(rows)

    def view(self) -> View:
        """You will see the settings that differ, a column a run; where each run diverges from the first; held-out success (or
        return) of each beside its baselines; and the curves of all, one over the other."""
        first, *others = self.runs
        count = sum(not diff.equal for diff in self.diffs)
        word = "equal" if self.equal else "different"
        badge = doc.Badge(word, GREEN if self.equal else ORANGE, plain=f"{word}: ")
        title = f"{count} of {words.count(len(others), 'run')} other than {first.name}"
        settings = self.settings()
        names = [run.name for run in self.runs]
        return view_from(
            doc.Heading((badge, title)),
            doc.Table(["setting", *names], _setting_rows(settings)) if settings else None,
            doc.Table(["run", "first difference"], _difference_rows(others, self.diffs)),
            _rates_table(self.runs),
            overlay_picture([run_curves(run) for run in self.runs]),
        )


def _setting_rows(settings: dict[str, list[Any]]) -> list[list[str]]:
    rows = []
    for name, values in settings.items():
        rows.append([name, *(capped(str(value).replace("\n", "⏎"), LONGEST) for value in values)])
    return rows


def _difference_rows(runs: Sequence[Run], diffs: Sequence[RunDiff]) -> list[list[str]]:
    rows = []
    for run, diff in zip(runs, diffs):
        rows.append([run.name, "equal" if diff.first is None else str(diff.first)])
    return rows


def _rates_table(runs: Sequence[Run]) -> doc.Table:
    """Held-out success (or return) of each run when it was last measured, beside its baselines (invariant 12)."""
    rows = []
    for run in runs:
        facts = facts_of(run)
        measured = "not measured" if facts.measured is None else f"after step {facts.measured}"
        rows.append([run.name, measured, *(facts.reached(policy) for policy in POLICIES)])
    return doc.Table(["run", "measured", *doc.numbers(*POLICIES)], rows)


def compare_many(runs: Sequence[Run | str | Path], *, exact: bool = False) -> RunDiffs:
    """Compare each run with the first; see `wb.compare_runs`."""
    opened = tuple(open_run(run) for run in runs)
    diffs = tuple(compare_runs(opened[0], run, exact=exact) for run in opened[1:])
    return RunDiffs(opened, diffs)
