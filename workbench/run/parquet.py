"""Columns and a few facts as the bytes of a parquet file, and back."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from workbench.basics.canonical_json import check_format, plain
from workbench.basics.extensions import has_service, service
from workbench.basics.parquet_footer import check_footer
from workbench.basics.regular_files import parse_json
from workbench.run.arrow import pa, pc, pq
from workbench.values.errors import StoreError

# Measured on a step of 128 trajectories (25 600 tokens): zstd at level 1 costs 1 ms and saves 60 % of the bytes to
# sync. Page checksums show damage even before the step is committed and sealed.
_PARQUET = {
    "compression": "zstd",
    "compression_level": 1,
    "write_statistics": False,
    "write_page_checksum": True,
}

# What is read at most of one file. A few kilobytes of an untrusted file can ask for all memory there is, so sizes are
# checked before anything is unpacked, by what stands before each page (an extension counts them), since the end of a file
# may lie; what is written here is checked against the same bounds.
MOST_UNPACKED = 2 << 30  # bytes of all columns
MOST_VALUES = 500_000_000  # of all columns, absent ones too: they take no bytes in a file
# Bytes of a file; a smaller one may unpack to less in proportion: to an eighth of the values at least, and of the bytes, which
# no file of ours has eight times more of than it takes, to a quarter.
LARGE_FILE = 64 << 20
LARGE_UNPACKED = 256 << 20
COUNT = "unpacked_size"  # of an extension
MOST_TEXT = 256 << 20  # bytes of all columns of text
LONGEST_TEXT = 64 << 20  # bytes of one value


def parquet_bytes(
    columns: Mapping[str, pa.Array], kind: tuple[str, int], facts: dict, **options: Any
) -> memoryview:
    """Raises StoreError for more than one file may hold. `kind`: name and format version, written with the facts."""
    facts = {"kind": kind[0], "format": kind[1], **plain(facts, "the facts of a file")}
    metadata = {"workbench": json.dumps(facts)}
    table = pa.table(dict(columns)).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **_PARQUET, **options)
    data = sink.getvalue()
    metadata = pq.read_metadata(pa.BufferReader(data))
    if reason := too_much(metadata, len(data)) or _too_long(table):
        raise StoreError(
            f"a {kind[0]} cannot be kept in one file: {reason}; take fewer trajectories a step, or keep less of each"
        )
    return memoryview(data)


def read_parquet(
    data: bytes, path: Path, kind: tuple[str, int], only: Sequence[str] | None = None
) -> tuple[dict[str, pa.Array], dict]:
    """Columns (`only` these, if named) and facts of a file; StoreError names the file and what is wrong with it."""
    try:
        check_footer(io.BytesIO(data))
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            if reason := too_much(file.metadata, len(data), file=io.BytesIO(data)):
                raise StoreError(f"{path} is not read: {reason}")
            facts = parse_json(file.schema_arrow.metadata[b"workbench"])
            check_format(path, found=(facts["kind"], facts["format"]), expected=kind)
            table = file.read(None if only is None else list(only), use_threads=False)
            if reason := _too_long(table):
                raise StoreError(f"{path} is not read: {reason}")
    except StoreError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged or not a parquet file of this program: {error}; restore it from a copy "
            "of the run"
        ) from error
    return {name: table[name].combine_chunks() for name in table.column_names}, facts


def too_much(
    about: pq.FileMetaData, size: int, *, rows: int | None = None, file: BinaryIO | None = None
) -> str:
    """In words, which bounds a file is over, before anything is unpacked; "" where it is over none.

    size  bytes of the file
    rows  how many are in memory at a time, where it is not all of them
    file  whose pages are counted, where it may be untrusted; else its end is believed. Raises ValueError for a damaged one.
    """
    measure = _stated
    if file is not None and has_service(COUNT):
        measure = partial(service(COUNT, "reading"), file)
    unpacked, values, text = measure(about, rows)
    sizes = (
        ("bytes when unpacked", unpacked, MOST_UNPACKED * _share(size, LARGE_UNPACKED, 1 / 4)),
        ("values", values, MOST_VALUES * _share(size, LARGE_FILE, 1 / 8)),
        ("bytes of text", text, MOST_TEXT),
    )
    return "; ".join(
        f"it has up to {amount:,} {what}, and {most:,.0f} is the most that is read"
        for what, amount, most in sizes
        if amount > most
    )


def _share(size: int, large: int, least: float) -> float:
    return min(1.0, max(least, size / large))


def _stated(about: pq.FileMetaData, rows: int | None) -> tuple[int, int, int]:
    """(bytes of all columns, values, bytes of text), by the end of the file."""
    unpacked = 0
    values = about.num_rows
    text = 0
    for group in range(about.num_row_groups):
        for number in range(about.num_columns):
            column = about.row_group(group).column(number)
            unpacked += column.total_uncompressed_size
            values += column.num_values
            if column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
                text += _text_bytes(column, rows)
    return unpacked, values, text


def _text_bytes(column: pq.ColumnChunkMetaData, rows: int | None) -> int:
    """The most bytes of text that a column may unpack to: one that stands in a dictionary once may stand in any number
    of its rows."""
    if not column.has_dictionary_page:
        return column.total_uncompressed_size
    return column.total_uncompressed_size * min(column.num_values, rows or column.num_values)


def _too_long(table: pa.Table) -> str:
    """In words, that one text is over the bound."""
    for name in table.column_names:
        column = table[name]
        while pa.types.is_list(column.type):
            column = pc.list_flatten(column)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            if longest > LONGEST_TEXT:
                return f"a value of {name} has {longest:,} bytes, and {LONGEST_TEXT:,} is the most that is read"
    return ""
