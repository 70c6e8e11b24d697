"""A document as text: for a terminal, a log and a diff. Every character that acts or hides is spelled out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from workbench.look import doc
from workbench.look.escape import visible
from workbench.look.words import aligned, markdown, quoted

LABEL = 9  # columns of an entry's labels


def text_of(document: doc.ViewDocument) -> str:
    """The lines of all parts, one below the other."""
    return "\n".join(lines_of(document.parts))


def markdown_of(document: doc.ViewDocument) -> str:
    """The same lines, its tables as Markdown knows them."""
    lines: list[str] = []
    for part in document.parts:
        lines += markdown(_rows(part)) if isinstance(part, doc.Table) else lines_of([part])
    return "\n".join(lines)


def lines_of(parts: Sequence[doc.Part | None]) -> Iterator[str]:
    for part in parts:
        if part is not None:
            yield from WRITERS[type(part)](part)


def words_of(line: doc.Line) -> str:
    """A line without its looks."""
    return visible("".join(_word(part) for part in doc.inline(line)))


def _word(part: doc.Inline) -> str:
    if isinstance(part, doc.Badge):
        return part.text if part.plain is None else part.plain
    if isinstance(part, doc.Bar):
        return ""
    return part if isinstance(part, str) else part.text


def _warn(part: doc.WarningLine) -> list[str]:
    return [f"{part.mark}{visible(part.content)}{part.end}"]


def _table(table: doc.Table) -> list[str]:
    cells = _rows(table)
    right = [at for at, column in enumerate(_columns(table).values()) if column.number]
    lines = aligned(cells, right=right, indent=table.indent).split("\n") if cells else []
    written = lines[:1] if table.header else []
    for row, line in zip(table.rows, lines[len(written) :]):
        below = row.below if isinstance(row, doc.TableRow) else ()
        written += [line, *(f"    {visible(words)}" for words in below)]
    return written


def _columns(table: doc.Table) -> dict[int, doc.Column]:
    """Those of the text form, by their numbers."""
    columns = [
        column if isinstance(column, doc.Column) else doc.Column(column) for column in table.columns
    ]
    return {i: column for i, column in enumerate(columns) if not column.on_page}


def _rows(table: doc.Table) -> list[list[str]]:
    """The cells as text, the header's first if there is one."""
    columns = _columns(table)
    head = (
        [[visible(column.name, newline="⏎") for column in columns.values()]] if table.header else []
    )
    for row in table.rows:
        cells = row.cells if isinstance(row, doc.TableRow) else row
        head.append([_cell(cells[place]) for place in columns if place < len(cells)])
    return head


def _cell(cell: str | doc.Cell) -> str:
    return visible(cell if isinstance(cell, str) else cell.text, newline="⏎")


def _tokens(part: doc.Tokens) -> list[str]:
    lines = []
    for run in part.runs:
        if isinstance(run, doc.WarningLine):
            lines += _warn(run)
        else:
            between = "▏" if run.split else ""
            text = between.join(token.text for token in run.tokens)
            lines.append(f"[{run.mark}|{visible(text, newline='⏎')}]")
    return lines


def _token_line(part: doc.TokenLine) -> list[str]:
    shown = visible(part.between.join(token.text for token in part.tokens), newline="⏎")
    return [f"{part.label}{part.before}{shown}{part.after}"]


def _ledger(part: doc.Ledger) -> list[str]:
    """Entries with an empty line between them."""
    lines: list[str] = []
    for entry in part.entries:
        lines += ["", *entry.title.split("\n")]
        for fact in entry.fields:
            if fact.label:
                lines += _field(fact).split("\n")
    return lines[1:]


def _field(field: doc.Field) -> str:
    label = f"  {field.label:<{LABEL}}"
    return (
        quoted(visible(field.text), label) if field.quoted else f"{label}{visible(field.text)}"
    ) + field.after


WRITERS: dict[type, Callable[..., Sequence[str] | Iterator[str]]] = {
    **dict.fromkeys((doc.Heading, doc.Note, doc.Block), lambda part: [words_of(part.content)]),
    doc.WarningLine: _warn,
    doc.Table: _table,
    doc.Tokens: _tokens,
    doc.TokenLine: _token_line,
    doc.Ledger: _ledger,
    doc.Quoted: lambda part: [quoted(visible(part.text), visible(part.label))],
    **dict.fromkeys((doc.Fold, doc.Section), lambda part: lines_of(part.parts)),
    doc.TextPart: lambda part: [visible(part.text)],
    doc.BlankLine: lambda part: [""],
    **dict.fromkeys((doc.Legend, doc.Picture, doc.Squares, doc.PagePart), lambda part: ()),
}
