"""Files and folders of foreign rollouts, recognised by their content and read one row at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from workbench.basics.regular_files import FileError, files_below, open_stream, parse_json
from workbench.extensions.interop.dumps import Imported, RawSequence
from workbench.extensions.interop.importers import (
    agentcore,
    inspect_logs,
    nemo_gym,
    pickled,
    prime_exports,
    trl_tables,
    verifiers_results,
    verifiers_traces,
    verl_generations,
)
from workbench.extensions.interop.importers.values import LONGEST_LINE, Damaged, Reader, Row, name
from workbench.extensions.interop.importers.whole import groups_of
from workbench.values.errors import DataError

MOST_TOKENS = 4_000_000  # about 150 MB of arrays
LOOK = 20  # lines of a file that are looked at to tell whose it is
NAMED = 12  # damaged places that are named; all are counted
# Of a row that no reader foresaw: a list where an object stands, a name that is a list.
UNEXPECTED = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
MOST_VAIN = (
    512 << 20
)  # bytes that are read in vain: lines that are too long, or cannot be read; no file of a trainer has any
IMPATIENT = f"more than {MOST_VAIN >> 20} MiB could not be read; what comes after is not tried"
KEPT_ROWS = 4  # rows of which the reader of a framework is shown what is in them

READERS = (
    verifiers_traces.READER,
    verifiers_results.READER,
    prime_exports.READER,
    verl_generations.READER,
    nemo_gym.READER,
)
TABLES = trl_tables.READER
WHOLE = (agentcore.READER, inspect_logs.READER)  # no lines: a zip, or one large JSON text
LINES_AND_TABLES = (".jsonl", ".parquet")


def looks_like_rollouts(path: Path | str) -> bool:
    """Whether `path` is a file of rollouts that a framework known here wrote, or a folder with such files."""
    patience = Patience()
    return any(_reader(file, patience) is not None for file in _files(Path(path)))


def read_rollouts(path: Path | str, *, max_tokens: int = MOST_TOKENS) -> Imported:
    """Read a file of rollouts, or all such files of a folder, written by one framework.

    Rows are read one at a time; from `max_tokens` tokens on the rest is counted (`left_out`) and not kept. A row that
    cannot be read is named in `damaged` by its line and skipped. Raises DataError where there is nothing known, or
    where two frameworks lie in one folder.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(
            f"there is no {path}; expected a file of rollouts, or a folder with such files"
        )
    patience = Patience()
    readers = {file: _reader(file, patience) for file in _files(path)}
    files = [file for file, reader in readers.items() if reader is not None]
    kinds = list(dict.fromkeys(readers[file].framework for file in files))
    if not files:
        raise _unknown(path)
    if len(kinds) > 1:
        raise DataError(
            f"{path} holds rollouts of several kinds ({'; '.join(kinds)}); name one file, or a folder of "
            "one kind"
        )
    reader = readers[files[0]]
    reading = _Reading(max_tokens, patience)
    for file in files:
        reading.read(file, reader, several=len(files) > 1)
    if path.is_dir():
        reading.note_unreadable(path, set(files))
    if not reading.sequences and not reading.skipped:
        raise DataError(f"{path} is told to be of {reader.framework}, but holds no rollout")
    return Imported(
        reader.framework,
        reader.version(reading.rows, files[0]),
        tuple(reading.sequences),
        groups_of(reading.sequences),
        tuple(reader.missing(reading.sequences, reading.rows)),
        tuple(reading.damaged),
        reading.skipped,
        reading.left_out,
        name(path, 200),
    )


def _unknown(path: Path) -> DataError:
    if pickled.is_pickle(path):
        return DataError(f"{path} {pickled.REFUSED}")
    known = ", ".join(reader.framework for reader in (*READERS, TABLES, *WHOLE))
    return DataError(
        f"{path} holds no rollouts that can be read here; known are {known}, told by their content"
    )


@dataclass
class _Reading:
    """What has been read so far."""

    max_tokens: int
    patience: Patience
    sequences: list[RawSequence] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    skipped: int = 0
    left_out: int = 0
    tokens: int = 0

    def read(self, file: Path, reader: Reader, *, several: bool) -> None:
        """All rows of a file."""
        prefix = f"{name(file.name)} " if several else ""
        for number, row, damage in _rows(file, reader, self.patience):
            where = f"{prefix}{reader.unit} {number}"
            if damage is None and self.tokens >= self.max_tokens:
                self.left_out += 1
                continue
            try:
                if damage is not None:
                    raise Damaged(damage)
                if reader.unit == "line" and not reader.is_row(row):
                    columns = name(", ".join(map(str, row)), 80)
                    raise Damaged(f"not a row of {reader.framework}; it has {columns}")
                sequences = reader.sequences_of(row, where)
            except Damaged as error:
                self._skip(f"{where}: {error}")
                continue
            except UNEXPECTED as error:
                self._skip(f"{where}: not as {reader.framework} writes it ({_where_it_was(error)})")
                continue
            self.sequences += sequences
            self.tokens += sum(map(_length, sequences))
            if len(self.rows) < KEPT_ROWS:
                self.rows.append(row)

    def _skip(self, damage: str) -> None:
        self.skipped += 1
        if len(self.damaged) < NAMED:
            self.damaged.append(damage)

    def note_unreadable(self, folder: Path, known: set[Path]) -> None:
        """Count files beside those that were read in which nothing can be read."""
        for file in _files(folder):
            is_meant = file.suffix in LINES_AND_TABLES and file not in known
            if is_meant and file.stat().st_size and not _readable(file, self.patience):
                self._skip(f"{name(file.name)}: nothing in it can be read")


