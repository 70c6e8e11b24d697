"""How the rows of `make templates` become tables: which chat templates are read right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from docs.make.evidence import Table

CELLS = {
    "loads": "loads",
    "append_only": "append-only",
    "tools": "tools",
    "calls": "calls",
    "thought": "thought",
    "stops": "stops",
    "round_trip": "round trip",
}


def template_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """`rows`: a line for each template, alike ones in one line; `sum`: how many of each kind."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in result["rows"]:
        alike.setdefault(tuple(row[cell] for cell in CELLS), []).append(row["template"])
    rows = []
    for cells, names in alike.items():
        rows.append([", ".join(names), *(_as_code(name, cell) for name, cell in zip(CELLS, cells))])
    return {
        "sum": _sum(result["rows"]),
        "rows": Table(["template", *CELLS.values()], rows),
    }


def _as_code(name: str, cell: str) -> str:
    if name != "stops":
        return cell
    return " ".join(f"`{token}`" if token.startswith("<") else token for token in cell.split())


def _sum(rows: list[Mapping[str, Any]]) -> Table:
    loaded = [row for row in rows if row["loads"] == "yes"]
    own = [row for row in loaded if row["tools"].startswith("own")]
    counts = {
        "templates": len(rows),
        "loaded": len(loaded),
        "refused in words": sum(row["loads"].startswith("refused") for row in rows),
        "the whole past equal": sum(row["append_only"] == "equal" for row in loaded),
        "tools in the template's own form": len(own),
        "of these, calls read in that form": sum("refused" not in row["calls"] for row in own),
        "a thought opened by the prompt": sum("opened" in row["thought"] for row in loaded),
        "a thought written by the policy": sum("written" in row["thought"] for row in loaded),
        "a fault that nobody is told of": sum(bool(row["faults"]) for row in rows),
    }
    return Table(["what", "templates"], [[what, str(count)] for what, count in counts.items()])


KINDS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Table]]] = {
    "templates": template_tables,
}
