"""Six seeded trainings come out as they did with the code of commit bca8911: ids, rewards, credit, metrics, weights.

Bit for bit on a machine that rounds as that one did; within rounding elsewhere, and then a warning says so.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.counts import reduced
from tests.golden_runs.compare import OtherMachineWarning, differences, expect, judge
from tests.golden_runs.make import main, read_record, trained, write_record
from tests.golden_runs.record import array, record_of, this_machine, weights_of
from tests.golden_runs.runs import RUNS

QUICK = ("search",)  # the others are among the fuller counts


@pytest.mark.parametrize("name", reduced(RUNS, QUICK))
def test_a_golden_run_comes_out_again(tmp_path, name):
    expect(read_record(name), record_of(trained(name, tmp_path / name)), name)


# ------------------------------------------------------------------------------------------------ negative controls


@pytest.fixture(scope="module")
def bandit(tmp_path_factory):
    """The cheapest of the six, trained here: its path."""
    return trained("bandit", tmp_path_factory.mktemp("golden") / "bandit").path


class Changed:
    """A run of which one thing is another one: `credit`, `groups` or `metrics` maps (step, value) to what is read."""

    def __init__(self, path: Path, **changes) -> None:
        self._run, self._changes = wb.open_run(path), changes

    def __getattr__(self, name):
        return getattr(self._run, name)

    def _read(self, what, step, value):
        return self._changes.get(what, lambda step, value: value)(step, value)

    def credit(self, step, update=0):
        return self._read("credit", step, self._run.credit(step, update))

    def groups(self, step):
        return self._read("groups", step, self._run.groups(step))

    def metrics_line(self, step):
        return self._read("metrics", step, self._run.metrics_line(step))


def one_bit(values: np.ndarray, place: int = -1) -> np.ndarray:
    """A copy whose entry at `place` is another one, by as little as its type can say."""
    values = values.copy()
    old = values[place]
    values[place] = (
        np.nextafter(old, np.inf, dtype=values.dtype)
        if values.dtype.kind == "f"
        else not old
        if (values.dtype == bool)
        else old + 1
    )
    return values


def with_column(name: str):
    """Step 2's credit with one bit of one trained row of a column changed."""

    def change(step, table):
        row = np.flatnonzero(table["used"])[7]
        return (
            replace(table, columns={**table.columns, name: one_bit(table[name], row)})
            if step == 2
            else table
        )

    return change


COLUMNS = [
    "trajectory",
    "segment",
    "turn",
    "position",
    "token_id",
    "source",
    "eligible",
    "used",
    "advantage",
    "weight",
    "rollout_logp",
    "old_logp",
    "new_logp",
    "entropy",
    "ratio",
    "clip_state",
    "ref_logp",
]


@pytest.mark.parametrize("column", COLUMNS)
def test_one_bit_of_a_credit_column_is_named(bandit, column):
    recorded = record_of(wb.open_run(bandit))
    assert set(recorded["steps"]["2"]["updates"]["0"]["columns"]) == set(COLUMNS), (
        "no column is left untried"
    )
    changed = record_of(Changed(bandit, credit=with_column(column)))
    verdict = judge(recorded, changed)
    assert not verdict.passed
    names = [difference.where for difference in differences(recorded, changed)]
    expected = f"step 2, update 0, column {column}"
    # `used` also decides which rows are shown in clear.
    assert (
        names[-1] == expected
        and set(names) <= {expected, "step 2, update 0, rows"}
        and expected in verdict.text
    )


def with_trajectory(change):
    """Step 1 with its sixth trajectory changed."""

    def of(step, groups):
        trajectories = list(groups[0])
        trajectories[5] = change(trajectories[5])
        return (
            [replace(groups[0], trajectories=tuple(trajectories)), *groups[1:]]
            if step == 1
            else groups
        )

    return of


def another_token(trajectory):
    spans = list(trajectory.segments[0].spans)
    place = next(number for number, span in enumerate(spans) if span.sampled)
    spans[place] = replace(spans[place], token_ids=one_bit(spans[place].token_ids))
    return replace(trajectory, segments=(replace(trajectory.segments[0], spans=tuple(spans)),))


def another_reward(trajectory):
    return replace(
        trajectory,
        turns=(replace(trajectory.turns[0], reward=np.nextafter(trajectory.reward, 2.0)),),
    )


@pytest.mark.parametrize(
    "change, first",
    [
        ({"groups": with_trajectory(another_token)}, "step 1, attempts' sampled_ids_each: entry 5"),
        ({"groups": with_trajectory(another_reward)}, "step 1, attempts' reward: entry 5"),
        (
            {
                "metrics": lambda step, line: (
                    {**line, "loss": np.nextafter(line["loss"], 1)} if step == 3 else line
                )
            },
            "step 3, metric loss: recorded",
        ),
        (
            {
                "metrics": lambda step, line: (
                    {k: v for k, v in line.items() if k != "grad_norm"} if step == 3 else line
                )
            },
            "step 3, metric grad_norm: was recorded and is not there now",
        ),
    ],
    ids=["a-sampled-id", "a-reward", "a-metric", "a-metric-that-is-gone"],
)
def test_the_first_thing_that_differs_is_named(bandit, change, first):
    recorded = record_of(wb.open_run(bandit))
    verdict = judge(recorded, record_of(Changed(bandit, **change)))
    assert not verdict.passed and f"\n{first}" in verdict.text


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_one_bit_of_a_weight_is_named(bandit, part):
    run, weights = wb.open_run(bandit), weights_of(bandit)
    recorded = record_of(run, weights)
    name = sorted(weights[part])[3]
    changed = {
        **weights,
        part: {
            **weights[part],
            name: one_bit(weights[part][name].reshape(-1), 5).reshape(weights[part][name].shape),
        },
    }
    assert [d.where for d in differences(recorded, record_of(run, changed))] == [
        f"weights of {part}, {name}"
    ]


