"""Runs side by side: a row each, as `wb.runs(folder)` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.types import View
from workbench.views import doc, words
from workbench.views.curves import NEIGHBOURS
from workbench.views.escape import capped
from workbench.views.html import shown
from workbench.views.live import STATES
from workbench.views.looks import BOLD, GREY

LONGEST_NAME = 60  # characters


@dataclass(frozen=True)
class RunRow:
    """`steps`: how far it came, in words. `measured`: when `reached` was. `reached`: success or return of the trained policy
    and of its neighbours (`NEIGHBOURS`), in words. `problem`: why it could not be read."""

    name: str
    state: str
    steps: str = ""
    measured: str = ""
    reached: Sequence[str] = ()
    problem: str = ""


def show_runs(rows: Sequence[RunRow]) -> View:
    """A row per run: state, committed steps, and held-out success (or return) when it was last measured, sampled, beside
    random play, the untrained policy and the solver. A dash: not measured. What a damaged run says of itself is below."""
    columns = [
        *doc.numbers(""),
        doc.Column("run", look=BOLD),
        doc.Column("state"),
        *doc.numbers("step"),
        doc.Column("measured"),
        *doc.numbers("trained", *NEIGHBOURS),
    ]
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(words.count(len(rows), "run")),
                doc.Table(columns, [_row(number, row) for number, row in enumerate(rows)])
                if rows
                else None,
                doc.Note(
                    "next: wb.show(runs[0]); trained and its neighbours: sampled, the solver as it plays"
                )
                if rows
                else None,
            )
        )
    )


def _row(number: int, row: RunRow) -> doc.TableRow:
    state = doc.Cell(row.state, parts=(doc.Badge(row.state, STATES.get(row.state, GREY)),))
    reached = [*row.reached, *[""] * (1 + len(NEIGHBOURS) - len(row.reached))]
    return doc.TableRow(
        [str(number), capped(row.name, LONGEST_NAME), state, row.steps, row.measured, *reached],
        [row.problem] if row.problem else [],
    )
