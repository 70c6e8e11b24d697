"""Two policies at the same tasks: who solved what the other did not, by how much, and where they diverge."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from tests.store_values import ordinary_step
from workbench.look.pairs import ALIKE, BOTH, LOST, NEITHER, UNKNOWN, WON, pair_groups
from workbench.run.recording import create_run
from workbench.values import Group, Trajectory
from workbench.values.errors import DataError, StoreError
from workbench.values.stats import clustered_difference, paired_difference

ROOT = Path(__file__).resolve().parents[1]
[PATTERN, *_] = ordinary_step(1)
outcomes = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12)


def group(task: int, *succeeded: bool | None, reward: float | None = None, text: str = "") -> Group:
    """Trajectories of one task that succeeded or not; all wrote the same but for `text` in their last turn."""

    def a_trajectory(number: int, success: bool | None) -> Trajectory:
        pattern = PATTERN[0]
        turns = tuple(
            replace(turn, text=turn.text + text) if turn is pattern.turns[-1] else turn
            for turn in pattern.turns
        )
        paid = float(bool(success)) if reward is None else reward
        return replace(
            pattern,
            task=replace(pattern.task, id=f"task {task}", task_seed=task),
            attempt=number,
            success=success,
            outcome=paid - sum(turn.reward for turn in turns),
            turns=turns,
        )

    return Group(tuple(a_trajectory(number, success) for number, success in enumerate(succeeded)))


# ------------------------------------------------------------------------------------------------ the value


@given(outcomes, st.permutations(range(12)))
def test_tasks_are_paired_whatever_their_order_and_counted_by_who_did_better(pairs, order):
    first = [group(number, a) for number, (a, _) in enumerate(pairs)]
    second = [group(number, b) for number, (_, b) in enumerate(pairs)]
    found = pair_groups(
        first, [second[number] for number in order if number < len(second)], ("a", "b")
    )
    assert [pair.task.id for pair in found.pairs] == [
        each.task.id for each in first
    ] and found.left_out == 0
    assert len(found.won) == sum(b > a for a, b in pairs) and len(found.lost) == sum(
        a > b for a, b in pairs
    )
    assert len(found.of(BOTH)) == sum(a and b for a, b in pairs) and len(found.of(NEITHER)) == sum(
        not a and not b for a, b in pairs
    )
    a_N, b_N = (np.array(side, float) for side in zip(*pairs))
    assert found.difference == paired_difference(a_N, b_N) and found.measure == "success"
    back = pair_groups(second, first, ("b", "a"))
    assert back.difference.mean == -found.difference.mean and len(back.lost) == len(found.won)


def test_several_trajectories_count_as_shares_of_their_task():
    first = [group(0, True, False), group(1, False, False), group(2, True, True)]
    second = [group(0, True, True), group(1, True, False), group(2, True, False)]
    found = pair_groups(first, second)
    assert [pair.change for pair in found.pairs] == [WON, WON, LOST] and found[0].success == (
        0.5,
        1.0,
    )
    assert found.difference == clustered_difference(
        np.array([0.5, 0.0, 1.0]), np.array([1.0, 0.5, 0.5]), np.arange(3)
    )
    assert pair_groups([group(0, True, False)], [group(0, False, True)])[0].change == ALIKE


def test_where_success_is_not_known_the_reward_decides_and_none_is_never_zero():
    found = pair_groups(
        [group(0, None, reward=0.5), group(1, None, reward=0.5)],
        [group(0, None, reward=0.75), group(1, None, reward=0.5)],
    )
    assert [pair.change for pair in found.pairs] == [WON, ALIKE] and found.measure == "reward"
    assert found.difference.mean == pytest.approx(0.125)
    unscored = Group(
        (
            replace(
                PATTERN[0],
                outcome=None,
                success=None,
                turns=tuple(replace(t, reward=None) for t in PATTERN[0].turns),
            ),
        )
    )
    mixed = pair_groups([unscored], [Group((PATTERN[0],))])
    assert (
        mixed[0].change == UNKNOWN
        and mixed.difference is None
        and "not known" in wb.show(mixed).text
    )


def test_the_turn_in_which_they_part_is_the_first_with_other_words():
    alike, other = (
        pair_groups([group(0, True)], [group(0, False)])[0],
        pair_groups([group(0, True)], [group(0, False, text="!")])[0],
    )
    assert alike.first_difference is None and other.first_difference == len(PATTERN[0].turns) - 1
    shorter = replace(PATTERN[0], turns=PATTERN[0].turns[:-1])
    assert pair_groups([Group((PATTERN[0],))], [Group((shorter,))])[0].first_difference == len(
        shorter.turns
    )


def test_only_the_same_task_is_paired():
    """Negative control: the same id with another payload, seed or environment is another task."""
    [first] = [group(0, True)]
    for change in (
        {"task_seed": 9},
        {"payload": {"size": 9}},
        {"env": "another"},
        {"id": "another"},
    ):
        other = Group((replace(first[0], task=replace(first.task, **change)),))
        with pytest.raises(
            DataError,
            match="have no task in common, so nothing can be paired: they attempted task 0 and",
        ):
            pair_groups([first], [other])
        both = pair_groups([first], [other, group(0, False)])
        assert len(both) == 1 and both.left_out == 1 and both[0].change == LOST
    twice = pair_groups([group(0, True), group(0, False)], [group(0, False), group(0, True)])
    assert [pair.change for pair in twice.pairs] == [LOST, WON]


def test_a_frame_has_a_row_a_task():
    frame = pair_groups(
        [group(0, True), group(1, False)], [group(0, False), group(1, False)], ("a", "b")
    ).to_frame()
    assert (
        list(frame["change"]) == [LOST, NEITHER]
        and list(frame["success/a"]) == [1.0, 0.0]
        and list(frame["success/b"]) == [0.0, 0.0]
    )


# ------------------------------------------------------------------------------------------------ of runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with evaluations that kept their trajectories; the second of them only once."""
    folder = tmp_path_factory.mktemp("paired")
    for name, steps in (("one", (0, 4)), ("two", (4,))):
        with create_run(folder / name, {"policy": {"name": "none"}, "train": {"steps": 4}}) as run:
            for step in steps:
                policy = "trained" if step else "untrained"
                won = (
                    {"one": (True, True, False), "two": (False, True, True)}[name]
                    if step
                    else (False, True, False)
                )
                groups = [
                    group(number, success, text="" if success else "?")
                    for number, success in enumerate(won)
                ]
                run.write_evaluation(f"step-{step:08d}", {"step": step, "rows": []})
                run.write_trajectories(f"step-{step:08d}", f"{policy}-sampled", groups, step=step)
    return folder


