"""What a `show_*` function returns."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from workbench.types.errors import DataError

LONGEST_REPR = 2_000  # characters
Item = TypeVar("Item")


@dataclass(frozen=True)
class View:
    """The same facts three ways: `html` for a live notebook, `text` for a terminal and a diff, `png` for a web page.

    The last line of a cell is enough to see it: Jupyter picks the richest form that it can draw.
    """

    html: str
    text: str
    picture: bytes | None = field(default=None, repr=False)

    @cached_property
    def png(self) -> bytes:
        """The picture of the view; of one without a picture its text, drawn: for a host that drops styles."""
        return self.picture or import_module("workbench.views.text_png").text_png(self.text)

    def save(self, path: str | os.PathLike) -> Path:
        """One file that needs nothing else: a page (.html), the picture (.png) or the text (.txt). What was there is replaced.

        Raises DataError for a path with another ending."""
        path = Path(path)
        made = {
            ".html": self._page,
            ".png": lambda: self.png,
            ".txt": lambda: f"{self.text}\n".encode(),
        }
        if path.suffix not in made:
            raise DataError(f"a view is saved as {', '.join(made)}; got {path.name!r}")
        writer = import_module(
            "workbench.run.writer"
        )  # by name, as above: it knows runs, which know views
        writer.make_folder(path.absolute().parent)
        writer.write_file(path, replace=True, content=made[path.suffix]())
        return path

    def _page(self) -> bytes:
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>Agent RL Workbench</title><style>html{{color-scheme:light dark}}body{{margin:12px}}</style>"
            f"{self.html}</html>\n"
        ).encode()

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": self.text, "text/html": self.html, "image/png": self.png}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return bounded(self.text)


class HasView:
    """A value with a `view` (or a method of this name): the last line of a cell draws it, a terminal prints its text. A
    dataclass of this kind is made with `repr=False`, since it would else get a `__repr__` of its own."""

    view: View | Callable[[], View]

    @property
    def text(self) -> str:
        return _made(self.view).text

    def save(self, path: str | os.PathLike) -> Path:
        return _made(self.view).save(path)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        return _made(self.view)._repr_mimebundle_()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return bounded(self.text)


def _made(view: View | Callable[[], View]) -> View:
    return view() if callable(view) else view


class Shown:
    """A value that the last line of a cell draws, as `wb.show` does. Its `repr` is bounded, whatever it holds; a dataclass
    of this kind is made with `repr=False`, since it would else get a `__repr__` of its own."""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(_view_of(self))

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        return _view_of(self)._repr_mimebundle_()

    def __repr__(self) -> str:
        return bounded_repr(self)


class ShownTuple(Shown, tuple[Item, ...]):
    """Several values as one that shows itself. Slices and sums stay what they are; it equals a list of the same."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return type(self)(found) if isinstance(index, slice) else found

    def __add__(self, other: Iterable[Item]) -> ShownTuple[Item]:
        return type(self)([*self, *other])

    def __radd__(self, other: Iterable[Item]) -> ShownTuple[Item]:
        return type(self)([*other, *self])

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (tuple, list)) else NotImplemented

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return bounded(f"{type(self).__name__}({_SHORT.repr(tuple(self))})")


def _view_of(value: Any) -> View:
    # By name: views stand above what they show, and are imported when something is shown.
    return import_module("workbench").show(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def bounded_repr(value: Any) -> str:
    """`Name(field=..., ...)` of a dataclass, each value cut, and the whole after `LONGEST_REPR` characters."""
    said = (
        f"{each.name}={_SHORT.repr(getattr(value, each.name))}"
        for each in fields(value)
        if each.repr
    )
    return bounded(f"{type(value).__qualname__}({', '.join(said)})")


def bounded(text: str) -> str:
    return text if len(text) <= LONGEST_REPR else text[: LONGEST_REPR - 1] + "…"
