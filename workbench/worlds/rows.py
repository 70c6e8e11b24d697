"""Data sets with columns: every row once an epoch, in an order that is a function of the run's seed and the epoch.

    @dataclass(frozen=True)
    class Sums(RowFamily):
        data: RowSettings = RowSettings(files=("sums.jsonl",), id="name")
        name: ClassVar[str] = "sums"
        max_turns: ClassVar[int] = 1
        def make(self): return Sum()          # its tasks' payload is the row

A draw has an address (run seed, position in the run's stream): the rows of a step follow those of the step before, so a
run that is resumed goes on exactly where it was. A row's weight says how often it comes an epoch: 2 is twice, 0.5 every
second epoch; over any number of epochs each row's count is right to within one (systematic sampling). The k-th draw of a
row is a task of its own (`sums/ROW/k`), so a row may stand twice in a step.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from workbench.basics.canonical_json import json_bytes
from workbench.basics.settings import check_settings
from workbench.values import Task
from workbench.values.errors import ConfigError, DataError
from workbench.values.seeds import rng_at
from workbench.worlds.row_files import FileRow, files_of, read_rows
from workbench.worlds.splits import content_split

LONGEST_ID = 200  # characters of a row's id
MOST_WEIGHT = 1000.0
_TRAIN = ("train", "training")
_HELD_OUT = ("held-out", "heldout", "test", "valid", "validation", "dev", "eval", "evaluation")
_OPENING = threading.RLock()  # a large file is read by one thread; the others wait for what it made


@dataclass(frozen=True)
class RowSettings:
    """Which rows there are, and how often each comes. Files are read once a process, when the first task is asked for."""

    files: Annotated[
        tuple[str, ...],
        "of rows: .jsonl, .json, .csv, .tsv, .parquet, a pattern with *, or a folder: what "
        "datasets saved, or files by split",
    ] = ()
    heldout: Annotated[
        tuple[str, ...],
        "files of the rows to evaluate on; empty: those that `split`, or a folder, says, "
        "else one row in five by its content",
    ] = ()
    columns: Annotated[tuple[str, ...], "that are kept; empty: all"] = ()
    id: Annotated[
        str, "column of the row's id, one for each row; empty: the file's name and the row's number"
    ] = ""
    split: Annotated[
        str, "column that says train or held-out (or test, validation ...); empty: none"
    ] = ""
    weight: Annotated[
        str,
        "column of how often a row comes an epoch (2: twice, 0.5: every second one); empty: once",
    ] = ""
    weights: Annotated[
        tuple[float, ...],
        "one for each of `files`, which its rows' weights are multiplied by; empty: 1",
    ] = ()
    shuffle: Annotated[bool, "every epoch has an order of its own; false: that of the files"] = True

    def __post_init__(self) -> None:
        check_settings(self, "env.data")
        in_range = all(0 < weight <= MOST_WEIGHT for weight in self.weights)
        if self.weights and (len(self.weights) != len(self.files) or not in_range):
            raise ConfigError(
                f"env.data.weights is one number above 0 and at most {MOST_WEIGHT:g} for each of env.data.files "
                f"({len(self.files)}), got {self.weights}"
            )
        if self.heldout and self.split:
            raise ConfigError(
                "env.data.split is a column that says what is held out, and env.data.heldout names files of it; "
                "leave one of them out"
            )
        for name in (self.id, self.split, self.weight):
            if name and self.columns and name not in self.columns:
                raise ConfigError(
                    f"env.data.columns leaves out {name!r}, which another setting of env.data names"
                )

    def check_files(self) -> None:
        """Raise ConfigError for a file that is not there. Quick: nothing is read."""
        if not self.files:
            raise ConfigError("env.data.files names no file; say --set env.data.files=rows.jsonl")
        try:
            for named in (*self.files, *self.heldout):
                files_of(named)
        except DataError as error:
            raise ConfigError(f"env.data: {error}") from error

    def open(self) -> RowTable:
        """All rows. Raises ConfigError and DataError."""
        with _OPENING:
            return _opened(self)


@dataclass(frozen=True)
class DataRow:
    """A row: `fields` by column, `split` "train" or "held-out", `weight` how often it comes an epoch."""

    id: str
    fields: Mapping[str, Any]
    split: str
    weight: float
    where: str


@dataclass(frozen=True, eq=False)
class RowTable:
    """All rows of a data set, in the order of the files. `digest` tells whether they are the same ones later."""

    rows: tuple[DataRow, ...]
    shuffle: bool = True
    digest: str = ""
    _numbers: Mapping[str, np.ndarray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        numbers: dict[str, list[int]] = {"train": [], "held-out": []}
        for number, row in enumerate(self.rows):
            if row.weight:
                numbers[row.split].append(number)
        arrays = {split: np.array(held, dtype=np.int64) for split, held in numbers.items()}
        object.__setattr__(self, "_numbers", arrays)

    def row_of(self, task_seed: int) -> tuple[DataRow, int]:
        """The row of a task seed, and which draw of that row it is, from 0."""
        times, number = divmod(int(task_seed), len(self.rows))
        return self.rows[number], times

    def task_seeds(self, split: str, first: int, count: int, seed: int) -> list[int]:
        """Task seeds of the draws `first`, `first` + 1 ... of the stream of this split and run seed."""
        if not len(self._numbers[split]):
            raise ConfigError(
                f"no row is of split {split!r} (or all weigh 0); env.data.split or env.data.heldout say which "
                "are held out, else one in five is"
            )
        task_seeds: list[int] = []
        epoch = self._epoch_of(split, first, seed)
        first -= self._drawn_before(split, epoch, seed)
        while len(task_seeds) < count:
            missing = count - len(task_seeds)
            task_seeds += self._epoch(split, epoch, seed)[first : first + missing].tolist()
            epoch += 1
            first = 0
        return task_seeds

    def _epoch(self, split: str, epoch: int, seed: int) -> np.ndarray:
        """Task seeds of one epoch, in its order."""
        before = self._times(split, epoch, seed)
        after = self._times(split, epoch + 1, seed)
        draws = after - before
        number = np.repeat(self._numbers[split], draws)
        started = np.repeat(before, draws)
        first_draw = np.repeat(np.cumsum(draws) - draws, draws)
        within = np.arange(len(number)) - first_draw
        seeds = (started + within) * len(self.rows) + number
        if not self.shuffle:
            return seeds
        return rng_at("rows.order", split, seed, epoch).permutation(seeds)

    def _times(self, split: str, epochs: int, seed: int) -> np.ndarray:
        """How often each row has been drawn after so many epochs."""
        weights = np.array([self.rows[number].weight for number in self._numbers[split]])
        start = rng_at("rows.weights", split, seed).random(len(weights)) * (weights % 1 != 0)
        return np.floor(epochs * weights + start).astype(np.int64)

    def _drawn_before(self, split: str, epoch: int, seed: int) -> int:
        return int(self._times(split, epoch, seed).sum())

    def _epoch_of(self, split: str, position: int, seed: int) -> int:
        """The epoch that a position is in, by bisection."""
        low = 0
        high = 1
        while self._drawn_before(split, high, seed) <= position:
            low = high
            high = 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._drawn_before(split, middle, seed) <= position:
                low = middle
            else:
                high = middle
        return low


class RowFamily:
    """The common part of families of rows: a dataclass with a field `data` (RowSettings) and a `name`. Its own is
    `make()`, and `payload_of` where the payload is not the row itself."""

    def payload_of(self, row: DataRow) -> Mapping[str, Any]:
        """The part of a row that the environment needs; it is stored with every group."""
        return row.fields

    def check_files(self) -> None:
        self.data.check_files()

    def task(self, task_seed: int) -> Task:
        """A draw of a row: the same in every process that has the same files."""
        table = self.data.open()
        row, times = table.row_of(task_seed)
        metadata = {
            "split": row.split,
            "row": row.id,
            "times": times,
            "from": row.where,
            "data": table.digest,
        }
        return Task(
            f"{self.name}/{row.id}/{times}",
            self.name,
            int(task_seed),
            self.payload_of(row),
            metadata,
        )

    def task_seeds(self, split: str, first: int, count: int, seed: int) -> Sequence[int]:
        return self.data.open().task_seeds(split, first, count, seed)

    def split_of(self, task: Task) -> str:
        return task.metadata["split"]


# ------------------------------------------------------------------------------------------------ reading


@lru_cache(maxsize=4)
def _opened(settings: RowSettings) -> RowTable:
    settings.check_files()
    rows = []
    seen = {}
    contents = {}
    digest = blake2b(digest_size=8)
    for file_row, weight, label, held_out in _all_rows(settings):
        row = _row(file_row, settings, weight, label, held_out)
        if row.id in seen:
            raise DataError(
                f"{file_row.where}: the id {row.id!r} stands at {seen[row.id]}, too; every row has its own"
            )
        problem = _told_apart(file_row, settings)
        split, where = contents.setdefault(problem, (row.split, file_row.where))
        if split != row.split:
            raise DataError(
                f"{file_row.where} is of split {row.split!r}, and the same row at {where} of {split!r}: what is "
                "evaluated on would be trained on. Take it out of one of them"
            )
        if row.split == "held-out":  # each once: no problem counts twice in an evaluation
            row = replace(row, weight=float(where == file_row.where))
        seen[row.id] = file_row.where
        content = file_row.content.decode()
        digest.update(json_bytes([row.id, row.split, row.weight, content], "a row"))
        rows.append(row)
    if not rows:
        raise DataError(f"{', '.join(settings.files)}: no row in it")
    return RowTable(tuple(rows), settings.shuffle, digest.hexdigest())


def _all_rows(settings: RowSettings) -> Iterator[tuple[FileRow, float, str, bool]]:
    """(row, its data set's weight, what its file is called, whether the settings hold it out)."""
    weights = settings.weights or (1.0,) * len(settings.files)
    sources: list[tuple[Path, str, float, bool]] = []
    for named, weight in zip(settings.files, weights, strict=True):
        sources += [(path, split, weight, False) for path, split in files_of(named)]
    for named in settings.heldout:
        sources += [(path, split, 1.0, True) for path, split in files_of(named)]
    names = Counter(path.name for path, *_ in sources)
    for path, split, weight, held_out in sources:
        label = path.name if names[path.name] == 1 else str(Path(*path.parts[-2:]))
        for row in read_rows(path, settings.columns, split):
            yield row, weight, label, held_out


def _row(row: FileRow, settings: RowSettings, weight: float, label: str, held_out: bool) -> DataRow:
    for name in filter(None, (settings.id, settings.split, settings.weight)):
        if row.fields.get(name) is None:
            raise DataError(
                f"{row.where}: no value in the column {name!r}; there are {', '.join(row.fields)}"
            )
    identity = str(row.fields[settings.id]) if settings.id else f"{label}:{row.number}"
    if not 0 < len(identity) <= LONGEST_ID or not identity.isprintable():
        raise DataError(
            f"{row.where}: an id is 1 to {LONGEST_ID} printable characters, got {identity[:80]!r}"
        )
    return DataRow(
        identity,
        row.fields,
        _split(row, settings, held_out),
        weight * _weight(row, settings),
        f"{label}, record {row.number}",
    )


def _split(row: FileRow, settings: RowSettings, held_out: bool) -> str:
    if held_out or settings.heldout:
        return "held-out" if held_out else "train"
    named = row.fields[settings.split] if settings.split else row.split
    if not named and not settings.split:
        return content_split(row.content.decode())
    word = str(named).lower()
    if word not in _TRAIN + _HELD_OUT:
        raise DataError(
            f"{row.where}: the split {named!r} is not one of {', '.join(_TRAIN + _HELD_OUT)}"
        )
    return "train" if word in _TRAIN else "held-out"


def _weight(row: FileRow, settings: RowSettings) -> float:
    if not settings.weight:
        return 1.0
    try:
        weight = float(row.fields[settings.weight])
    except (TypeError, ValueError):
        weight = -1.0
    if not 0 <= weight <= MOST_WEIGHT:
        raise DataError(
            f"{row.where}, column {settings.weight!r}: a weight is a number from 0 to {MOST_WEIGHT:g}, got "
            f"{row.fields[settings.weight]!r}"
        )
    return weight


def _told_apart(row: FileRow, settings: RowSettings) -> str:
    """The text by which two rows are the same one: all columns but those that say which row it is and how it is used."""
    about = {settings.id, settings.split, settings.weight}
    return repr(sorted((name, value) for name, value in row.fields.items() if name not in about))
