"""What the lines and documents of a run must look like: whoever reads them further on relies on it. A stranger's may look
otherwise.

A shape is a type; a list of one shape, or of as many as there must be; a dict of keys ("key?": may be absent, "*": all others, which else may not be there); or a
tuple of shapes, one of which fits. `object` fits everything; whole numbers have at most 63 bits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.types.errors import StoreError

_KEY = re.compile(r"\w+(\.\w+)*")
_NUMBER = (float, None)
EVALUATION = {
    "step?": int,
    "paired?": [{"a": str, "b": str, "of?": str, "n?": int, "*": _NUMBER}],
    "absent?": dict,
    "*": object,
    "rows?": [
        {
            "policy": str,
            "mode": str,
            "n?": int,
            **dict.fromkeys(("by_task?", "reward_by_task?"), (None, [_NUMBER])),
            "*": _NUMBER,
        }
    ],
}
TENSORS = {
    "__metadata__?": dict,
    "*": {"dtype": str, "shape": [int], "data_offsets": [int, int]},
}  # of safetensors: its header
STATE = {
    "*": object,
    "learner?": {
        **dict.fromkeys(("version?", "empty_updates?", "bad_updates?", "bad_in_a_row?"), int),
        "trainable?": [str],
        "*": object,
    },
}  # of a checkpoint
_PLACE = {
    **dict.fromkeys(("index?", "segment?", "turn?", "position?", "step?", "update?"), (int, None)),
    "length?": int,
    "trajectory?": (str, None),
    "address?": (str, None),
}
LINT = {
    "about?": str,
    "*": object,
    "answers": [
        {
            "rule": str,
            "title": str,
            "missing": [str],
            "further?": int,
            "further_errors?": int,
            "looked?": int,
            "means?": str,
            "mend?": str,
            "findings": [{"what": str, "place": _PLACE, "severity": str, "count": int}],
            "*": object,
        }
    ],
}


def shaped(value: Any, shape: Any, path: Path, what: str) -> Any:
    """`value` where it fits. Raises StoreError, which says where it does not."""
    if (where := _misfit(value, shape)) is not None:
        raise StoreError(
            f"{path} is not what {what} looks like{f', at {where[1:]}' if where else ''}; restore the file from a copy"
        )
    return value


def _misfit(value: Any, shape: Any, where: str = "") -> str | None:
    """Where the first part is that does not fit; None: all does."""
    if isinstance(shape, tuple):
        return None if any(_misfit(value, each) is None for each in shape) else where
    if isinstance(shape, list) and isinstance(value, list):
        if len(shape) > 1 and len(shape) != len(value):
            return where
        return next(
            (
                found
                for number, each in enumerate(value)
                if (found := _misfit(each, shape[number % len(shape)], f"{where}.{number}"))
                is not None
            ),
            None,
        )
    if isinstance(shape, dict) and isinstance(value, dict):
        if missing := [
            key for key in shape if key != "*" and not key.endswith("?") and key not in value
        ]:
            return f"{where}.{missing[0]}"
        return next(
            (
                found
                for key, each in value.items()
                if (
                    found := _misfit(
                        each,
                        shape.get(key, shape.get(f"{key}?", shape.get("*", ()))),
                        f"{where}.{key:.40}",
                    )
                )
                is not None
            ),
            None,
        )
    if shape is None or isinstance(shape, (list, dict)):
        return None if shape is value else where
    fits = shape is object or type(value) is shape or shape is float and type(value) is int
    return None if fits and not (type(value) is int and abs(value) >= 1 << 63) else where


def mapping(value: Any) -> dict[str, Any]:
    """`value`, where it is one. Raises TypeError."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.60} in the place of a mapping")
    return value


def numbers_by_name(value: Any) -> dict[str, Any]:
    """The same of parts of a reward."""
    if not all(isinstance(part, (int, float, type(None))) for part in mapping(value).values()):
        raise TypeError(f"{value!r:.60} in the place of numbers by name")
    return value


def setting_of(config: Any, key: str, kinds: Sequence[type], path: Path) -> Any:
    """A setting that is of one of these kinds. Raises StoreError."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    if type(config) not in kinds:
        raise StoreError(
            f"{path}: {key} should be {' or '.join(each.__name__ for each in kinds)}, and is {config!r:.60}; restore it "
            "from a copy of the run"
        )
    return config


def by_step(records: Sequence[Mapping[str, Any]], path: Path) -> dict[int, Any]:
    """Step -> its metrics line. Raises StoreError for a line of another shape."""
    for number, line in enumerate(records, 1):
        if type(line.get("step")) is not int or not all(
            isinstance(line.get(part), dict) for part in ("metrics", "files")
        ):
            raise _wrong(path, number, "a step (step, metrics, files)")
    return {line["step"]: line for line in records}


def clock_lines(records: Sequence[Mapping[str, Any]], path: Path) -> list[Any]:
    """The lines of the clock. Raises StoreError for one of another shape."""
    needed = {
        "step": {"at": str, "step": int, "clock": dict},
        "machine": {"after": int, "machine": dict},
    }
    for number, line in enumerate(records, 1):
        what = line.get("what")
        if not isinstance(what, str) or not all(
            isinstance(line.get(part), kind) for part, kind in needed.get(what, {}).items()
        ):
            raise _wrong(path, number, "the clock (what, at, and what belongs to that)")
    return list(records)


def changes(events: Sequence[Mapping[str, Any]], step: int) -> Iterator[tuple[list[str], Any]]:
    """(path to a setting, its new value) of every setting that was changed up to the end of `step`. Raises StoreError."""
    for number, event in enumerate(events, 1):
        if event.get("kind") != "settings":
            continue
        after, changed = event.get("after"), event.get("changed")
        if (
            type(after) is not int
            or not isinstance(changed, dict)
            or not all(
                _KEY.fullmatch(key) and isinstance(pair, list) and len(pair) == 2
                for key, pair in changed.items()
            )
        ):
            raise _wrong(Path("events.jsonl"), number, "changed settings (after, changed)")
        if after <= step:
            yield from ((key.split("."), pair[1]) for key, pair in changed.items())


def _wrong(path: Path, number: int, expected: str) -> StoreError:
    return StoreError(
        f"{path}: line {number} is not what a line of {expected} looks like; restore the file from a copy"
    )
