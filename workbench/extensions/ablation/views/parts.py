"""Parts that several pictures of an ablation share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.look import doc
from workbench.look.escape import esc
from workbench.look.html import shown
from workbench.look.looks import CARD, INK
from workbench.look.png import plain
from workbench.values import View


def safe_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows for a table: a bar in a cell would be taken for the end of the cell."""
    return [_safe_cells(row) for row in rows]


def _safe_cells(row: Sequence[str]) -> list[str]:
    return [cell.replace("|", "/") for cell in row]


def numbers_below(columns: Sequence[Any], rows: Sequence[Sequence[str]]) -> doc.Fold:
    """The numbers of a picture, as a table that is folded away."""
    return doc.Fold("The numbers", (doc.Table(tuple(columns), safe_rows(rows)),))


def picture_with_numbers(
    picture: doc.Picture, note: str, columns: Sequence[Any], rows: Sequence[Sequence[str]]
) -> View:
    """Show a picture, a sentence ("": none) and the numbers."""
    notes = (doc.Note(note),) if note else ()
    return shown(doc.ViewDocument((picture, *notes, numbers_below(columns, rows))))


def only_a_note(text: str) -> View:
    """Show why there is nothing to draw."""
    return shown(doc.ViewDocument((doc.Note(text),)))


def table_below(columns: Sequence[Any], rows: Sequence[Sequence[str]]) -> tuple[Any, ...]:
    """A table after a blank line; nothing where it has no rows."""
    return (doc.BlankLine(), doc.Table(tuple(columns), rows)) if rows else ()


# ------------------------------------------------------------------------------------------------ drawn


def plotly_layout(title: str, lines: int, left: int) -> dict[str, Any]:
    """What plotly's figures of so many lines have in common. `left`: the margin on that side, in pixels."""
    return {
        "title": {"text": f"<b>{esc(title, newline=' ')}</b>", "x": 0.01, "font": {"size": 15}},
        "height": 46 * lines,
        "margin": {"t": 50, "b": 50, "l": left, "r": 20},
        "autosize": True,
        "paper_bgcolor": CARD,
        "plot_bgcolor": CARD,
        "font": {"color": INK, "size": 11},
    }


def write_title(drawing: Any, title: str, height: float) -> None:
    """Write the title into the upper left corner of a matplotlib figure of this height in inches."""
    place = {"x": 0.01, "y": 1 - 0.08 / height, "ha": "left", "va": "top"}
    drawing.suptitle(plain(title), fontsize=11, fontweight="bold", color=INK, **place)
