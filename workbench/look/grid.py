"""Grids inside an environment's text: found, and drawn as real coloured cells.

A grid is two or more lines in a row with the same number of single characters, spaces between them or not. Only what
consists wholly of the known tiles of one game is drawn; any other text is shown as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

from workbench.look import doc
from workbench.look.looks import INK, Look


@dataclass(frozen=True)
class Tile:
    """How one character of a grid is drawn, and what it means."""

    meaning: str
    background: str
    foreground: str = INK


# FrozenLake's characters. The lines between cells and the letters carry the same facts without colour.
LAKE_TILES: Mapping[str, Tile] = {
    "P": Tile("you", "#0072b2", "#ffffff"),
    "_": Tile("ice", "#e3f0fa", "#51677a"),
    "O": Tile("hole", "#27323d", "#ffffff"),
    "G": Tile("goal", "#f2c230"),
    "X": Tile("you in a hole", "#b33c00", "#ffffff"),
    "√": Tile("you on the goal", "#00734f", "#ffffff"),
}

# Sokoban's, in the order of its symbols; what stands where it should is green, as on the lake.
_SOKOBAN = (
    Tile("wall", "#27323d", "#a9b8c4"),
    Tile("floor", "#f4f1ea", "#6b665a"),
    Tile("target", "#f2c230"),
    Tile("box on a target", "#00734f", "#ffffff"),
    Tile("box", "#9c5620", "#ffffff"),
    Tile("you", "#0072b2", "#ffffff"),
    Tile("you on a target", "#005685", "#f2c230"),
)
SOKOBAN_TILES: Mapping[str, Tile] = dict(zip("#_O√XPS", _SOKOBAN))
SOKOBAN_OTHER_TILES: Mapping[str, Tile] = dict(
    zip("W.GCBA@", _SOKOBAN)
)  # RAGEN's second vocabulary

# In this order: each row of a Sokoban level has walls, which no lake has, but rows of a lake could be Sokoban's floor.
GAMES: tuple[Mapping[str, Tile], ...] = (LAKE_TILES, SOKOBAN_TILES, SOKOBAN_OTHER_TILES)


@dataclass(frozen=True)
class FoundGrid:
    """The text before the grid, its cells row by row, the text after, and the tiles that it is made of."""

    before: str
    cells: tuple[tuple[str, ...], ...]
    after: str
    tiles: Mapping[str, Tile]


def find_grid(text: str, tiles: Mapping[str, Tile] | None = None) -> FoundGrid | None:
    """The first grid of these tiles in `text`, or None. `tiles` None: those of the first game that has one there."""
    for game in GAMES if tiles is None else (tiles,):
        grid = _find(text, game)
        if grid is not None:
            return grid
    return None


def _find(text: str, tiles: Mapping[str, Tile]) -> FoundGrid | None:
    lines = text.split("\n")
    rows = [_row(line, tiles) for line in lines]
    start = 0
    while start < len(rows):
        width = len(rows[start])
        end = start + 1
        while end < len(rows) and width and len(rows[end]) == width:
            end += 1
        if width >= 2 and end - start >= 2:
            return FoundGrid(
                "\n".join(lines[:start]), tuple(rows[start:end]), "\n".join(lines[end:]), tiles
            )
        start = end
    return None


def _row(line: str, tiles: Mapping[str, Tile]) -> tuple[str, ...]:
    """The cells of a line; empty where it holds anything but tiles."""
    parts = line.split()
    cells = tuple(parts) if all(len(part) == 1 for part in parts) else tuple("".join(parts))
    if len(parts) > 1 and cells != tuple(parts):
        return ()  # words that happen to use tile letters are no grid
    return cells if all(cell in tiles for cell in cells) else ()


def squares(grid: FoundGrid, *, size: int = 24) -> doc.Squares:
    """The cells as coloured squares, each with its letter."""

    def square(character: str) -> tuple[str, ...]:
        return (character, *astuple(grid.tiles[character]))

    return doc.Squares([list(map(square, row)) for row in grid.cells], size)


def legend(grids: Iterable[FoundGrid]) -> doc.Legend | None:
    """What the tiles mean, for those that occur; None where there is no grid."""
    seen: set[str] = set()
    tiles: dict[str, Tile] = {}
    for grid in grids:
        seen.update(*grid.cells)
        tiles |= grid.tiles
    items = [
        (character, Look(tile.background, tile.foreground), tile.meaning)
        for character, tile in tiles.items()
        if character in seen
    ]
    return doc.Legend(items) if items else None
