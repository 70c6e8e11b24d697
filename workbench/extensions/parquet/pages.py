"""The pages of one column of a parquet file, unpacked: levels and values.

    read_chunk(data, chunk, leaf, checked=True)      PackedColumn(repetition, definition, values)

Read are plain values and those that stand in a dictionary, which is what pyarrow, pandas, polars and DuckDB write unless they
are told otherwise; unpacked are snappy, zstd, gzip and brotli. Anything else is refused, with what reads it.

Axis letters: L levels of a column, one for each value and each absent one · V values that are there.

Source: the format's definition (apache/parquet-format: parquet.thrift, Encodings.md, README.md).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from workbench.extensions.parquet.thrift import struct_at, varint_at

WHOLE = "`pip install 'agent-rl-workbench[frames]'` brings pyarrow, which reads it"
_DATA, _INDEX, _DICTIONARY, _DATA_2 = range(4)  # kinds of pages
_PLAIN = 0
_BY_DICTIONARY = (2, 8)
_RUNS = 3
LONGEST_RUN = 35  # bits of the number that says how long a run is
# Number of a type -> how numpy calls its values.
DTYPES: Mapping[int, str] = {1: "<i4", 2: "<i8", 4: "<f4", 5: "<f8"}
BOOLEAN = 0
BYTES = 6


class Unreadable(ValueError):
    """A file that is damaged, or written in a way that is not read here."""


class PackedColumn(NamedTuple):
    """Of one column: repetition and definition levels [L], and the values that are there [V]."""

    repetition_L: np.ndarray
    definition_L: np.ndarray
    values_V: Any


class Leaf(NamedTuple):
    """A column's type and its largest levels."""

    physical: int
    repetition: int
    definition: int


def read_chunk(
    data: memoryview, chunk: Mapping[int, Any], leaf: Leaf, *, checked: bool
) -> PackedColumn:
    """`chunk`: the column's metadata. `checked`: the checksums of its pages are compared. Raises ValueError."""
    at = chunk[9]
    if 0 < chunk.get(11, 0) < at:
        at = chunk[11]
    end = at + chunk[7]
    if end > len(data) or at < 0:
        raise Unreadable("a column lies outside the file")
    parts: list[PackedColumn] = []
    dictionary: Any = None
    left = chunk[5]
    while left > 0 and at < end:
        header, start = struct_at(data, at)
        at = start + header[3]
        if header[3] < 0 or at > end:
            raise Unreadable("a page is cut off")
        body = data[start:at]
        if checked and 4 in header and zlib.crc32(body) != header[4] & 0xFFFFFFFF:
            raise Unreadable("the checksum of a page does not match")
        if header[1] == _DICTIONARY:
            plain = _unpacked(body, header[2], chunk[4])
            dictionary = _plain_values(plain, header[7][1], leaf.physical)
        elif header[1] in (_DATA, _DATA_2):
            part = _page(body, header, chunk[4], leaf, dictionary)
            left -= len(part.definition_L)
            parts.append(part)
    if left:
        raise Unreadable("a column has not as many values as its end says")
    return joined(parts, leaf)


def joined(parts: list[PackedColumn], leaf: Leaf) -> PackedColumn:
    """Pages, or columns of several groups of rows, end to end."""
    levels = np.zeros(0, np.uint8)
    values = [part.values_V for part in parts]
    if leaf.physical == BYTES:
        joined_V: Any = list(chain.from_iterable(values))
    else:
        joined_V = np.concatenate([np.zeros(0, DTYPES.get(leaf.physical, "?")), *values])
    return PackedColumn(
        np.concatenate([levels, *(part.repetition_L for part in parts)]),
        np.concatenate([levels, *(part.definition_L for part in parts)]),
        joined_V,
    )


def _page(
    body: memoryview, header: dict[int, Any], codec: int, leaf: Leaf, known: Any
) -> PackedColumn:
    """A page of data, of either version."""
    if header[1] == _DATA:
        about = header[5]
        plain = _unpacked(body, header[2], codec)
        count = about[1]
        encoding = about[2]
        repetition_L, plain = _levels_before(plain, leaf.repetition, count)
        definition_L, plain = _levels_before(plain, leaf.definition, count)
    else:
        about = header[8]
        count = about[1]
        encoding = about[4]
        cut = about[6]
        after = cut + about[5]
        repetition_L = _levels(body[:cut], leaf.repetition, count)
        definition_L = _levels(body[cut:after], leaf.definition, count)
        plain = body[after:]
        if about.get(7, True):
            plain = _unpacked(plain, header[2] - after, codec)
    there = int((definition_L == leaf.definition).sum())
    return PackedColumn(
        repetition_L, definition_L, _values(plain, there, encoding, leaf.physical, known)
    )


