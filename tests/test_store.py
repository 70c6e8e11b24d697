"""Invariants 5, 6, 13 and 14 at the level of a run: what was collected and used comes back exactly, or is said to be gone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from faulty_disk import WAYS, FaultyDisk, no_waiting  # noqa: F401  (a fixture)
from hypothesis import given, settings
from hypothesis import strategies as st
from store_values import credit_of, groups, ordinary_step

from workbench.run import columns, recording, store, writer
from workbench.run.equality import first_difference, groups_equal
from workbench.run.recording import create_run, reopen_run
from workbench.run.store import open_run
from workbench.values import CreditTable, Group, Segment, Source, Span
from workbench.values.errors import StoreError

pytestmark = pytest.mark.usefixtures("no_waiting")

ROOT = Path(__file__).resolve().parents[1]
CONFIG = {"seed": 3, "env": {"name": "lake", "slip": 0.1}}


def do_step(run, step: int, *, updates: int = 1) -> None:
    collected = ordinary_step(step)
    run.write_step(step, collected)
    for update in range(updates):
        run.write_credit(credit_of(collected, step, update))
    run.event({"kind": "note", "step": step})
    run.commit_step(step, {"loss": 0.1 * step, "success": 0.5}, {"step_s": 1.5})


def finished_run(path: Path, steps: int = 2) -> store.Run:
    with create_run(path, CONFIG) as run:
        for step in range(1, steps + 1):
            do_step(run, step)
        run.write_evaluation("step-00000002", {"success": 0.75, "tasks": 512})
    return open_run(path)


# ------------------------------------------------------------------------------------------------ exactness


@settings(max_examples=50)
@given(st.lists(groups(), max_size=2))
def test_every_group_comes_back_exactly(collected):
    data = columns.encode_groups(collected, step=1)
    again = columns.decode_groups(bytes(data), Path("x"))
    assert first_difference(again, collected) is None
    assert columns.encode_groups(again, step=1) == data, "equal content makes an equal file"


def test_a_file_holds_no_time_and_no_place():
    first = bytes(columns.encode_groups(ordinary_step(1), step=1))
    time.sleep(0.01)
    code = (
        "import sys; sys.path[:0] = ['tests']; from store_values import ordinary_step; from workbench.run import columns;"
        "from hashlib import sha256; print(sha256(columns.encode_groups(ordinary_step(1), step=1)).hexdigest())"
    )
    from hashlib import sha256

    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        text=True,
        capture_output=True,
        check=True,
    ).stdout.strip()
    assert other == sha256(first).hexdigest()


def changed(trajectory_change=None, span_change=None, turn_change=None):
    """One ordinary step, and the same with one thing changed."""
    before = ordinary_step(5)
    trajectory = before[1][0]
    if trajectory_change:
        trajectory = replace(trajectory, **trajectory_change)
    if turn_change:
        trajectory = replace(
            trajectory, turns=(replace(trajectory.turns[0], **turn_change), *trajectory.turns[1:])
        )
    if span_change:
        spans = list(trajectory.segments[0].spans)
        spans[3] = span_change(spans[3])
        trajectory = replace(trajectory, segments=(Segment(tuple(spans)),))
    return before, [before[0], Group((trajectory, *before[1].trajectories[1:]))]


CHANGES = {
    "reward None": dict(turn_change={"reward": None}),
    "reward 0": dict(turn_change={"reward": 0.0}),
    "reward -0": dict(turn_change={"reward": -0.0}),
    "one bit": dict(turn_change={"reward": float(np.nextafter(-0.1, 0))}),
    "outcome None": dict(trajectory_change={"outcome": None}),
    "success None": dict(trajectory_change={"success": None}),
    "success": dict(trajectory_change={"success": False}),
    "unscored": dict(trajectory_change={"scored": False}),
    "state_key": dict(turn_change={"state_key": None}),
    "empty key": dict(turn_change={"state_key": ""}),
    "info type": dict(
        turn_change={"info": {"success": 0, "valid_format": True, "moves": ["Right", "Down"]}}
    ),
    "no logprobs": dict(span_change=lambda s: replace(s, sampled=False, logprobs=None)),
    "zero logprobs": dict(span_change=lambda s: replace(s, logprobs=np.zeros(len(s)))),
    "plain": dict(span_change=lambda s: replace(s, plain_logprobs=s.logprobs)),
    "logprob bit": dict(
        span_change=lambda s: replace(s, logprobs=np.nextafter(s.logprobs, np.float32(0)))
    ),
    "version": dict(span_change=lambda s: replace(s, policy_version=None)),
    "version 0": dict(span_change=lambda s: replace(s, policy_version=0)),
    "author": dict(span_change=lambda s: Span(Source.ENV, s.turn, s.token_ids)),
    "id": dict(span_change=lambda s: replace(s, token_ids=s.token_ids + 1)),
    "error": dict(trajectory_change={"error": ""}),
}


@pytest.mark.parametrize(
    "change", CHANGES.values(), ids=[name.replace(" ", "-") for name in CHANGES]
)
def test_equality_sees_the_smallest_change_and_the_file_keeps_it(change):
    before, after = changed(**change)
    assert groups_equal(before, ordinary_step(5)) and not groups_equal(before, after)
    assert first_difference(before, after).startswith("groups[1].trajectories[0].")
    back = columns.decode_groups(bytes(columns.encode_groups(after, step=1)), Path("x"))
    assert groups_equal(back, after) and not groups_equal(back, before)


def test_none_is_null_in_the_file_and_never_zero():
    """Invariant 5, seen by any other reader of parquet: a token that was not sampled has no logprob at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    before, after = changed(turn_change={"reward": None})
    table = pq.read_table(pa.BufferReader(columns.encode_groups(after, step=1)))
    assert table["turn_reward"].to_pylist()[2] == [None, -0.1]
    segment = after[1][0].segments[0]
    logprobs = table["logprobs"].to_pylist()[2]
    assert [value is None for value in logprobs] == (~segment.eligible).tolist()
    assert table["token_ids"].to_pylist()[2] == segment.token_ids.tolist()


