"""What a picture of a value is, and how a value shows itself as the last line of a cell.

No picture of anything is made here. Who makes them says so once (`make_views_with`): the package does, when it is asked
for its first public name.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from workbench.values.errors import DataError

LONGEST_REPR = 2_000  # characters
Item = TypeVar("Item")


@dataclass(frozen=True)
class View:
    """The same facts three ways. The last line of a cell is enough to see it: Jupyter picks the richest form that it can draw.

    html     for a live notebook
    text     for a terminal and a diff
    picture  for a web page, a PNG; None where there is none
    """

    html: str
    text: str
    picture: bytes | None = field(default=None, repr=False)

    @property
    def png(self) -> bytes | None:
        return self.picture

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        forms = {"text/plain": self.text, "text/html": self.html}
        return forms if self.png is None else forms | {"image/png": self.png}

    def save(self, path: str | os.PathLike, **drawn: Any) -> Path:
        """Write one file that needs nothing else: a page (.html), the picture (.png), the text (.txt), or of curves a
        figure for a paper (.svg, .pdf; `width` and `height` in inches, `dark`).

        What was there is replaced. Raises DataError for a path with another ending, and where nobody makes views.
        """
        if _view_maker is None:
            raise DataError(
                "to save a view, `import workbench as wb` and call wb.show(view).save(path)"
            )
        return _view_maker(self).save(path, **drawn)

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
        return own_view(self).text

    def save(self, path: str | os.PathLike, **drawn: Any) -> Path:
        return own_view(self).save(path, **drawn)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        return own_view(self)._repr_mimebundle_()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return bounded(self.text)


class Shown:
    """A value that the last line of a cell draws, as `wb.show` does: by its method `view` if it has one, else by whoever
    makes the views of other packages' values. Its `repr` is bounded, whatever it holds; a dataclass of this kind is made
    with `repr=False`, since it would else get a `__repr__` of its own."""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        view = own_view(self)
        if view is None:
            display({"text/plain": repr(self)}, raw=True)
        else:
            display(view)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        view = own_view(self)
        return {"text/plain": repr(self)} if view is None else view._repr_mimebundle_()

    def __repr__(self) -> str:
        return bounded_repr(self)


_view_maker: Callable[[Any], View] | None = None


def make_views_with(maker: Callable[[Any], View]) -> None:
    """Say who makes the views of values that have no method `view`: `maker(value)` is the view, made when it is looked at."""
    global _view_maker
    _view_maker = maker


def own_view(value: Any) -> View | None:
    """The view of a value; None where nobody makes views."""
    view = getattr(value, "view", None)
    if view is None:
        return None if _view_maker is None else _view_maker(value)
    return view() if callable(view) else view


class ShownTuple(Shown, tuple[Item, ...]):
    """Several values as one that shows itself. Slices and sums stay what they are; it equals a list of the same."""

    def __getitem__(self, index: Any) -> Any:
        items = super().__getitem__(index)
        return type(self)(items) if isinstance(index, slice) else items

    def __add__(self, other: Iterable[Item]) -> ShownTuple[Item]:
        return type(self)([*self, *other])

    def __radd__(self, other: Iterable[Item]) -> ShownTuple[Item]:
        return type(self)([*other, *self])

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (tuple, list)) else NotImplemented

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return bounded(f"{type(self).__name__}({_SHORT.repr(tuple(self))})")


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def bounded_repr(value: Any) -> str:
    """`Name(field=..., ...)` of a dataclass, each value cut, and the whole after `LONGEST_REPR` characters."""
    shown_fields = [member for member in fields(value) if member.repr]
    words = [f"{member.name}={_SHORT.repr(getattr(value, member.name))}" for member in shown_fields]
    return bounded(f"{type(value).__qualname__}({', '.join(words)})")


def bounded(text: str) -> str:
    return text if len(text) <= LONGEST_REPR else text[: LONGEST_REPR - 1] + "…"
