"""A parquet file, read: its end says where each column lies; lists and structures are put together from levels.

    with ParquetFile(file) as table: table.read(["group"])["group"].to_pylist()

It answers as pyarrow's class of the same name does, as far as the run store and the importers ask.

Source: the format's definition (apache/parquet-format: parquet.thrift, LogicalTypes.md).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from workbench.extensions.parquet.arrays import (
    ColumnKind,
    Lists,
    Numbers,
    ReadColumn,
    ReadTable,
    Structs,
    Texts,
)
from workbench.extensions.parquet.pages import (
    BOOLEAN,
    BYTES,
    WHOLE,
    Leaf,
    PackedColumn,
    Unreadable,
    joined,
    read_chunk,
)
from workbench.extensions.parquet.thrift import struct_at

MAGIC = b"PAR1"
MOST_COLUMNS = 10_000
PHYSICAL = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)
OPTIONAL = 1
REPEATED = 2
# Converted types that leave a value what it is: text, JSON, enumerations, whole numbers of 8 to 64 bits.
TEXT = (0, 4, 19)
LIST = (3,)
SIZES = {11: "u1", 12: "u2", 13: "u4", 14: "u8", 15: "i1", 16: "i2", 17: "i4", 18: "i8"}
DAMAGE = (IndexError, KeyError, TypeError, AttributeError, OverflowError, UnicodeDecodeError)


@contextmanager
def in_words() -> Iterator[None]:
    """Whatever damage makes of reading is one error."""
    try:
        yield
    except DAMAGE as error:
        raise Unreadable(f"it is cut off or damaged ({type(error).__name__})") from error


@dataclass(frozen=True)
class ColumnNode:
    """A column, or a part of one. `leaf`: its number among those that hold values; None for one that has parts."""

    name: str
    repetition: int
    physical: int | None
    converted: int | None
    parts: tuple[ColumnNode, ...]
    leaf: int | None

    @property
    def leaves(self) -> list[ColumnNode]:
        """The parts that hold values."""
        if self.leaf is not None:
            return [self]
        return list(chain.from_iterable(part.leaves for part in self.parts))


class Levels(NamedTuple):
    """How deep a part lies.

    repetition  lists around it
    exists      level from which on there is a place for it
    valid       level from which on what is around it is there
    """

    repetition: int
    exists: int
    valid: int


class ColumnMetaData:
    """What the end of a file says of one column of one group of rows, in pyarrow's words."""

    def __init__(self, chunk: Mapping[int, Any]) -> None:
        self.num_values = chunk[5]
        self.total_uncompressed_size = chunk[6]
        self.total_compressed_size = chunk[7]
        self.data_page_offset = chunk[9]
        self.dictionary_page_offset = chunk.get(11)
        self.has_dictionary_page = self.dictionary_page_offset is not None
        self.physical_type = PHYSICAL[chunk[1]]


class RowGroup:
    """One group of rows."""

    def __init__(self, group: Mapping[int, Any]) -> None:
        self.chunks = [column[3] for column in group[1]]
        self._columns = [ColumnMetaData(chunk) for chunk in self.chunks]
        self.num_rows = group[3]
        self.total_byte_size = group[2]

    def column(self, index: int) -> ColumnMetaData:
        return self._columns[index]


class FileMetaData:
    """The end of a file."""

    def __init__(self, fields: Mapping[int, Any]) -> None:
        self.root = _tree(fields[2])
        self.num_rows = fields[3]
        self.groups = [RowGroup(group) for group in fields[4]]
        self.num_row_groups = len(self.groups)
        self.num_columns = len(self.root.leaves)
        self.metadata = {pair[1]: pair.get(2, b"") for pair in fields.get(5, [])}
        if any(len(group.chunks) != self.num_columns for group in self.groups):
            raise Unreadable("a group of rows has not as many columns as the file")

    def row_group(self, index: int) -> RowGroup:
        return self.groups[index]

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [node.name for node in self.root.parts]


