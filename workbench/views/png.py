"""A PNG writer in a few lines: pictures of masks need neither Pillow nor matplotlib."""
from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from workbench.types.errors import DataError


def palette_png(pixels_YX: np.ndarray, palette: Sequence[str]) -> bytes:
    """A picture [rows, columns] of indices into `palette` ("#rrggbb"), as the bytes of an indexed PNG.

    Source: PNG specification (W3C), colour type 3, no row filter.
    """
    pixels_YX = np.asarray(pixels_YX)
    if pixels_YX.ndim != 2 or not pixels_YX.size:
        raise DataError(f"a picture is [rows, columns] and not empty, got shape {pixels_YX.shape}")
    if pixels_YX.min() < 0 or pixels_YX.max() >= len(palette) or len(palette) > 256:
        raise DataError(f"pixels must be indices into {len(palette)} colours (at most 256), got "
                        f"{pixels_YX.min()}..{pixels_YX.max()}")
    height, width = pixels_YX.shape
    colours = b"".join(bytes.fromhex(colour.removeprefix("#")) for colour in palette)
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter: 0, none
    rows[:, 1:] = pixels_YX
    return b"\x89PNG\r\n\x1a\n" + b"".join([
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)), _chunk(b"PLTE", colours),
        _chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)), _chunk(b"IEND", b"")])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