def _values(plain: memoryview, count: int, encoding: int, physical: int, known: Any) -> Any:
    if encoding == _PLAIN:
        return _plain_values(plain, count, physical)
    if encoding in _BY_DICTIONARY and known is not None:
        places = _runs(plain[1:], plain[0], count) if count else np.zeros(0, np.int64)
        if count and places.max() >= len(known):
            raise Unreadable("a value is not in its dictionary")
        if physical == BYTES:
            return [known[place] for place in places.tolist()]
        return known[places]
    if encoding == _RUNS and physical == BOOLEAN:
        return _runs(plain[4:], 1, count).astype(bool)
    raise Unreadable(f"it has values of encoding {encoding}, which is not read here; {WHOLE}")


def _plain_values(plain: memoryview, count: int, physical: int) -> Any:
    """Values one after the other."""
    if physical in DTYPES:
        return np.frombuffer(plain, DTYPES[physical], count)
    if physical == BOOLEAN:
        return np.unpackbits(np.frombuffer(plain, np.uint8), count=count, bitorder="little") == 1
    if physical != BYTES:
        raise Unreadable(f"it has values of type {physical}, which is not read here; {WHOLE}")
    texts = []
    whole = bytes(plain)
    at = 0
    for _ in range(count):
        start = at + 4
        at = start + int.from_bytes(whole[at:start], "little")
        if at > len(whole) or start > len(whole):
            raise Unreadable("a text is cut off")
        texts.append(whole[start:at])
    return texts


# ------------------------------------------------------------------------------------------------ levels


def _levels_before(plain: memoryview, most: int, count: int) -> tuple[np.ndarray, memoryview]:
    """Levels that stand before the values, after their length; and what follows."""
    if not most:
        return np.zeros(count, np.uint8), plain
    end = 4 + int.from_bytes(plain[:4], "little")
    return _levels(plain[4:end], most, count), plain[end:]


def _levels(plain: memoryview, most: int, count: int) -> np.ndarray:
    levels = np.zeros(count, np.uint8)
    if most:
        levels[:] = _runs(plain, most.bit_length(), count)
        if levels.max(initial=0) > most:
            raise Unreadable("a level is larger than its column has")
    return levels


def _runs(plain: memoryview, width: int, count: int) -> np.ndarray:
    """[count] whole numbers of `width` bits: runs of one number, and groups of eight packed ones, in turns."""
    if width > 32:
        raise Unreadable("a dictionary is too large")
    numbers = np.zeros(count, np.int64)
    size = (width + 7) // 8
    done = at = 0
    while done < count:
        head, at = varint_at(plain, at, LONGEST_RUN)
        if head & 1:
            packed = plain[at : at + (head >> 1) * width]
            at += (head >> 1) * width
            run = _unpacked_bits(packed, width)[: count - done]
            if not len(run) and width:
                raise Unreadable("numbers of a column are cut off")
            run = run if width else np.zeros(min(8 * (head >> 1), count - done), np.int64)
            numbers[done : done + len(run)] = run
            done += len(run)
            if not len(run):
                raise Unreadable("numbers of a column are cut off")
        else:
            if at + size > len(plain) or not head >> 1:
                raise Unreadable("numbers of a column are cut off")
            last = min(done + (head >> 1), count)
            numbers[done:last] = int.from_bytes(plain[at : at + size], "little")
            done = last
            at += size
    return numbers


def _unpacked_bits(packed: memoryview, width: int) -> np.ndarray:
    if not width:
        return np.zeros(0, np.int64)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    whole = len(bits) // width
    return bits[: whole * width].reshape(whole, width) @ (1 << np.arange(width, dtype=np.int64))


# ------------------------------------------------------------------------------------------------ unpacking


def _unpacked(body: memoryview, size: int, codec: int) -> memoryview:
    """The `size` bytes of a page: not one more is taken, whatever it would unpack to."""
    if codec == 0:
        return body
    if codec not in _CODECS:
        raise Unreadable(f"it is packed by codec {codec}, which is not read here; {WHOLE}")
    plain = bytearray(size)
    if size and _CODECS[codec](body, plain) != size:
        raise Unreadable("a page unpacks to another size than it says")
    return memoryview(plain)


def _by_cramjam(
    name: str, function: str = "decompress_into"
) -> Callable[[memoryview, bytearray], int]:
    def unpack(body: memoryview, plain: bytearray) -> int:
        import cramjam

        try:
            return getattr(getattr(cramjam, name), function)(bytes(body), plain)
        except cramjam.DecompressionError as error:
            raise Unreadable(f"a page does not unpack ({str(error)[:120]})") from error

    return unpack


# Number of a codec -> what unpacks it into a buffer and returns how many bytes it had.
_CODECS = {
    1: _by_cramjam("snappy", "decompress_raw_into"),
    2: _by_cramjam("gzip"),
    4: _by_cramjam("brotli"),
    6: _by_cramjam("zstd"),
    7: _by_cramjam("lz4", "decompress_block_into"),
}