def test_numpy_numbers_in_info_are_kept_and_objects_refused():
    before, after = changed(
        turn_change={
            "info": {"x": np.float32(0.5), "n": np.int64(2), "ok": np.bool_(True), "t": (1, 2)}
        }
    )
    back = columns.decode_groups(bytes(columns.encode_groups(after, step=1)), Path("x"))
    assert back[1][0].turns[0].info == {"x": 0.5, "n": 2, "ok": True, "t": [1, 2]} and groups_equal(
        back, after
    )
    for bad in ({"x": object()}, {"x": {1, 2}}, {1: "x"}):
        with pytest.raises(StoreError, match="info of a turn (holds|has the key)"):
            columns.encode_groups(changed(turn_change={"info": bad})[1], step=1)
    with pytest.raises(StoreError, match="seeds must fit into 63 bits"):
        columns.encode_groups(changed(trajectory_change={"dynamics_seed": 2**64})[1], step=1)


@given(st.integers(0, 5), st.data())
def test_credit_tables_come_back_bit_for_bit(length, data):
    """Any bits: NaN payloads, infinities, subnormals, minus zero. Columns that were absent stay absent."""
    kinds = {
        "advantage": np.float64,
        "weight": np.float64,
        "ratio": np.float32,
        "trajectory": np.int32,
        "source": np.int8,
        "eligible": np.bool_,
        "value": np.float32,
        "ref_logp": np.float32,
    }
    table = {}
    for name in data.draw(st.lists(st.sampled_from(sorted(kinds)), unique=True)):
        kind = np.dtype(kinds[name])
        raw = data.draw(st.binary(min_size=length * kind.itemsize, max_size=length * kind.itemsize))
        table[name] = (
            np.frombuffer(raw, kind)
            if np.dtype(kind) != np.dtype(bool)
            else np.frombuffer(raw, np.uint8) % 2 == 1
        )
    before = CreditTable(7, 1, table)
    after, skipped = columns.decode_credit(
        bytes(columns.encode_credit(before, skipped="why")), Path("x")
    )
    assert skipped == "why" and (after.step, after.update) == (7, 1)
    assert list(after.columns) == list(table) and first_difference(after, before) is None
    assert "value" in table or "value" not in after.columns


