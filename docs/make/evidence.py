"""Tables of measurements: from docs/evidence/data/*.json into the pages that show them.

A page marks where a table stands, and everything between the marks is made:

    <!-- evidence: demo-search main -->        tables of docs/evidence/data/demo-search.json, by name
    ...
    <!-- end of evidence -->

A data file says what was run, when, where and with which seeds (FIELDS). Its numbers are either what a command wrote
(`kind` names how its `result` becomes tables) or `tables` themselves: what was copied by hand from an earlier page says
so in `source`, and the page repeats it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIELDS = ("version", "title", "command", "date", "machine", "seeds", "commit", "source")
BLOCK = re.compile(
    r"(<!-- evidence: (?P<name>[a-z0-9-]+)(?P<tables>(?: [a-z0-9_-]+)*) -->\n).*?"
    r"(<!-- end of evidence -->)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Table:
    """A table as it is shown: a line above it (or none), the head, the rows. Cells are Markdown."""

    head: list[str]
    rows: list[list[str]]
    caption: str = ""

    def markdown(self) -> str:
        width = len(self.head)
        if wrong := [row for row in self.rows if len(row) != width]:
            raise ValueError(
                f"expected {width} cells in each row, found {len(wrong[0])}: {wrong[0]}"
            )
        lines = [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
            for line in (self.head, ["---"] * width, *self.rows)
        ]
        return "\n".join([self.caption, "", *lines] if self.caption else lines)


def read(path: Path) -> dict[str, Any]:
    """A data file. ValueError names what is missing or unknown."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if missing := [field for field in FIELDS if field not in data]:
        raise ValueError(f"{path.name}: expected {', '.join(FIELDS)}; missing {', '.join(missing)}")
    if data["version"] != 1:
        raise ValueError(f"{path.name}: expected version 1, found {data['version']!r}")
    if ("tables" in data) == ("kind" in data):
        raise ValueError(f"{path.name}: expected either 'tables' or 'kind' with 'result'")
    return data


def tables_of(data: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of a data file by name: as they stand, or made of the result that a command wrote."""
    if "tables" in data:
        return {
            name: Table(table["head"], table["rows"], table.get("caption", ""))
            for name, table in data["tables"].items()
        }
    from docs.make.results import KINDS

    if data["kind"] not in KINDS:
        raise ValueError(f"{data['title']}: no kind {data['kind']!r}; there are {', '.join(KINDS)}")
    return KINDS[data["kind"]](data["result"])


def provenance(name: str, data: Mapping[str, Any]) -> str:
    """Where the numbers come from, in one line under the table."""
    seeds = f"; seeds {', '.join(map(str, data['seeds']))}" if data["seeds"] else ""
    measured = (
        f"`{data['command']}`, {data['date']}, code of {data['commit']}; {data['machine']}{seeds}"
    )
    source = (
        "" if data["source"] == "measured" else f" {data['source'][0].upper()}{data['source'][1:]}."
    )
    return f"*{measured}.{source}* ([data](data/{name}.json))"


def filled(page: str, folder: Path) -> str:
    """The page with every block made anew from the data files of `folder`. ValueError for a file or table that is not
    there."""

    def block(found: re.Match[str]) -> str:
        data = read(folder / f"{found['name']}.json")
        tables = tables_of(data)
        wanted = found["tables"].split() or list(tables)
        if unknown := [name for name in wanted if name not in tables]:
            raise ValueError(
                f"{found['name']}.json has no table {unknown[0]!r}; it has {', '.join(tables)}"
            )
        parts = [*(tables[name].markdown() for name in wanted), provenance(found["name"], data)]
        return found[1] + "\n" + "\n\n".join(parts) + "\n\n" + found[4]

    return BLOCK.sub(block, page)


def shown(page: str) -> set[tuple[str, str | None]]:
    """(data file, table) of every block of a page; table None: all of the file."""
    return {
        (found["name"], table)
        for found in BLOCK.finditer(page)
        for table in (found["tables"].split() or [None])
    }
