"""Actions that name a cell of a map with labels (E32): the cell that changes is the one that was named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from workbench.basics.findings import ERROR, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput, inside
from workbench.extensions.scripted_play.playing import PlayedTrajectory, text_of

NAMED = re.compile(r"([A-Za-z])[ ,]?(\d{1,2})|(\d{1,2})[ ,]?([A-Za-z])")
LABELLED = re.compile(r"^\s*([A-Za-z]|\d{1,2})[ :|]+(\S(?: ?\S)+)\s*$")
FEWEST = 6  # cells that were named and changed
MOSTLY = 0.6  # of them; on the diagonal an exchange of row and column is not seen


CellMap = dict[tuple[str, str], str]  # (label of the row, label of the column) -> sign


class CellChange(NamedTuple):
    """An action that named a cell, and the one cell that changed. `named`: a letter and a number; `changed`: the labels of its
    row and its column."""

    played: PlayedTrajectory
    action: str
    named: tuple[str, str]
    changed: tuple[str, str]


def check_named_cells(given: CheckInput) -> Iterator[RuleResult]:
    """What is done to a cell is shown in that cell."""
    changes = [change for played in given.acted() for change in _changes(played)]
    yield Checked(len(changes), "cells that actions name")
    elsewhere = [change for change in changes if set(change.named) != set(change.changed)]
    if len(changes) < FEWEST or len(elsewhere) < MOSTLY * len(changes):
        return
    change = elsewhere[0]
    yield Finding(
        f"what is done to a cell is shown in another one, in {len(elsewhere)} of {len(changes)} moves that could be seen: "
        f"{change.action!r} at {change.played.task.id!r} changes row {change.changed[0]}, column {change.changed[1]} of the map that is "
        "shown; expected the cell that was named. Rows and columns are exchanged where the map is drawn, or where the action is "
        "read",
        severity=ERROR,
    )


def _changes(played: PlayedTrajectory) -> Iterator[CellChange]:
    maps = [labelled_map(text_of(shown)) for shown in played.shown]
    for text, before, after in zip(played.texts, maps, maps[1:]):
        match = NAMED.fullmatch(inside(text).strip())
        if match is None or before is None or after is None:
            continue
        if before.keys() != after.keys():
            continue
        different = [cell for cell, sign in before.items() if after[cell] != sign]
        named = (match[1] or match[4], match[2] or match[3])
        if len(different) == 1 and _has(after, named):
            yield CellChange(played, match[0], named, different[0])


def _has(shown: CellMap, named: tuple[str, str]) -> bool:
    return any(set(cell) == set(named) for cell in shown)


def labelled_map(text: str) -> CellMap | None:
    """The rows below a line of column labels, each with a label of its own; None where there is no such map."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        columns = line.replace(" ", "").replace("|", "")
        if not 3 <= len(columns) <= 26 or len(set(columns)) < len(columns):
            continue
        if not (columns.isdigit() or columns.isalpha()):
            continue
        cells: CellMap = {}
        for below in lines[place + 1 :]:
            row = LABELLED.match(below)
            signs = row[2].replace(" ", "").replace("|", "") if row else ""
            if len(signs) != len(columns):
                break
            cells |= {(row[1], column): sign for column, sign in zip(columns, signs)}
        if len(cells) >= 2 * len(columns):
            return cells
    return None