def test_one_run_before_and_after_training_and_two_runs_as_they_are_now(runs):
    own = wb.paired(runs / "one")
    assert own.names == ("step 0", "step 4") and [pair.change for pair in own.pairs] == [
        WON,
        BOTH,
        NEITHER,
    ]
    both = wb.paired(runs / "one", wb.open_run(runs / "two"))
    assert both.names == ("one", "two") and [pair.change for pair in both.pairs] == [
        LOST,
        BOTH,
        WON,
    ]
    text = wb.show(both).text
    assert (
        "1 lost (one did better) · 1 won (two did better) · 1 both" in text
        and "task 0" in wb.show(both, only="lost").text
    )
    assert "task 2" not in wb.show(both, only="lost").text and repr(both).startswith(
        "<3 tasks of 'one' and 'two'"
    )
    part = wb.show(both.lost[0]).text
    assert "diverges here" in part and "one" in part and "two" in part
    assert (
        wb.paired(both[0].first.trajectories and [both[0].first], [both[0].second])[0].change
        == LOST
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda runs: wb.paired(runs / "two"),
            "kept the trajectories of 1 sampled evaluation of its policy; two are needed",
        ),
        (
            lambda runs: wb.paired(runs / "one", mode="greedy"),
            "kept the trajectories of 0 greedy evaluations",
        ),
        (
            lambda runs: wb.paired(runs / "one", runs / "two", mode="greedy"),
            "kept no trajectories of a greedy evaluation",
        ),
        (lambda runs: wb.paired(runs / "one", mode="hot"), "evaluations play sampled and greedy"),
        (lambda runs: wb.paired([group(0, True)]), "two lists of groups are paired, or runs"),
        (lambda runs: wb.paired([1], [2]), "takes first as Run"),
        (lambda runs: wb.paired(runs / "nowhere"), "there is no run folder"),
        (lambda runs: wb.paired(3), "takes a Run"),
        (
            lambda runs: wb.show(wb.paired(runs / "one"), only="loss"),
            "only='loss' is no change; did you mean 'lost'",
        ),
    ],
)
def test_what_cannot_be_paired_says_why(runs, make, said):
    with pytest.raises((DataError, StoreError), match=said):
        make(runs)


@pytest.mark.full
def test_the_difference_is_that_of_the_evaluation(tmp_path):
    """The run's own table of paired differences says the same number, interval included."""
    from workbench.look.cells.train import train_here

    config = wb.load_config(
        "frozenlake",
        {
            "train.steps": 1,
            "train.tasks_per_step": 2,
            "train.group_size": 4,
            "evaluation.num_tasks": 24,
            "learner.lr": 1e-3,
        },
    )
    run = train_here(config, tmp_path / "run")
    [row] = [
        row
        for row in run.evaluations()["step-00000001"]["paired"]
        if (row["a"], row["b"]) == ("untrained sampled", "trained sampled")
    ]
    found = wb.paired(run).difference
    assert (found.mean, found.low, found.high, found.n) == (
        row["difference"],
        row["low"],
        row["high"],
        row["n"],
    )
