"""Markup that cannot be forgotten to be escaped.

- `tag` escapes every child and attribute that is not already `Html`, so forgetting to escape is not possible.
- Inline styles only: sanitizers drop <style>, <script>, <svg>, ids, roles and event handlers.
- Colours of the house follow a dark theme: each is said twice, plainly and as `light-dark(...)`. JupyterLab's sanitizer drops the
  second, and then the page is the light one as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from workbench.types import View
from workbench.views.escape import esc, visible
from workbench.views.looks import CARD, DARK, PANEL

_HEX = re.compile("|".join(DARK))
_PAPER = re.compile(r"background-color:(?!%s|%s)" % (CARD, PANEL))
_TWICE = "light-dark("


class Html(str):
    """Markup made by `tag`: will not be escaped again."""

    __slots__ = ()


def tag(
    name: str,
    *children: object,
    style: str = "",
    title: str = "",
    attributes: Mapping[str, str] = {},
) -> Html:
    """One element. Children that are `Html` are kept, everything else is escaped; None and "" are left out.

    `name` and the attribute names are the caller's literals, never data.
    """
    if style:
        if (own := _PAPER.search(style)) and any(
            isinstance(child, Html) and _TWICE in child for child in children
        ):
            style += ";color-scheme:light"  # a paper of its own is light in any theme, and so is what stands on it
        style = style if own else themed(style)
    pairs = {
        **({"style": style} if style else {}),
        **({"title": title} if title else {}),
        **attributes,
    }
    written = "".join(f' {key}="{esc(value, newline="⏎")}"' for key, value in pairs.items())
    if name in ("img", "br"):
        return Html(f"<{name}{written}>")
    inside = "".join(
        child if isinstance(child, Html) else esc(child) for child in children if child is not None
    )
    return Html(f"<{name}{written}>{inside}</{name}>")


@lru_cache(maxsize=8192)
def themed(style: str) -> str:
    """The same style, each declaration with a colour of the house said once more for a light and a dark theme."""
    found = []
    for part in style.split(";"):
        twice = _HEX.sub(lambda match: f"{_TWICE}{match[0]},{DARK[match[0]]})", part)
        found += [part] if twice == part else [part, twice]
    return ";".join(found)


def join(parts: Iterable[object]) -> Html:
    """Elements and texts, one after the other; texts are escaped."""
    return Html("".join(part if isinstance(part, Html) else esc(part) for part in parts))


def finished(html: Html, text: str, png: bytes | None = None) -> View:
    """The one way in which a view is made: the HTML must come from `tag`, and no text form holds a character that acts.

    `visible` changes nothing that it has been through already, so doing it once more here closes every gap at once.
    """
    if not isinstance(html, Html):
        raise TypeError(
            "a view's html is made by markup.tag, so that everything in it is escaped; got a plain str"
        )
    return View(html, visible(text), png)