def test_what_is_read_is_frozen(tmp_path):
    """Invariant 6: a view that changes what it was handed would change what the next one shows."""
    run = finished_run(tmp_path / "run")
    table, span = run.credit(1), run.groups(1)[0][0].segments[0].spans[3]
    for array in (*table.columns.values(), span.token_ids, span.logprobs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


# ------------------------------------------------------------------------------------------------ a whole run


def test_a_run_comes_back(tmp_path):
    run = finished_run(tmp_path / "run")
    assert (
        run.config == CONFIG
        and run.steps() == [1, 2]
        and run.uncommitted() == []
        and run.warnings() == []
    )
    for step in run.steps():
        assert groups_equal(run.groups(step), ordinary_step(step))
        assert run.updates(step) == [0] and run.skipped(step) == {}
        assert first_difference(run.credit(step), credit_of(ordinary_step(step), step)) is None
    metrics = run.metrics()
    assert (
        list(metrics.index) == [1, 2]
        and metrics.loc[2, "loss"] == 0.2
        and list(metrics.columns) == ["loss", "success"]
    )
    assert list(run.clock().columns) == ["at", "step_s"] and list(run.clock().index) == [1, 2]
    assert run.events() == [{"kind": "note", "step": 1}, {"kind": "note", "step": 2}]
    assert run.evaluations() == {"step-00000002": {"success": 0.75, "tasks": 512}}
    assert [p["what"] for p in run.processes()] == ["created"]


def test_equal_runs_have_equal_digests_and_the_clock_is_apart(tmp_path):
    first, second = finished_run(tmp_path / "a"), finished_run(tmp_path / "b")
    assert first.digest() == second.digest()
    for name in (
        "metrics.jsonl",
        "events.jsonl",
        "config.json",
        "steps/step-00000001/trajectories.parquet",
    ):
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes()
    assert (first.path / "clock.jsonl").read_bytes() != (second.path / "clock.jsonl").read_bytes()
    with reopen_run(tmp_path / "b") as run:
        run.event({"kind": "note"})
    assert first.digest() != second.digest()


def test_a_metric_that_was_not_computed_is_missing_not_zero(tmp_path):
    with create_run(tmp_path / "run", {}) as run:
        for step, metrics in (
            (1, {"loss": 0.0, "kl": None}),
            (2, {"gap": float("nan"), "loss": float("inf")}),
        ):
            run.write_step(step, ordinary_step(step))
            run.commit_step(step, metrics)
    metrics = open_run(tmp_path / "run").metrics()
    assert metrics.loc[1, "loss"] == 0 and metrics.loc[2, "loss"] == np.inf
    assert metrics[["kl", "gap"]].isna().all(axis=None) and list(metrics.columns) == [
        "loss",
        "kl",
        "gap",
    ]


def test_a_skipped_update_keeps_its_batch_and_says_why(tmp_path):
    with create_run(tmp_path / "run", {}) as run:
        collected = ordinary_step(1)
        run.write_step(1, collected)
        run.write_credit(credit_of(collected, 1, 0), skipped="loss is NaN at token 7")
        run.write_credit(credit_of(collected, 1, 1))
        run.commit_step(1, {})
    run = open_run(tmp_path / "run")
    assert run.skipped(1) == {0: "loss is NaN at token 7"} and run.updates(1) == [0, 1]
    assert (
        groups_equal(run.groups(1), collected)
        and first_difference(run.credit(1, 0), credit_of(collected, 1, 0)) is None
    )
    assert run.events() == [
        {"kind": "skipped_update", "step": 1, "update": 0, "reason": "loss is NaN at token 7"}
    ]


def test_the_order_of_a_step_is_kept(tmp_path):
    """Invariant 14: trajectories, then credit, then the line that commits; afterwards nothing changes."""
    run = create_run(tmp_path / "run", {})
    collected = ordinary_step(1)
    with pytest.raises(StoreError, match="came before the step's trajectories"):
        run.write_credit(credit_of(collected, 1))
    with pytest.raises(StoreError, match="has no trajectories yet"):
        run.commit_step(1, {})
    run.write_step(1, collected)
    with pytest.raises(StoreError, match="is there already"):
        run.write_step(1, collected)
    assert open_run(run.path).steps() == [] and open_run(run.path).uncommitted() == [1]
    with pytest.raises(StoreError, match="begun but not committed"):
        open_run(run.path).groups(1)
    run.commit_step(1, {})
    for again in (
        lambda: run.write_step(1, collected),
        lambda: run.write_credit(credit_of(collected, 1, 3)),
        lambda: run.commit_step(1, {}),
        lambda: run.write_step(0, collected),
    ):
        with pytest.raises(StoreError, match="committed|came before"):
            again()
    for bad in (-1, 1.5, True, 10**8, "1"):
        with pytest.raises(StoreError, match="whole number"):
            run.write_step(bad, collected)
    run.close()
    with pytest.raises(StoreError, match="is closed"):
        run.write_step(2, collected)


def test_evaluations_are_records_too(tmp_path):
    with create_run(tmp_path / "run", {}) as run:
        run.write_evaluation("first", {"success": 0.5})
        run.write_evaluation("first", {"success": 0.5})
        with pytest.raises(StoreError, match="is there already"):
            run.write_evaluation("first", {"success": 0.6})
        run.write_evaluation("first", {"success": 0.7}, replace=True)
        with pytest.raises(StoreError, match="cannot be a name"):
            run.write_evaluation("../first", {})
    assert open_run(tmp_path / "run").evaluations() == {"first": {"success": 0.7}}


# ------------------------------------------------------------------------------------------------ opening


def test_a_finished_run_opens_without_torch(tmp_path):
    """Invariant 13 and the layers: a laptop with numpy, pandas and pyarrow is enough."""
    path = finished_run(tmp_path / "run").path
    code = (
        "import sys\nfor name in ('torch', 'transformers', 'accelerate', 'safetensors'): sys.modules[name] = None\n"
        "from workbench.run.store import open_run\nrun = open_run(sys.argv[1])\n"
        "print(len(run.groups(2)), run.credit(2)['advantage'].shape, len(run.metrics()), run.digest())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, text=True, capture_output=True
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.split()[0] == "2" and out.stdout.split()[-1] == open_run(path).digest()


def test_what_is_no_run_folder_is_said(tmp_path):
    with pytest.raises(StoreError, match="there is no run folder"):
        open_run(tmp_path / "nothing")
    with pytest.raises(StoreError, match="is not a run folder: it has no run.json"):
        open_run(tmp_path)
    run = finished_run(tmp_path / "run")
    with pytest.raises(StoreError, match="has no committed step 9: it has steps 1 to 2"):
        run.groups(9)
    with pytest.raises(
        StoreError,
        match=r"has no credit-0004.parquet; it has credit-0000.parquet, trajectories.parquet",
    ):
        run.credit(1, 4)
    with pytest.raises(StoreError, match="is there already; choose another name, or continue"):
        create_run(run.path, {})
    (tmp_path / "link").symlink_to(run.path)
    with pytest.raises(StoreError, match="symbolic link"):
        reopen_run(tmp_path / "link")
    for name in (".hidden", "a b", "x" * 101):
        with pytest.raises(StoreError, match="cannot be a name"):
            create_run(tmp_path / name, {})


def test_a_newer_format_is_refused_with_what_reads_it(tmp_path, monkeypatch):
    with monkeypatch.context() as future:
        for module in (store, recording):
            future.setattr(module, "FORMAT", 2)
        path = finished_run(tmp_path / "run").path
    with pytest.raises(
        StoreError, match="run.json has format 2 of 'run'; this version reads formats 1 to 1"
    ):
        open_run(path)
    with monkeypatch.context() as future:
        future.setattr(columns, "TRAJECTORIES", ("trajectories", 2))
        path = finished_run(tmp_path / "other").path
    with pytest.raises(StoreError, match="trajectories.parquet has format 2"):
        open_run(path).groups(1)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << (at % 8)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda p: p.unlink(), "is missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-9]), "is damaged: .* bytes were written"),
        (lambda p: flip(p, p.stat().st_size // 2), "is damaged: its sha256"),
        (lambda p: (p.rename(p.with_name("x")), p.symlink_to("x")), "symbolic link"),
    ],
)
@pytest.mark.parametrize("name", ["trajectories.parquet", "credit-0000.parquet"])
def test_damage_is_named(tmp_path, damage, said, name):
    run = finished_run(tmp_path / "run")
    damage(run.path / "steps/step-00000001" / name)
    read = run.groups if name.startswith("t") else run.credit
    with pytest.raises(StoreError, match=rf"step-00000001/{name}.*{said}"):
        read(1)
    assert read(2) is not None, "the other step is untouched"


def test_no_flipped_bit_in_a_step_is_ever_read_as_data(tmp_path):
    run = finished_run(tmp_path / "run", steps=1)
    path = run.path / "steps/step-00000001/trajectories.parquet"
    good, rng = path.read_bytes(), random.Random(0)
    for _ in range(200):
        path.write_bytes(good)
        flip(path, rng.randrange(len(good)))
        with pytest.raises(StoreError):
            run.groups(1)


def test_damaged_parquet_says_so_even_without_a_seal():
    data = bytes(columns.encode_groups(ordinary_step(1), step=1))
    for broken in (b"", b"not parquet", data[:100], data[:-1], b"\0" * len(data)):
        with pytest.raises(StoreError, match="here.parquet is damaged or not a parquet file"):
            columns.decode_groups(broken, Path("here.parquet"))
    with pytest.raises(StoreError, match="holds a 'credit', expected a 'trajectories'"):
        columns.decode_groups(
            bytes(columns.encode_credit(CreditTable(1, 1, {}))), Path("here.parquet")
        )


def test_changed_json_is_noticed(tmp_path):
    run = finished_run(tmp_path / "run")
    config = run.path / "config.json"
    config.write_text(config.read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(StoreError, match="config.json was changed after it was written"):
        open_run(run.path)


# ------------------------------------------------------------------------------------------------ dying and going on


def test_a_torn_line_is_left_out_and_said_and_only_a_writer_mends_it(tmp_path):
    path = finished_run(tmp_path / "run", steps=3).path
    metrics = path / "metrics.jsonl"
    whole = metrics.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start + 1, len(whole)):  # every byte of the last line
        metrics.write_bytes(whole[:cut])
        run = open_run(path)
        assert run.steps() == [1, 2] and run.uncommitted() == [3]
        assert any(
            "metrics.jsonl: the last line is cut short" in warning for warning in run.warnings()
        )
        assert metrics.read_bytes() == whole[:cut], "a reader changes nothing"
    reopen_run(path).close()
    assert metrics.read_bytes() == whole[:start]
    assert (path / "metrics.jsonl.orphan-1").read_bytes() == whole[start:cut]
    assert (path / "orphans/step-00000003-1/trajectories.parquet").is_file(), (
        "set aside, not deleted"
    )
    run = open_run(path)
    assert run.steps() == [1, 2] and run.uncommitted() == [] and run.warnings() == []
    assert [e["step"] for e in run.events()] == [1, 2]


def test_a_damaged_clock_is_no_reason_not_to_go_on(tmp_path):
    path = finished_run(tmp_path / "run", steps=3).path
    before, digest = (path / "clock.jsonl").read_bytes(), open_run(path).digest()
    lines = before.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"step":2' in line)
    flip(path / "clock.jsonl", len(b"".join(lines[:at])) + len(lines[at]) // 2)
    damaged = (path / "clock.jsonl").read_bytes()
    with pytest.raises(StoreError, match="clock.jsonl: line .* is damaged"):
        open_run(path).clock()
    reopen_run(path).close()
    run = open_run(path)
    assert list(run.clock().index) == [1, 3] and [p["what"] for p in run.processes()] == [
        "created",
        "reopened",
    ]
    assert (path / "clock.jsonl.orphan-1").read_bytes() == damaged and run.digest() == digest
    reopen_run(path).close()
    assert not (path / "clock.jsonl.orphan-2").exists()


def test_the_folder_one_is_in_is_a_run_folder_too(tmp_path, monkeypatch):
    path = finished_run(tmp_path / "run").path
    for folder, name in ((path, "."), (path, ""), (path / "steps", "..")):
        monkeypatch.chdir(folder)
        assert open_run(name).name == "run"
        with reopen_run(name) as run:
            assert run.path == path and run.last_step == 2


def test_a_run_goes_on_where_it_was_and_ends_the_same(tmp_path):
    whole = finished_run(tmp_path / "whole", steps=3)
    path = finished_run(tmp_path / "stopped", steps=2).path
    with reopen_run(path) as run:
        assert run.last_step == 2 and len(run.run.events()) == 2
        run.write_step(3, ordinary_step(99))  # begun, died
    with reopen_run(path) as run:
        do_step(run, 3)
    assert open_run(path).digest() == whole.digest()
    assert [p["what"] for p in open_run(path).processes()] == ["created", "reopened", "reopened"]


def test_two_writers_of_one_run_are_refused(tmp_path):
    run = create_run(tmp_path / "run", {})
    with pytest.raises(StoreError, match=f"is being written by process {os.getpid()} on .* since"):
        reopen_run(run.path)
    assert open_run(run.path).steps() == [], "reading is always possible"
    run.close()
    reopen_run(run.path).close()


def test_a_checkpoint_newer_than_the_metrics_means_loss(tmp_path):
    path = finished_run(tmp_path / "run").path
    writer.write_folder(path / "checkpoints/step-00000005", {}, kind="checkpoint", version=1)
    with pytest.raises(
        StoreError, match="checkpoint of step 5, but its last committed step is 2.*were lost"
    ):
        reopen_run(path)


def steps_must_be_whole(path: Path) -> list[int]:
    """Whatever a reader shows as committed is wholly there."""
    run = open_run(path)
    for step in run.steps():
        assert groups_equal(run.groups(step), ordinary_step(step))
        assert run.updates(step) == [0, 1]
        for update in (0, 1):
            assert (
                first_difference(
                    run.credit(step, update), credit_of(ordinary_step(step), step, update)
                )
                is None
            )
    return run.steps()


def crash_through_a_step(tmp_path, act, ways) -> int:
    """Step 1 is committed; `act` does step 2 and dies before its n-th call, for every n. Returns how many there were."""
    template = tmp_path / "template"
    with create_run(template, {}) as run:
        do_step(run, 1, updates=2)
    whole = tmp_path / "whole"
    shutil.copytree(template, whole)
    with reopen_run(whole) as run:
        act(run)
    number = 0
    while True:
        number += 1
        for way in ways:
            path = tmp_path / "run"
            shutil.copytree(template, path)
            run = reopen_run(path)
            with FaultyDisk(path, crash_at=number) as disk:
                act(run)
            run.close()  # the kernel does this when a process dies
            disk.lose(way)
            committed = steps_must_be_whole(path)
            assert committed == [1, 2] if not disk.dead else committed in ([1], [1, 2])
            with reopen_run(path) as run:
                if run.last_step == 1:
                    do_step(run, 2, updates=2)
            assert open_run(path).digest() == open_run(whole).digest(), (
                "done again, it is the run that never died"
            )
            assert not list(path.rglob(".tmp-*"))
            shutil.rmtree(path)
        if not disk.dead:
            return number - 1


@pytest.mark.parametrize("ways", [("killed", "both"), pytest.param(WAYS, marks=pytest.mark.full)])
def test_a_step_is_committed_or_not_wherever_it_dies(tmp_path, ways):
    assert crash_through_a_step(tmp_path, lambda run: do_step(run, 2, updates=2), ways) >= 20


def test_the_crash_loop_notices_a_line_before_its_data(tmp_path):
    """Negative control: a writer that commits first and stores afterwards."""

    def careless(run):
        collected = ordinary_step(2)
        sealed = {"trajectories.parquet": columns.encode_groups(collected, step=2)}
        sealed |= {
            f"credit-000{u}.parquet": columns.encode_credit(credit_of(collected, 2, u))
            for u in (0, 1)
        }
        seals = {
            name: {"bytes": len(data), "sha256": writer.sha256(data).hexdigest()}
            for name, data in sealed.items()
        }
        run.event({"kind": "note", "step": 2})
        writer.append_line(
            run.path / "metrics.jsonl",
            {"step": 2, "metrics": {"loss": 0.2, "success": 0.5}, "files": seals},
        )
        writer.make_folder(run.path / "steps/step-00000002")
        for name, data in sealed.items():
            writer.write_file(run.path / "steps/step-00000002" / name, data)

    with pytest.raises(StoreError, match="step-00000002/trajectories.parquet is missing"):
        crash_through_a_step(tmp_path, careless, ("killed",))


CHILD = """
import sys; sys.path[:0] = ["tests"]
from test_store import do_step
from workbench.run.recording import reopen_run
run = reopen_run(sys.argv[1])
print("ready", flush=True)
for step in range((run.last_step or 0) + 1, 10**6):
    do_step(run, step, updates=2)
    print(step, flush=True)
"""


@pytest.mark.parametrize("kills", [3, pytest.param(24, marks=pytest.mark.full)])
def test_a_killed_process_loses_nothing_that_was_committed(tmp_path, kills):
    """The real thing: SIGKILL at a random instant, again and again, on one run."""
    path, rng, seen = tmp_path / "run", random.Random(1), 0
    create_run(path, {}).close()
    for _ in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "ready\n"
        for _ in range(rng.randrange(1, 4)):
            said = int(child.stdout.readline())
        time.sleep(
            rng.uniform(0, 0.05)
        )  # somewhere within a step, whichever that is: nothing below depends on it
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        run = open_run(path)
        assert len(run.steps()) >= said > seen
        assert run.steps() == list(range(1, len(run.steps()) + 1))
        seen = len(run.steps())
        steps_must_be_whole(path)
    reopen_run(path).close()
    assert open_run(path).uncommitted() == [] and open_run(path).warnings() == []
    with create_run(tmp_path / "whole", {}) as whole:
        for step in range(1, seen + 1):
            do_step(whole, step, updates=2)
    assert open_run(path).digest() == open_run(whole.path).digest()


# ------------------------------------------------------------------------------------------------ cost


def test_a_typical_step_costs_little(tmp_path):
    """128 trajectories, 24 000 tokens. The bound is generous: it is there to notice a tenfold loss, on any machine."""
    collected = ordinary_step(
        0, num_groups=16, group_size=8, num_turns=4, action=22, reply=14, prompt=34
    )
    table = credit_of(collected, 1)
    assert 20_000 < len(table["token_id"]) < 30_000
    with create_run(tmp_path / "run", {}) as run:
        began = time.process_time()
        for step in range(1, 6):
            run.write_step(step, collected)
            run.write_credit(CreditTable(step, 0, table.columns))
            run.commit_step(step, {})
        spent = (time.process_time() - began) / 5
    assert spent < 0.2


def test_what_trajectories_earned_leaves_the_one_aside_out(tmp_path):
    from workbench.run.outcomes import outcomes_of

    made = [
        replace(group, greedy=replace(group[0], attempt=len(group), outcome=99.0))
        for group in ordinary_step(1)
    ]
    with create_run(tmp_path / "run", CONFIG) as run:
        run.write_step(1, made)
        run.commit_step(1, {"loss": 0.1})
    stored = open_run(tmp_path / "run")
    assert stored.groups(1)[0].greedy.outcome == 99.0
    assert outcomes_of(stored, 1) == [[(t.reward, t.success) for t in group] for group in made]
