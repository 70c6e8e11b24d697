"""The shapes that the lines and documents of a run must have: their readers rely on it, and the file of an untrusted
run may hold anything.

A shape is one of these:
    a type                   a value of this very type; a float may be whole; whole numbers have at most 63 bits
    `object`                 anything
    None                     none
    [shape]                  a list of any length; [a, b]: a list of two
    {"key": shape}           a dict with this key; "key?": it may be absent; "*": all other keys, else there are none
    (shape, shape)           one of these fits
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.values.errors import StoreError

_KEY = re.compile(r"\w+(\.\w+)*")
_NUMBER = (float, None)
_WHOLE = (int, None)
_NUMBERS = (None, [_NUMBER])
_TEXT = (str, None)
_SCORE = {
    "policy": str,
    "mode": str,
    "n?": int,
    "by_task?": _NUMBERS,
    "reward_by_task?": _NUMBERS,
    "temperature?": float,
    "top_p?": float,
    "*": _NUMBER,
}
_COMPARISON = {"a": str, "b": str, "of?": str, "n?": int, "*": _NUMBER}
EVALUATION = {
    "step?": int,
    "paired?": [_COMPARISON],
    "absent?": dict,
    "*": object,
    "rows?": [_SCORE],
}
# The header of a safetensors file.
_TENSOR = {"dtype": str, "shape": [int], "data_offsets": [int, int]}
TENSORS = {"__metadata__?": dict, "*": _TENSOR}
# The state in a checkpoint.
_LEARNER = {
    "version": int,
    "empty_updates": int,
    "bad_updates": int,
    "bad_in_a_row": int,
    "trainable": [str],
    "*": object,
}
STATE = {"*": object, "learner?": _LEARNER, "sampler_version?": int}
_PLACE = {
    "index?": _WHOLE,
    "segment?": _WHOLE,
    "turn?": _WHOLE,
    "position?": _WHOLE,
    "step?": _WHOLE,
    "update?": _WHOLE,
    "length?": int,
    "trajectory?": _TEXT,
    "address?": _TEXT,
}
_FINDING = {"what": str, "place": _PLACE, "severity": str, "count": int}
_ANSWER = {
    "rule": str,
    "title": str,
    "missing": [str],
    "further?": int,
    "further_errors?": int,
    "looked?": int,
    "means?": str,
    "mend?": str,
    "findings": [_FINDING],
    "*": object,
}
LINT = {"about?": str, "*": object, "answers": [_ANSWER]}


def shaped(value: Any, shape: Any, path: Path, what: str) -> Any:
    """`value` where it fits. Raises StoreError, which names the part that does not."""
    where = _misfit(value, shape)
    if where is not None:
        place = f", at {where[1:]}" if where else ""
        raise StoreError(
            f"{path} is not what {what} looks like{place}; restore the file from a copy"
        )
    return value


def _misfit(value: Any, shape: Any, where: str = "") -> str | None:
    """The path to the first part that does not fit; None: all does."""
    if isinstance(shape, tuple):
        fits_one = any(_misfit(value, choice) is None for choice in shape)
        return None if fits_one else where
    if isinstance(shape, list) and isinstance(value, list):
        return _misfit_in_list(value, shape, where)
    if isinstance(shape, dict) and isinstance(value, dict):
        return _misfit_in_dict(value, shape, where)
    if shape is None or isinstance(shape, (list, dict)):
        return None if shape is value else where
    if type(value) is int and abs(value) >= 1 << 63:
        return where
    fits = shape is object or type(value) is shape or shape is float and type(value) is int
    return None if fits else where


def _misfit_in_list(value: list, shape: list, where: str) -> str | None:
    if len(shape) > 1 and len(shape) != len(value):
        return where
    for number, entry in enumerate(value):
        misfit = _misfit(entry, shape[number % len(shape)], f"{where}.{number}")
        if misfit is not None:
            return misfit
    return None


def _misfit_in_dict(value: dict, shape: dict, where: str) -> str | None:
    for key in shape:
        if key != "*" and not key.endswith("?") and key not in value:
            return f"{where}.{key}"
    others = shape.get("*", ())  # no shape fits what may not be there
    for key, entry in value.items():
        entry_shape = shape.get(key, shape.get(f"{key}?", others))
        misfit = _misfit(entry, entry_shape, f"{where}.{key:.40}")
        if misfit is not None:
            return misfit
    return None


def mapping(value: Any) -> dict[str, Any]:
    """`value`, where it is one. Raises TypeError."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.60} in the place of a mapping")
    return value


