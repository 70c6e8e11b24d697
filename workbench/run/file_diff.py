"""Where two files of one name first differ: trajectories, credit tables by column and token, checkpoints by tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.basics import canonical_json
from workbench.basics.regular_files import parse_json
from workbench.run.equality import differing_bits, first_difference
from workbench.run.shapes import TENSORS, shaped
from workbench.run.store import Run, step_name
from workbench.values.address import Address
from workbench.values.errors import StoreError

EVERY = "every column"  # where two tables are not of one length
LONGEST = 300  # characters of a difference in words


@dataclass(frozen=True)
class ColumnDifference:
    """A column of a credit table that differs between two runs."""

    column: str
    tokens: int  # that differ
    largest: float | None  # difference; None: not numbers to subtract
    first: str  # difference, in words


def first_in_files(a: Run, b: Run, part: str, step: int, name: str) -> str:
    """Where two files of one name first differ. Raises StoreError for a file that is damaged."""
    if part == "trajectories":
        difference = _groups_differ(a, b, step)
    elif part == "lint":
        reports = (run.lint(step).as_dict() for run in (a, b))
        difference = first_difference(*reports, "lint")
    elif part == "credit":
        difference = _credit_differs(a, b, step, name)
    else:
        paths = [run.path / "checkpoints" / step_name(step) / name for run in (a, b)]
        is_tensors = name.endswith(".safetensors")
        difference = _tensors_differ(*paths) if is_tensors else _states_differ(*paths)
    if difference is None:
        return (
            "every value is equal, but the bytes are not (written by another version of a library?)"
        )
    return difference


def _groups_differ(a: Run, b: Run, step: int) -> str | None:
    difference = first_difference(a.groups(step), b.groups(step))
    match = re.match(r"groups\[(\d+)\](?:\.trajectories\[(\d+)\])?", difference or "")
    if match is None:
        return difference
    numbers = [None if number is None else int(number) for number in match.groups()]
    return f"{difference} (at {Address(step, *numbers)})"


def _credit_differs(a: Run, b: Run, step: int, name: str) -> str | None:
    columns = credit_columns(a, b, step, name)
    if not columns:
        return None
    column = columns[0].column
    where = column if column == EVERY else f"column {column}"
    return f"{where}, {columns[0].first}{more(len(columns), 'column')}"


def _states_differ(a: Path, b: Path) -> str | None:
    """Where two JSON files of a checkpoint first differ."""
    files = [canonical_json.read_file(path, below=path.parents[2]) for path in (a, b)]
    try:
        states = [parse_json(data) for data in files]
    except ValueError as error:
        raise StoreError(f"{a.name} of {a.parent} or of {b.parent} is damaged: {error}") from error
    return first_difference(*states, "state")


def credit_columns(a: Run, b: Run, step: int, file: str) -> tuple[ColumnDifference, ...]:
    """Every column of a credit table in which the two runs differ, in the table's order."""
    update = int(Path(file).stem.removeprefix("credit-"))
    if any(update not in run.updates(step) for run in (a, b)):
        return ()
    left = a.credit(step, update).columns
    right = b.credit(step, update).columns
    lengths = [len(next(iter(columns.values()), ())) for columns in (left, right)]
    if lengths[0] != lengths[1]:
        return (ColumnDifference(EVERY, 0, None, f"{lengths[0]} tokens are not {lengths[1]}"),)
    differences = []
    for name in {**left, **right}:
        x = left.get(name)
        y = right.get(name)
        if x is None or y is None:
            differences.append(ColumnDifference(name, 0, None, only_in(y is None)))
        elif x.dtype != y.dtype or x.shape != y.shape:
            kinds = f"{x.dtype}{list(x.shape)} is not {y.dtype}{list(y.shape)}"
            differences.append(ColumnDifference(name, 0, None, kinds))
        else:
            differs = differing_bits(x, y)
            if differs.any():
                place = _place(a, step, left, int(differs.argmax()))
                differences.append(_values_differ(name, x, y, differs, place))
    return tuple(differences)


