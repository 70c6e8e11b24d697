"""The end of a parquet file names its columns and where they lie: a list that one may make as long as one likes, and that takes
a hundred times its bytes when it is read. So its length is looked at first."""

from __future__ import annotations

import io
from typing import BinaryIO

MOST_FOOTER = 4 << 20  # bytes; one of thirty columns in a hundred pieces has some 300,000


def check_footer(file: BinaryIO) -> None:
    """Raises ValueError where the end of a parquet file is too long to be read. The file stands at its beginning again."""
    end = file.seek(0, io.SEEK_END)
    file.seek(max(0, end - 8))
    length = int.from_bytes(file.read(4), "little")
    file.seek(0)
    if length > MOST_FOOTER:
        raise ValueError(
            f"its end, which names its columns, has {length:,} bytes, and {MOST_FOOTER:,} are read at most"
        )
