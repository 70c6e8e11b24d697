"""Values of foreign rollouts that no float holds, and other bent ones: a row that is skipped, named, and counted."""

from __future__ import annotations

import json
import random

import pytest

import workbench as wb
from tests.hostile.mutations import _mutated
from tests.imported.planted import FILES, TRACES, VERL_IDS
from workbench.extensions.interop.importers import read_rollouts, values, verifiers_traces
from workbench.values.errors import WorkbenchError

HUGE = {
    "a mask of 10^400": {"response_mask": [10**400]},
    "a reward of 10^400": {"score": -(10**400)},
    "ids of 10^400": {"response_ids": [10**400]},
    "ids nested 2,000 deep, as text": {"response_ids": "[" * 2_000},
    "a number of 5,000 digits, as text": {"response_mask": "[" + "9" * 5_000 + "]"},
}


def rows() -> list[dict]:
    return [json.loads(line) for line in (FILES / VERL_IDS).read_text().splitlines()]


@pytest.mark.parametrize("name", HUGE)
def test_a_row_with_such_a_value_is_skipped(tmp_path, name):
    bent = rows()
    bent[1] |= HUGE[name]
    path = tmp_path / "bent.jsonl"
    path.write_text("\n".join(map(json.dumps, bent)))
    read = read_rollouts(path)
    assert read.skipped == 1 and read.damaged[0].startswith("line 2: ")


def test_negative_control_without_the_guard_it_breaks(tmp_path, monkeypatch):
    monkeypatch.setattr(values, "_float", lambda value, what: float(value))
    bent = rows()
    bent[1] |= HUGE["a reward of 10^400"]
    path = tmp_path / "bent.jsonl"
    path.write_text("\n".join(map(json.dumps, bent)))
    assert "OverflowError" in read_rollouts(path).damaged[0]


@pytest.mark.parametrize("file", sorted(path.name for path in FILES.glob("*.jsonl")))
@pytest.mark.parametrize("start", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_bent_file_is_read_or_refused(tmp_path, file, start):
    """One value changed in each of 20 copies."""
    lines = [json.loads(line) for line in (FILES / file).read_text().splitlines()]
    for number in range(20 * start, 20 * start + 20):
        rng = random.Random(f"{file} {number}")
        bent = [*lines]
        at = rng.randrange(len(bent))
        bent[at], _ = _mutated(bent[at], rng)
        path = tmp_path / f"{number}.jsonl"
        path.write_text("\n".join(map(json.dumps, bent)))
        try:
            assert "\x1b" not in wb.show(read_rollouts(path)).text
        except WorkbenchError as error:
            assert str(error)


@pytest.mark.parametrize("calls", [5.0, {"a": 1}, "calls"])
@pytest.mark.parametrize("field", ["calls", "stop_condition", "nodes", "rewards", "task"])
def test_a_trace_with_a_field_of_another_kind_is_skipped_in_words(tmp_path, field, calls):
    lines = [json.loads(line) for line in (FILES / TRACES).read_text().splitlines()]
    for row in lines[1:]:
        for trace in row["traces"]:
            trace[field] = [[]] if field == "stop_condition" else calls
    path = tmp_path / "bent.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    read = read_rollouts(path)
    assert read.sequences and all(where.startswith("line ") for where in read.damaged)


def test_a_row_that_no_reader_foresaw_is_named_with_the_line_of_the_reader(tmp_path, monkeypatch):
    """Negative control of the reader's own checks: without one, the row is still the only one that is lost."""
    monkeypatch.setattr(verifiers_traces, "rows_of", lambda value, what: value or [])
    lines = [json.loads(line) for line in (FILES / TRACES).read_text().splitlines()]
    lines[1]["traces"][0]["calls"] = 5.0
    path = tmp_path / "bent.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    read = read_rollouts(path)
    assert read.skipped == 1 and "TypeError: 'float' object" in read.damaged[0]
    assert "verifiers_traces.py line " in read.damaged[0] and read.damaged[0].startswith("line 2: ")
