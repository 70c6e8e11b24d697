"""What stands in for pyarrow where it is not installed: as much of it as reading a run, or a table, asks for.

    pa, pc, pq = STAND_IN

What writes asks for pyarrow itself, and is told which extra brings it.
"""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from workbench.extensions.parquet import files
from workbench.extensions.parquet.arrays import ColumnKind, Lists, ReadColumn
from workbench.extensions.parquet.pages import Unreadable


class _Reading(SimpleNamespace):
    """Names of one of pyarrow's modules; another is asked of pyarrow, which is not there."""

    def __getattr__(self, name: str) -> Any:
        import pyarrow

        return getattr(pyarrow, name)


def _kind(name: str) -> Any:
    return lambda: ColumnKind(name)


def _is(name: str) -> Any:
    return lambda kind: kind.name == name


def _longest(lengths: int) -> Any:
    return SimpleNamespace(as_py=lambda: lengths)


def _flattened(column: Lists) -> ReadColumn:
    return column.values


pa = _Reading(
    Array=ReadColumn,
    ArrowException=Unreadable,
    ArrowInvalid=Unreadable,
    BufferReader=io.BytesIO,
    types=SimpleNamespace(is_list=_is("list"), is_string=_is("string"), is_binary=_is("binary")),
    int8=_kind("number"),
    int32=_kind("number"),
    int64=_kind("number"),
    float64=_kind("number"),
    bool_=_kind("bool"),
    string=_kind("string"),
    binary=_kind("binary"),
)
pc = _Reading(list_flatten=_flattened, binary_length=lambda column: column.longest, max=_longest)
pq = _Reading(ParquetFile=files.ParquetFile, read_schema=files.read_schema)
STAND_IN = (pa, pc, pq)
