"""What JSON and compressed files of others take in memory is bounded before it is taken, not by what they weigh on the disk."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from workbench.basics import canonical_json, regular_files
from workbench.basics.canonical_json import line_bytes, read_lines
from workbench.basics.regular_files import SMALL_JSON, json_memory, parse_json
from workbench.values.errors import DataError, StoreError
from workbench.worlds.qa import records
from workbench.worlds.qa.files import read_corpus


@pytest.mark.parametrize("piece", ["[],", "{},", '{"a":0},', '"",', "1.5,", '{"abc":[{}]},'])
def test_many_small_values_are_refused_and_fewer_are_read(piece, monkeypatch):
    """A list of nothing is 64 bytes in three characters."""
    text = f"[{piece * 30_000}0]"
    values = parse_json(text)
    size = sys.getsizeof(values) + sum(sys.getsizeof(value) for value in values[:-1])
    assert json_memory(text) >= 0.7 * size and json_memory(text) == json_memory(text.encode())
    monkeypatch.setattr(regular_files, "SMALL_JSON", 0)
    assert parse_json(text) == values
    monkeypatch.setattr(regular_files, "MOST_JSON_MEMORY", 1 << 20)
    with pytest.raises(ValueError, match="more values than 1 MB"):
        parse_json(text)


def test_what_is_small_is_not_even_counted():
    assert json_memory("{" * SMALL_JSON) < 1 << 30


def test_lines_of_many_values_are_refused_and_ordinary_ones_are_not(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    numbers = {f"metric{n}": n * 0.1234567 for n in range(100)}
    path.write_bytes(line_bytes(numbers) * 2_000)
    assert len(read_lines(path).records) == 2_000
    assert json_memory(path.read_bytes()) < 5 * path.stat().st_size
    monkeypatch.setattr(canonical_json, "MOST_JSON_MEMORY", 1 << 20)
    assert len(read_lines(path).records) == 2_000
    path.write_bytes(line_bytes({"a": [[]] * 100}) * 100)
    with pytest.raises(StoreError, match="more than 6 times their size"):
        read_lines(path)


def test_a_compressed_corpus_that_unpacks_to_a_thousand_times_its_size_is_given_up(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(records, "SMALL_UNPACKED", 1 << 20)
    path = tmp_path / "corpus.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for n in range(200):
            file.write(json.dumps({"_id": str(n), "title": "t", "text": "x" * 50_000}) + "\n")
    with pytest.raises(DataError, match="50 times its size, as no text does"):
        list(read_corpus(path))
    monkeypatch.setattr(records, "SMALL_UNPACKED", 1 << 30)
    assert len(list(read_corpus(path))) == 200
