"""A document as HTML that survives: an untrusted JupyterLab, a dark theme, and a page that drops every style.

shown(document)     the `View`: this HTML, the text of `text.py`, and the picture
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from typing import Any

from workbench.look import doc
from workbench.look.escape import visible
from workbench.look.looks import CARD, INK, LINE, MONO, MUTED, PANEL, PLAIN, RED_BLUE, Look, css
from workbench.look.markup import Html, Page, finished, join, tag, theme_of, themed
from workbench.look.png import FEW_DOTS, png_of
from workbench.look.text import text_of
from workbench.look.text_png import text_png
from workbench.look.words import display_width
from workbench.values import View
from workbench.values.errors import MissingPackageError

SANS = "system-ui,Helvetica,Arial,DejaVu Sans,sans-serif"
PLOTLY = "application/vnd.plotly.v1+json"
PAPER = f"background:{CARD};color:{INK}"
# JupyterLab's tables have striped rows, a font size and a colour of their own.
TABLE = f"border-collapse:collapse;margin:6px 0;color:{INK};font-size:12px;text-align:right"
BARE = "background:0"
_ONE_WORD = re.compile(r"[A-Za-z0-9_.,%+−—✓✗→]*")  # is not broken into lines
SHORT = 80  # characters of the words in a row that stays one line


def view_from(*parts: doc.Part | None, png: Any = None) -> View:
    """The view that has these parts in their order; None is left out. `png`: its picture, where that is not among them."""
    return shown(doc.ViewDocument(parts, png))


def shown(document: doc.ViewDocument) -> View:
    """The view of a document."""
    picture = document.picture
    if picture is not None and picture.figure is not None:
        return InteractiveView(document)
    source = document.png or (picture and picture.png)
    return finished(card(document.parts), text_of(document), _png_of(source), source)


class InteractiveView(Page):
    """A view with curves to hover over and to zoom. As the last line of a cell it makes two outputs: the curves, and
    below them everything else.

    The curves are plotly's JSON, which JupyterLab draws with what it has installed, beside the PNG, which stands where
    plotly is not: on GitHub, in an exported page. JupyterLab shows a PNG as wide as it is until one points at it, so
    that a notebook which is open there is not sent one: its plotly draws at the width that is there, and adds the PNG.
    No script is part of a notebook, and nothing is loaded from anywhere. The PNG is drawn, once, when it or the HTML is
    asked for.
    """

    def __init__(self, document: doc.ViewDocument) -> None:
        self.__dict__.update(_document=document, text=visible(text_of(document)))

    @cached_property
    def png(self) -> bytes:
        return _png_of(self.drawer)

    @property
    def drawer(self) -> Any:
        return self._document.png or self._document.picture.png

    @property
    def figure(self) -> Any:
        """The curves as a `plotly.graph_objects.Figure`, to change them. Needs plotly."""
        from plotly.graph_objects import Figure

        return Figure(self._document.picture.figure)

    @cached_property
    def html(self) -> Html:
        return card(self._document.parts)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        picture = self._document.picture
        rest = card([part for part in self._document.parts if part is not picture])
        curves = {PLOTLY: picture.figure, "text/plain": picture.alt}
        if not _lab_draws_plotly():
            curves["image/png"] = _png_of(self.drawer, FEW_DOTS)
        display(curves, raw=True)
        display(
            {"text/html": rest, "text/plain": self.text, "image/png": text_png(self.text)}, raw=True
        )


def _lab_draws_plotly() -> bool:
    """Is this an open notebook of JupyterLab, with the extension that comes with plotly?"""
    is_open = "JPY_SESSION_NAME" in os.environ and "WORKBENCH_PROGRESS" not in os.environ
    return is_open and find_spec("plotly") is not None


@lru_cache(maxsize=4)
def _png_of(source: Any, *dots: int) -> bytes | None:
    """The picture itself; of a drawing, which a view shows twice, it is made once."""
    return png_of(source(), *dots) if callable(source) else source


def card(parts: Sequence[doc.Part | None]) -> Html:
    """The root of every view: its own paper and ink, so that it reads on a light and on a dark page."""
    inside = parts_html(parts)
    return tag(
        "div",
        inside,
        style=(
            f"{PAPER};{theme_of(themed(PAPER) + inside)};border:1px solid {LINE};border-radius:6px;padding:10px 14px;"
            f"font:12px/1.45 {SANS};max-width:1180px;overflow-x:auto;text-align:left"
        ),
    )


def parts_html(parts: Sequence[doc.Part | doc.Inline | None]) -> Html:
    return join(WRITERS[type(part)](part) for part in parts if part is not None)


# ------------------------------------------------------------------------------------------------ inside a line


def line_html(line: doc.Line) -> Html:
    return join(WRITERS[type(part)](part) for part in doc.inline(line))


def _badge(part: doc.Badge) -> Html:
    return tag(
        "b",
        part.text,
        title=part.title,
        style=(
            f"background:{part.background};color:{part.foreground};border-radius:3px;padding:1px 6px;"
            "margin-right:4px;font-size:12px;display:inline-block"
            f"{'' if _ONE_WORD.fullmatch(part.text) else ';white-space:nowrap'}"
        ),
    )


def _bar(part: doc.Bar) -> Html:
    boxes = [
        tag(
            "span",
            style=f"display:inline-block;height:{part.height}px;width:{width}px;"
            f"background:{colour};vertical-align:middle",
        )
        for width, colour in part.stretches
        if width > 0
    ]
    return tag(
        "span", *boxes, style=f"display:inline-block;margin:{part.margin};white-space:nowrap"
    )


# ------------------------------------------------------------------------------------------------ lines and blocks


def _heading(part: doc.Heading) -> Html:
    return tag(
        "div", line_html(part.content), style="font-size:15px;font-weight:600;margin:0 0 2px"
    )


def _note(part: doc.Note) -> Html:
    return tag("div", line_html(part.content), style=f"color:{MUTED};margin:2px 0 6px")


def _warn(part: doc.WarningLine) -> Html:
    return tag(
        "div",
        "⚠ ",
        part.content,
        style=(
            "background:#fff3d6;color:#4a3200;border:1px solid #e0b64a;border-radius:4px;padding:2px 8px;"
            "margin:4px 0"
        ),
    )


def _block(part: doc.Block) -> Html:
    wraps = "white-space:pre-wrap;overflow-wrap:break-word"
    return tag(
        "div",
        line_html(part.content),
        style=(
            f"background:{PANEL};font:12px/1.4 {MONO};padding:4px 8px;"
            f"border-radius:4px;margin:2px 0;{wraps if part.wraps else 'white-space:pre;overflow-x:auto'}"
            f"{';font-weight:600' if part.bold else ''}"
        ),
    )


def _quoted(part: doc.Quoted) -> Html:
    return tag(
        "div", _badge(doc.Badge(part.badge)), _block(doc.Block(part.text)), style="margin:4px 0"
    )


def _fold(part: doc.Fold) -> Html:
    line = tag(
        "summary",
        part.summary,
        style=f"color:{MUTED};cursor:pointer",
    )
    return tag("details", line, parts_html(part.parts), style="margin:4px 0")


def _section(part: doc.Section) -> Html:
    ruled = (
        "margin:2px 0 6px 16px"
        if part.inset
        else f"border-top:1px solid {LINE};padding:6px 0 2px;margin:4px 0 0"
    )
    return tag("div", parts_html(part.parts), style=ruled)


# ------------------------------------------------------------------------------------------------ tables


def _table(table: doc.Table) -> Html:
    columns = [
        column if isinstance(column, doc.Column) else doc.Column(column) for column in table.columns
    ]
    rows = [row if isinstance(row, doc.TableRow) else doc.TableRow(row) for row in table.rows]
    if table.dense:
        return _dense(columns, [row.cells for row in rows], table.header)
    # The font of most cells is said once for all of them.
    mono = 2 * sum(map(_is_mono, columns)) > len(columns)
    ruled = f"border-bottom:1px solid {LINE}"
    head = None
    if table.header:
        is_low = not any(" " in column.name for column in columns)
        names = [
            _td("th", join([column.name]), column, place="" if is_low else "bottom")
            for column in columns
        ]
        head = tag("thead", tag("tr", *names, style=f"background:{PANEL};{ruled}"))
    body = tag(
        "tbody",
        *(_row(row, columns, mono, ruled) for row in rows),
        style=f"font-family:{MONO}" if mono else "",
    )
    return tag("table", head, body, style=f"{TABLE};table-layout:auto")


def _dense(
    columns: Sequence[doc.Column], rows: Sequence[Sequence[str | doc.Cell]], header: bool
) -> Html:
    """Hundreds of cells as text, each filled up to the width of its column: a fifth of what a table takes."""
    cells = [list(map(_cell_of, row)) for row in rows]
    if header:
        cells.insert(0, [doc.Cell(column.name, Look(PANEL, bold=True)) for column in columns])
    widths = [_width(column) for column in zip(*cells)]
    return tag(
        "pre",
        *(_dense_line(row, columns, widths) for row in cells),
        style=f"font:12px/20px {MONO};color:{INK};background:0;margin:6px 0;padding:0;white-space:pre;overflow-x:auto",
    )


def _cell_of(cell: str | doc.Cell) -> doc.Cell:
    return doc.Cell(cell) if isinstance(cell, str) else cell


def _width(column: Sequence[doc.Cell]) -> int:
    return max(display_width(cell.text) for cell in column)


def _dense_line(
    row: Sequence[doc.Cell], columns: Sequence[doc.Column], widths: Sequence[int]
) -> Html:
    """Neighbours that look the same are one element."""
    filled = []
    for cell, column, width in zip(row, columns, widths):
        gap = " " * (width - display_width(cell.text))
        text = f" {gap}{cell.text} " if column.number else f" {cell.text}{gap} "
        filled.append((_inked(cell.look), cell.title, visible(text, newline="⏎")))
    pieces = []
    for (look, title), stretch in groupby(filled, itemgetter(0, 1)):
        text = "".join(map(itemgetter(2), stretch))
        if look == PLAIN and not title:
            pieces.append(text)
        else:
            pieces.append(tag("span", text, title=title, style=f"{css(look)};padding:3px 0"))
    return join([*pieces, "\n"])


def _inked(look: Look) -> Look:
    """On a paper of its own it has an ink of its own."""
    own_paper = look.background and not look.foreground
    return replace(look, foreground=INK) if own_paper else look


def _is_mono(column: doc.Column) -> bool:
    return column.number or column.look.mono


def _row(row: doc.TableRow, columns: Sequence[doc.Column], mono: bool, ruled: str) -> Html:
    """Names its paper: the theme's striped rows would shine through otherwise. Where its cells should stand is said
    only if one of them can be higher than another."""
    parts = list(map(_cell_of, row.cells))
    texts = [cell.text for cell in parts if not _ONE_WORD.fullmatch(cell.text)]
    blocks = [
        part for cell in parts for part in cell.parts or () if not isinstance(part, doc.Inline)
    ]
    is_low = not (row.below or blocks) and len("".join(texts)) <= SHORT
    cells = []
    for index, (cell, column) in enumerate(zip(parts, columns)):
        inside = parts_html((cell.text,) if cell.parts is None else cell.parts)
        if row.below and index == len(row.cells) - 1:
            notes = parts_html(map(doc.Note, row.below))
            inside = join((inside, tag("div", notes, style=f"font-family:{SANS}")))
        place = "" if is_low else "top"
        cells.append(_td("td", inside, column, cell.look, cell.title, place, mono))
    return tag("tr", *cells, style=f"{BARE};{ruled}")


def _td(
    name: str,
    inside: Html,
    column: doc.Column,
    look: Look = PLAIN,
    title: str = "",
    place: str = "",
    mono: bool = False,
) -> Html:
    """Names what JupyterLab's tables have otherwise, and what is not as around it: notebooks keep hundreds of cells.
    `mono`: the font around it."""
    is_cell = name == "td"
    has_mono = is_cell and (look.mono or _is_mono(column))
    # Figures stay in one line; the words above them may break, or a table of many columns leaves the page.
    stays = is_cell and column.number or look.nowrap or column.look.nowrap
    own = Look(
        look.background,
        look.foreground or (column.look.foreground if is_cell else None),
        bold=is_cell and (look.bold or column.look.bold),
        mono=has_mono and not mono,
        nowrap=stays and not _ONE_WORD.fullmatch(inside),
    )
    declarations = (
        "" if column.number else "text-align:left",
        "padding:4px 8px",
        place and f"vertical-align:{place}",
        f"font-family:{SANS}" if mono and not has_mono else "",
        css(_inked(own)),
    )
    return tag(name, inside, title=title, style=";".join(filter(None, declarations)))


def _ledger(part: doc.Ledger) -> Html:
    """A row per entry, its fields in their columns."""
    rows = []
    for entry in part.entries:
        cells: list[list[doc.Part | doc.Inline]] = [[] for _ in part.columns]
        cells[0].append(doc.Note(entry.title if entry.caption is None else entry.caption))
        for fact in entry.fields:
            cells[fact.column] += fact.parts
        rows.append([doc.Cell("", parts=tuple(parts)) for parts in cells])
    return _table(doc.Table(part.columns, rows))


# ------------------------------------------------------------------------------------------------ tokens


def _tokens(part: doc.Tokens) -> Html:
    """The mark of each run in the margin, its tokens beside it."""
    margin = "vertical-align:top;padding:3px 8px;line-height:1.9;font-size:11px;white-space:nowrap"
    beside = (
        "text-align:left;vertical-align:top;padding:3px 8px;line-height:1.75;white-space:pre-wrap;"
        f"border-left:2px solid {LINE}"
    )
    rows = []
    for run in part.runs:
        if isinstance(run, doc.WarningLine):
            mark = "…"
            spans = _warn(run)
        else:
            mark = run.mark
            spans = _run_spans(run)
        first, _, was = mark.partition(", was ")
        before = tag("div", f"was {was}", style=f"color:{INK}") if was else None
        cells = (tag("td", first, before, style=margin), tag("td", spans, style=beside))
        rows.append(tag("tr", *cells, style=BARE))
    return tag(
        "table",
        tag("tbody", *rows),
        style=f"{TABLE};color:{MUTED};font-family:{MONO};overflow-wrap:break-word",
    )


def _run_spans(run: doc.TokenRun) -> Html:
    """Line feeds are drawn *and* kept, so that a grid in a prompt still looks like one; none at the end of a run."""
    texts = [token.text.replace("\n", "⏎" if run.one_line else "⏎\n") for token in run.tokens]
    return _token_spans(run.tokens, [*texts[:-1], texts[-1].removesuffix("\n")])


def _token_spans(tokens: Sequence[doc.Styled], texts: Sequence[str]) -> Html:
    """Tokens side by side. What neighbours have in common is said once, around them."""
    stretches = []
    for look, pairs in groupby(zip(tokens, texts), lambda pair: replace(pair[0].look, right="")):
        style = f"{css(look)};padding:1px 0{' 4px' if look.below else ''}"
        edged = list(pairs)
        if len(edged) == 1:
            token, text = edged[0]
            style = f"{css(Look(right=token.look.right))};{style}".removeprefix(";")
            stretches.append(tag("span", text, title=token.title, style=style))
            continue
        spans = [
            tag(
                "span",
                text,
                title=token.title,
                style=css(Look(right=token.look.right)),
                light=True,
            )
            for token, text in edged
        ]
        stretches.append(tag("span", *spans, style=style))
    return join(stretches)


def _token_line(part: doc.TokenLine) -> Html:
    spans = _token_spans(part.tokens, [token.text.replace("\n", "⏎") for token in part.tokens])
    label = (
        tag("b", f"{part.label.strip()} ", style=f"color:{MUTED}") if part.label.strip() else None
    )
    hidden = f" … {part.hidden} more" if part.hidden else None
    return tag(
        "div",
        label,
        part.before,
        spans,
        part.after,
        hidden,
        style=f"font:12px/1.9 {MONO};white-space:pre-wrap;overflow-wrap:break-word",
    )


def _legend(part: doc.Legend) -> Html:
    items = [
        tag(
            "span",
            tag("span", mark, style=f"{css(look)};font-family:{MONO};padding:0 5px"),
            f" {meaning}",
            style="margin-right:14px;display:inline-block",
        )
        for mark, look, meaning in part.items
    ]
    if part.scale is not None:
        name, values = part.scale
        steps = [
            tag(
                "span",
                value,
                style=f"background:{fill};color:{ink};font-family:{MONO};padding:0 6px",
            )
            for value, (fill, ink) in zip(values, RED_BLUE)
        ]
        items.append(
            tag("span", f"{name}: ", *steps, style="margin-right:14px;display:inline-block")
        )
    return tag("div", *items, style=f"color:{MUTED};line-height:1.9;margin:2px 0 6px")


# ------------------------------------------------------------------------------------------------ pictures


def _picture(part: doc.Picture) -> Html:
    try:
        source = {"src": _inlined(_png_of(part.png)), "alt": part.alt}
    except MissingPackageError as error:
        return tag("pre", f"{part.alt}\n({error})")
    # Beside labels it is not scaled to the window, or they would leave their rows.
    place = "none;margin:0;vertical-align:top" if part.labels else "100%;margin:4px 0"
    dark = ";filter:var(--wf)" if callable(part.png) else ""  # pixels have no paper of their own
    image = tag("img", attributes=source, style=f"background:{CARD};max-width:{place}{dark}")
    if not part.labels:
        return image
    labels = tag(
        "div",
        *(tag("div", label) for label in part.labels),
        style=(
            f"color:{MUTED};font:10px/{part.pitch}px {MONO};text-align:right;padding-right:6px;"
            "display:inline-block;vertical-align:top;min-width:24px"
        ),
    )
    return tag("div", labels, image, style="white-space:nowrap;overflow-x:auto;margin:4px 0")


def _inlined(png: bytes) -> str:
    """The same pixels as WebP, which takes a quarter less, for a page to carry."""
    from PIL import Image

    sink = io.BytesIO()
    Image.open(io.BytesIO(png)).save(sink, "webp", lossless=True)
    return "data:image/webp;base64," + base64.b64encode(sink.getvalue()).decode("ascii")


def _squares(part: doc.Squares) -> Html:
    """A small table; the lines between cells and the letters carry the same facts without colour."""
    size = part.size
    rows = []
    for row in part.rows:
        # The first cells of a row and of a column are what the others are as large as.
        cells = [
            tag(
                "td",
                character,
                title=meaning,
                style=(
                    f"background:{background};color:{ink};padding:0;text-align:center;border:1px solid #fff"
                    f"{'' if rows else f';min-width:{size}px'}{'' if at else f';height:{size}px'}"
                ),
            )
            for at, (character, meaning, background, ink) in enumerate(row)
        ]
        rows.append(tag("tr", *cells, style=BARE))
    return tag(
        "table",
        tag("tbody", *rows),
        style=(
            f"border-collapse:collapse;table-layout:auto;margin:0;color:{INK};border:1px solid #9fb0bf;"
            f"font:600 {size * 5 // 9}px {MONO}"
        ),
    )


WRITERS: dict[type, Callable[..., object]] = {
    str: lambda part: part,
    doc.Styled: lambda part: tag("span", part.text, title=part.title, style=css(part.look)),
    doc.Badge: _badge,
    doc.Bar: _bar,
    doc.Heading: _heading,
    doc.Note: _note,
    doc.WarningLine: _warn,
    doc.Block: _block,
    doc.Quoted: _quoted,
    doc.Fold: _fold,
    doc.Section: _section,
    doc.Table: _table,
    doc.Ledger: _ledger,
    doc.Tokens: _tokens,
    doc.TokenLine: _token_line,
    doc.Legend: _legend,
    doc.Picture: _picture,
    doc.Squares: _squares,
    doc.PagePart: lambda part: parts_html(part.parts),
    **dict.fromkeys((doc.TextPart, doc.BlankLine), lambda part: ""),
}