class ParquetFile:
    """A file that is open. Raises ValueError for one that is damaged, or is not read here. `schema_arrow`: has its
    `metadata` and the `names` of its columns."""

    def __init__(self, source: BinaryIO, page_checksum_verification: bool = False) -> None:
        self._checked = page_checksum_verification
        self._data = memoryview(_content(source))
        self.metadata = _end_of(self._data)
        self.schema_arrow = self.metadata

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def read(self, columns: Sequence[str] | None = None, use_threads: bool = True) -> ReadTable:
        """All rows; of these columns, those that there are."""
        return self._table(self.metadata.groups, columns)

    def iter_batches(self, batch_size: int) -> Iterator[FewRows]:
        """The rows, so many at a time."""
        for group in self.metadata.groups:
            rows = self._table([group], None).to_pylist()
            for start in range(0, len(rows), batch_size):
                yield FewRows(rows[start : start + batch_size])

    def _table(self, groups: Sequence[RowGroup], names: Sequence[str] | None) -> ReadTable:
        columns = {}
        with in_words():
            for node in self.metadata.root.parts:
                if names is None or node.name in names:
                    columns[node.name] = _Assembly(self._data, groups, self._checked).column(node)
        rows = sum(group.num_rows for group in groups)
        if any(len(column) != rows for column in columns.values()):
            raise Unreadable("a column has not as many rows as the file says")
        return ReadTable(columns)


class FewRows(NamedTuple):
    """A few rows."""

    rows: list[dict[str, Any]]

    def to_pylist(self) -> list[dict[str, Any]]:
        return self.rows


def read_schema(source: BinaryIO) -> FileMetaData:
    """What the end of a file says, with the `names` of its columns."""
    return _end_of(memoryview(_content(source)))


def _content(source: BinaryIO) -> bytes:
    if isinstance(source, io.BytesIO):
        return source.getvalue()
    source.seek(0)
    return source.read()


def _end_of(data: memoryview) -> FileMetaData:
    if len(data) < 12 or data[:4] != MAGIC or data[-4:] != MAGIC:
        raise Unreadable("it does not begin and end as a parquet file does")
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if start < 4:
        raise Unreadable("its end is cut off")
    with in_words():
        fields, _ = struct_at(data, start)
        return FileMetaData(fields)


def _tree(elements: Sequence[Mapping[int, Any]]) -> ColumnNode:
    """The tree of columns, which the file lists from the top, each before its parts."""
    if len(elements) > MOST_COLUMNS:
        raise Unreadable(f"it has more than {MOST_COLUMNS:,} columns")
    rest = iter(elements)
    number = 0

    def node(depth: int) -> ColumnNode:
        nonlocal number
        if depth > 16:
            raise Unreadable("its columns are nested too deep")
        element = next(rest, None)
        if element is None:
            raise Unreadable("a column is missing")
        leaf = None
        if not element.get(5, 0):
            leaf = number
            number += 1
        parts = tuple(node(depth + 1) for _ in range(element.get(5, 0)))
        name = element[4].decode("utf-8")
        return ColumnNode(name, element.get(3, 0), element.get(1), _converted(element), parts, leaf)

    return node(0)


def _converted(element: Mapping[int, Any]) -> int | None:
    """The converted type; of a newer file the logical type in its place. -1: one that is not read here."""
    if 6 in element:
        return element[6]
    logical = element.get(10)
    if not logical:
        return None
    if 10 in logical:  # a whole number: bits, and whether it has a sign
        bits = logical[10][1]
        return {8: 11, 16: 12, 32: 13, 64: 14}[bits] + (4 if logical[10][2] else 0)
    return {1: 0, 3: 3, 4: 4, 12: 19}.get(min(logical), -1)


