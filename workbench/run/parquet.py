"""Columns and a few facts as the bytes of a parquet file, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbench.types.canonical_json import check_format, plain
from workbench.types.errors import StoreError
from workbench.types.regular_files import parse_json

# Measured on a step of 128 trajectories (25 600 tokens): zstd at level 1 costs 1 ms and saves 60 % of the bytes to
# sync. Page checksums show damage even before the step is committed and sealed.
_PARQUET = {
    "compression": "zstd",
    "compression_level": 1,
    "write_statistics": False,
    "write_page_checksum": True,
}

# What is read at most of one file. A few kilobytes of a stranger's file can ask for all memory there is, so sizes are
# looked at before anything is unpacked; what is written here is held against the same bounds.
MOST_UNPACKED = 2 << 30  # bytes of all columns
MOST_VALUES = 500_000_000  # of all columns, absent ones too: they take no bytes in a file
MOST_TEXT = 256 << 20  # bytes of all columns of text
LONGEST_TEXT = 64 << 20  # bytes of one value


def parquet_bytes(
    columns: Mapping[str, pa.Array], kind: tuple[str, int], facts: dict, **options: Any
) -> memoryview:
    facts = {"kind": kind[0], "format": kind[1], **plain(facts, "the facts of a file")}
    table = pa.table(dict(columns)).replace_schema_metadata({"workbench": json.dumps(facts)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **_PARQUET, **options)
    data = sink.getvalue()
    if reason := too_much(pq.read_metadata(pa.BufferReader(data))) or _too_long(table):
        raise StoreError(
            f"a {kind[0]} cannot be kept in one file: {reason}; take fewer attempts a step, or keep less of each"
        )
    return memoryview(data)


def read_parquet(
    data: bytes, path: Path, kind: tuple[str, int], only: Sequence[str] | None = None
) -> tuple[dict[str, pa.Array], dict]:
    """Columns (`only` these, if named) and facts of a file; StoreError names the file and what is wrong with it."""
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            if reason := too_much(file.metadata):
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


def too_much(about: pq.FileMetaData, *, rows: int | None = None) -> str:
    """In words, what of a file is over a bound, by what it says of itself before anything is unpacked; "" where nothing is.
    `rows`: how many are in memory at a time, where it is not all of them."""
    columns = [
        about.row_group(group).column(column)
        for group in range(about.num_row_groups)
        for column in range(about.num_columns)
    ]
    texts = [
        column
        for column in columns
        if column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
    ]
    # A text that stands in a dictionary once may stand in the column any number of times.
    text_bytes = sum(
        column.total_uncompressed_size
        * (min(column.num_values, rows or column.num_values) if column.has_dictionary_page else 1)
        for column in texts
    )
    found = {
        "bytes when unpacked": (
            sum(column.total_uncompressed_size for column in columns),
            MOST_UNPACKED,
        ),
        "values": (sum(column.num_values for column in columns) + about.num_rows, MOST_VALUES),
        "bytes of text": (text_bytes, MOST_TEXT),
    }
    return "; ".join(
        f"it has up to {has:,} {what}, and {most:,} is the most that is read"
        for what, (has, most) in found.items()
        if has > most
    )


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