def numbers_by_name(value: Any) -> dict[str, Any]:
    """`value`, where it is a mapping of numbers: parts of a reward. Raises TypeError."""
    if not all(isinstance(part, (int, float, type(None))) for part in mapping(value).values()):
        raise TypeError(f"{value!r:.60} in the place of numbers by name")
    return value


def setting_of(config: Any, key: str, kinds: Sequence[type], path: Path) -> Any:
    """A setting that is of one of these kinds. Raises StoreError."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    if type(config) not in kinds:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise StoreError(
            f"{path}: {key} should be {expected}, and is {config!r:.60}; restore it from a copy of the run"
        )
    return config


def by_step(records: Sequence[Mapping[str, Any]], path: Path) -> dict[int, Any]:
    """Step -> its metrics line. Raises StoreError for a line of another shape."""
    for number, line in enumerate(records, 1):
        has_parts = all(isinstance(line.get(part), dict) for part in ("metrics", "files"))
        if type(line.get("step")) is not int or not has_parts:
            raise _wrong(path, number, "a step (step, metrics, files)")
    return {line["step"]: line for line in records}


_NAMED = {"name": str, "version": str, "source": str}
# Kind of an event -> its parts, where a reader relies on them.
_EVENT_PARTS = {
    "settings": {"after": int, "changed": dict, "*": object},
    "code": {"after": int, "origins": {"*": _NAMED}, "*": object},
    "skipped_update": {"step": int, "update": int, "reason": str, "*": object},
    "alarm": {"step": int, "named": str, "restored?": _WHOLE, "*": object},
    "policy": {"name?": _TEXT, "fingerprint?": _TEXT, "files?": dict, "*": object},
}
_EVENT = {"kind": str, "step?": int, "*": object}


def event_lines(records: Sequence[Mapping[str, Any]], path: Path) -> list[Any]:
    """The events. Raises StoreError for one of another shape."""
    for number, event in enumerate(records, 1):
        kind = event.get("kind")
        parts = _EVENT_PARTS.get(kind, _EVENT) if isinstance(kind, str) else _EVENT
        if _misfit(event, parts) is not None:
            raise _wrong(path, number, "an event (kind, and what belongs to that)")
    return list(records)


# What a line of the clock is about -> its parts.
_CLOCK_PARTS = {
    "step": {"at": str, "step": int, "clock": dict},
    "machine": {"after": int, "machine": dict},
}


def clock_lines(records: Sequence[Mapping[str, Any]], path: Path) -> list[Any]:
    """The lines of the clock. Raises StoreError for one of another shape."""
    for number, line in enumerate(records, 1):
        what = line.get("what")
        parts = _CLOCK_PARTS.get(what, {}) if isinstance(what, str) else {"what": str}
        if not all(isinstance(line.get(part), kind) for part, kind in parts.items()):
            raise _wrong(path, number, "the clock (what, at, and what belongs to that)")
    return list(records)


def changes(events: Sequence[Mapping[str, Any]], step: int) -> Iterator[tuple[list[str], Any]]:
    """(path to a setting, its new value) of every setting that was changed up to the end of `step`. Raises StoreError."""
    for number, event in enumerate(events, 1):
        if event.get("kind") != "settings":
            continue
        after = event.get("after")
        changed = event.get("changed")
        if type(after) is not int or not _are_changes(changed):
            raise _wrong(Path("events.jsonl"), number, "changed settings (after, changed)")
        if after <= step:
            for key, (_, value) in changed.items():
                yield key.split("."), value


def _are_changes(value: Any) -> bool:
    """Whether it is dotted key -> [old value, new value]."""
    if not isinstance(value, dict):
        return False
    return all(
        _KEY.fullmatch(key) and isinstance(pair, list) and len(pair) == 2
        for key, pair in value.items()
    )


def _wrong(path: Path, number: int, expected: str) -> StoreError:
    return StoreError(
        f"{path}: line {number} is not what a line of {expected} looks like; restore the file from a copy"
    )
