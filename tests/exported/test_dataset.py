"""A run as a Hugging Face dataset: `datasets` opens it, and every trajectory comes back whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import workbench as wb
from tests.exported.trajectories import stored_run
from workbench.extensions.interop.exports import dataset

datasets = pytest.importorskip(
    "datasets", reason="needs datasets, which trl brings: pip install -e '.[test]'"
)
GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/export.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return stored_run(tmp_path_factory.mktemp("runs") / "first")


def test_every_trajectory_comes_back(run, tmp_path):
    said = wb.export_run(run, tmp_path / "out", to="dataset").text
    assert "12 rows (trajectories) of 12 trajectories of 2 steps" in said and "left out" not in said
    rows = datasets.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert rows.column_names == list(dataset.COLUMNS)
    stored = [
        (step, number, t)
        for step in run.steps()
        for number, group in enumerate(run.groups(step))
        for t in group
    ]
    assert len(rows) == len(stored)
    for row, (step, number, t) in zip(rows, stored):
        assert (row["step"], row["group"], row["attempt"], row["task_id"], row["task_seed"]) == (
            step,
            number,
            t.attempt,
            t.task.id,
            t.task.task_seed,
        )
        assert (row["reward"], row["success"], row["stop_reason"], row["error"]) == (
            t.reward,
            t.success,
            t.stop_reason.value,
            t.error,
        )
        assert (
            json.loads(row["payload"]) == t.task.payload
            and json.loads(row["metadata"]) == t.task.metadata
        )
        assert [json.loads(turn["info"]) for turn in row["turns"]] == [
            turn.info for turn in t.turns
        ]
        assert [segment["token_ids"] for segment in row["segments"]] == [
            segment.token_ids.tolist() for segment in t.segments
        ]
        assert [segment["sampled"] for segment in row["segments"]] == [
            segment.eligible.tolist() for segment in t.segments
        ]
        assert [segment["sources"] for segment in row["segments"]] == [
            segment.sources.tolist() for segment in t.segments
        ]
        for kept, segment in zip(row["segments"], t.segments):
            assert [value for value in kept["logprobs"] if value is not None] == segment.logprobs[
                segment.eligible
            ].tolist()
        written = [message for message in row["messages"] if message["by_policy"]]
        assert len(written) == len(t.turns) and all(
            message["role"] == "assistant" for message in written
        )
    assert {row["reward"] for row in rows if row["stop_reason"] == "env_error"} == {None}, (
        "a fault has no reward, not 0"
    )


def test_a_chat_template_takes_the_messages(run, tmp_path):
    from workbench.engines.policy import load_tokenizer

    wb.export_run(run, tmp_path / "out", to="dataset", steps=[1])
    rows = datasets.load_dataset(
        str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache")
    )
    text = load_tokenizer("search-tiny").apply_chat_template(
        rows[0]["messages"], tools=json.loads(rows[0]["tools"]), tokenize=False
    )
    assert "Who wrote Zeno?" in text and "<answer>Ann</answer>" in text


def test_the_guide_has_the_schema_as_it_is():
    columns = GUIDE.read_text().partition("### The columns")[2]
    table = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", columns, re.MULTILINE))
    assert table == {name: meaning for name, (_, meaning) in dataset.COLUMNS.items()}


def test_one_step_is_in_memory_at_a_time(run, tmp_path, monkeypatch):
    """The file of a step is made when its turn comes to be written, not before."""
    order = []
    made, read = dataset._file, type(run).groups

    def file(job, step):
        for piece in made(job, step):
            yield piece
            order.append(f"wrote {step}")

    monkeypatch.setattr(dataset, "_file", file)
    monkeypatch.setattr(
        type(run), "groups", lambda self, step: order.append(f"read {step}") or read(self, step)
    )
    wb.export_run(run, tmp_path / "out", to="dataset")
    assert order == ["read 1", "wrote 1", "read 2", "wrote 2"]
