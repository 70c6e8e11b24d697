"""Groups over a run and side by side: what is read quickly is what is stored, and trajectories diverge where they diverge."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from tests.store_values import ordinary_step
from workbench.basics.evenly import evenly
from workbench.look.cells.explored import Answers
from workbench.look.side_by_side import side_by_side
from workbench.look.spread import GroupSpread
from workbench.look.tokens import ids_as_texts
from workbench.run.outcomes import outcomes_of
from workbench.run.recording import create_run
from workbench.values import Group, StopReason
from workbench.values.errors import StoreError
from workbench.values.sequences import first_difference
from workbench.values.spreads import flat_side

OLD = Path(__file__).resolve().parent / "golden_runs" / "old"
outcomes = st.lists(
    st.tuples(st.none() | st.sampled_from([0.0, 0.5, 1.0]), st.none() | st.booleans()), max_size=6
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spread")
    for name in ("small-frozenlake", "small-ppo", "window", "search"):
        shutil.copytree(OLD / name, folder / name)
    return folder


def paid(group: Group, rewards, success=None) -> Group:
    """The same trajectories, which earned `rewards` in their first turn and nothing else."""
    return Group(
        tuple(
            replace(
                t,
                turns=tuple(
                    replace(turn, reward=reward if not turn.index else 0.0, reward_parts={})
                    for turn in t.turns
                ),
                outcome=None,
                outcome_parts={},
                success=success,
                scored=True,
                stop_reason=StopReason.TERMINATED,
                error=None,
            )
            for t, reward in zip(group, rewards)
        )
    )


@pytest.mark.parametrize("name", ["small-frozenlake", "small-ppo", "window", "search"])
def test_what_trajectories_earned_is_read_as_it_is_stored(runs, name):
    run = wb.open_run(runs / name)
    for step in run.steps():
        assert outcomes_of(run, step) == [
            [(t.reward, t.success) for t in group] for group in run.groups(step)
        ]


def test_trajectories_that_are_not_scored_are_read_as_such(tmp_path):
    first, *others = ordinary_step(1)[0]
    broken = [
        replace(first, stop_reason=StopReason.ENV_ERROR, error="it broke"),
        *(
            replace(t, turns=(replace(t.turns[0], reward=None, reward_parts={}), *t.turns[1:]))
            for t in others[:1]
        ),
        *(replace(t, scored=False, outcome=None, outcome_parts={}) for t in others[1:2]),
    ]
    groups = [Group((*broken, *others[2:]))]
    with create_run(tmp_path / "run", {"policy": {"name": "none"}, "train": {"steps": 1}}) as run:
        run.write_step(1, groups)
        run.commit_step(1, {"reward_mean": 0.5})
    found = outcomes_of(wb.open_run(tmp_path / "run"), 1)
    assert (
        found == [[(t.reward, t.success) for t in groups[0]]]
        and found[0][0][0] is None
        and found[0][1][0] is None
    )
    with pytest.raises(StoreError, match="no committed step 2"):
        outcomes_of(wb.open_run(tmp_path / "run"), 2)


@given(outcomes=outcomes)
def test_a_flat_group_is_one_whose_scored_trajectories_earned_the_same(outcomes):
    scored = [(reward, success) for reward, success in outcomes if reward is not None]
    side, spread = flat_side(outcomes), GroupSpread.of(3, 1, outcomes)
    assert bool(side) == (len(scored) > 1 and len({reward for reward, _ in scored}) == 1)
    if side in ("all won", "all lost"):
        assert {success for _, success in scored} == {side == "all won"}
    assert spread.scored == len(scored) and spread.side == side and (not side or spread.std == 0)
    assert (
        math.isnan(spread.std)
        if len(scored) < 2
        else spread.std == float(np.std([reward for reward, _ in scored], ddof=1))
    )


def test_the_first_flat_group_and_its_side_are_named(tmp_path):
    group = ordinary_step(1)[0]
    rewards = {1: ([0.0, 1.0], None), 2: ([1.0, 1.0], True), 3: ([0.0, 0.0], False)}
    with create_run(tmp_path / "run", {"policy": {"name": "none"}, "train": {"steps": 3}}) as run:
        for step, (paid_in, success) in rewards.items():
            mixed = paid(group, [0.0, 1.0])
            run.write_step(
                step,
                [paid(group, paid_in, success)]
                if step == 3
                else [mixed, paid(group, paid_in, success)],
            )
            run.commit_step(step, {"reward_mean": 0.5})
    spread = wb.group_spread(tmp_path / "run")
    assert [(each.step, each.task, each.side) for each in spread.groups if each.side] == [
        (2, 1, "all won"),
        (3, 0, "all lost"),
    ]
    assert (
        spread.first_flat.step == 2
        and spread.all_flat == 3
        and spread.shares("all won") == [0.0, 0.5, 0.0]
    )
    view = wb.show(spread)
    assert (
        "first zero-variance groups at step 2 (1 all won); all groups at step 3" in view.text
        and view.png[:4] == b"\x89PNG"
    )
    assert spread.to_frame().shape == (5, 6)
    told = Answers([wb.open_run(tmp_path / "run")]).of({"ask": "spread", "run": 0}).content
    assert told["groups"][3] == [2, 1, 0.0, "all won"] and told["steps"] == [1, 2, 3] == [
        told["of"] - 2,
        2,
        3,
    ]


@given(count=st.integers(0, 300), most=st.integers(1, 40))
def test_of_a_long_run_steps_are_chosen_evenly(count, most):
    steps = list(range(5, 5 + count))
    found = evenly(steps, most)
    assert set(found) <= set(steps) and found == sorted(set(found)) and len(found) <= most + 1
    assert (
        not steps or found[-1] == steps[-1] and (most >= count or most == 1 or found[0] == steps[0])
    )
    assert count <= most or max(np.diff(found), default=0) <= 2 * count / max(most - 1, 1) + 1


# ------------------------------------------------------------------------------------------------ side by side


@given(a=st.lists(st.integers(0, 3), max_size=8), b=st.lists(st.integers(0, 3), max_size=8))
def test_two_sequences_part_where_they_first_differ(a, b):
    found = first_difference(a, b)
    assert (found is None) == (a == b)
    if found is not None:
        assert a[:found] == b[:found] and a[found : found + 1] != b[found : found + 1]


def test_trajectories_part_from_the_best_at_the_token_that_is_said(runs):
    for group in wb.open_run(runs / "window").groups(1):
        told = side_by_side(group, ids_as_texts)
        best = group[told["best"]]
        assert best.reward == max(t.reward for t in group)
        ids = [
            np.concatenate([segment.token_ids for segment in t.segments]).tolist() for t in group
        ]
        for number, (column, trajectory) in enumerate(zip(told["attempts"], group)):
            assert (
                column["turns"] == [turn.text for turn in trajectory.turns]
                and column["reward"] == trajectory.reward
            )
            if (parts := column["parts"]) is None:
                assert ids[number] == ids[told["best"]]
            else:
                at, turns = (
                    parts["token"],
                    np.concatenate([segment.turns for segment in trajectory.segments]),
                )
                assert (
                    ids[number][:at] == ids[told["best"]][:at]
                    and ids[number][at] != ids[told["best"]][at]
                )
                assert parts["turn"] == turns[at]


def test_a_trajectory_that_is_the_beginning_of_the_best_parts_where_it_ends():
    trajectory = ordinary_step(1)[0][0]
    segment = trajectory.segments[0]
    shorter = replace(
        trajectory,
        attempt=1,
        segments=(replace(segment, spans=segment.spans[:-1]), *trajectory.segments[1:])[:1],
    )
    whole = replace(trajectory, segments=trajectory.segments[:1])
    told = side_by_side(Group((whole, shorter)), ids_as_texts)
    parts = told["attempts"][1]["parts"]
    assert parts["token"] is None and parts["here"] == "" and parts["best"]


# ------------------------------------------------------------------------------------------------ what a filter removed


def test_what_a_filter_removed_is_what_has_no_weight(runs):
    run = wb.open_run(runs / "window")
    answers = Answers([run])
    assert answers.of({"ask": "step", "run": 0, "step": 1}).content["removed"] is None
    facts, groups = answers.step(0, 1), run.groups(1)
    table = facts.table(0)
    weight = np.where(
        np.isin(table["trajectory"], [*range(8, 16), 3]), 0.0, table["weight"]
    )  # task 1, and one trajectory of task 0
    from workbench.look.cells.stored import kept_trajectories

    left = type(table)(1, 0, {**table.columns, "weight": weight})
    answers._step = lambda *_: replace(
        facts, kept=kept_trajectories(left, groups), tables=[lambda: left], _read={}
    )
    told = answers.of({"ask": "step", "run": 0, "step": 1}).content
    gone = [*groups[1], groups[0][3]]
    assert told["removed"] == {
        "attempts": 9,
        "tokens": sum(t.num_sampled for t in gone),
        "groups": [1],
        "sides": ["rewards differ"],
        "succeeded": sum(bool(t.success) for t in gone),
        "mean": pytest.approx(np.mean([t.reward for t in gone])),
    }
    assert told["trained"] == [int((weight != 0).sum()), 0]


def test_a_trained_token_that_the_policy_did_not_sample_is_counted(runs):
    answers = Answers([wb.open_run(runs / "window")])
    facts = answers.step(0, 1)
    table = facts.table(0)
    weight = table["weight"].copy()
    weight[np.flatnonzero(~table["eligible"])[:3]] = 1.0
    changed = type(table)(1, 0, {**table.columns, "weight": weight})
    answers._step = lambda *_: replace(facts, tables=[lambda: changed], _read={})
    assert answers.of({"ask": "step", "run": 0, "step": 1}).content["trained"] == [
        int((weight != 0).sum()),
        3,
    ]


# ------------------------------------------------------------------------------------------------ pairs in the navigator


@pytest.mark.full
def test_pairs_are_those_of_wb_paired(tmp_path, runs):
    config = wb.load_config(
        "frozenlake",
        {
            "train.steps": 1,
            "train.tasks_per_step": 2,
            "train.group_size": 2,
            "train.evaluate_every": 1,
            "evaluation.num_tasks": 3,
            "lint.start": False,
        },
    )
    run = wb.open_run(wb.train_here(config, tmp_path / "run").path)
    answers, paired = Answers([run, wb.open_run(runs / "window")]), wb.paired(run)
    told = answers.of({"ask": "pairs", "run": 0, "other": -1}).content
    assert sorted((row["pair"], row["change"], tuple(row["success"])) for row in told["rows"]) == [
        (number, pair.change, pair.success) for number, pair in enumerate(paired.pairs)
    ]
    assert told["names"] == list(paired.names) and told["difference"] == [
        paired.difference.mean,
        paired.difference.low,
        paired.difference.high,
    ]
    one = answers.of({"ask": "pairs", "run": 0, "other": -1, "pair": 1}).content
    assert [column["turns"] for column in one["attempts"]] == [
        [turn.text for turn in group[0].turns] for group in (paired[1].first, paired[1].second)
    ]
    assert (
        "there is no pair 9"
        in answers.of({"ask": "pairs", "run": 0, "other": -1, "pair": 9}).content["error"]
    )
    assert "error" in answers.of({"ask": "pairs", "run": 0, "other": 1}).content, (
        "a run of before trajectories were kept"
    )
