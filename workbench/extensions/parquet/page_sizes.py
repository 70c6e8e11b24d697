"""Pages of a parquet file counted by what stands before each of them, which is what is allocated when it is unpacked.

    unpacked_size(file, about, None)        (900000056, 1000, 900000056): bytes, values, bytes of text
    count_pages(column, file)               the same of one column of one group of rows

The end of a file says how large its columns are, and may lie: 39 kB that claim a thousand bytes unpacked to 900 MB. What a
reader allocates is the size that stands before each page; one that is too small is an error of the reader. So the pages are
walked from the first to the last, and only what stands before them is read.

Source: the format's definition (apache/parquet-format, parquet.thrift).
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO, NamedTuple

from workbench.extensions.parquet.thrift import struct_at
from workbench.values.errors import StoreError

# Bytes of a file and of what it unpacks to together, where it is read whole. A step of ours has so many from some thirty million
# tokens on: whoever makes such steps says so.
MOST_TOGETHER = 640 << 20
LARGE_STEPS = "WORKBENCH_LARGE_STEPS"
MOST_CHUNKS = 100_000  # columns times groups of rows
MOST_PAGES = 100_000
_AT_ONCE = 4096
_LONGEST_HEADER = 1 << 20  # statistics of a page hold its smallest and largest value
# Numbers of fields before a page, and of kinds of a page.
_KIND, _UNPACKED, _PACKED = 1, 2, 3
_ABOUT = {
    0: 5,
    1: 6,
    2: 7,
    3: 8,
}  # kind -> the field that says more: data, index, dictionary, data of version 2
_DICTIONARY = 2
_ENCODING = {5: 2, 8: 4}
# A value written once stands for many: by its number in a dictionary, or as what the one before begins with.
_REPEATING = (2, 7, 8)


class Pages(NamedTuple):
    """Of one column of one row group.

    bytes       of all pages when they are unpacked
    values      absent ones included
    largest     bytes of the largest page
    dictionary  bytes of the dictionary; 0 where there is none
    repeats     whether a value may take fewer bytes than it has
    """

    bytes: int
    values: int
    largest: int
    dictionary: int
    repeats: bool


def chunks_of(about: Any) -> list[Any]:
    """Every column of every group of rows. `about`: pyarrow's FileMetaData. Raises ValueError where there are too many."""
    if about.num_row_groups * about.num_columns > MOST_CHUNKS:
        raise ValueError(f"it has more than {MOST_CHUNKS:,} pieces of columns")
    groups = [about.row_group(index) for index in range(about.num_row_groups)]
    return [group.column(index) for group in groups for index in range(about.num_columns)]


def unpacked_size(file: BinaryIO, about: Any, rows: int | None) -> tuple[int, int, int]:
    """(bytes of all columns, values, bytes of text) that a file may unpack to. `rows`: how many are in memory at a time, where
    it is not all of them. Raises ValueError for pages that cannot be counted, StoreError for more than MOST_TOGETHER."""
    unpacked = 0
    values = about.num_rows
    text = 0
    for column in chunks_of(about):
        pages = count_pages(column, file)
        most = max(pages.bytes, column.total_uncompressed_size)
        entries = max(pages.values, column.num_values)
        unpacked += most
        values += entries
        if column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
            # A text that is written once may stand in any number of rows.
            repeats = pages.repeats or column.has_dictionary_page
            text += most * min(entries, rows or entries) if repeats else most
    together = unpacked + file.seek(0, os.SEEK_END)
    if rows is None and together > MOST_TOGETHER and os.environ.get(LARGE_STEPS) != "1":
        raise StoreError(
            f"a file of steps would take up to {together:,} bytes, and {MOST_TOGETHER:,} are read of one that may be somebody "
            f"else's. If you made it yourself, set {LARGE_STEPS}=1"
        )
    return unpacked, values, text


def count_pages(column: Any, file: BinaryIO) -> Pages:
    """`column`: pyarrow's ColumnChunkMetaData. Raises ValueError for pages that cannot be counted."""
    if column.num_values == 0:  # then no page is read, and it may have none
        return Pages(0, 0, 0, 0, False)
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end = at + column.total_compressed_size
    unpacked = values = largest = dictionary = count = 0
    repeats = False
    while at < end:
        header, length = _header(file, at)
        size = _number(header, _UNPACKED)
        at += length + _number(header, _PACKED)
        kind = _number(header, _KIND)
        about = header.get(_ABOUT.get(kind))
        if not isinstance(about, dict):
            raise ValueError("a page does not say what it is")
        count += 1
        if count > MOST_PAGES:
            raise ValueError(f"a column has more than {MOST_PAGES:,} pages")
        unpacked += size
        largest = max(largest, size)
        if kind == _DICTIONARY:
            dictionary += size
            repeats = True
        else:
            values += _number(about, 1) if kind != 1 else 0
            repeats = repeats or about.get(_ENCODING.get(_ABOUT[kind])) in _REPEATING
    return Pages(unpacked, values, largest, dictionary, repeats)


def _number(fields: dict[int, Any], which: int) -> int:
    """Of a field that must hold one, and no negative one."""
    value = fields.get(which)
    if type(value) is not int or value < 0:
        raise ValueError("a page does not say how large it is")
    return value


def _header(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """(what stands before the page at this place, how many bytes that has)."""
    size = _AT_ONCE
    while True:
        file.seek(at)
        data = file.read(size)
        try:
            return struct_at(data, 0)
        except IndexError:  # it goes on
            if len(data) < size or size >= _LONGEST_HEADER:
                raise ValueError("what stands before a page is cut off") from None
            size *= 16
        except ValueError as error:
            raise ValueError(f"what stands before a page is damaged: {error}") from error
