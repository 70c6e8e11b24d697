"""Colours, and how a stretch of text looks on a page.

Every coloured box names its text colour *and* its background, because the theme around it is not known. Colour never
says anything alone: a mark in characters stands beside it, which also survives where styles are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

INK, MUTED, CARD, PANEL, LINE = "#1b2733", "#525f6b", "#ffffff", "#f4f6f8", "#d5dbe1"
BLUE, ORANGE, GREEN, GREY = (
    "#0072b2",
    "#b84a00",
    "#00734f",
    "#5a6775",
)  # Okabe-Ito, darkened until white text reads
RED, PURPLE = "#a01626", "#8a5fa8"
MONO = "DejaVu Sans Mono, Menlo, Consolas, monospace"
YELLOW_PAPER, LILAC_PAPER, LILAC_INK = "#fff3d6", "#e9e2ef", "#432a55"

# What these are in a dark theme, each readable on the dark CARD and PANEL.
DARK = {
    INK: "#e3e8ed",
    MUTED: "#aeb8c2",
    CARD: "#15191d",
    PANEL: "#22282e",
    LINE: "#49535d",
    BLUE: "#6bbcf0",
    ORANGE: "#ff9d57",
    GREEN: "#54cba0",
    GREY: "#a9b4bf",
    RED: "#ff8d96",
    PURPLE: "#c9a6e3",
}

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
        ("background-color", look.background),
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
