"""Building HTML that survives: an untrusted JupyterLab, a dark theme, and a page that drops every style.

- `tag` escapes every child and attribute that is not already `Html`, so forgetting to escape is not possible.
- Inline styles only: sanitizers drop <style>, <script>, <svg>, ids, roles and event handlers.
- Every coloured box names its text colour *and* its background, because the theme around it is not known.
- Colour never says anything alone: a mark in characters stands beside it, which also survives where styles are dropped.
"""
from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence

from workbench.types import View
from workbench.views.escape import esc, visible

INK, MUTED, CARD, PANEL, LINE = "#1b2733", "#525f6b", "#ffffff", "#f4f6f8", "#d5dbe1"
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#b84a00", "#00734f", "#5a6775"  # Okabe-Ito, darkened until white text reads
SANS = "system-ui, Helvetica, Arial, DejaVu Sans, sans-serif"
MONO = "DejaVu Sans Mono, Menlo, Consolas, monospace"

# Red to blue through white (ColorBrewer RdBu, 7 steps): background and the text colour that reads on it.
RED_BLUE = (("#b2182b", "#ffffff"), ("#ef8a62", INK), ("#fddbc7", INK), ("#f7f7f7", INK), ("#d1e5f0", INK),
            ("#67a9cf", INK), ("#2166ac", "#ffffff"))


class Html(str):
    """Markup made by `tag`: will not be escaped again."""

    __slots__ = ()


def tag(name: str, *children: object, style: str = "", title: str = "", attributes: Mapping[str, str] = {}) -> Html:
    """One element. Children that are `Html` are kept, everything else is escaped; None and "" are left out.

    `name` and the attribute names are the caller's literals, never data.
    """
    pairs = {**({"style": style} if style else {}), **({"title": title} if title else {}), **attributes}
    written = "".join(f' {key}="{esc(value, newline="⏎")}"' for key, value in pairs.items())
    if name in ("img", "br"):
        return Html(f"<{name}{written}>")
    inside = "".join(child if isinstance(child, Html) else esc(child) for child in children if child is not None)
    return Html(f"<{name}{written}>{inside}</{name}>")


def join(parts: Iterable[object]) -> Html:
    """Elements and texts, one after the other; texts are escaped."""
    return Html("".join(part if isinstance(part, Html) else esc(part) for part in parts))


def finished(html: Html, text: str, png: bytes | None = None) -> View:
    """The one way in which a view is made: the HTML must come from `tag`, and no text form holds a character that acts.

    `visible` changes nothing that it has been through already, so doing it once more here closes every gap at once.
    """
    if not isinstance(html, Html):
        raise TypeError("a view's html is made by markup.tag, so that everything in it is escaped; got a plain str")
    return View(html, visible(text), png)


# ------------------------------------------------------------------------------------------------ pieces


def card(*children: object) -> Html:
    """The root of every view: its own paper and ink, so that it reads on a light and on a dark page."""
    return tag("div", *children, style=(
        f"background-color:{CARD};color:{INK};border:1px solid {LINE};border-radius:6px;padding:10px 14px;"
        f"font-family:{SANS};font-size:13px;line-height:1.45;max-width:1180px;overflow-x:auto;text-align:left"))


def heading(*children: object) -> Html:
    return tag("div", *children, style="font-size:15px;font-weight:600;margin:0 0 2px 0")


def note(*children: object) -> Html:
    """A line of explanation or a caption."""
    return tag("div", *children, style=f"color:{MUTED};font-size:12px;margin:2px 0 6px 0")


def warning(*children: object) -> Html:
    """A line that must not be overlooked: what is hidden, missing or broken."""
    return tag("div", "⚠ ", *children, style=(
        "background-color:#fff3d6;color:#4a3200;border:1px solid #e0b64a;border-radius:4px;"
        "padding:2px 8px;margin:4px 0;font-size:12px"))


def badge(text: object, background: str, foreground: str = "#ffffff", *, title: str = "") -> Html:
    """A short word in a filled box."""
    return tag("span", text, title=title, style=(
        f"background-color:{background};color:{foreground};border-radius:3px;padding:1px 6px;margin:0 4px 0 0;"
        "font-size:12px;font-weight:600;display:inline-block;white-space:nowrap"))


def block(text: object, *, style: str = "") -> Html:
    """Text as it was written, line by line, in a fixed-width font."""
    return tag("div", text, style=(
        f"background-color:{PANEL};color:{INK};font-family:{MONO};font-size:12px;line-height:1.4;padding:4px 8px;"
        f"border-radius:4px;white-space:pre-wrap;overflow-wrap:break-word;word-break:normal;{style}").rstrip(";"))


def folded(summary: object, *children: object) -> Html:
    """Something long behind a line that opens it."""
    line = tag("summary", summary, style=f"background-color:{CARD};color:{MUTED};cursor:pointer;font-size:12px")
    return tag("details", line, *children, style=f"background-color:{CARD};color:{INK};margin:4px 0")


def cell(*children: object, style: str = "", header: bool = False, title: str = "", align: str = "left",
         background: str = CARD, foreground: str = INK) -> Html:
    """One cell of a `table`. Names both colours: the theme's striped rows would shine through otherwise."""
    return tag("th" if header else "td", *children, title=title, style=(
        f"background-color:{background};color:{foreground};text-align:{align};vertical-align:top;"
        f"border-bottom:1px solid {LINE};padding:4px 8px;white-space:normal;"
        f"font-weight:{'600' if header else '400'};{style}").rstrip(";"))


def table(rows: Sequence[Sequence[Html]], header: Sequence[Html] = ()) -> Html:
    """Rows of `cell`s under an optional row of header cells."""
    head = tag("thead", tag("tr", *header, style=f"background-color:{CARD}")) if header else None
    body = tag("tbody", *(tag("tr", *row, style=f"background-color:{CARD}") for row in rows))
    return tag("table", head, body, style=(
        f"border-collapse:collapse;table-layout:auto;margin:6px 0;background-color:{CARD};color:{INK};"
        f"font-size:12px;font-family:{SANS}"))


def head_cells(names: Sequence[str], right: Sequence[str] = ()) -> list[Html]:
    """Header cells; the columns named in `right` hold numbers."""
    return [cell(name, header=True, align="right" if name in right else "left", background=PANEL,
                 style="vertical-align:bottom") for name in names]


def number_cell(text: object, *, background: str = CARD, foreground: str = INK, title: str = "",
                style: str = "") -> Html:
    return cell(text, align="right", background=background, foreground=foreground, title=title,
                style=f"font-family:{MONO};white-space:nowrap;{style}")


def picture(png: bytes, alt: str, *, width: int | None = None) -> Html:
    """A PNG inside the page, with the words for whoever does not see it."""
    attributes = {"src": "data:image/png;base64," + base64.b64encode(png).decode("ascii"), "alt": alt}
    if width is not None:
        attributes["width"] = str(width)
    return tag("img", attributes=attributes, style=f"background-color:{CARD};max-width:100%;margin:4px 0")


def red_blue(value: float, scale: float) -> tuple[str, str]:
    """Background and text colour of a signed value: red below zero, blue above, full at +-`scale`.

    Values that are not zero never take the white middle step, so that a small credit is told from none.
    """
    if not scale or value == 0 or value != value:
        return RED_BLUE[3]
    step = min(3, max(1, round(3 * abs(value) / scale)))
    return RED_BLUE[3 + step] if value > 0 else RED_BLUE[3 - step]
