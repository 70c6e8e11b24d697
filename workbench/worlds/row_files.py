"""Rows out of local files: JSON lines or a JSON list (`.gz` or not), CSV, parquet, and folders: what `datasets` saved
(`save_to_disk`), or files by split as on a hub (`data/train-00000-of-00001.parquet`).

Files are data: nothing in them is run, no link in a folder leads out of it, and what is read is bounded. Arrow files are
read by pyarrow, so the package `datasets` is not needed. Complaints name the file and the record, counted from 1.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from workbench.basics.canonical_json import json_bytes
from workbench.basics.extensions import has_service, service
from workbench.basics.parquet_footer import check_footer
from workbench.basics.regular_files import open_stream
from workbench.values.errors import DataError, StoreError
from workbench.worlds.qa.records import records

MOST_ROW_BYTES = (
    1_000_000  # of one row as JSON: it is stored with every group of trajectories of it
)
MOST_BYTES = 2 << 30  # of all rows of a file
MOST_ROWS = 5_000_000
MOST_IN_FOLDER = 100_000  # files and folders below one that is named
_BATCH = 1_000  # rows of a columnar file in memory at a time
TEXT_FORMATS = (".jsonl", ".json", ".gz")
TABLES = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*TEXT_FORMATS, *TABLES, ".parquet", ".arrow")
_SPLIT = re.compile(
    r"(?<![a-z])(train|test|valid|validation|dev|eval|evaluation|held-?out)(?![a-z])"
)


@dataclass(frozen=True)
class FileRow:
    """A row as it stands in a file. `split`: what a folder calls the part that it is in; "" where it does not say.
    `content`: the row as JSON, for comparing."""

    path: Path
    number: int
    fields: Mapping[str, Any]
    content: bytes
    split: str = ""

    @property
    def where(self) -> str:
        return f"{self.path}, record {self.number}"


def files_of(named: str) -> list[tuple[Path, str]]:
    """The files of what the user named, a file, a folder or a pattern with *, each with the split that it is of.

    Raises DataError where there is none, and for what cannot be read as rows."""
    path = Path(named)
    if path.is_dir():
        files = _files_in(path)
    elif "*" in path.name:
        files = [(match, "") for match in sorted(path.parent.glob(path.name))]
    else:
        files = [(path, "")] if path.is_file() else []
    if not files:
        raise DataError(
            f"there are no rows at {named!r} (looked in {Path.cwd()}); name a file ({', '.join(SUFFIXES)}), a "
            "pattern of them, or a folder that holds some or that datasets' save_to_disk wrote"
        )
    for path, _ in files:
        if path.suffix not in SUFFIXES:
            raise DataError(f"{path}: expected a file of rows that ends in {', '.join(SUFFIXES)}")
    return files


def read_rows(path: Path, columns: tuple[str, ...] = (), split: str = "") -> Iterator[FileRow]:
    """The rows of a file in its order; of these columns, where some are named. Raises DataError."""
    size = 0
    for number, fields in enumerate(_read(path), start=1):
        where = f"{path}, record {number}"
        if missing := [name for name in columns if name not in fields]:
            raise DataError(
                f"{where}: there is no column {missing[0]!r}; there are {', '.join(map(str, fields))}"
            )
        kept = {name: fields[name] for name in columns} if columns else fields
        content = _as_json(kept, where)
        size += len(content)
        if len(content) > MOST_ROW_BYTES:
            raise DataError(
                f"{where}: {len(content):,} bytes as JSON; at most {MOST_ROW_BYTES:,} are taken. Name the "
                "columns that are needed"
            )
        if size > MOST_BYTES or number > MOST_ROWS:
            raise DataError(
                f"{path}: more than {MOST_BYTES >> 30} GB or {MOST_ROWS:,} rows; cut it into several files, or "
                "name the columns that are needed"
            )
        yield FileRow(path, number, json.loads(content), content, split)


# ------------------------------------------------------------------------------------------------ formats


def _read(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix in TEXT_FORMATS:
        return (record.fields for record in records(path))
    if path.suffix in TABLES:
        return _table(path)
    return _columnar(path)


def _table(path: Path) -> Iterator[dict[str, Any]]:
    """Rows below a line of names; every value is text."""
    try:
        with io.TextIOWrapper(open_stream(path), encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, delimiter=TABLES[path.suffix], strict=True)
            if len(set(reader.fieldnames or ())) < len(reader.fieldnames or ()):
                raise DataError(
                    f"{path}, line 1: a column's name stands twice: {', '.join(reader.fieldnames)}"
                )
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(
                        f"{path}, line {reader.line_num}: expected {len(reader.fieldnames)} values, as many as "
                        "line 1 has names; is a comma or a line break not quoted?"
                    )
                yield row
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: no table of UTF-8 text ({error})") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _columnar(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            with open_stream(path) as stream, _opened(parquet, stream) as file:
                about = file.metadata
                groups = [about.row_group(index) for index in range(about.num_row_groups)]
                size = sum(group.total_byte_size for group in groups)
                if size > MOST_BYTES or about.num_rows > MOST_ROWS:
                    raise DataError(
                        f"{path}: {about.num_rows:,} rows of {size:,} bytes; at most {MOST_ROWS:,} and "
                        f"{MOST_BYTES:,} are taken: cut it into several files"
                    )
                for batch in file.iter_batches(_rows_at_once(stream, about)):
                    yield from batch.to_pylist()
        else:
            with open_stream(path) as stream:
                rows = _rows_at_once(stream, None)
                for batch in pa.ipc.open_stream(stream):
                    for start in range(0, batch.num_rows, rows):
                        yield from batch.slice(start, rows).to_pylist()
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{path}: no whole {path.suffix[1:]} file ({str(error)[:200]}); was it fetched whole?"
        ) from error


def _opened(parquet: Any, stream: BinaryIO) -> Any:
    check_footer(stream)
    return parquet.ParquetFile(stream)


def _rows_at_once(stream: BinaryIO, about: Any) -> int:
    """How many rows are unpacked at a time: an extension counts what a file would take, whatever its end says. Raises
    ValueError for too much."""
    if not has_service("rows_at_once"):
        return _BATCH
    return service("rows_at_once", "reading rows")(stream, about, _BATCH)


def _as_json(fields: Mapping[str, Any], where: str) -> bytes:
    try:
        return json_bytes({name: _plain_moment(value) for name, value in fields.items()}, where)
    except (StoreError, RecursionError) as error:
        raise DataError(
            f"{str(error)[:400]}. Leave that column out: name those that are needed"
        ) from error


def _plain_moment(value: Any) -> Any:
    """Dates and decimals, which JSON has no name for, as text."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


