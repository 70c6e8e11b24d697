"""What the lines of a run must look like: whoever reads them further on relies on it. A stranger's may look otherwise."""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.types.errors import StoreError

_KEY = re.compile(r"\w+(\.\w+)*")


def by_step(records: Sequence[Mapping[str, Any]], path: Path) -> dict[int, Any]:
    """Step -> its metrics line. Raises StoreError for a line of another shape."""
    for number, line in enumerate(records, 1):
        if type(line.get("step")) is not int or not all(isinstance(line.get(part), dict) for part in ("metrics", "files")):
            raise _wrong(path, number, "a step (step, metrics, files)")
    return {line["step"]: line for line in records}


def clock_lines(records: Sequence[Mapping[str, Any]], path: Path) -> list[Any]:
    """The lines of the clock. Raises StoreError for one of another shape."""
    needed = {"step": {"at": str, "step": int, "clock": dict}, "machine": {"after": int, "machine": dict}}
    for number, line in enumerate(records, 1):
        what = line.get("what")
        if not isinstance(what, str) or not all(isinstance(line.get(part), kind) for part, kind in needed.get(what, {}).items()):
            raise _wrong(path, number, "the clock (what, at, and what belongs to that)")
    return list(records)


def changes(events: Sequence[Mapping[str, Any]], step: int) -> Iterator[tuple[list[str], Any]]:
    """(path to a setting, its new value) of every setting that was changed up to the end of `step`. Raises StoreError."""
    for number, event in enumerate(events, 1):
        if event.get("kind") != "settings":
            continue
        after, changed = event.get("after"), event.get("changed")
        if type(after) is not int or not isinstance(changed, dict) or not all(
                _KEY.fullmatch(key) and isinstance(pair, list) and len(pair) == 2 for key, pair in changed.items()):
            raise _wrong(Path("events.jsonl"), number, "changed settings (after, changed)")
        if after <= step:
            yield from ((key.split("."), pair[1]) for key, pair in changed.items())


def _wrong(path: Path, number: int, expected: str) -> StoreError:
    return StoreError(f"{path}: line {number} is not what a line of {expected} looks like; restore the file from a copy")
