"""Docstrings as Markdown: paragraphs stay paragraphs, and whatever is laid out in columns keeps its layout.

The package's docstrings are plain text with `names` in backticks, formulas, small tables aligned by spaces, and
drawings. Read as Markdown as they are, the latter would be run together, and a lone * or < would act.
"""

from __future__ import annotations

import inspect
import re

COLUMNS = re.compile(r"\S {2,}\S")
DRAWN = re.compile(r"[│├└─┌┐┘▲▼◀▶]")


def as_markdown(docstring: str | None) -> str:
    """The docstring as Markdown; "" for none."""
    parts: list[str] = []
    for layout, lines in _runs(inspect.cleandoc(docstring or "").splitlines()):
        text = "\n".join(lines).strip("\n")
        if text:
            parts.append(f"```text\n{text}\n```" if layout else _escaped(text))
    return "\n\n".join(parts)


def first_sentence(docstring: str | None) -> str:
    """What a docstring says first, in one line, for a table cell."""
    paragraph = " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split())
    found = re.match(r".+?[.:](?= [A-Z`(\"]|$)", paragraph)
    return _escaped(found[0] if found else paragraph).rstrip(":").replace("|", "\\|")


def _runs(lines: list[str]) -> list[tuple[bool, list[str]]]:
    """Consecutive lines of one kind: laid out (True) or prose. An empty line belongs to what stands before it."""
    runs: list[tuple[bool, list[str]]] = []
    for line in lines:
        if not line.strip():
            if runs:
                runs[-1][1].append("")
            continue
        layout = line.startswith("    ") or bool(COLUMNS.search(line)) or bool(DRAWN.search(line))
        if runs and (runs[-1][0] == layout):
            runs[-1][1].append(line)
        else:
            runs.append((layout, [line]))
    return runs


def _escaped(text: str) -> str:
    """Markdown in which nothing acts but backticks and lists."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if position % 2 else re.sub(r"([*<\[\]_])", r"\\\1", piece)
        for position, piece in enumerate(pieces)
    )
