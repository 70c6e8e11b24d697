"""The traps, by arithmetic that shares nothing with the bench; and a bench that finds them gone where they are gone."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.composed import of_estimator
from workbench import cli
from workbench.extensions.bias.bench import bias_bench, estimator_of
from workbench.extensions.bias.claims import CLAIMS, Claim
from workbench.extensions.bias.tasks import SAFE_PAYOUTS, TASKS
from workbench.extensions.bias.traps import (
    arm_difference,
    deviation_trap,
    filter_trap,
    per_turn_index,
    sign_curve,
    turn_index_trap,
)
from workbench.learn.algorithms import ALGORITHMS, GRPO

DIVIDED, UNDIVIDED = estimator_of(GRPO()), estimator_of(GRPO(estimator={"normalize_std": False}))
LEAVE_ONE_OUT = estimator_of(
    GRPO(estimator={"normalize_std": False}), Claim("", "unbiased", "", correction="G/(G-1)")
)


def difference_by_brute_force(safe: float, attempts: int, p: float) -> float:
    """E[A | risky] - E[A | safe] of GRPO over all 3^G sequences, in numpy."""
    payout, chance = np.array([safe, 1.0, 0.0]), np.array([1 - p, p * 0.25, p * 0.75])
    outcome_UG = np.array(list(product(range(3), repeat=attempts)))
    reward_UG, probability_U = payout[outcome_UG], chance[outcome_UG].prod(1)
    deviation_UG = reward_UG - reward_UG.mean(1, keepdims=True)
    flat_U = (reward_UG == reward_UG[:, :1]).all(1)
    advantage_UG = np.where(
        flat_U[:, None], 0.0, deviation_UG / (reward_UG.std(1, ddof=1, keepdims=True) + 1e-6)
    )
    first_is_risky_U = outcome_UG[:, 0] > 0
    return (probability_U * advantage_UG[:, 0])[first_is_risky_U].sum() / p - (
        probability_U * advantage_UG[:, 0]
    )[~first_is_risky_U].sum() / (1 - p)


@pytest.mark.parametrize("safe", SAFE_PAYOUTS)
@pytest.mark.parametrize("attempts", [2, 3, 4, 8])
def test_dividing_by_the_deviation_points_to_the_worse_arm(safe, attempts):
    found = arm_difference(DIVIDED, safe, attempts, 0.3)
    assert found == pytest.approx(difference_by_brute_force(safe, attempts, 0.3), abs=1e-12)
    assert found < 0
    assert arm_difference(UNDIVIDED, safe, attempts, 0.3) == pytest.approx(
        (0.25 - safe) * (attempts - 1) / attempts
    )


def test_where_the_sign_changes_in_larger_groups():
    curve = sign_curve(DIVIDED, 0.15, 16, (0.1, 0.3, 0.5, 0.9))
    assert [d > 0 for d in curve.difference_P] == [False, False, True, True]
    (flip,) = curve.flips
    assert abs(arm_difference(DIVIDED, 0.15, 16, flip)) < 1e-5
    assert not sign_curve(DIVIDED, 0.15, 8, (0.02, 0.5, 0.98)).flips


def test_per_turn_index_is_zero_on_every_group_of_stop_and_continue():
    trap = turn_index_trap(LEAVE_ONE_OUT)
    assert trap.shown and "0.2445" in trap.lines[0]


@pytest.mark.parametrize(
    "broken",
    [
        lambda batch, normalize_std, to_the_end: UNDIVIDED(
            batch
        ),  # whole returns compared: no trap
        lambda batch, **how: (
            1e-12 * per_turn_index(batch, **how) + 1e-15 * batch.eligible_T
        ),  # nearly zero is not zero
    ],
    ids=["no trap", "nearly"],
)
def test_negative_control_a_trap_that_is_gone_is_not_shown(broken):
    assert not turn_index_trap(LEAVE_ONE_OUT, broken).shown


def test_negative_control_the_honest_estimator_must_find_the_gradient():
    assert not turn_index_trap(UNDIVIDED).shown  # without G/(G-1) it does not


def test_negative_control_the_other_traps_need_both_sides(quick):
    """A division that errs is no trap where the undivided errs as well; a filter that keeps all groups is none."""
    assert deviation_trap(DIVIDED, UNDIVIDED, ()).shown
    assert (
        not deviation_trap(DIVIDED, DIVIDED, ()).shown
        and not deviation_trap(UNDIVIDED, UNDIVIDED, ()).shown
    )
    assert not filter_trap(UNDIVIDED, UNDIVIDED).shown


def undivided(inputs, *, normalize_std: bool = True):
    """What GRPO would be if it did not divide: then the bandit is no trap."""
    return GRPO.estimator.function(inputs, normalize_std=False)


@pytest.fixture
def quick(monkeypatch):
    """The bench as the command runs it, on one task and with few probabilities."""
    monkeypatch.setattr("workbench.extensions.bias.bench.CURVE_SIZES", (2,))
    monkeypatch.setattr("workbench.extensions.bias.traps.RISKY_GRID", (0.3,))
    monkeypatch.setattr("workbench.extensions.bias.traps.FILTERED", (4, 2))
    monkeypatch.setattr("workbench.extensions.bias.cell.TASKS", {"bandit-0.1": TASKS["bandit-0.1"]})
    return monkeypatch


def test_the_command_passes_as_things_are(quick, capsys):
    assert cli.main(["bias", "--algorithm", "grpo"]) == 0
    assert capsys.readouterr().out.count("shown: ") == 3


def test_negative_control_a_broken_trap_makes_the_command_exit_1(quick, capsys):
    quick.setitem(
        ALGORITHMS, "grpo", of_estimator(undivided, plain=GRPO.estimator.plain, compares=True)
    )
    quick.setitem(CLAIMS, "grpo", (Claim("undivided", "scaled", "", scale="(G-1)/G"),))
    assert cli.main(["bias", "--algorithm", "grpo"]) == 1
    said = capsys.readouterr().out
    assert (
        "NOT SHOWN: dividing" in said
        and said.count("! ") == 1
        and "! trap not shown: dividing" in said
    )


def test_negative_control_a_false_claim_makes_the_command_exit_1(quick, capsys):
    quick.setitem(CLAIMS, "grpo", (Claim("GRPO", "unbiased", ""),))
    assert cli.main(["bias", "--algorithm", "grpo"]) == 1
    assert "! GRPO on bandit-0.1: NOT unbiased" in capsys.readouterr().out


@pytest.mark.full
def test_the_filter_seeks_risk():
    report = bias_bench(tasks={}, claims={"grpo": CLAIMS["grpo"]}, algorithms={"grpo": GRPO})
    assert report.passed and report.traps[2].shown and "quarter" in report.traps[2].title
    assert {(c.safe_payout, c.attempts) for c in report.curves} == {
        (s, g) for s in SAFE_PAYOUTS for g in (2, 4, 8, 16)
    }
    assert all(max(c.difference_P) < 0 for c in report.curves if c.attempts <= 8)