def _values_differ(
    name: str, x: np.ndarray, y: np.ndarray, differs: np.ndarray, place: str
) -> ColumnDifference:
    """`differs` bool [T]: the tokens at which two columns differ; `place` of the first of them, in words."""
    first = int(differs.argmax())
    words = f"token {first}{place}: {x[first].item()!r} is not {y[first].item()!r}"
    return ColumnDifference(name, int(differs.sum()), _largest_gap(x, y), words)


def _largest_gap(x: np.ndarray, y: np.ndarray) -> float | None:
    """The largest difference of two columns; None where they hold no numbers to subtract, or no finite ones."""
    if x.dtype.kind not in "fiu":
        return None
    with np.errstate(all="ignore"):
        gap = np.abs(x.astype(float) - y.astype(float))
    return float(np.nanmax(gap)) if np.isfinite(gap).any() else None


def _place(run: Run, step: int, columns: Mapping[str, np.ndarray], at: int) -> str:
    """Where row `at` of a credit table is: by its columns, and by its address in the run."""
    names = [name for name in ("trajectory", "segment", "position", "token_id") if name in columns]
    parts = [f"{name} {columns[name][at]}" for name in names]
    if "trajectory" in columns:
        number = int(columns["trajectory"][at])
        attempts: list[tuple[int, int]] = []
        for task, group in enumerate(run.groups(step)):
            attempts += [(task, attempt) for attempt in range(len(group))]
        if number < len(attempts):  # or the table is of another batch
            token = at - int((columns["trajectory"] == number).argmax())
            parts.append(f"at {Address(step, *attempts[number], token=token)}")
    return f" ({', '.join(parts)})" if parts else ""


def _tensors_differ(a: Path, b: Path) -> str | None:
    """The first tensor of two safetensors files that differs, read without a tensor library."""
    left = _Tensors.read(a)
    right = _Tensors.read(b)
    for name in {**left.header, **right.header}:
        if name not in left.header or name not in right.header:
            return f"tensor {name} is {only_in(name in left.header)}"
        x = left.header[name]
        y = right.header[name]
        if name == "__metadata__" or (x["dtype"], x["shape"]) != (y["dtype"], y["shape"]):
            if x != y:
                return f"tensor {name}: {x} is not {y}"
            continue
        bytes_a = left.bytes_of(name)
        bytes_b = right.bytes_of(name)
        is_as_long = bytes_a.shape == bytes_b.shape
        if not is_as_long or (bytes_a != bytes_b).any():
            count = int((bytes_a != bytes_b).sum()) if is_as_long else "all"
            return (
                f"tensor {name} ({x['dtype']}{x['shape']}): {count} of {len(bytes_a)} bytes differ"
            )
    return None


@dataclass(frozen=True)
class _Tensors:
    """A safetensors file: 8 bytes of length, a JSON header with the place of each tensor, data.

    Source: github.com/huggingface/safetensors, its description.
    """

    content: bytes
    header: Mapping[str, Any]
    start: int  # of the data

    @classmethod
    def read(cls, path: Path) -> _Tensors:
        """Raises StoreError for a header that cannot be read."""
        content = canonical_json.read_file(path, below=path.parents[2])
        start = 8 + int.from_bytes(content[:8], "little")
        try:
            header = parse_json(content[8:start])
        except ValueError as error:
            raise StoreError(f"{path} is damaged: its header cannot be read ({error})") from error
        return cls(content, shaped(header, TENSORS, path, "a header of tensors"), start)

    def bytes_of(self, name: str) -> np.ndarray:
        """uint8"""
        begin, end = self.header[name]["data_offsets"]
        return np.frombuffer(self.content[self.start + begin : self.start + end], np.uint8)


# ------------------------------------------------------------------------------------------------ words


def more(count: int, what: str) -> str:
    """How many there are besides the first: " (and 2 more columns)"."""
    if count <= 1:
        return ""
    return f" (and {count - 1} more {what}{'s' if count > 2 else ''})"


def only_in(in_a: bool) -> str:
    return f"only in {'a' if in_a else 'b'}"


def short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
