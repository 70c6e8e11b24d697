"""What is read in vain of foreign rollouts is bounded: holes of any size, zips that say the same again and again, ends of tables."""

from __future__ import annotations

import io
import json
import os
import time
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workbench.basics.parquet_footer import MOST_FOOTER, check_footer
from workbench.extensions.interop.importers import looks_like_rollouts, read_rollouts, reading, zips
from workbench.extensions.interop.importers.trl_tables import columns_of, rows_of
from workbench.extensions.interop.importers.values import Damaged
from workbench.values.errors import DataError

ROW = b'{"a": 1}\n'


@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts.json"])
def test_a_hole_is_not_read_to_its_end(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(ROW)
    os.truncate(path, 1 << 40)  # some ten minutes
    begun = time.process_time()
    with pytest.raises(DataError, match="no rollouts that can be read"):
        read_rollouts(path)
    assert time.process_time() - begun < 20


def test_the_files_of_a_folder_are_one_patience(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_LINE", 1 << 20)
    for number in range(40):
        (tmp_path / f"{number}.jsonl").touch()
        os.truncate(tmp_path / f"{number}.jsonl", 1 << 40)
    begun = time.process_time()
    assert not looks_like_rollouts(tmp_path)
    assert time.process_time() - begun < 20


def test_after_lines_that_are_too_long_and_ones_that_are_none_no_more_is_tried(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"x" * 5_000 + b"\n" + b"x\n" * 3_000 + ROW * 3)
    rows = list(reading.lines_of(path, reading.Patience(4_000), 1_000))
    assert [row.damage for row in rows] == ["longer than 0 MiB", reading.IMPATIENT]
    rows = list(reading.lines_of(path, reading.Patience(8_000), 1_000))
    assert len(rows) < 3_000 and rows[-1].damage == reading.IMPATIENT
    rows = list(reading.lines_of(path, reading.Patience(20_000), 1_000))  # negative control
    assert len(rows) == 3_004 and [row.row for row in rows[-3:]] == [{"a": 1}] * 3


def test_rows_that_can_be_read_are_not_in_vain(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(ROW * 100)
    assert all(row.row == {"a": 1} for row in reading.lines_of(path, reading.Patience(10)))


def test_a_zip_that_unpacks_without_an_end_is_left_off(tmp_path, monkeypatch):
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as log:
        for number in range(10):
            log.writestr(f"samples/{number}.json", json.dumps({"messages": [" " * 100_000]}))
    monkeypatch.setattr(zips, "LEAST_UNPACKED", 350_000)
    read = 0
    with zips.opened(path) as opened:
        with pytest.raises(DataError, match="unpacks to more than 50 times its size"):
            for info in opened.members:
                read += len(zips.member(opened, info))
        assert 300_000 <= read <= 350_000
    monkeypatch.setattr(zips, "LEAST_UNPACKED", 2_000_000)  # negative control
    with zips.opened(path) as opened:
        assert sum(len(zips.member(opened, info)) for info in opened.members) > 1_000_000
        with pytest.raises(Damaged, match="longer than"):
            zips.member(opened, opened.members[0], longest=1_000)


def test_a_table_whose_end_is_too_long_is_not_read(tmp_path):
    table = pa.table({"step": [1], "prompt": ["a"], "completion": ["b"], "advantage": [1.0]})
    sound, long = tmp_path / "sound.parquet", tmp_path / "long.parquet"
    pq.write_table(table, sound)
    pq.write_table(table.replace_schema_metadata({"x": "y" * (MOST_FOOTER + 1)}), long)
    with pytest.raises(DataError, match="read at most"):
        list(rows_of(long))
    assert columns_of(long) is None
    assert len(list(rows_of(sound))) == 1 and columns_of(sound)  # negative control
    file = io.BytesIO(sound.read_bytes())
    check_footer(file)
    assert file.tell() == 0
