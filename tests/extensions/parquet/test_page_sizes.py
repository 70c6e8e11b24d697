"""A columnar file is bounded by what is allocated, whatever its end says of itself."""

from __future__ import annotations

import io
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workbench.extensions.interop.importers.trl_tables import rows_of
from workbench.extensions.parquet import page_sizes, rows
from workbench.extensions.parquet.page_sizes import MOST_CHUNKS, count_pages, unpacked_size
from workbench.run import parquet
from workbench.run.parquet import read_parquet, too_much
from workbench.values.errors import DataError, StoreError
from workbench.worlds.row_files import read_rows

ROOT = Path(__file__).resolve().parents[3]


def written(table: pa.Table, **options) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def varint(value: int, size: int) -> bytes:
    """A number that takes so many bytes: padded, as a reader takes it."""
    pieces = [(value >> (7 * index)) & 127 for index in range(size)]
    return bytes([*(piece | 128 for piece in pieces[:-1]), pieces[-1]])


def unpadded(value: int) -> bytes:
    pieces = []
    while value > 127:
        pieces.append(value & 127 | 128)
        value >>= 7
    return bytes([*pieces, value])


def lying(data: bytes, says: int = 1_000) -> bytes:
    """The same file, whose end says of its largest column that it unpacks to `says` bytes."""
    about = pq.read_metadata(io.BytesIO(data))
    true = max(
        about.row_group(0).column(i).total_uncompressed_size for i in range(about.num_columns)
    )
    needle = unpadded(true << 1)
    (length,) = struct.unpack("<I", data[-8:-4])
    start = len(data) - 8 - length
    assert needle in data[start:]
    end = data[start:].replace(needle, varint(says << 1, len(needle)))
    return data[:start] + end


def bomb(megabytes: int, **options) -> bytes:
    texts = ["x" * (1 << 20)] * megabytes
    return written(
        pa.table({"text": texts}),
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        **options,
    )


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"data_page_version": "2.0"}, {"compression": "zstd"}, {"compression": "none"}, {"write_statistics": False, "data_page_size": 100}, {"write_page_checksum": True}])  # fmt: skip
def test_pages_are_counted_as_the_writer_counted_them(options):
    count = 5_000
    table = pa.table(
        {
            "number": np.arange(count),
            "text": [f"text {n % 7}" for n in range(count)],
            "lists": [[n] * (n % 3) for n in range(count)],
            "none": pa.array([None] * count, pa.float32()),
        }
    )
    data = written(table, row_group_size=1_500, **options)
    about = pq.read_metadata(io.BytesIO(data))
    for group in range(about.num_row_groups):
        for index in range(about.num_columns):
            column = about.row_group(group).column(index)
            counted = count_pages(column, io.BytesIO(data))
            assert counted.values == column.num_values
            # The writer counts what stands before the pages, too.
            assert 0 <= column.total_uncompressed_size - counted.bytes < 100 * (counted.values + 10)
            assert counted.repeats or not counted.dictionary
    assert unpacked_size(io.BytesIO(data), about, None)[1] >= 4 * count


