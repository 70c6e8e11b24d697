"""Markup that cannot be forgotten to be escaped.

- `tag` escapes every child and attribute that is not already `Html`, so forgetting to escape is not possible.
- Inline styles only: sanitizers drop <style>, <script>, <svg>, ids, roles and event handlers.
- Colours of the house follow the theme: each is said twice, plainly and as a variable that the root of the view sets to
  JupyterLab's, or to `light-dark(...)` where there is none. Of a notebook that is not trusted JupyterLab drops the second,
  and then the view is the light one as a whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from workbench.basics.annotated import checked_methods
from workbench.look.escape import esc, visible
from workbench.look.looks import ACCENTS, CARD, INK, PANEL, THEME
from workbench.look.png import figure_file
from workbench.look.text_png import text_png
from workbench.run.writer import make_folder, write_file
from workbench.values import View
from workbench.values.errors import DataError

_VARIABLES = {colour: f"--w{number}" for number, colour in enumerate((*THEME, *ACCENTS))}
_LIGHT = {name: colour for colour, name in _VARIABLES.items()}
_HEX = re.compile("|".join(_VARIABLES))
_PAPER = re.compile(rf"background:(?!{CARD}|{PANEL}|0)")
FIGURES = (".svg", ".pdf", ".png")
_USED = re.compile(r"var\((--w\w)")
_PAIRS = re.compile(r"#(\w)\1(\w)\2(\w)\3\b")
# A drawing is made for white paper. On dark paper it is turned around, light for dark, the hues as they were: by JupyterLab's
# one variable that is a number and another one in its dark themes, or, on a page of its own, by `--wb-dark`.
_IN_THE_DARK = {
    "--wd": "var(--wb-dark,calc(min(1,var(--jp-shadow-base-lightness,0))*.871))",
    "--wf": "invert(var(--wd)) hue-rotate(calc(min(1,2*var(--wd))*180deg))",
}
_OF_THEME = {
    _VARIABLES[colour]: f"var({name},light-dark({colour},{dark}))"
    for colour, (name, dark) in THEME.items()
}
_ACCENTS = {
    _VARIABLES[colour]: f"color-mix(in srgb,{colour} 55%,var({_VARIABLES[INK]}))"
    for colour in ACCENTS
}
_THEMED = _OF_THEME | _ACCENTS | _IN_THE_DARK


class Html(str):
    """Markup made by `tag`: will not be escaped again."""

    __slots__ = ()


def tag(
    name: str,
    *children: object,
    style: str = "",
    title: str = "",
    attributes: Mapping[str, str] = {},
    light: bool = False,
) -> Html:
    """One element. Children that are `Html` are kept, everything else is escaped; None and "" are left out. `light`: it
    stands on a paper that is light in any theme.

    `name` and the attribute names are the caller's literals, never data. In a notebook, which is JSON, a single quote
    is half as long as a double one.
    """
    if not light:
        style = _in_theme(style, children)
    named = {"style": _PAIRS.sub(r"#\1\2\3", style), "title": title}
    pairs = {key: value for key, value in named.items() if value} | dict(attributes)
    written = "".join(f" {key}='{esc(value, newline='⏎')}'" for key, value in pairs.items())
    if name in ("img", "br"):
        return Html(f"<{name}{written}>")
    inside = "".join(
        child if isinstance(child, Html) else esc(child) for child in children if child is not None
    )
    end = "" if name in ("td", "th", "tr") else f"</{name}>"  # HTML needs none of these
    return Html(f"<{name}{written}>{inside}{end}")


def _in_theme(style: str, children: Iterable[object]) -> str:
    """The style as it follows a theme. A paper of its own is light in any theme, and so is what stands on it."""
    if not _PAPER.search(style):
        return themed(style)
    inside = "".join(child for child in children if isinstance(child, Html))
    return ";".join([style, *_settings(inside, _LIGHT)])


@lru_cache(maxsize=8192)
def themed(style: str) -> str:
    """The same style, each declaration with a colour of the house said once more as the variable of it."""
    declarations = []
    for part in style.split(";"):
        if part.startswith("--"):  # what the root sets
            declarations.append(part)
            continue
        twice = _HEX.sub(lambda match: f"var({_VARIABLES[match[0]]})", part)
        declarations += [part] if twice == part else [part, twice]
    return ";".join(declarations)


def theme_of(inside: str) -> str:
    """What the root of a view sets: paper and ink of the theme around it, and accents that read on them; those that are
    used inside."""
    return ";".join(_settings(inside, _THEMED))


def _settings(inside: str, values: Mapping[str, str]) -> list[str]:
    """The declarations of the variables that are used, in what is inside or in another of these."""
    used = set(_USED.findall(inside))
    used |= {"--wd"} if "--wf" in used else set()
    return [f"{name}:{value}" for name, value in values.items() if name in used]


def join(parts: Iterable[object]) -> Html:
    """Elements and texts, one after the other; texts are escaped."""
    return Html("".join(part if isinstance(part, Html) else esc(part) for part in parts))


@checked_methods
class Page(View):
    """A view that can be saved. `drawer` draws its picture as a matplotlib figure, where that can be."""

    drawer: Any = None

    @cached_property
    def png(self) -> bytes:
        """The picture; of a view without one its text, drawn: for a host that drops styles."""
        return self.picture or text_png(self.text)

    def save(
        self,
        path: str | os.PathLike,
        *,
        width: float | None = None,
        height: float | None = None,
        dark: bool = False,
    ) -> Path:
        """Write one file that needs nothing else: a page (.html), the picture (.png), the text (.txt) or, of curves and
        marks, a figure for a paper (.svg with letters as outlines, .pdf with its fonts). What was there is replaced.

        width, height: of the figure in inches; a .png of such a size has 300 dots an inch.
        dark: the figure on dark paper.

        Raises DataError for a path with another ending, and for a view that has no figure."""
        path = Path(path)
        is_figure = path.suffix in (".svg", ".pdf") or width or height or dark
        if is_figure and path.suffix in FIGURES:
            if not callable(self.drawer):
                raise DataError(
                    f"a view of text, tables or tokens has no figure to save as {path.name!r}, with a size or dark; "
                    "save it as .html, .png or .txt, without"
                )
            content = figure_file(self.drawer, path.suffix[1:], width, height, dark)
        elif is_figure:
            raise DataError(
                f"width, height and dark are for {', '.join(FIGURES)}; got {path.name!r}"
            )
        elif path.suffix == ".html":
            content = self._whole_page()
        elif path.suffix == ".png":
            content = self.png
        elif path.suffix == ".txt":
            content = f"{self.text}\n".encode()
        else:
            raise DataError(f"a view is saved as .html, .png, .txt, .svg, .pdf; got {path.name!r}")
        make_folder(path.absolute().parent)
        write_file(path, replace=True, content=content)
        return path

    def _whole_page(self) -> bytes:
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Agent RL Workbench</title>'
            "<style>html{color-scheme:light dark}body{margin:12px}@media(prefers-color-scheme:dark){html{--wb-dark:.905}}</style>"
        )
        return f'<!doctype html><html lang="en">{head}{self.html}</html>\n'.encode()


def finished(html: Html, text: str, png: bytes | None = None, drawer: Any = None) -> Page:
    """The one way in which a view is made: the HTML must come from `tag`, and no text form holds a character that acts.

    `visible` changes nothing that it has been through already, so doing it once more here closes every gap at once.
    """
    if not isinstance(html, Html):
        raise TypeError(
            "a view's html is made by markup.tag, so that everything in it is escaped; got a plain str"
        )
    page = Page(html, visible(text), png)
    page.__dict__["drawer"] = drawer
    return page
