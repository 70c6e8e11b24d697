"""Signals of a collapse: what each counts, by hand; the same from the folder as while training; and what is no collapse."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import workbench as wb
from tests.store_values import ordinary_step
from workbench.extensions.collapse.probes import ProbeRecord, probes_of
from workbench.extensions.collapse.signals import SIGNALS, RunSignals
from workbench.extensions.collapse.step_signals import StepSignals, repeated_share, step_signals
from workbench.rollouts.metrics import rollout_metrics
from workbench.values import CreditTable, Group
from workbench.values.errors import DataError


def a_trajectory_of(number, *replies, reward=0.0, success=False, valid=True, outcome=None):
    """A trajectory with these replies, all in the right format or all not."""
    trajectory = ordinary_step(number)[0][0]
    turns = tuple(
        replace(
            trajectory.turns[0],
            index=index,
            text=text,
            reward=reward / len(replies),
            info={"valid_format": valid},
        )
        for index, text in enumerate(replies)
    )
    return replace(
        trajectory, attempt=number, turns=turns, success=success, outcome=outcome, scored=True
    )


def group_of(*trajectories):
    task = trajectories[0].task
    return Group(
        tuple(replace(each, task=task, attempt=number) for number, each in enumerate(trajectories))
    )


def test_spread_of_success_and_of_format_are_told_apart():
    only_format = group_of(
        a_trajectory_of(0, "a", reward=-0.5, valid=False), a_trajectory_of(1, "b", reward=0.0)
    )
    only_success = group_of(
        a_trajectory_of(2, "c", reward=1.0, success=True), a_trajectory_of(3, "d", reward=0.0)
    )
    found = step_signals(1, [only_format], {})
    spreads = (found.success_spread, found.format_spread, found.reward_spread)
    assert spreads == pytest.approx((0.0, 2**-0.5, 2**-0.5 / 2)), (
        "n - 1: of two, larger by the root of two"
    )
    found = step_signals(1, [only_success], {})
    spreads = (found.success_spread, found.format_spread, found.reward_spread)
    assert spreads == pytest.approx((2**-0.5, 0.0, 2**-0.5))


def test_a_success_that_nobody_knows_is_counted_as_the_metric_counts_it():
    """A trajectory that a fault ended: the signal once left it out, and the metric of the same name did not."""
    groups = [
        group_of(
            a_trajectory_of(0, "a", reward=1.0, success=True),
            replace(a_trajectory_of(1, "b"), success=None),
        )
    ]
    found = step_signals(1, groups, {})
    assert found.success == rollout_metrics(groups)["success"] == 0.5


def test_a_group_is_flat_up_to_rounding_as_for_the_credit():
    """-1.6 and -1.5999999999999999 teach nothing, and every view says so."""
    lost = [
        a_trajectory_of(n, "a", reward=reward)
        for n, reward in enumerate((-1.6, -1.5999999999999999))
    ]
    lost[1] = replace(lost[1], turns=(replace(lost[1].turns[0], reward=-1.6 + 2**-52),))
    group = group_of(*lost)
    assert group[0].reward != group[1].reward and group.flat == "all lost"
    assert rollout_metrics([group])["flat_groups"] == step_signals(1, [group], {}).flat_lost == 1.0
    other = group_of(a_trajectory_of(0, "a", reward=-1.6), a_trajectory_of(1, "a", reward=-1.5))
    assert other.flat == "" and rollout_metrics([other])["flat_groups"] == 0.0


def test_flat_groups_are_counted_by_side():
    won = group_of(*(a_trajectory_of(n, "a", reward=1.0, success=True) for n in (0, 1)))
    lost = group_of(*(a_trajectory_of(n, "a", reward=0.0) for n in (0, 1)))
    differ = group_of(
        a_trajectory_of(0, "a", reward=1.0, success=True), a_trajectory_of(1, "a", reward=0.0)
    )
    found = step_signals(1, [won, lost, lost, differ], {})
    assert (found.flat_won, found.flat_lost, found.flat_same) == (0.25, 0.5, 0.0)


def test_repetition_is_inside_a_reply_and_templates_are_across_replies():
    assert (
        repeated_share("up : up _ up _ up _ up _ up _") > 0.4
        and repeated_share("the lake lies south of the old hill") == 0.0
    )
    assert repeated_share("too short") == 0.0  # nothing to repeat: that is a share of zero
    # Seven words make four pieces of four, of which a b a b comes twice.
    assert repeated_share("a b a b a b c") == 0.25
    alike = step_signals(
        1,
        [
            group_of(
                a_trajectory_of(0, "go"), a_trajectory_of(1, "go"), a_trajectory_of(2, "stay", "go")
            )
        ],
        {},
    )
    assert alike.commonest == 0.75 and alike.repetition == 0.0 and alike.turns == 4 / 3


def test_what_was_not_computed_is_none_and_not_zero():
    unknown = replace(a_trajectory_of(0, "a"), success=None)
    unknown = replace(
        unknown, turns=(replace(unknown.turns[0], info={}, reward=None),), scored=False
    )
    found = step_signals(3, [group_of(unknown)], {"entropy": math.nan, "grad_norm": math.inf})
    assert (
        found.success,
        found.reward,
        found.valid,
        found.success_spread,
        found.entropy,
        found.kl,
    ) == (None,) * 6
    assert found.gradient == math.inf and found.turns == 1.0


def test_signals_are_the_metrics_where_both_count_the_same():
    groups = ordinary_step(5)
    metrics, found = (
        rollout_metrics(groups),
        step_signals(1, groups, {"entropy": 0.25, "clip_fraction": 0.1}),
    )
    for signal, metric in (
        ("turns", "turns"),
        ("tokens", "sampled_tokens"),
        ("reward_spread", "reward_std_in_group"),
    ):
        assert getattr(found, signal) == pytest.approx(metrics[metric])
    assert (found.entropy, found.clipped) == (0.25, 0.1)


def test_a_stored_run_gives_bit_for_bit_what_came_out_while_it_trained(tmp_path):
    config = wb.load_config(
        "bandit",
        {
            "train.steps": 3,
            "train.tasks_per_step": 2,
            "train.group_size": 4,
            "lint.mode": "off",
            "algorithm.epochs": 2,
            "evaluation.num_tasks": 8,
            "train.evaluate_every": 1,
        },
    )
    live = []
    run = wb.train_here(
        config,
        tmp_path / "run",
        on_note=None,
        on_step=lambda outcome: live.append(
            step_signals(outcome.step, outcome.groups, outcome.metrics, outcome.reports[-1].table)
        ),
    )
    stored = wb.signals(run.path)
    assert stored.steps == tuple(live) and stored.committed == 3  # exact equality of every number
    assert any(each.won_shift for each in stored.steps) and any(
        each.lost_shift for each in stored.steps
    )
    again = wb.signals(wb.open_run(run.path))
    assert again == stored
    assert {probe.step for probe in stored.probes} == {1, 2, 3} and stored.fallen() is None


def test_how_far_won_and_lost_tokens_moved_is_told_apart():
    """By hand: two won tokens of +.1 and +.3 (one is not used), a lost one of -.5; a token of no weight counts nowhere."""
    columns = {
        "used": np.array([1, 1, 1, 1, 0], bool),
        "weight": np.array([1.0, 1.0, 1.0, 0.0, 1.0]),
        "advantage": np.array([2.0, 0.5, -1.0, 3.0, 1.0]),
        "old_logp": np.zeros(5, np.float32),
        "new_logp": np.array([0.125, 0.375, -0.5, 9.0, 9.0], np.float32),
    }
    found = step_signals(1, ordinary_step(5), {}, CreditTable(1, 3, columns))
    assert (found.won_shift, found.lost_shift) == (0.25, -0.5)
    only = step_signals(1, ordinary_step(5), {}, CreditTable(1, 0, columns))
    assert (only.won_shift, only.lost_shift) == (None, None), (
        "before its only update nothing had moved"
    )


def probe(step, success, change, low, high, mode="sampled"):
    return ProbeRecord(step, mode, success, change, low, high)


def test_a_collapse_is_half_of_the_start_lost_and_clear_of_zero():
    assert probe(4, 0.1, -0.3, -0.4, -0.2).fell
    assert not probe(4, 0.3, -0.1, -0.15, -0.05).fell, (
        "a quarter of the start is a loss, and no collapse"
    )
    assert not probe(4, 0.0, -0.1, -0.25, 0.05).fell, "the interval includes 0: noise"
    assert not probe(4, 0.0, 0.0, -0.1, 0.1).fell, "who could do nothing has nothing to lose"
    found = RunSignals(
        "run",
        (),
        (
            probe(2, 0.5, 0.1, 0.0, 0.2),
            probe(4, 0.1, -0.3, -0.4, -0.2),
            probe(6, 0, -0.4, -0.5, -0.3),
        ),
        6,
    )
    assert found.fallen().step == 4


def test_probes_are_paired_with_the_untrained_policy_on_the_same_tasks():
    def row(policy, by_task):
        return {
            "policy": policy,
            "mode": "greedy",
            "success": sum(by_task) / len(by_task),
            "by_task": by_task,
        }

    before, after = [1.0] * 18 + [0.0] * 2, [1.0] * 2 + [0.0] * 18
    report = {
        "step": 2,
        "rows": [row("random", [0.0] * 20), row("untrained", before), row("trained", after)],
    }
    (found,) = probes_of(
        {"step-00000002": report, "step-00000000": {"step": 0, "rows": report["rows"][:2]}}
    )
    assert (
        (found.step, found.mode, found.success) == (2, "greedy", 0.1)
        and found.change == pytest.approx(-0.8)
        and found.fell
    )
    assert (
        probes_of({"a": {"step": 2, "rows": [row("untrained", before), row("trained", after[:5])]}})
        == ()
    ), "other tasks"


def step(number, **given):
    return StepSignals(number, **dict.fromkeys(SIGNALS) | given)


def test_a_page_names_the_collapse_and_leaves_out_what_was_not_computed():
    steps = (
        step(1, success=0.5, turns=3.0, entropy=0.4),
        step(2, success=0.25, turns=1.0, entropy=0.2),
    )
    view = wb.show(RunSignals("run", steps, (probe(2, 0.1, -0.3, -0.4, -0.2),), 2))
    assert (
        "collapse: success fell to 50 % of its initial value or less by step 2: sampled 10 %, -30 points"
        in view.text
    )
    assert "repetition" not in view.text and view.png.startswith(b"\x89PNG")
    assert (
        "no collapse: success stayed"
        in wb.show(RunSignals("run", steps, (probe(2, 0.5, 0.1, 0, 0.2),), 2)).text
    )
    assert "train.evaluate_every" in wb.show(RunSignals("run", steps, (), 2)).text
    assert "no committed step yet" in wb.show(RunSignals("run", (), (), 0)).text
    with pytest.raises(DataError, match="no signal 'turn'; .*turns"):
        RunSignals("run", steps, (), 2).series("turn")
    assert list(RunSignals("run", steps, (), 2).to_frame().columns) == list(StepSignals._fields)