def test_the_end_of_a_file_may_lie(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MOST_TEXT", 8 << 20)
    monkeypatch.setattr(rows, "MOST_BYTES", 8 << 20)
    data = lying(bomb(16))
    column = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    assert len(data) < 20_000 and column.total_uncompressed_size == 1_000  # the lie
    assert count_pages(column, io.BytesIO(data)).bytes >= 16 << 20
    about = pq.read_metadata(io.BytesIO(data))
    assert not too_much(about, len(data))  # negative control: whoever believes it
    assert "bytes of text" in too_much(about, len(data), file=io.BytesIO(data))
    path = tmp_path / "lying.parquet"
    path.write_bytes(data)
    with pytest.raises(StoreError, match="not read: it has up to 16,77"):
        read_parquet(data, path, ("x", 1))
    with pytest.raises(DataError, match="not read: it has up to 16,77"):
        list(rows_of(path))
    with pytest.raises(DataError, match="it unpacks to 16,77"):
        list(read_rows(path))


def peak_kb(path: Path) -> int:
    """Memory that a process of its own takes at most to refuse a file, by the system's own account."""
    code = (
        "import sys; from pathlib import Path; from workbench.run.parquet import read_parquet\n"
        "from workbench.values.errors import StoreError\n"
        "path = Path(sys.argv[1])\n"
        "try: read_parquet(path.read_bytes(), path, ('x', 1))\n"
        "except StoreError: print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout, done.stderr  # it was refused
    return int(done.stdout)


@pytest.mark.full
def test_memory_stays_what_it_was(tmp_path):
    """By the system's own account, in a process of its own, as it was found: 39 kB took 2 GB."""
    path = tmp_path / "lying.parquet"
    path.write_bytes(lying(bomb(800)))
    assert peak_kb(path) < 400_000


def test_what_is_read_whole_is_bounded_with_the_file_itself(tmp_path, monkeypatch):
    """A file of 256 MB could unpack to 2 GB. What is read in pieces is not all in memory."""
    monkeypatch.setattr(page_sizes, "MOST_TOGETHER", 4 << 20)
    data = written(pa.table({"number": np.arange(1 << 20)}), use_dictionary=False)
    about = pq.read_metadata(io.BytesIO(data))
    for how, is_read in (((None, ""), False), ((None, "1"), True), ((1_000, ""), True)):
        rows_at_a_time, large = how
        monkeypatch.setenv(page_sizes.LARGE_STEPS, large)
        if is_read:
            assert unpacked_size(io.BytesIO(data), about, rows_at_a_time)[0] > 8 << 20
        else:
            with pytest.raises(StoreError, match="set WORKBENCH_LARGE_STEPS=1"):
                read_parquet(data, tmp_path / "x", ("x", 1))
    monkeypatch.setenv(page_sizes.LARGE_STEPS, "")
    monkeypatch.setattr(page_sizes, "MOST_TOGETHER", 64 << 20)  # negative control: within the bound
    assert unpacked_size(io.BytesIO(data), about, None)[0] > 8 << 20


@pytest.mark.full
def test_a_large_file_takes_less_than_a_gigabyte(tmp_path):
    """By the system's own account: 260 MB that nothing can be made smaller by, and 1.8 GB of nothing."""
    path = tmp_path / "large.parquet"
    noise = np.random.default_rng(0).integers(0, 1 << 62, 33 << 20)
    nothing = np.zeros(33 << 20, np.int64)
    columns = {"noise": noise, **dict.fromkeys("abcdef", nothing)}
    path.write_bytes(written(pa.table(columns), compression="zstd", use_dictionary=False))
    assert path.stat().st_size > 256 << 20
    assert peak_kb(path) < 1_000_000


@pytest.mark.parametrize("end", [b"", b"\x15", b"\x15\x00\x15"])
def test_damage_is_said_in_words(end, tmp_path):
    data = written(pa.table({"a": [1, 2, 3]}))
    column = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    with pytest.raises(ValueError, match="page"):
        count_pages(column, io.BytesIO(data[:4] + end))
    broken = bytearray(data)
    broken[4:12] = b"\xff" * 8
    with pytest.raises(StoreError, match="damaged"):
        read_parquet(bytes(broken), tmp_path / "x", ("x", 1))
    with pytest.raises(ValueError, match="page"):
        count_pages(column, io.BytesIO(data[:4] + b"\x1c" * 5_000))


def test_a_small_file_unpacks_to_less_than_a_large_one(monkeypatch):
    monkeypatch.setattr(parquet, "MOST_VALUES", 10_000_000)
    table = pa.table({"number": pa.array([None] * 2_000_000, pa.int8())})
    data = written(table, compression="zstd")
    about = pq.read_metadata(io.BytesIO(data))
    assert "values" in too_much(about, len(data))
    assert not too_much(about, 64 << 20)  # negative control: of a file that is as large


def test_groups_of_rows_without_end_are_refused():
    class About:
        num_row_groups = MOST_CHUNKS
        num_columns = 2
        num_rows = 1

    with pytest.raises(ValueError, match="more than 100,000 pieces"):
        unpacked_size(io.BytesIO(), About(), None)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_arrow_files_are_refused(compression, tmp_path):
    table = pa.table({"text": ["x" * 1_000] * 100})
    for way in (None, compression):
        with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as sink:
            options = pa.ipc.IpcWriteOptions(compression=way)
            with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
                writer.write_table(table)
        if way is None:
            assert len(list(read_rows(tmp_path / "rows.arrow"))) == 100
    with pytest.raises(DataError, match="its columns are compressed"):
        list(read_rows(tmp_path / "rows.arrow"))


@pytest.mark.full
def test_texts_of_a_dictionary_are_unpacked_a_few_rows_at_a_time(tmp_path):
    text = "x" * (40 << 20)
    data = written(
        pa.table({"text": pa.DictionaryArray.from_arrays([0] * 500, [text])}), use_dictionary=True, compression="zstd",
        dictionary_pagesize_limit=1 << 30,
    )  # fmt: skip
    path = tmp_path / "rows.parquet"
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="bytes as JSON"):
        list(read_rows(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900_000
