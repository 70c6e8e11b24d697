"""Two runs compared: equal to the last bit, or the first step, file, column and token named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.store_values import credit_of, ordinary_step
from workbench import cli
from workbench.look.run_diff import PARTS, compare_runs
from workbench.run.file_diff import first_in_files
from workbench.run.recording import create_run
from workbench.run.store import open_run, step_name
from workbench.training import checkpoint
from workbench.values import CreditTable, Group, Segment
from workbench.values.address import Address
from workbench.values.errors import StoreError

ROW = {"policy": "trained", "mode": "sampled", "success": 0.75}
CONFIG = {"seed": 3, "train": {"steps": 2}, "env": {"name": "lake"}}


def write(
    path,
    steps=2,
    config=CONFIG,
    *,
    groups: Callable = ordinary_step,
    table: Callable = lambda t: t,
    metrics: Callable = lambda m: m,
    evaluation: Callable = lambda e: e,
    weights: Callable = lambda w: w,
    checkpoints=(2,),
    event: Callable = lambda e: e,
):
    """A small run. Each callable may change what is written, given the value that an ordinary run has."""
    with create_run(path, config) as run:
        for step in range(1, steps + 1):
            collected = groups(step)
            run.write_step(step, collected)
            for update in (0, 1):
                run.write_credit(table(credit_of(collected, step, update)))
            run.event(event({"kind": "note", "step": step}))
            run.commit_step(
                step,
                metrics({"step_number": step, "loss": 0.1 * step, "odd": float("nan")}),
                {"s": np.random.rand()},
            )
            if step in checkpoints:
                model = weights({"head": torch.arange(6.0), "body": torch.ones(3)})
                checkpoint.save(run, step, {"model": model}, {"step": step}, keep=5)
        run.write_evaluation("step-00000002", evaluation({"step": 2, "rows": [ROW]}))
    return open_run(path)


@pytest.fixture
def ordinary(tmp_path):
    return write(tmp_path / "a")


def at(table: CreditTable, column: str, index: int, step: int = 2, update: int = 1) -> CreditTable:
    """The table with one entry of one column moved by the smallest step there is."""
    if (table.step, table.update) != (step, update):
        return table
    values = table[column].copy()
    values[index] = (
        np.nextafter(values[index], np.inf, dtype=values.dtype)
        if values.dtype.kind == "f"
        else values[index] + 1
    )
    return CreditTable(table.step, table.update, {**table.columns, column: values})


def with_one_token_changed(step: int) -> list[Group]:
    first, second = ordinary_step(step)
    trajectory = second[1]
    spans = list(trajectory.segments[0].spans)
    ids = spans[3].token_ids.copy()
    ids[2] += step == 2
    spans[3] = replace(spans[3], token_ids=ids)
    changed = replace(trajectory, segments=(Segment(tuple(spans)),))
    return [first, Group((second[0], changed))]


def test_the_same_run_twice_is_equal_whatever_the_clock_says(ordinary, tmp_path):
    found = compare_runs(ordinary, write(tmp_path / "b"), exact=True)
    assert found.equal and found.first is None and found.digests[0] == found.digests[1]
    assert found.steps == (1, 2)
    marks = {
        "evaluation": ("", "="),
        "checkpoint": ("", "="),
        "lint": ("", ""),
    }  # these runs were never linted
    assert found.table == {part: marks.get(part, ("=", "=")) for part in PARTS}


# what is changed -> the part, step, file and words of the first difference
CHANGES = {
    "setting": (
        dict(config={**CONFIG, "seed": 4}),
        ("settings", None, "config.json", "seed: 3 is not 4"),
    ),
    "setting gone": (
        dict(config={"seed": 3, "train": {"steps": 2}}),
        ("settings", None, "config.json", "env.name: 'lake' is not 'not set'"),
    ),
    "token": (
        dict(groups=with_one_token_changed),
        (
            "trajectories",
            2,
            "trajectories.parquet",
            "groups[1].trajectories[1].segments[0].spans[3].token_ids[2]: ",
        ),
    ),
    "credit bit": (
        dict(table=lambda t: at(t, "weight", 7)),
        (
            "credit",
            2,
            "credit-0001.parquet",
            "column weight, token 7 (trajectory 0, segment 0, position 7, ",
        ),
    ),
    "clip state": (
        dict(table=lambda t: at(t, "clip_state", -1)),
        ("credit", 2, "credit-0001.parquet", "column clip_state, token "),
    ),
    "another length": (
        dict(table=lambda t: replace(t, columns={k: v[:-1] for k, v in t.columns.items()})),
        ("credit", 1, "credit-0000.parquet", "every column, "),
    ),
    "column gone": (
        dict(
            table=lambda t: replace(t, columns={k: v for k, v in t.columns.items() if k != "ratio"})
        ),
        ("credit", 1, "credit-0000.parquet", "column ratio, only in a"),
    ),
    "metric bit": (
        dict(metrics=lambda m: m | {"loss": float(np.nextafter(m["loss"], 1))}),
        ("metrics", 1, "metrics.jsonl", "loss: 0.1 is not "),
    ),
    "metric gone": (
        dict(metrics=lambda m: {k: v for k, v in m.items() if k != "odd"}),
        ("metrics", 1, "metrics.jsonl", "odd: nan is not absent"),
    ),
    "metric None": (
        dict(metrics=lambda m: m | {"loss": None}),
        ("metrics", 1, "metrics.jsonl", "loss: 0.1 is not None"),
    ),
    "evaluation": (
        dict(evaluation=lambda e: e | {"rows": [ROW | {"success": 0.5}]}),
        (
            "evaluation",
            2,
            "evaluations/step-00000002.json",
            "evaluation['rows'][0]['success']: 0.75 is not 0.5",
        ),
    ),
    "weights": (
        dict(weights=lambda w: w | {"body": torch.nextafter(w["body"], torch.tensor(2.0))}),
        ("checkpoint", 2, "model.safetensors", "tensor body (F32[3]): 3 of 12 bytes differ"),
    ),
    "event": (
        dict(event=lambda e: e | {"kind": "other"} if e["step"] == 2 else e),
        ("events", 2, "events.jsonl", "events[1]['kind']: 'note' is not 'other'"),
    ),
    "stopped earlier": (
        dict(steps=1, checkpoints=(), evaluation=lambda e: e),
        ("steps", 2, "metrics.jsonl", "only in a; a has steps up to 2, b up to 1"),
    ),
    "bytes": (
        dict(metrics=lambda m: {"loss": m["loss"], **m}),
        ("bytes", None, "metrics.jsonl", "line 1: "),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_smallest_change_is_found_and_named(name, ordinary, tmp_path):
    change, (part, step, file, words) = CHANGES[name]
    found = compare_runs(ordinary, write(tmp_path / "b", **change), exact=True)
    assert not found.equal
    first = found.first
    assert (
        (first.part, first.step) == (part, step)
        and first.file.endswith(file)
        and words in first.what
    ), str(first)
    for at in re.findall(r"at (step [\d a-z/]+)\)", str(first)):
        place = Address.of(at)  # which the run has, and its token is the row that is named
        segments = ordinary.groups(place.step)[place.task][place.attempt or 0].segments
        assert (
            f"groups[{place.task}]" in first.what
            or f"token {place.token} " in first.what
            or "clip_state" in words
        )
        assert place.token is None or place.token < sum(map(len, segments))
    assert (" / task " in first.what) == (name in ("token", "credit bit", "clip state")), first.what


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "bytes"])
def test_without_exact_the_seals_tell_as_much_and_neither_order_matters(name, ordinary, tmp_path):
    other = write(tmp_path / "b", **CHANGES[name][0])
    here, there = compare_runs(ordinary, other), compare_runs(other, ordinary)
    assert (
        not here.equal
        and (here.first.part, here.first.step)
        == (there.first.part, there.first.step)
        == CHANGES[name][1][:2]
    )


def test_every_differing_column_is_counted_with_its_greatest_difference(ordinary, tmp_path):
    def spoiled(table):
        weight = table["weight"].copy()
        weight[[7, 9]] += [0.25, -0.5]
        return CreditTable(
            table.step, table.update, {**table.columns, "weight": weight, "ratio": -table["ratio"]}
        )

    found = compare_runs(ordinary, write(tmp_path / "b", table=spoiled))
    weight, ratio = found.credit
    assert (weight.column, weight.tokens, weight.largest) == ("weight", 2, 0.5)
    trained = int(credit_of(ordinary_step(1), 1)["eligible"].sum())
    assert (ratio.column, ratio.largest) == ("ratio", 2.0) and ratio.tokens >= trained
    assert found.first.what.endswith("(and 1 more column)")


def test_a_flipped_bit_on_the_disk_is_seen_by_exact_only(ordinary, tmp_path):
    shutil.copytree(ordinary.path, tmp_path / "b")
    other = open_run(tmp_path / "b")
    file = other.path / "steps/step-00000001/credit-0001.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert compare_runs(ordinary, other).equal, "the seals agree, and more was not asked"
    first = compare_runs(ordinary, other, exact=True).first
    assert (
        first.part == "damage"
        and first.file == "steps/step-00000001/credit-0001.parquet"
        and "sha256" in first.what
    )


def test_a_damaged_checkpoint_is_a_difference_even_from_itself(ordinary, tmp_path):
    shutil.copytree(ordinary.path, tmp_path / "b")
    (tmp_path / "b/checkpoints/step-00000002/model.safetensors").write_bytes(b"")
    found = compare_runs(ordinary, open_run(tmp_path / "b"), exact=True)
    assert found.first.part == "damage" and "0 are there" in found.first.what


def test_older_checkpoints_that_one_run_kept_are_told_and_do_not_count(tmp_path):
    a, b = write(tmp_path / "a", checkpoints=(1, 2)), write(tmp_path / "b", checkpoints=(2,))
    found = compare_runs(a, b, exact=True)
    assert found.equal and found.notes == ("checkpoints of steps 1 are only in a",)
    c = write(tmp_path / "c", checkpoints=(1,))
    assert "its checkpoint is only in a" in compare_runs(a, c, exact=True).first.what, (
        "the last one does count"
    )


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_exits_by_what_it_finds_and_names_it(ordinary, tmp_path, capsys):
    write(tmp_path / "b")
    write(tmp_path / "c", table=lambda t: at(t, "weight", 7))
    assert cli.main(["diff", str(ordinary.path), str(tmp_path / "b"), "--exact"]) == 0
    assert capsys.readouterr().out.startswith("equal: to the last bit; every hashed byte was read")
    assert cli.main(["diff", str(ordinary.path), str(tmp_path / "c"), "--exact"]) == 1
    said = capsys.readouterr().out
    assert said.startswith(
        "different: step 2, steps/step-00000002/credit-0001.parquet: column weight, token 7 (trajectory 0"
    )
    assert cli.main(["diff", str(ordinary.path), str(tmp_path / "c")]) == 1, "by the seals alone"
    assert capsys.readouterr().out == said, "with the same words"
    assert cli.main(["diff", str(ordinary.path), str(tmp_path / "b")]) == 0
    assert (
        cli.main(
            ["diff", str(ordinary.path), str(tmp_path / "c"), "--html", str(tmp_path / "d.html")]
        )
        == 1
    )
    assert "column weight" in (tmp_path / "d.html").read_text()
    assert cli.main(["diff", str(ordinary.path), str(tmp_path / "nowhere")]) == 2
    assert "there is no run folder" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["\n", "\t", ""])
def test_a_checkpoint_state_that_no_json_is_ends_in_words(tmp_path, bad):
    """A control character within a string, which no JSON has; negative control: without one, the difference is named."""
    runs = (write(tmp_path / "a"), write(tmp_path / "b"))
    path = runs[1].path / "checkpoints" / step_name(2) / "state.json"
    path.write_text(f'{{"step": "x{bad}y"}}')
    if not bad:
        assert "state" in first_in_files(*runs, "checkpoint", 2, path.name)
        return
    with pytest.raises(StoreError, match=r"state\.json of .* is damaged"):
        first_in_files(*runs, "checkpoint", 2, path.name)
