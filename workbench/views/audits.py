"""An executed notebook and its numbers: recomputed, taken on trust, or different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.types import View
from workbench.views import doc, words
from workbench.views.html import shown
from workbench.views.looks import BOLD

MOST_DIFFERENT = 40  # that are shown
MARKS = ("recomputed", "taken on trust", "different")


def show_notebook_audit(
    name: str, origin: Mapping[str, str], numbers: Sequence[Mapping[str, Any]]
) -> View:
    """You will see by what the numbers of a notebook came, how many of each cell were recomputed, are taken on trust
    or are different, and every one that is different beside what was found instead."""
    differ = [one for one in numbers if one["mark"] == MARKS[2]]
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(name),
                *map(doc.Note, (f"{what}: {said}" for what, said in origin.items())),
                doc.BlankLine(),
                doc.Table(
                    (
                        doc.Column("numbers of", look=BOLD),
                        *doc.numbers(*MARKS),
                        "held against, or why not",
                    ),
                    _rows(numbers),
                ),
                *(
                    (
                        doc.BlankLine(),
                        doc.Table(
                            ("different", "it says", "found was", "held against"),
                            _different(differ),
                        ),
                    )
                    if differ
                    else ()
                ),
                doc.BlankLine(),
                doc.Note(_verdict(numbers, differ)),
            )
        )
    )


def _rows(numbers: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    places: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for one in numbers:
        places.setdefault((one["cell"], _place(one["where"])), []).append(one)
    return [
        [
            _plain(f"cell {cell}, {where}" if cell else where),
            *(f"{sum(one['mark'] == mark for one in found)}" for mark in MARKS),
            _plain("; ".join(dict.fromkeys(one["by"] for one in found))),
        ]
        for (cell, where), found in places.items()
    ]


def _place(where: str) -> str:
    """Without the line, or the place in a list."""
    head, _, tail = where.rpartition(", ")
    return head if head and tail.split()[0].replace("line", "0").isdecimal() else where


def _different(differ: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [
        [
            _plain(f"cell {one['cell']}, {one['where']}" if one["cell"] else one["where"]),
            _plain(one["said"]),
            _plain(one["now"]),
            _plain(one["by"]),
        ]
        for one in differ[:MOST_DIFFERENT]
    ]
    more = len(differ) - MOST_DIFFERENT
    return rows if more <= 0 else [*rows, [f"and {more} more", "", "", ""]]


def _plain(text: str) -> str:
    return text.replace("|", "/")


def _verdict(numbers: Sequence[Mapping[str, Any]], differ: Sequence[Any]) -> str:
    counts = [f"{sum(one['mark'] == mark for one in numbers)} {mark}" for mark in MARKS]
    said = f"{words.count(len(numbers), 'number')}: {', '.join(counts)}; pictures are not read"
    return (
        f"{said}. What is different was changed after it was made, or its run was"
        if differ
        else said
    )
