"""Verifiers' and Inspect's own readers take what is exported, and find every trajectory in it as it was.

They insist on other versions than ours, so they live in environments of their own: `make test-readers` makes one and runs this file
in ours. What our own importers read back needs neither.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.beside import environment_beside, python_beside
from tests.exported.trajectories import CONTROL_TEXT, stored_run
from workbench.extensions.interop.exports.verifiers import NO_TOKENS

READERS = Path(__file__).parent / "readers"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return stored_run(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="module")
def trajectories(run):
    return [
        (step, number, t)
        for step in run.steps()
        for number, group in enumerate(run.groups(step))
        for t in group
    ]


def read_by(script: str, path: Path, variable: str, place: str):
    """What the script prints, run by the Python that `variable` names, or by the one in `place`."""
    done = subprocess.run(
        [python_beside(variable, place), READERS / script, path],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment_beside(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_inspect_reads_the_log(run, trajectories, tmp_path):
    wb.export_run(run, tmp_path / "first.eval", to="inspect")
    log = read_by(
        "read_inspect.py", tmp_path / "first.eval", "WORKBENCH_INSPECT_PYTHON", ".venv-readers"
    )
    rewards = [t.reward for _, _, t in trajectories if t.reward is not None]
    assert (log["status"], log["model"], log["task"]) == ("success", "search-tiny", "file_qa")
    assert log["metadata"]["run_digest"] == run.digest()
    assert log["scores"]["reward"] == [
        pytest.approx(np.mean(rewards)),
        len(rewards),
        len(trajectories) - len(rewards),
    ]
    found = {(sample["id"], sample["epoch"]): sample for sample in log["samples"]}
    assert len(found) == len(trajectories)
    for step, number, t in trajectories:
        sample = found[f"step-{step}-group-{number}", t.attempt + 1]
        assert sample["scores"].get("reward") == t.reward, "unscored has no score"
        assert (
            sample["metadata"]["task_id"] == t.task.id
            and sample["metadata"]["stop_reason"] == t.stop_reason.value
        )
        assert sample["target"] == ["Ann"] and sample["input"] == 2
        assert sum(source == "generate" for *_, source in sample["messages"]) == len(t.turns)
        assert (sample["error"] or "").startswith("env_error: Boom") == t.stop_reason.is_fault
    first = found["step-1-group-0", 1]["messages"]
    assert first[2][:3] == [
        "assistant",
        "<think>two</think>",
        [["search", {"query": "Zeno"}], ["add", {"numbers": [1, 2]}]],
    ]
    assert first[3][:2] == ["tool", CONTROL_TEXT]


def test_verifiers_reads_the_traces(run, trajectories, tmp_path):
    wb.export_run(run, tmp_path / "out", to="verifiers")
    found = read_by(
        "read_verifiers.py", tmp_path / "out", "WORKBENCH_VERIFIERS_PYTHON", ".venv-readers"
    )
    assert len(found) == len(trajectories)
    for trace, (step, number, t) in zip(found, trajectories):
        assert (trace["group"], trace["ok"], trace["turns"]) == (
            f"{step}-{number}",
            not t.stop_reason.is_fault,
            len(t.turns),
        )
        assert trace["reward"] == t.reward or (t.reward == 0 and trace["reward"] == 0), (
            "unscored is null"
        )
        assert trace["errors"] == ([t.error] if t.error else [])
        if len(t.segments) != 1:
            assert trace["ids"] == []
            continue
        [segment] = t.segments
        end = (
            int(np.flatnonzero(segment.eligible)[-1]) + 1
        )  # what came after the last answer is shown to nobody
        assert (
            trace["ids"] == segment.token_ids[:end].tolist()
            and trace["mask"] == segment.eligible[:end].tolist()
        )
        assert [logp for logp, m in zip(trace["logprobs"], trace["mask"]) if m] == segment.logprobs[
            segment.eligible
        ].tolist()
    assert found[0]["calls"] == [["search", '{"query": "Zeno"}'], ["add", '{"numbers": [1, 2]}']]


def test_our_own_importer_reads_back_the_very_tokens(run, trajectories, tmp_path):
    said = wb.export_run(run, tmp_path / "out", to="verifiers").text
    found = wb.read_rollouts(tmp_path / "out")
    assert found.skipped == 0 and "no reward" not in said
    assert NO_TOKENS in said
    wanted = [t for _, _, t in trajectories if t.reward is not None and len(t.segments) == 1]
    read = [t for group in found.groups for t in group if t.scored]
    assert [t.reward for t in read] == [t.reward for t in wanted]
    for ours, back in zip(wanted, read):
        (a,), (b,) = ours.segments, back.segments
        end = int(np.flatnonzero(a.eligible)[-1]) + 1
        assert (
            b.token_ids.tolist() == a.token_ids[:end].tolist()
            and b.eligible.tolist() == a.eligible[:end].tolist()
        )
        np.testing.assert_array_equal(b.logprobs, a.logprobs[:end])
