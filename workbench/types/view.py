"""What a `show_*` function returns."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class View:
    """The same facts three ways: `html` for a live notebook, `text` for a terminal and a diff, `png` for a web page.

    The last line of a cell is enough to see it: Jupyter picks the richest form that it can draw.
    """

    html: str
    text: str
    png: bytes | None = field(default=None, repr=False)

    def _repr_mimebundle_(self, include=None, exclude=None):
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self.html}
        if self.png is not None:
            bundle["image/png"] = self.png
        return bundle

    def __str__(self) -> str:
        return self.text


class HasView:
    """A value with a `view` (or a method of this name): the last line of a cell draws it, a terminal prints its text. A
    dataclass of this kind is made with `repr=False`, since it would else get a `__repr__` of its own."""

    view: View | Callable[[], View]

    @property
    def text(self) -> str:
        return _made(self.view).text

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        return _made(self.view)._repr_mimebundle_()

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def _made(view: View | Callable[[], View]) -> View:
    return view() if callable(view) else view