def _where_it_was(error: Exception) -> str:
    """An error of the reader itself, in words, with its line: whoever has a sound file can say where it went wrong."""
    while (inner := error.__traceback__) is not None and inner.tb_next is not None:
        error.__traceback__ = inner.tb_next
    place = inner and f"{Path(inner.tb_frame.f_code.co_filename).name} line {inner.tb_lineno}"
    return f"{name(f'{type(error).__name__}: {error}', 120)}, at {place}"


def _length(sequence: RawSequence) -> int:
    """Tokens of a sequence, as far as they are known."""
    arrays = (sequence.prompt_ids, sequence.completion_ids)
    return sum(len(ids) for ids in arrays if ids is not None)


def _readable(file: Path, patience: Patience) -> bool:
    """Whether anything can be read: a line that is an object, or the columns of a table."""
    if file.suffix == ".parquet":
        return trl_tables.columns_of(file) is not None
    return any(line.row is not None for line in islice(lines_of(file, patience), LOOK))


def _rows(
    file: Path, reader: Reader, patience: Patience
) -> Iterator[tuple[int, Row | None, str | None]]:
    if reader.unit == "line":
        yield from lines_of(file, patience)
        return
    number = 0
    rows = trl_tables.rows_of if reader.rows is None else reader.rows
    try:
        for number, row in enumerate(rows(file), start=1):
            is_damaged = isinstance(row, Damaged)
            yield number, None if is_damaged else row, str(row) if is_damaged else None
    except DataError as error:
        yield number + 1, None, str(error)


def _files(path: Path) -> Iterator[Path]:
    """The file, or those of a folder that may hold rollouts, in the order of their names (numbers by value)."""
    if path.is_file():
        yield path
    elif path.is_dir():
        try:
            files = list(files_below(path, (*LINES_AND_TABLES, ".eval", ".json")))
        except FileError as error:
            raise DataError(
                f"{path} is not searched for rollouts: {error.strerror}; name a file, or a folder with little "
                "else in it"
            ) from error
        yield from sorted(files, key=_place_in_order)


def _place_in_order(file: Path) -> list[tuple[int, str]]:
    parts = (*file.parent.parts, file.stem)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _reader(file: Path, patience: Patience) -> Reader | None:
    """The reader for the first row that can be read; None where no framework is known to write such rows."""
    try:
        with open_stream(file) as stream:
            is_parquet = stream.read(4) == b"PAR1"
    except OSError as error:
        raise DataError(
            f"{file} cannot be opened ({error.strerror}); make it readable, or name the files to read"
        ) from error
    if is_parquet:
        return TABLES if trl_tables.is_table(file) else None
    whole = next((reader for reader in WHOLE if reader.is_file(file)), None)
    if whole is not None:
        return whole
    lines = islice(lines_of(file, patience), LOOK)
    rows = (line.row for line in lines if line.row is not None)
    return next((reader for row in rows for reader in READERS if reader.is_row(row)), None)


# ------------------------------------------------------------------------------------------------ JSON lines


class NumberedLine(NamedTuple):
    """A line of a file: its number from 1, and its object, or why it could not be read."""

    number: int
    row: dict[str, Any] | None
    damage: str | None


@dataclass
class Patience:
    """How many more bytes of a file, or of the files of a folder, are read in vain. A file may be a hole of any size, which
    takes no room on the disk and reads as zeros."""

    left: int = MOST_VAIN

    def spend(self, count: int) -> bool:
        """Whether some of it is left."""
        self.left -= count
        return self.left > 0


def lines_of(
    path: Path, patience: Patience | None = None, longest: int = LONGEST_LINE
) -> Iterator[NumberedLine]:
    """The objects of a JSONL file, empty lines left out; never more than one line in memory. Once there is no more
    `patience`, that is said of one line, and is the end."""
    patience = Patience() if patience is None else patience
    with open_stream(path) as file:
        number = 0
        while line := file.readline(longest):
            number += 1
            if len(line) == longest and not line.endswith(b"\n"):
                _to_end_of_line(file, patience, longest)
                yield NumberedLine(number, None, f"longer than {longest // 2**20} MiB")
            elif not line.strip():
                patience.spend(len(line))
            else:
                read = _numbered(number, line)
                if read.row is None:
                    patience.spend(len(line))
                yield read
            if patience.left <= 0:
                yield NumberedLine(number + 1, None, IMPATIENT)
                return


def _to_end_of_line(file: BinaryIO, patience: Patience, longest: int) -> None:
    patience.spend(longest)
    while patience.left > 0 and (rest := file.readline(longest)) and not rest.endswith(b"\n"):
        patience.spend(len(rest))


def _numbered(number: int, line: bytes) -> NumberedLine:
    try:
        return NumberedLine(number, parsed(line), None)
    except Damaged as damage:
        return NumberedLine(number, None, str(damage))


def parsed(line: bytes) -> dict[str, Any]:
    """The object on a line, or Damaged with the reason."""
    try:
        row = parse_json(line)
    except UnicodeDecodeError:
        raise Damaged("not UTF-8") from None
    except ValueError as error:  # json.JSONDecodeError, and numbers of thousands of digits
        cut = ", as if it had been cut off" if not line.endswith(b"\n") else ""
        raise Damaged(f"not JSON ({name(error)}){cut}") from None
    if not isinstance(row, dict):
        raise Damaged(f"a JSON {type(row).__name__}, expected an object")
    return row
