"""What the soak of grids says of jobs lost, done twice or half written: it finds each of them, and nothing else."""

from __future__ import annotations

import random

import pytest

from tests.ablation import quick
from tests.ablation.test_drive import HERE
from tests.faults.grid_soak import Grid, done_twice, soak, unreadable, wrong_at_the_end
from workbench.extensions.ablation.door import ask, carry_out


def line(job, tries=0, **what):
    return {"job": job, "tries": tries, **what}


ONCE = [line("a", begun=""), line("a", 1, ended="done")]
RETRIED = [
    line("a", begun=""),
    line("a", 1, ended="dead kernel"),
    line("a", 1, begun="dead kernel"),
    line("a", 2, ended="done"),
]


@pytest.mark.parametrize(
    ("ledger", "tries"),
    [
        (ONCE, 1),
        (RETRIED, 2),
        ([line("a", begun=""), *ONCE], 1),  # its worker was killed
        ([line("a", begun=""), *RETRIED[2:]], 2),  # and here behind its record
        ([line("a", begun="")], 1),  # and here behind the record that is the last one
    ],
)
def test_a_killed_attempt_and_a_retry_are_not_done_twice(ledger, tries):
    assert not done_twice(ledger, {"a": tries})


@pytest.mark.parametrize(
    ("ledger", "tries"),
    [
        ([*ONCE, line("a", 2, ended="done")], 2),
        ([*ONCE, line("a", 1, begun="done")], 1),
        (
            [line("a", begun=""), *ONCE],
            2,
        ),  # both wrote a record, and one was killed before it said so
        ([*RETRIED, line("a", 3, ended="failed")], 2),
        (RETRIED, 1),
    ],
)
def test_what_was_done_twice_is_named(ledger, tries):
    assert any(fault.startswith("a") for fault in done_twice(ledger, {"a": tries}))


def test_what_is_wrong_with_a_grid_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan, calm = quick.plan_at(tmp_path), tmp_path / "calm"
    carry_out(ask(plan, calm), HERE, lambda line: None)
    grid = Grid(plan, calm, "local", "nobody's")
    noted = [
        line(one.name, **what)
        for one in grid.states()
        for what in ({"begun": ""}, {"ended": "done"})
    ]
    monkeypatch.setattr("tests.faults.grid_soak.ledger_of", lambda out: noted)
    for path in calm.glob("notebooks/*.ipynb"):  # those of `quick` have outputs, and little else
        quick.notebook_at(path)
    monkeypatch.setattr(
        "tests.faults.grid_soak.result_in",
        lambda path: next(one.facts["result"] for one in grid.states() if one.name == path.stem),
    )
    assert wrong_at_the_end(grid, calm) == []
    (calm / "jobs" / f"{grid.states()[0].name}.json").unlink()
    assert any(fault.startswith("lost: lr-0.1-seed0") for fault in wrong_at_the_end(grid, calm))
    other = tmp_path / "other"
    other.mkdir()
    (other / "results.tsv").write_text((calm / "results.tsv").read_text().replace("0.51", "0.52"))
    assert any("results.tsv" in fault for fault in wrong_at_the_end(grid, other))
    half = next(calm.glob("notebooks/*.ipynb"))
    half.write_bytes(half.read_bytes()[:-9])
    assert [fault.split(" ")[0] for fault in unreadable(calm)] == [half.name]


@pytest.mark.full
@pytest.mark.parametrize("locks", ["kept", "ignored"])
def test_the_soak_itself_finds_drivers_that_ignore_locks_and_nothing_else(tmp_path, locks):
    said = soak(
        "local", 2 if locks == "kept" else 0, random.Random(3), tmp_path, seeds=1, locks=locks
    )
    assert sum(said["hit"].values()) == (2 if locks == "kept" else 0)
    assert any("was done" in fault for fault in said["faults"]) == (locks == "ignored"), said
    assert locks == "ignored" or not said["faults"]
