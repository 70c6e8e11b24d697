"""What a view says, before it is text or HTML: one value, so that the two forms cannot disagree.

    ViewDocument((Heading("title"), Note("3 turns"), Table(("name", Column("n", number=True)), [("a", "1")])))

`text.py` writes it for a terminal and a diff, `html.py` for a notebook; `shown` (in `html.py`) makes the `View` of
both. Texts are held as they came: the renderers escape. What only a page can show (a legend of colours, a bar) has no
text form; what only a terminal needs is `TextPart`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.look.looks import GREY, PLAIN, Look

# ------------------------------------------------------------------------------------------------ inside a line


@dataclass(frozen=True)
class Styled:
    """A stretch of text. `title`: what hovering over it says."""

    text: str
    look: Look = PLAIN
    title: str = ""


@dataclass(frozen=True)
class Badge:
    """A short word in a filled box. `plain`: how the text form writes it, where not as the word alone."""

    text: str
    background: str = GREY
    foreground: str = "#ffffff"
    title: str = ""
    plain: str | None = None


@dataclass(frozen=True)
class Bar:
    """Stretches of colour side by side, as (width in pixels, colour); only on a page."""

    stretches: tuple[tuple[int, str], ...]
    height: int = 10
    margin: str = "0"


Inline = str | Styled | Badge | Bar
Line = Inline | tuple[Inline, ...]  # parts of one line

# ------------------------------------------------------------------------------------------------ parts


@dataclass(frozen=True)
class Heading:
    content: Line


@dataclass(frozen=True)
class Note:
    """A line of explanation or a caption."""

    content: Line


@dataclass(frozen=True)
class WarningLine:
    """A line that must not be overlooked: what is hidden, missing or broken. `mark` begins it in the text form,
    `end` ends it."""

    content: str
    mark: str = "! "
    end: str = ""


@dataclass(frozen=True)
class Block:
    """Text as it was written, line by line, in a fixed-width font."""

    content: Line
    bold: bool = False
    wraps: bool = True


@dataclass(frozen=True)
class Quoted:
    """What somebody said: a badge and a block, or in the text form every line behind a bar."""

    label: str
    badge: str
    text: str


@dataclass(frozen=True)
class Cell:
    """`parts`: what a page shows in place of the text, such as a badge with a note below it."""

    text: str
    look: Look = PLAIN
    title: str = ""
    parts: tuple[Part | Inline, ...] | None = None


@dataclass(frozen=True)
class Column:
    """`number`: flush right, in figures of one width. `on_page`: only a page has it."""

    name: str
    number: bool = False
    on_page: bool = False
    look: Look = PLAIN


@dataclass(frozen=True)
class TableRow:
    """`below`: lines about the row that stand under it."""

    cells: Sequence[str | Cell]
    below: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """Rows under their header (`header` False: only the rows). `note`: a caption above, in both forms. `dense`: for
    hundreds of cells, with no more style than they need. `indent` is the text form's."""

    columns: Sequence[str | Column]
    rows: Sequence[TableRow | Sequence[str | Cell]]
    header: bool = True
    dense: bool = False
    indent: str = ""


@dataclass(frozen=True)
class TokenRun:
    """A run of tokens by one author, with its mark in the margin: `[TRAIN turn 0, 6| ...]`. `split`: a line between two
    tokens. `one_line`: line feeds are drawn but not kept."""

    mark: str
    tokens: tuple[Styled, ...]
    split: bool = False
    one_line: bool = False


@dataclass(frozen=True)
class Tokens:
    """Runs and, where some are hidden, notices between them."""

    runs: tuple[TokenRun | WarningLine, ...]


@dataclass(frozen=True)
class TokenLine:
    """Tokens in one line with `between` between them. `hidden`: how many more there are."""

    label: str
    tokens: tuple[Styled, ...]
    between: str = "▏"
    before: str = ""
    after: str = ""
    hidden: int = 0


@dataclass(frozen=True)
class Legend:
    """What colours and marks mean: (mark, its look, meaning). Only on a page: in the text form the marks are words.
    `scale`: a name, and the values of the seven steps from red to blue."""

    items: Sequence[tuple[str, Look, str]]
    scale: tuple[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Picture:
    """A PNG, or the function that draws it as a matplotlib figure, which is called where somebody looks (a terminal does
    not): such a picture can be saved as SVG and PDF, and takes the `width` in inches. With the words for whoever does not
    see it. `labels`: one beside every `pitch` pixels of height. `figure`: the same as plotly draws it, to hover over and
    to zoom."""

    png: bytes | Callable[..., Any]
    alt: str
    labels: Sequence[str] = ()
    pitch: int = 0
    figure: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Squares:
    """A game's grid as coloured squares of `size` pixels: rows of (character, meaning, background, text colour)."""

    rows: Sequence[Sequence[tuple[str, ...]]]
    size: int = 24


@dataclass(frozen=True)
class Fold:
    """Something long behind a line that opens it. The text form has all of it, and no such line."""

    summary: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Section:
    """Parts that belong together, below a line. `inset`: set in from the left."""

    parts: tuple[Part, ...]
    inset: bool = False


@dataclass(frozen=True)
class Field:
    """One thing of an entry. Text: its label and its words, behind a bar where `quoted`, and `after` them; without a
    label nothing. Page: `parts` in column number `column`."""

    label: str
    text: str
    column: int
    parts: tuple[Part | Inline | None, ...]
    quoted: bool = False
    after: str = ""


@dataclass(frozen=True)
class LedgerEntry:
    """A title and what there is to know under it. `caption`: what a page says for the title, if that is something
    shorter."""

    title: str
    fields: tuple[Field, ...]
    caption: str | None = None


@dataclass(frozen=True)
class Ledger:
    """Entries one below the other; on a page in columns."""

    columns: Sequence[str]
    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True)
class PagePart:
    """Parts that repeat on a page what the text form says in its own way."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class TextPart:
    """Lines that only the text form has; a page says the same in its parts."""

    text: str


@dataclass(frozen=True)
class BlankLine:
    """An empty line in the text form."""


Part = (
    Heading
    | Note
    | WarningLine
    | Block
    | Quoted
    | Table
    | Tokens
    | TokenLine
    | Legend
    | Picture
    | Squares
    | Fold
    | Section
    | Ledger
    | PagePart
    | TextPart
    | BlankLine
)


@dataclass(frozen=True)
class ViewDocument:
    """The parts of a view in their order; None is left out. `png`: its picture, as `Picture` has it, where that is not
    among the parts."""

    parts: tuple[Part | None, ...]
    png: bytes | Callable[..., Any] | None = None

    @property
    def picture(self) -> Picture | None:
        """The first picture there is."""
        return next((part for part in self.parts if isinstance(part, Picture)), None)


def inline(line: Line) -> tuple[Inline, ...]:
    """The parts of a line."""
    return line if isinstance(line, tuple) else (line,)


def numbers(*names: str) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(name, number=True) for name in names)


def first_shown(shown: int, total: int, what: str, mark: str = "") -> WarningLine | None:
    """The notice that only the first of many are there; None where all are."""
    return (
        WarningLine(f"first {shown} {what} shown, {total - shown} hidden", mark)
        if total > shown
        else None
    )
