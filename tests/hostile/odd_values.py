"""More wrong values for `wrong_calls`: arrays, tables and tensors of other kinds, what comes out of Python's own library, values of
ours in another one's place, and values whose own methods raise when they are touched.

What such a method raises (`Refusal`) is the caller's own where the package calls it for what it is for; where it only
looks at an argument, the argument is refused.
"""

from __future__ import annotations

import datetime
import enum
import functools
import os
import re
import threading
import types
import uuid
import weakref
from collections import Counter, UserDict, UserString, deque
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import torch

import workbench as wb


class Refusal(Exception):
    """Raised by the values below."""


def _refuse(*_: Any, **__: Any) -> Any:
    raise Refusal


def _refusing(kind: type, *names: str) -> type:
    """A class built on one of Python's own, whose methods of these names raise."""
    return type(f"Refusing{kind.__name__.title()}", (kind,), dict.fromkeys(names, _refuse))


def odd_values() -> dict[str, Any]:
    return (
        _numbers_and_texts()
        | _of_the_library()
        | _arrays()
        | _tables()
        | _tensors()
        | _ours()
        | _refusers()
    )


def _numbers_and_texts() -> dict[str, Any]:
    itself: dict[str, Any] = {}
    itself["x"] = itself
    return {
        "minus inf": -np.inf,
        "a million letters": "x" * 1_000_000,
        "a dict by numbers": {1: 1, None: 2},
        "a dict by pairs": {("a", "b"): 1},
        "a dict in itself": itself,
        "a list of numbers that are none": [np.nan, np.inf],
        "a list of true": [True],
        "a list of numbers and texts": [1, "x", None],
        "growing bytes": bytearray(b"x"),
        "a view of bytes": memoryview(b"x"),
        "a list of bytes": [b"x"],
        "the folder one stands in": Path("."),
        "its name": ".",
        "the disk": Path("/"),
        "a path of bytes": b"/tmp",
        "a generator that is used up": _used_up(),
        "a generator that raises": _raising(),
        "numbers of another kind": [np.int8(-1), Decimal("1.5"), Fraction(1, 3)],
    }


def _used_up() -> Iterator[str]:
    made = iter(["x"])
    next(made)
    return made


def _raising() -> Iterator[str]:
    yield from _refuse()


class Colour(enum.Enum):
    RED = "x"


async def _later() -> None:
    """A function that nobody waits for."""


def _of_the_library() -> dict[str, Any]:
    gone = weakref.proxy(Colourless())
    return {
        "a decimal": Decimal("1.5"),
        "a decimal that is none": Decimal("NaN"),
        "a fraction": Fraction(1, 3),
        "a date": datetime.date(2026, 1, 1),
        "a time span": datetime.timedelta(seconds=1),
        "an id": uuid.UUID(int=5),
        "a member": Colour.RED,
        "a pattern": re.compile("x"),
        "a lock": threading.Lock(),
        "a function for later": _later,
        "a part of a function": functools.partial(int, "x"),
        "a reference to nothing": gone,
        "a queue": deque([1]),
        "counts": Counter("xyz"),
        "a text in a wrapper": UserString("x"),
        "a dict in a wrapper": UserDict({"x": 1}),
        "a dict that is read": types.MappingProxyType({"x": 1}),
        "names in a space": types.SimpleNamespace(x=1),
        "a mock": MagicMock(),
        "no such thing": NotImplemented,
        "a slice": slice(None),
    }


class Colourless:
    """Something to refer to that is gone at once."""


def _arrays() -> dict[str, Any]:
    return {
        "an array of objects": np.array([object(), None], dtype=object),
        "an array of dates": np.array(["NaT", "2026-01-01"], dtype="M8[D]"),
        "an array of texts": np.array(["x", "\x1b"]),
        "an array of rows with names": np.zeros(2, dtype=[("a", "i4")]),
        "an array of nothing": np.zeros((0, 3)),
        "an array of true": np.array([True, False]),
        "an array of one": np.array(5),
        "an array of bytes": np.array([b"x"]),
        "an array of numbers that are none": np.array([np.nan, np.inf]),
        "an array of complex numbers": np.array([1j]),
        "an array of eight dimensions": np.zeros((1,) * 8),
        "a masked array": np.ma.masked_all(2),
        "half a number that is none": np.float16("nan"),
        "a small number": np.int8(-1),
        "a date of arrays": np.datetime64("NaT"),
        "a text of arrays": np.str_("x"),
    }


def _tables() -> dict[str, Any]:
    return {
        "a table": pd.DataFrame({"odd": [1, None]}),
        "a table of nothing": pd.DataFrame(),
        "a table by numbers": pd.DataFrame([[object(), "\x1b"]]),
        "a table with a column twice": pd.DataFrame([[1, 2]], columns=["x", "x"]),
        "a column of texts": pd.Series(["a", None]),
        "a column of kinds": pd.Series(["a"], dtype="category"),
        "a column of dates": pd.Series([pd.NaT]),
        "an index": pd.Index([1, 1]),
        "what is missing": pd.NA,
        "a row group": pd.DataFrame({"odd": [1]}).groupby("odd"),
    }


