"""What a command prints cannot act in a terminal: foreign text may stand in any error, note or path (invariant 16)."""

from __future__ import annotations

import re
from typing import TextIO

# Control characters but tab, line feed and carriage return; what colours text, and what a bar needs to be drawn again, stay.
_ACTS = re.compile(r"(?!\x1b\[[0-9;]*[mKA])[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def spell_controls(stream: TextIO) -> None:
    """From now on every control character that is written to `stream` is spelled out."""
    write = stream.write

    def written(text: str) -> int:
        return write(_ACTS.sub(lambda match: f"\\x{ord(match[0]):02x}", text))

    stream.write = written  # type: ignore[method-assign]
