"""Where two files of one name first differ: trajectories, credit tables by column and token, checkpoints by tensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.run.equality import differing_bits, first_difference
from workbench.run.shapes import TENSORS, shaped
from workbench.run.store import Run, step_name
from workbench.types import canonical_json
from workbench.types.address import Address
from workbench.types.errors import StoreError
from workbench.types.regular_files import parse_json

EVERY = "every column"  # where two tables are not of one length
LONGEST = 300  # characters of a difference in words


@dataclass(frozen=True)
class ColumnDifference:
    """A column of a credit table: how many tokens differ, by how much at most (None: not numbers to subtract), and the
    first of them in words."""

    column: str
    tokens: int
    largest: float | None
    first: str


def first_in_files(a: Run, b: Run, part: str, step: int, name: str) -> str:
    """Where two files of one name first differ. Raises StoreError for a file that is damaged."""
    if part == "trajectories":
        found = first_difference(a.groups(step), b.groups(step))
        if match := re.match(r"groups\[(\d+)\](?:\.trajectories\[(\d+)\])?", found or ""):
            found += f" (at {Address(step, *(None if each is None else int(each) for each in match.groups()))})"
    elif part == "lint":
        found = first_difference(*(run.lint(step).as_dict() for run in (a, b)), "lint")
    elif part == "credit":
        columns = credit_columns(a, b, step, name)
        found = None
        if columns:
            name = (
                columns[0].column if columns[0].column == EVERY else f"column {columns[0].column}"
            )
            found = f"{name}, {columns[0].first}{more(len(columns), 'column')}"
    else:
        paths = [run.path / "checkpoints" / step_name(step) / name for run in (a, b)]
        found = (
            _tensors_differ(*paths)
            if name.endswith(".safetensors")
            else first_difference(
                *(
                    parse_json(canonical_json.read_file(path, below=path.parents[2]))
                    for path in paths
                ),
                "state",
            )
        )
    return (
        found
        or "every value is equal, but the bytes are not (written by another version of a library?)"
    )


def credit_columns(a: Run, b: Run, step: int, file: str) -> tuple[ColumnDifference, ...]:
    """Every column of a credit table in which the two runs differ, in the table's order."""
    update = int(Path(file).stem.removeprefix("credit-"))
    if any(update not in run.updates(step) for run in (a, b)):
        return ()
    left, right = (run.credit(step, update).columns for run in (a, b))
    lengths = [len(next(iter(columns.values()), ())) for columns in (left, right)]
    if lengths[0] != lengths[1]:
        return (ColumnDifference(EVERY, 0, None, f"{lengths[0]} tokens are not {lengths[1]}"),)
    found = []
    for name in {**left, **right}:
        x, y = left.get(name), right.get(name)
        if x is None or y is None:
            found.append(ColumnDifference(name, 0, None, only_in(y is None)))
        elif x.dtype != y.dtype or x.shape != y.shape:
            found.append(
                ColumnDifference(
                    name, 0, None, f"{x.dtype}{list(x.shape)} is not {y.dtype}{list(y.shape)}"
                )
            )
        elif (differs := differing_bits(x, y)).any():
            at = int(differs.argmax())
            with np.errstate(all="ignore"):
                gap = (
                    np.abs(x.astype(float) - y.astype(float))
                    if x.dtype.kind in "fiu"
                    else np.array([np.nan])
                )
            largest = float(np.nanmax(gap)) if np.isfinite(gap).any() else None
            found.append(
                ColumnDifference(
                    name,
                    int(differs.sum()),
                    largest,
                    f"token {at}{_place(a, step, left, at)}: {x[at].item()!r} is not {y[at].item()!r}",
                )
            )
    return tuple(found)


def _place(run: Run, step: int, columns: Mapping[str, np.ndarray], at: int) -> str:
    """What row `at` of a credit table is of: its columns, and its address in the run."""
    names = [name for name in ("trajectory", "segment", "position", "token_id") if name in columns]
    said = [f"{name} {columns[name][at]}" for name in names]
    if "trajectory" in columns:
        number = int(columns["trajectory"][at])
        place = [
            (task, attempt)
            for task, group in enumerate(run.groups(step))
            for attempt in range(len(group))
        ]
        if number < len(place):  # or the table is of another batch
            token = at - int((columns["trajectory"] == number).argmax())
            said.append(f"at {Address(step, *place[number], token=token)}")
    return f" ({', '.join(said)})" if said else ""


def _tensors_differ(a: Path, b: Path) -> str | None:
    """The first tensor of two safetensors files that differs, read without a tensor library: 8 bytes of length, a JSON
    header with the place of each tensor, data. Source: github.com/huggingface/safetensors, its description."""
    data, headers = [canonical_json.read_file(path, below=path.parents[2]) for path in (a, b)], []
    for path, content in zip((a, b), data):
        size = int.from_bytes(content[:8], "little")
        try:
            headers.append(
                (
                    shaped(parse_json(content[8 : 8 + size]), TENSORS, path, "a header of tensors"),
                    8 + size,
                )
            )
        except ValueError as error:
            raise StoreError(f"{path} is damaged: its header cannot be read ({error})") from error
    (left, base_a), (right, base_b) = headers
    for name in {**left, **right}:
        if name not in left or name not in right:
            return f"tensor {name} is {only_in(name in left)}"
        x, y = left[name], right[name]
        if name == "__metadata__" or (x["dtype"], x["shape"]) != (y["dtype"], y["shape"]):
            if x != y:
                return f"tensor {name}: {x} is not {y}"
            continue
        parts = (
            content[base + place["data_offsets"][0] : base + place["data_offsets"][1]]
            for content, base, place in ((data[0], base_a, x), (data[1], base_b, y))
        )
        bytes_a, bytes_b = (np.frombuffer(part, np.uint8) for part in parts)
        if bytes_a.shape != bytes_b.shape or (bytes_a != bytes_b).any():
            count = int((bytes_a != bytes_b).sum()) if bytes_a.shape == bytes_b.shape else "all"
            return (
                f"tensor {name} ({x['dtype']}{x['shape']}): {count} of {len(bytes_a)} bytes differ"
            )
    return None


# ------------------------------------------------------------------------------------------------ words


def more(count: int, what: str) -> str:
    return f" (and {count - 1} more {what}{'s' if count > 2 else ''})" if count > 1 else ""


def only_in(in_a: bool) -> str:
    return f"only in {'a' if in_a else 'b'}"


def short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