# ------------------------------------------------------------------------------------------------ folders


def _files_in(folder: Path) -> list[tuple[Path, str]]:
    if (folder / "dataset_dict.json").is_file():
        files = []
        for split in _json(folder / "dataset_dict.json").get("splits", []):
            saved = _saved(_inside(folder, str(split)))
            files += [(path, str(split)) for path, _ in saved]
        return files
    if (folder / "state.json").is_file():
        return _saved(folder)
    files = []
    for path in _all_in(folder):
        if path.suffix in SUFFIXES and path.is_file():
            name = path.relative_to(folder)
            files.append((_inside(folder, str(name)), _split_named(name)))
    return files


def _all_in(folder: Path) -> list[Path]:
    """Whatever lies in a folder and below it, in order. DataError where that is too much to be a folder of rows, or cannot be
    looked through."""
    try:
        entries = sorted(islice(folder.rglob("*"), MOST_IN_FOLDER + 1))
    except OSError as error:
        raise DataError(f"{folder} cannot be looked through for files of rows: {error}") from error
    if len(entries) > MOST_IN_FOLDER:
        raise DataError(
            f"{folder} holds more than {MOST_IN_FOLDER:,} files and folders: expected a folder of rows; name the one that "
            "they lie in, or the files"
        )
    return entries


def _saved(folder: Path) -> list[tuple[Path, str]]:
    """The arrow files that `Dataset.save_to_disk` wrote, named in state.json."""
    state = _json(folder / "state.json")
    if state.get("_indices_files"):
        raise DataError(
            f"{folder}: saved with indices beside its rows; save it with dataset.flatten_indices()"
        )
    names = [str(entry.get("filename")) for entry in state.get("_data_files", [])]
    return [(_inside(folder, name), "") for name in names]


def _split_named(path: Path) -> str:
    match = _SPLIT.search(path.name.lower()) or _SPLIT.search(str(path.parent).lower())
    return match[0] if match else ""


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(
            f"{path} leads out of the folder that was named; copy what it leads to, or name that"
        )
    return path


def _json(path: Path) -> dict[str, Any]:
    try:
        with open_stream(path) as stream:
            held = json.loads(stream.read(MOST_ROW_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: expected the JSON that datasets' save_to_disk writes ({error})"
        ) from error
    if not isinstance(held, dict):
        raise DataError(f"{path}: expected a JSON object, as datasets' save_to_disk writes it")
    return held
