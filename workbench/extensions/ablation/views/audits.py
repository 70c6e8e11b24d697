"""An executed notebook and its numbers: recomputed, taken on trust, or different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.extensions.ablation.views.parts import safe_rows, table_below
from workbench.look import doc, words
from workbench.look.html import shown
from workbench.look.looks import BOLD
from workbench.values import View

MOST_DIFFERENT = 40  # that are shown
MARKS = ("recomputed", "taken on trust", "different")


def notebook_audit_view(
    name: str, origin: Mapping[str, str], numbers: Sequence[Mapping[str, Any]]
) -> View:
    """You will see by what the numbers of a notebook came, how many of each cell were recomputed, are taken on trust
    or are different, and every one that is different beside what was found instead."""
    differ = [number for number in numbers if number["mark"] == MARKS[2]]
    columns = (
        doc.Column("numbers of", look=BOLD),
        *doc.numbers(*MARKS),
        "compared with, or why not",
    )
    different = table_below(
        ("different", "printed", "recomputed value", "compared with"), _different(differ)
    )
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(name),
                *(doc.Note(f"{what}: {text}") for what, text in origin.items()),
                doc.BlankLine(),
                doc.Table(columns, _rows(numbers)),
                *different,
                doc.BlankLine(),
                doc.Note(_verdict(numbers, differ)),
            )
        )
    )


def _rows(numbers: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """How many numbers of each place have which mark."""
    places: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for number in numbers:
        places.setdefault((number["cell"], _place(number["where"])), []).append(number)
    rows = []
    for (cell, where), at_place in places.items():
        reasons = dict.fromkeys(number["by"] for number in at_place)
        counts = [f"{count}" for count in _counts(at_place)]
        rows.append([_place_words(cell, where), *counts, "; ".join(reasons)])
    return safe_rows(rows)


def _counts(numbers: Sequence[Mapping[str, Any]]) -> list[int]:
    """How many have each of `MARKS`."""
    marks = [number["mark"] for number in numbers]
    return [marks.count(mark) for mark in MARKS]


def _place_words(cell: int, where: str) -> str:
    return f"cell {cell}, {where}" if cell else where


def _place(where: str) -> str:
    """Without the line, or the place in a list."""
    head, _, tail = where.rpartition(", ")
    return head if head and tail.split()[0].replace("line", "0").isdecimal() else where


def _different(differ: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [
        [_place_words(number["cell"], number["where"]), number["said"], number["now"], number["by"]]
        for number in differ[:MOST_DIFFERENT]
    ]
    more = len(differ) - MOST_DIFFERENT
    if more > 0:
        rows.append([f"and {more} more", "", "", ""])
    return safe_rows(rows)


def _verdict(numbers: Sequence[Mapping[str, Any]], differ: Sequence[Any]) -> str:
    counts = [f"{count} {mark}" for count, mark in zip(_counts(numbers), MARKS)]
    text = f"{words.count(len(numbers), 'number')}: {', '.join(counts)}; pictures are not read"
    if differ:
        text += ". A different number was edited after it was printed, or its run was changed"
    return text
