"""How many rows of a columnar file of a stranger may be unpacked at a time, by what the file would really take.

rows_at_once(stream, about, 1_000)      of a parquet file; `about` None: of an arrow file
"""

from __future__ import annotations

from typing import Any, BinaryIO

from workbench.extensions.parquet.compressed import refuse_compressed
from workbench.extensions.parquet.page_sizes import chunks_of, count_pages

MOST_PAGE_BYTES = 128 << 20  # of one page, unpacked; pages of usual files have one megabyte
MOST_BYTES = 2 << 30  # of all pages


def rows_at_once(stream: BinaryIO, about: Any, most: int) -> int:
    """At most `most`; fewer where texts may stand in many rows. Raises ValueError for a file that would take too much."""
    if about is None:
        _check_messages(stream)
        return most
    pages = [count_pages(column, stream) for column in chunks_of(about)]
    unpacked = sum(counted.bytes for counted in pages)
    largest = max((counted.largest for counted in pages), default=0)
    if unpacked > MOST_BYTES or largest > MOST_PAGE_BYTES:
        raise ValueError(
            f"it unpacks to {unpacked:,} bytes, in pages of up to {largest:,}; at most {MOST_BYTES:,} and "
            f"{MOST_PAGE_BYTES:,} are taken: cut it into several files"
        )
    dictionary = max((counted.dictionary for counted in pages), default=0)
    return max(1, min(most, MOST_PAGE_BYTES // max(dictionary, 1)))


def _check_messages(stream: BinaryIO) -> None:
    from pyarrow import ipc

    for message in ipc.MessageReader.open_stream(stream):
        refuse_compressed(message)
    stream.seek(0)
