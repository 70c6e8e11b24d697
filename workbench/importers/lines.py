"""JSON lines, one at a time: what cannot be read is named by its number and skipped, however long or broken it is."""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from workbench.importers.values import Damaged, name

LONGEST_LINE = 64 * 2**20  # bytes; a rollout of a million tokens with logprobs takes about 30 MB


class NumberedLine(NamedTuple):
    """A line of a file: its number from 1, and its object, or why it could not be read."""

    number: int
    row: dict[str, Any] | None
    damage: str | None


def lines_of(path: Path, longest: int = LONGEST_LINE) -> Iterator[NumberedLine]:
    """The objects of a JSONL file, empty lines left out; never more than one line in memory."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(longest):
            number += 1
            if len(line) == longest and not line.endswith(b"\n"):
                while (rest := file.readline(longest)) and not rest.endswith(b"\n"):
                    pass
                yield NumberedLine(number, None, f"longer than {longest // 2**20} MiB")
            elif line.strip():
                try:
                    yield NumberedLine(number, parsed(line), None)
                except Damaged as damage:
                    yield NumberedLine(number, None, str(damage))


def parsed(line: bytes) -> dict[str, Any]:
    """The object on a line, or Damaged with the reason."""
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        raise Damaged("not UTF-8") from None
    except RecursionError:
        raise Damaged("nested too deep") from None
    except ValueError as error:  # json.JSONDecodeError, and numbers of thousands of digits
        cut = ", as if it had been cut off" if not line.endswith(b"\n") else ""
        raise Damaged(f"not JSON ({name(error)}){cut}") from None
    if not isinstance(row, dict):
        raise Damaged(f"a JSON {type(row).__name__}, expected an object")
    return row
