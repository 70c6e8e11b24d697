"""A writer holds its folder: whoever renames, removes or replaces what it writes ends it in words, and no committed step is lost.

Nothing is written through a second name of a file (a hard link), which is somebody else's, too.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from store_values import credit_of, ordinary_step

from workbench.basics.canonical_json import line_bytes
from workbench.run.recording import create_run, reopen_run
from workbench.run.store import LINES, open_run
from workbench.training import checkpoint
from workbench.values.errors import StoreError

CONFIG = {"seed": 3, "env": {"name": "lake"}}


def do_step(run, step: int) -> None:
    collected = ordinary_step(step)
    run.write_step(step, collected)
    run.write_credit(credit_of(collected, step, 0))
    run.commit_step(step, {"loss": 0.1 * step}, {"step_s": 1.5})


def renamed(path: Path) -> Path:
    return path.rename(path.with_name("elsewhere"))


def metrics_removed(path: Path) -> Path:
    (path / "metrics.jsonl").unlink()
    return path


def lock_removed(path: Path) -> Path:
    (path / ".lock").unlink()
    return path


def metrics_replaced(path: Path) -> Path:
    """As an editor saves it."""
    shutil.copy(path / "metrics.jsonl", path / "new")
    (path / "new").rename(path / "metrics.jsonl")
    return path


def folder_replaced(path: Path) -> Path:
    """As a tool that synchronises folders does."""
    shutil.copytree(path, path.with_name("copy"))
    path.rename(path.with_name("old"))
    return path.with_name("copy").rename(path)


TAMPERED = (renamed, metrics_removed, lock_removed, metrics_replaced, folder_replaced)


@pytest.mark.parametrize("tamper", TAMPERED)
@pytest.mark.parametrize("when", ["step", "commit"])
def test_what_is_moved_away_ends_the_writer_and_loses_no_committed_step(tmp_path, tamper, when):
    path = tmp_path / "run"
    with create_run(path, CONFIG) as run:
        do_step(run, 1)
        do_step(run, 2)
        if when == "commit":
            run.write_step(3, ordinary_step(3))
        there = tamper(path)
        with pytest.raises(StoreError, match="renamed, removed or replaced.*workbench resume"):
            if when == "commit":
                run.commit_step(3, {"loss": 0.3})
            else:
                do_step(run, 3)
    assert path.exists() == (there == path)  # nothing was made under the old name
    assert open_run(there).steps() == [1, 2]
    with reopen_run(there) as again:
        do_step(again, 3)
    assert open_run(there).steps() == [1, 2, 3] and open_run(there).groups(3)


def test_negative_control_an_untouched_folder_is_written_on(tmp_path):
    """And so is one in which a reader looked, and one whose other files somebody added."""
    with create_run(tmp_path / "run", CONFIG) as run:
        do_step(run, 1)
        (tmp_path / "run" / "notes.txt").write_text("mine")
        assert open_run(tmp_path / "run").steps() == [1]
        do_step(run, 2)
    assert open_run(tmp_path / "run").steps() == [1, 2]


def test_a_newest_step_that_is_gone_ends_the_writer(tmp_path):
    path = tmp_path / "run"
    with create_run(path, CONFIG) as run:
        do_step(run, 1)
        shutil.rmtree(path / "steps" / "step-00000001")
        with pytest.raises(StoreError, match="step-00000001.*restore it from a copy"):
            run.write_step(2, ordinary_step(2))


def test_lines_of_another_writer_end_this_one(tmp_path):
    path = tmp_path / "run"
    with create_run(path, CONFIG) as run:
        do_step(run, 1)
        with (path / "metrics.jsonl").open("ab") as file:
            file.write(line_bytes({"step": 2, "metrics": {}, "files": {}}))
        with pytest.raises(StoreError, match="changed by another process"):
            run.write_step(2, ordinary_step(2))


@pytest.mark.parametrize("write", ["event", "evaluation", "trajectories", "checkpoint"])
def test_nothing_else_is_written_under_the_old_name_either(tmp_path, write):
    path = tmp_path / "run"
    with create_run(path, CONFIG) as run:
        do_step(run, 1)
        renamed(path)
        with pytest.raises(StoreError, match="renamed, removed or replaced"):
            match write:
                case "event":
                    run.event({"kind": "note"})
                case "evaluation":
                    run.write_evaluation("x", {"n": 1})
                case "trajectories":
                    run.write_trajectories("x", "side", ordinary_step(1), step=1)
                case "checkpoint":
                    checkpoint.save(run, 1, {}, {})
    assert not path.exists()


@pytest.mark.parametrize("name", [*LINES, ".lock"])
def test_a_hard_link_is_not_written_through(tmp_path, name):
    """As `cp -al` makes a copy of a run: the original's log would grow with the copy's."""
    with create_run(tmp_path / "run", CONFIG) as run:
        do_step(run, 1)
    outside = tmp_path / "outside"
    os.link(tmp_path / "run" / name, outside)
    before = outside.read_bytes()
    with pytest.raises(StoreError, match=f"{name} is a hard link.*Nothing was written.*cp "):
        with reopen_run(tmp_path / "run") as run:
            run.event({"kind": "note"})
    assert outside.read_bytes() == before
    # What the words say to do.
    shutil.copy(outside, tmp_path / "own")
    (tmp_path / "own").rename(tmp_path / "run" / name)
    with reopen_run(tmp_path / "run") as run:
        do_step(run, 2)
    assert outside.read_bytes() == before and open_run(tmp_path / "run").steps() == [1, 2]


def test_a_hard_link_that_is_made_meanwhile_is_not_written_through(tmp_path):
    with create_run(tmp_path / "run", CONFIG) as run:
        do_step(run, 1)
        os.link(tmp_path / "run" / "metrics.jsonl", tmp_path / "outside")
        before = (tmp_path / "outside").read_bytes()
        with pytest.raises(StoreError, match="hard link"):
            do_step(run, 2)
    assert (tmp_path / "outside").read_bytes() == before


@pytest.mark.full
def test_training_in_a_folder_that_is_renamed_ends_in_words_and_goes_on_to_the_same_end(tmp_path):
    from workbench.look.cells.train import resume_here, train_here
    from workbench.training.config import load_config

    few = {"train.steps": 4, "train.tasks_per_step": 2, "train.group_size": 2}
    config = load_config("bandit", {**few, "evaluation.num_tasks": 2, "train.evaluate_every": 0})

    def rename(outcome):
        if outcome.step == 2:
            renamed(tmp_path / "torn")

    whole = train_here(config, tmp_path / "whole", on_note=None)
    with pytest.raises(StoreError, match="renamed, removed or replaced"):
        train_here(config, tmp_path / "torn", on_step=rename, on_note=None)
    assert not (tmp_path / "torn").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "torn")
    assert open_run(tmp_path / "torn").steps() == [1, 2]
    resumed = resume_here(tmp_path / "torn", on_note=None)
    assert resumed.metrics_rows() == whole.metrics_rows()