def _tensors() -> dict[str, Any]:
    return {
        "a tensor": torch.zeros(2, 3),
        "a tensor of small numbers": torch.ones(2, dtype=torch.uint8),
        "a tensor of halves": torch.zeros(1, dtype=torch.bfloat16),
        "a tensor of true": torch.tensor([True]),
        "a tensor of one": torch.tensor(5),
        "a tensor that is none": torch.tensor(float("nan")),
        "a tensor that learns": torch.zeros((), requires_grad=True),
        "a tensor of nothing": torch.zeros(0),
        "a tensor that is nowhere": torch.zeros(2, device="meta"),
        "a number that is nowhere": torch.zeros((), device="meta"),
        "a sparse tensor": torch.eye(2).to_sparse(),
        "a tensor of complex numbers": torch.zeros(1, dtype=torch.complex64),
        "a device of tensors": torch.device("meta"),
        "a type of tensors": torch.float16,
        "a layer": torch.nn.Linear(1, 1),
    }


def _ours() -> dict[str, Any]:
    text = wb.types.Text("x")
    message = wb.types.Message("user", "x")
    return {
        "a task": wb.types.Task("x", "x", 0),
        "a text of ours": text,
        "a message": message,
        "an observation": wb.types.Observation((message,)),
        "a span": wb.types.Span(wb.types.Source.PROMPT, 0, [1]),
        "a segment": wb.types.Segment(()),
        "an empty trajectory": an_empty_trajectory(),
        "no groups": wb.types.Groups(()),
        "groups of nothing": wb.types.Groups((wb.types.Group((an_empty_trajectory(),)),)),
        "a list of tasks": [wb.types.Task("x", "x", 0)],
        "an author": wb.types.Source.POLICY,
        "a reason": wb.types.StopReason.TERMINATED,
        "a class of ours": wb.types.Group,
        "settings of ours": wb.CollectConfig(),
        "a picture of ours": wb.types.View("<b>", "x"),
        "an error of ours": wb.errors.DataError("x"),
        "a table of credit": wb.types.CreditTable(1, 0, {"advantage": np.zeros(0)}),
        "a function of ours": wb.show,
        "a call of a tool": wb.types.ToolCall("x"),
    }


def an_empty_trajectory() -> wb.types.Trajectory:
    task = wb.types.Task("x", "x", 0)
    seen = wb.types.Observation(())
    return wb.types.Trajectory(task, 0, 0, seen, (), (), wb.types.StopReason.TERMINATED)


class RefusingPath(os.PathLike):
    def __fspath__(self) -> str:
        return _refuse()


class PathOfNumbers(os.PathLike):
    def __fspath__(self) -> Any:
        return 5


class PathOfBytes(os.PathLike):
    def __fspath__(self) -> bytes:
        return b"x"


class Shy:
    """Whatever it is asked for, it raises."""

    def __getattribute__(self, name: str) -> Any:
        return _refuse()


class Unwritable:
    __repr__ = __str__ = __format__ = _refuse


class Undecided:
    __bool__ = __eq__ = __hash__ = __len__ = __lt__ = _refuse


class Listless:
    tolist = __array__ = __iter__ = _refuse


class ListedAsItself:
    def tolist(self) -> ListedAsItself:
        return self


class EndlessList(Sequence):
    """It says that it has two parts and gives as many as are asked for."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: Any) -> str:
        return "x"


class RefusingMapping(Mapping):
    __getitem__ = __iter__ = __len__ = _refuse


class Callable5:
    def __call__(self) -> int:
        return 5

    __name__ = 5
    __module__ = None
    __signature__ = "x"


def _refusers() -> dict[str, Any]:
    text = _refusing(str, "encode", "split", "__str__", "__format__", "__eq__", "__len__", "strip")
    number = _refusing(int, "__abs__", "__lt__", "__le__", "__index__", "__int__", "__add__")
    share = _refusing(float, "__abs__", "__lt__", "__float__", "__eq__")
    listed = _refusing(list, "__iter__", "__len__", "__getitem__")
    pair = _refusing(tuple, "__iter__", "__len__", "__getitem__")
    by_name = _refusing(dict, "items", "keys", "values", "__iter__", "__getitem__", "get")
    return {
        "a text that refuses": text("x"),
        "a number that refuses": number(5),
        "a share that refuses": share(0.5),
        "a list that refuses": listed(["x"]),
        "a tuple that refuses": pair(["x"]),
        "a dict that refuses": by_name({"x": 1}),
        "a list of texts that refuse": [text("x")],
        "a dict of numbers that refuse": {"x": number(5)},
        "a dict by texts in wrappers": {UserString("x"): 1},
        "a path that refuses": RefusingPath(),
        "a path of numbers": PathOfNumbers(),
        "a path that is bytes": PathOfBytes(),
        "what is shy": Shy(),
        "what cannot be written": Unwritable(),
        "what cannot be compared": Undecided(),
        "what is no list": Listless(),
        "what is listed as itself": ListedAsItself(),
        "an endless list": EndlessList(),
        "a mapping that refuses": RefusingMapping(),
        "what has an odd name": Callable5(),
    }