class _Assembly:
    """Puts columns together from the levels and values of their leaves."""

    def __init__(self, data: memoryview, groups: Sequence[RowGroup], checked: bool) -> None:
        self._data = data
        self._groups = groups
        self._checked = checked
        self._chunks: dict[int, PackedColumn] = {}

    def column(self, node: ColumnNode) -> ReadColumn:
        self._read_leaves(node, 0, 0)
        return self._made(node, Levels(0, 0, 0))

    def _read_leaves(self, node: ColumnNode, repetition: int, definition: int) -> None:
        repetition += node.repetition == REPEATED
        definition += node.repetition != 0
        for part in node.parts:
            self._read_leaves(part, repetition, definition)
        if node.leaf is None:
            return
        leaf = Leaf(node.physical, repetition, definition)
        chunks = [group.chunks[node.leaf] for group in self._groups]
        parts = [read_chunk(self._data, chunk, leaf, checked=self._checked) for chunk in chunks]
        self._chunks[node.leaf] = joined(parts, leaf)

    def _made(self, node: ColumnNode, levels: Levels) -> ReadColumn:
        """A part whose place is at these levels."""
        if node.repetition == REPEATED:  # a list by itself
            return self._list(node, levels, node)
        if node.repetition == OPTIONAL:
            levels = levels._replace(valid=levels.valid + 1)
        if node.converted in LIST and len(node.parts) == 1 and node.parts[0].repetition == REPEATED:
            return self._list(node.parts[0], levels, node)
        if node.leaf is not None:
            return self._values(node, levels)
        if node.converted is not None:
            raise Unreadable(f"column {node.name!r} is of a type that is not read here; {WHOLE}")
        fields = {part.name: self._made(part, levels) for part in node.parts}
        there_L = self._places(node, levels)
        valid_N = self._definition(node)[there_L] >= levels.valid
        return Structs(ColumnKind("struct"), _gaps(valid_N), fields, len(valid_N))

    def _list(self, repeated: ColumnNode, levels: Levels, whole: ColumnNode) -> Lists:
        """`repeated`: what is in the list; its one part, where that is how the file writes lists."""
        inner = Levels(levels.repetition + 1, levels.valid + 1, levels.valid + 1)
        element = repeated
        if whole is not repeated and len(repeated.parts) == 1:
            element = repeated.parts[0]
            values = self._made(element, inner)
        else:
            values = self._made(_alone(repeated), inner)
        there_L = self._places(repeated, levels)
        valid_N = self._definition(repeated)[there_L] >= levels.valid
        inside_L = self._places(repeated, inner)
        before_L = np.cumsum(inside_L) - inside_L
        offsets = np.append(before_L[there_L], inside_L.sum()).astype(np.int32)
        kind = ColumnKind("number")
        return Lists(ColumnKind("list"), _gaps(valid_N), Numbers(kind, None, offsets), values)

    def _values(self, node: ColumnNode, levels: Levels) -> ReadColumn:
        chunk = self._chunks[node.leaf]
        there_L = self._places(node, levels)
        valid_N = chunk.definition_L[there_L] >= levels.valid
        if node.physical == BYTES:
            return self._texts(node, valid_N, chunk.values_V)
        if node.converted is not None and node.converted not in SIZES:
            raise Unreadable(f"column {node.name!r} is of a type that is not read here; {WHOLE}")
        values_V = chunk.values_V
        if node.converted in SIZES:
            values_V = values_V.astype(SIZES[node.converted])
        values_N = np.zeros(len(valid_N), values_V.dtype)
        values_N[valid_N] = values_V
        name = "bool" if node.physical == BOOLEAN else "number"
        return Numbers(ColumnKind(name), _gaps(valid_N), values_N)

    def _texts(self, node: ColumnNode, valid_N: np.ndarray, values_V: list[bytes]) -> Texts:
        if node.converted is not None and node.converted not in TEXT:
            raise Unreadable(f"column {node.name!r} is of a type that is not read here; {WHOLE}")
        kind = ColumnKind("binary" if node.converted is None else "string")
        rest = iter(values_V)
        encoded = [next(rest) if there else None for there in valid_N.tolist()]
        return Texts(kind, _gaps(valid_N), encoded)

    def _places(self, node: ColumnNode, levels: Levels) -> np.ndarray:
        """[L] at which levels of its first leaf a place for it begins."""
        chunk = self._chunks[node.leaves[0].leaf]
        return (chunk.repetition_L <= levels.repetition) & (chunk.definition_L >= levels.exists)

    def _definition(self, node: ColumnNode) -> np.ndarray:
        return self._chunks[node.leaves[0].leaf].definition_L


def _alone(node: ColumnNode) -> ColumnNode:
    """What is repeated, as one of the list."""
    return ColumnNode(node.name, 0, node.physical, node.converted, node.parts, node.leaf)


def _gaps(valid_N: np.ndarray) -> np.ndarray | None:
    return None if valid_N.all() else valid_N
