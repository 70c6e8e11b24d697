"""Success by kind of task: counted over the stored trajectories, the first success where it stands, held-out tasks in pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import workbench as wb
from tests.store_values import ordinary_step
from workbench.look.task_types import ByKind
from workbench.run.recording import create_run
from workbench.values import Group
from workbench.values.address import Address
from workbench.values.errors import DataError
from workbench.values.stats import clustered_difference, paired_difference, share


def group_of(kind, success):
    """A group at a task of this kind whose trajectories succeeded as told."""
    trajectory = ordinary_step(1)[0][0]
    task = replace(trajectory.task, id=f"task {kind}", payload={"hops": int(kind)})
    return Group(
        tuple(
            replace(trajectory, task=task, attempt=number, success=won)
            for number, won in enumerate(success)
        )
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three steps; three hops succeed in the second one, in the second trajectory of the second task."""
    path = tmp_path_factory.mktemp("kinds") / "run"
    steps = [
        [("2", [True, False]), ("3", [False, False])],
        [("2", [False, False]), ("3", [False, True])],
        [("2", [True, True]), ("3", [True, True])],
    ]
    with create_run(path, {"policy": {"name": "none"}, "train": {"steps": 3}}) as writer:
        for number, groups in enumerate(steps, 1):
            writer.write_step(number, [group_of(kind, success) for kind, success in groups])
            writer.commit_step(number, {"reward_mean": 0.5})
    return path


def test_trajectories_are_counted_by_step_and_kind_and_the_first_success_is_where_it_stands(run):
    found = wb.by_kind(run, "hops")
    assert found.kinds == ["2", "3"] and found.to_frame().values.tolist() == [
        [1, "2", 2, 1],
        [1, "3", 2, 0],
        [2, "2", 2, 0],
        [2, "3", 2, 1],
        [3, "2", 2, 2],
        [3, "3", 2, 2],
    ]
    assert found.first == {"2": Address(1, 0, 0), "3": Address(2, 1, 1)}
    view = wb.show(found)
    assert (
        "hops 3: first success in training at step 2 / task 1 / attempt 1" in view.text
        and view.png[:4] == b"\x89PNG"
    )
    assert "no evaluation kept its trajectories" in view.text


def test_what_tasks_do_not_say_is_an_error_that_says_what_they_do(run):
    with pytest.raises(DataError, match="says no 'size'; its payload says 'hops'"):
        wb.by_kind(run, "size")
    with pytest.raises(DataError, match="not evaluated greedy, trained, at tasks of hops '3'"):
        wb.by_kind(run, "hops").success("3", mode="greedy")


def test_before_and_after_are_paired_over_the_tasks_of_a_kind():
    before, after = (0.0, 0.0, 1.0, 0.0), (1.0, 1.0, 1.0, 0.0)
    sides = {("untrained", "greedy"): {"3": before}, ("trained", "greedy"): {"3": after}}
    found = ByKind("run", "hops", (), sides, dict.fromkeys(sides, 1), {})
    assert found.difference("3", "greedy") == paired_difference(before, after)
    assert found.success("3", "trained", "greedy") == share(after, 1)
    (row,) = (line for line in wb.show(found).text.splitlines() if " trained" in line)
    assert "75.0" in row and "+50.0" in row
    several = ByKind("run", "hops", (), sides, dict.fromkeys(sides, 2), {})
    assert several.difference("3", "greedy") == clustered_difference(before, after, range(4))
