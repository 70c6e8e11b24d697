"""Columns as they are read: numbers and flags of numpy, texts, lists and structures, each with what is missing.

They answer what the run store asks of pyarrow's arrays, in the same words, and give the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ColumnKind:
    """Of a column. `name`: "number", "bool", "string", "binary", "list" or "struct"."""

    name: str


@dataclass(frozen=True, eq=False)
class ReadColumn:
    """Values of one kind. `valid_N`: which of them are there; None where all are."""

    kind: ColumnKind
    valid_N: np.ndarray | None

    @property
    def type(self) -> ColumnKind:
        return self.kind

    @property
    def null_count(self) -> int:
        return 0 if self.valid_N is None else int((~self.valid_N).sum())

    def combine_chunks(self) -> ReadColumn:
        return self

    def _with_gaps(self, values: list) -> list:
        """None where a value is missing."""
        if self.valid_N is None:
            return values
        return [value if there else None for value, there in zip(values, self.valid_N.tolist())]


@dataclass(frozen=True, eq=False)
class Numbers(ReadColumn):
    """Numbers or flags. What stands at a missing one says nothing."""

    values_N: np.ndarray

    def __len__(self) -> int:
        return len(self.values_N)

    def to_pylist(self) -> list:
        return self._with_gaps(self.values_N.tolist())

    def to_numpy(self, zero_copy_only: bool = True) -> np.ndarray:
        """As pyarrow does it: missing floats and whole numbers are NaN, missing flags None. Raises ValueError for missing
        ones that were not expected."""
        if self.valid_N is None or self.valid_N.all():
            return self.values_N
        if zero_copy_only:
            raise ValueError(f"{self.null_count} values are missing")
        if self.kind.name == "bool":
            return np.array(self.to_pylist(), object)
        is_float = self.values_N.dtype.kind == "f"
        values_N = self.values_N.astype(self.values_N.dtype if is_float else np.float64)
        values_N[~self.valid_N] = np.nan
        return values_N


@dataclass(frozen=True, eq=False)
class Texts(ReadColumn):
    """Texts as bytes of UTF-8, or bytes; None where one is missing."""

    encoded_N: list[bytes | None]

    def __len__(self) -> int:
        return len(self.encoded_N)

    @property
    def longest(self) -> int:
        """Bytes of the longest one."""
        return max((len(text) for text in self.encoded_N if text is not None), default=0)

    def to_pylist(self) -> list:
        if self.kind.name == "binary":
            return list(self.encoded_N)
        return [None if text is None else text.decode("utf-8") for text in self.encoded_N]

    def to_numpy(self, zero_copy_only: bool = True) -> np.ndarray:
        return np.array(self.to_pylist(), object)


@dataclass(frozen=True, eq=False)
class Lists(ReadColumn):
    """Lists, end to end. `offsets`: where each begins, and where the last ends [N + 1]."""

    offsets: Numbers
    values: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def to_pylist(self) -> list:
        values = self.values.to_pylist()
        starts = self.offsets.to_pylist()
        lists = [values[start:end] for start, end in zip(starts, starts[1:])]
        return self._with_gaps(lists)


@dataclass(frozen=True, eq=False)
class Structs(ReadColumn):
    """Structures: a column for each of their fields."""

    fields: Mapping[str, Any]
    size: int

    def __len__(self) -> int:
        return self.size

    def to_pylist(self) -> list:
        columns = [column.to_pylist() for column in self.fields.values()]
        rows = zip(*columns, strict=True) if columns else [()] * self.size
        return self._with_gaps([dict(zip(self.fields, row)) for row in rows])


class ReadTable:
    """Columns by name, of the same length."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns

    @property
    def column_names(self) -> Sequence[str]:
        return list(self._columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows."""
        columns = [column.to_pylist() for column in self._columns.values()]
        return [dict(zip(self._columns, row)) for row in zip(*columns, strict=True)]
