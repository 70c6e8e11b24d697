"""Colours, and how a stretch of text looks on a page.

Every coloured box names its text colour *and* its background, because the theme around it is not known. Colour never
says anything alone: a mark in characters stands beside it, which also survives where styles are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

INK = "#1b2733"
MUTED = "#525f6b"
CARD = "#ffffff"
PANEL = "#f4f6f8"
LINE = "#9ab6"  # the paper shines through: the same on a light and on a dark page
# Okabe-Ito, darkened until white text reads.
BLUE = "#0072b2"
ORANGE = "#b84a00"
GREEN = "#00734f"
GREY = "#5a6775"
RED = "#a01626"
PURPLE = "#8a5fa8"
MONO = "Menlo,Consolas,monospace"
TRACK = "#7f8a9540"  # of a bar, below what is filled: the paper shines through
YELLOW_PAPER = "#fff3d6"
LILAC_PAPER = "#e9e2ef"
LILAC_INK = "#432a55"

# Of paper and ink: the variable of JupyterLab's theme, and what it is on a dark page that has none.
THEME = {
    INK: ("--jp-content-font-color1", "#e3e8ed"),
    MUTED: ("--jp-content-font-color2", "#aeb8c2"),
    CARD: ("--jp-layout-color1", "#181818"),
    PANEL: ("--jp-layout-color2", "#22282e"),
}
ACCENTS = (BLUE, ORANGE, GREEN, GREY, RED, PURPLE)  # each mixed with the ink of the theme

# Red to blue through white (ColorBrewer RdBu, 7 steps): background and the text colour that reads on it.
RED_BLUE = (
    ("#b2182b", "#ffffff"),
    ("#ef8a62", INK),
    ("#fddbc7", INK),
    ("#f7f7f7", INK),
    ("#d1e5f0", INK),
    ("#67a9cf", INK),
    ("#2166ac", "#ffffff"),
)


@dataclass(frozen=True)
class Look:
    """Of a stretch of text or a cell. `top`, `below`, `left`, `right`: borders. None: as around it."""

    background: str | None = None
    foreground: str | None = None
    bold: bool = False
    mono: bool = False
    italic: bool = False
    nowrap: bool = False
    top: str = ""
    below: str = ""
    left: str = ""
    right: str = ""


PLAIN = Look()
BOLD = Look(bold=True)
QUIET = Look(foreground=MUTED)


def css(look: Look) -> str:
    """A look as inline style."""
    named = (
        ("background", look.background),
        ("color", look.foreground),
        ("font-weight", "600" if look.bold else ""),
        ("font-family", MONO if look.mono else ""),
        ("font-style", "italic" if look.italic else ""),
        ("white-space", "nowrap" if look.nowrap else ""),
        ("border-top", look.top),
        ("border-bottom", look.below),
        ("border-left", look.left),
        ("border-right", look.right),
    )
    return ";".join(f"{name}:{value}" for name, value in named if value)


def red_blue(value: float, scale: float) -> tuple[str, str]:
    """Background and text colour of a signed value: red below zero, blue above, full at +-`scale`.

    Values that are not zero never take the white middle step, so that a small credit is told from none.
    """
    if not scale or value == 0 or value != value:
        return RED_BLUE[3]
    step = min(3, max(1, round(3 * abs(value) / scale)))
    return RED_BLUE[3 + step] if value > 0 else RED_BLUE[3 - step]