def test_a_setting_that_only_the_weights_feel_is_found(tmp_path, bandit):
    """A real training, no patched number: AdamW's epsilon moves weights in their last bits."""
    preset, overrides = RUNS["bandit"]
    other = wb.train_here(
        wb.load_config(preset, {**overrides, "learner.eps": 1.01e-8}), tmp_path / "other"
    )
    verdict = judge(record_of(wb.open_run(bandit)), record_of(other))
    assert not verdict.passed and "\nstep 2, " in verdict.text and "\nstep 1, " not in verdict.text


# ------------------------------------------------------------------------------------------------ another machine


def elsewhere(record):
    return {**record, "machine": {**record["machine"], "threads": 64}}


def test_another_machine_may_round_and_nothing_else(bandit):
    run, weights = wb.open_run(bandit), weights_of(bandit)
    recorded = record_of(run, weights)
    scaled = {
        part: {name: tensor * np.float32(1 + 1e-6) for name, tensor in tensors.items()}
        for part, tensors in weights.items()
    }
    assert not judge(recorded, record_of(run, scaled)).passed, (
        "on the same machine a rounding is a difference"
    )
    verdict = judge(elsewhere(recorded), record_of(run, scaled))
    assert verdict.passed and not verdict.exact and "threads (64, now 1)" in verdict.text
    assert "agree within rounding only" in verdict.text
    doubled = {**weights, "model": {name: tensor * 2 for name, tensor in weights["model"].items()}}
    assert not judge(elsewhere(recorded), record_of(run, doubled)).passed
    with pytest.warns(OtherMachineWarning, match="golden run bandit, recorded with other threads"):
        expect(elsewhere(recorded), record_of(run, scaled), "bandit")
    with pytest.raises(AssertionError, match="golden run bandit: .* values are not those"):
        expect(recorded, record_of(run, scaled), "bandit")
    assert not judge(
        elsewhere(recorded), record_of(Changed(bandit, credit=with_column("token_id")))
    ).passed
    assert judge(elsewhere(recorded), record_of(run)).exact


def test_a_token_that_rounding_tipped_over_ends_the_comparison_and_is_said(bandit):
    recorded = record_of(wb.open_run(bandit))
    now = copy.deepcopy(recorded)
    now["steps"]["2"]["attempts"]["sampled_ids_each"][3] = "00000000"
    now["steps"]["3"]["metrics"]["loss"] += 1.0
    verdict = judge(elsewhere(recorded), now)
    assert (
        verdict.passed
        and not verdict.exact
        and "NOT COMPARED from step 2 on: 1 of 32 trajectories" in verdict.text
    )
    now["steps"]["1"]["metrics"]["loss"] += 1.0
    assert not judge(elsewhere(recorded), now).passed, "what came before is still compared"
    many = copy.deepcopy(recorded)
    many["steps"]["2"]["attempts"]["sampled_ids_each"][:16] = ["00000000"] * 16
    assert not judge(elsewhere(recorded), many).passed, "half of the trajectories is no rounding"


def test_the_machine_is_what_a_run_notes_of_it(bandit):
    """The notion of a resumed run: where these facts are the same, so is every bit."""
    noted, here = wb.open_run(bandit).machines()[-1][1], this_machine()
    assert {name: here[name] for name in here if name != "processor"} == {
        name: value for name, value in noted.items() if name not in ("code", "device", "processes")
    }


# ------------------------------------------------------------------------------------------------ records


def test_the_hash_reads_type_shape_and_every_bit_but_knows_one_nan():
    values = np.array([0.5, np.nan, -1.0, 0.0], np.float32)
    other_nan = values.copy()
    other_nan.view(np.uint32)[1] |= 1
    assert array(values)["sha256"] == array(other_nan)["sha256"]
    negative_zero = np.array([0.5, np.nan, -1.0, -0.0], np.float32)
    different = [values.astype(np.float64), values.reshape(2, 2), -values, negative_zero]
    assert len({array(values)["sha256"], *(array(each)["sha256"] for each in different)}) == 5
    assert (
        array(np.asfortranarray(values.reshape(2, 2)))["sha256"]
        == array(values.reshape(2, 2))["sha256"]
    )


def test_a_record_comes_back_from_its_file_and_is_not_replaced_unasked(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("tests.golden_runs.make.RECORDED", tmp_path)
    record = {
        "steps": {"1": {"metrics": {"loss": 0.1 + 0.2}, "x": array(np.arange(3))}},
        "weights": {},
    }
    assert json.loads(write_record("bandit", record).read_text()) == record == read_record("bandit")
    assert main(["bandit"]) == 0 and "recorded already" in capsys.readouterr().out
    assert read_record("bandit") == record
