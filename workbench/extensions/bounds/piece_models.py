"""What a model of SentencePiece may make of a text, read from the bytes of its file (a ModelProto,
in protobuf's form).

    for name, size in growth(model): ...     "its normalizer", the most that it makes of a character

Protobuf itself is no dependency: a file is fields, each a number, a kind and a value, and four of
them matter here.
"""

from __future__ import annotations

from collections.abc import Iterator

# Fields of a ModelProto.
_TRAINER = 2
_NORMALIZER = 3
_DENORMALIZER = 5
_TABLE = 2  # of a NormalizerSpec: precompiled_charsmap
_UNKNOWN = 44  # of a TrainerSpec: unk_surface, what an unknown piece is decoded to
# How a field is written.
_VARINT = 0
_EIGHT_BYTES = 1
_LENGTH = 2
_FOUR_BYTES = 5
_PARTS = {_NORMALIZER: "its normalizer", _DENORMALIZER: "its denormalizer"}


def growth(model: bytes) -> Iterator[tuple[str, int]]:
    """(part, the most characters that it makes of one character or piece). Raises ValueError for
    bytes that are no such file."""
    for number, value in _fields(model):
        for inner, content in _fields(value) if number in (_TRAINER, *_PARTS) else ():
            if number in _PARTS and inner == _TABLE:
                yield _PARTS[number], longest_text(content)
            if number == _TRAINER and inner == _UNKNOWN:
                yield "its unknown piece", len(content.decode("utf-8", "replace"))


def longest_text(table: bytes) -> int:
    """Characters of the longest text in a table of characters. It is the length of the tree that
    finds them, the tree, and the texts with a zero byte behind each."""
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max((len(text.decode("utf-8", "replace")) for text in texts.split(b"\0")), default=1)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, value) of each field that holds bytes; numbers are passed over."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            _, place = _varint(message, place)
            continue
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
        if kind == _LENGTH:
            size, place = _varint(message, place)
        if size is None or place + size > len(message):
            raise ValueError(f"a field of kind {kind} does not end in it")
        if kind == _LENGTH:
            yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number of 7 bits a byte, the lowest first, and where what follows it begins."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("a number does not end in it")
