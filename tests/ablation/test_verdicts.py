"""Verdicts on families of differences: noise is not ranked, looks cost what they are said to, few seeds decide nothing."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from experiments import statistics as made_up
from workbench.extensions.ablation.crossed import parts_of
from workbench.extensions.ablation.looks import look_levels
from workbench.extensions.ablation.verdicts import (
    EQUAL,
    HIGHER,
    LOWER,
    UNDECIDED,
    Analysis,
    found_at,
    judged,
    sign_flip,
)
from workbench.values.errors import ConfigError, DataError

FIVE = Analysis(0.05, (5,))


def differences(effect, runs=5, tasks=512, seed=0, deviation=0.01):
    rng = np.random.default_rng(seed)
    return (
        effect
        + rng.normal(0, 0.1, tasks)
        + rng.normal(0, deviation, (runs, 1))
        + rng.normal(0, 0.2, (runs, tasks))
    )


def test_the_levels_of_looks_are_those_of_published_tables():
    # Lan and DeMets' O'Brien-Fleming-like boundary, five equal looks, two-sided 5 %: 4.877 3.357 2.680 2.290 2.031.
    from scipy.special import ndtri

    limits = [-ndtri(level / 2) for level in look_levels([1, 2, 3, 4, 5])]
    assert limits == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=1e-3)
    assert look_levels([7]) == pytest.approx((0.05,)) and look_levels([4, 8], 0.01)[1] < 0.01
    for wrong in ((), (5, 5), (8, 5), (0, 5)):
        with pytest.raises(ConfigError, match="rising numbers of seeds"):
            look_levels(wrong)


def test_looks_all_together_err_as_often_as_promised():
    rng = np.random.default_rng(0)
    z_LD = rng.normal(size=(4, 40000)).cumsum(axis=0) / np.sqrt([[1], [2], [3], [4]])
    from scipy.special import ndtr

    p_LD = 2 * ndtr(-np.abs(z_LD))
    levels = np.array(look_levels([1, 2, 3, 4]))[:, None]
    assert 0.045 < (p_LD <= levels).any(axis=0).mean() < 0.055
    assert (p_LD <= 0.05).any(axis=0).mean() > 0.1, "looking for free is what this is against"


def test_holm_by_hand_and_what_was_found_stays_found():
    p = np.array([[0.001, 0.02, 0.03, 0.9]])
    assert (found_at(p, FIVE) >= 0).tolist() == [True, False, False, False]  # 0.02 > 0.05 / 3
    assert (found_at(np.array([[0.001, 0.016, 0.024, 0.04]]), FIVE) >= 0).all()
    two = Analysis(0.05, (5, 10))
    assert found_at(np.array([[1e-6], [0.9]]), two).tolist() == [0]
    assert found_at(np.array([[0.01], [0.04]]), two).tolist() == [1], "0.01 is not enough half-way"


def test_the_four_verdicts():
    said = judged(
        [
            differences(0.1),
            differences(-0.1, seed=1),
            differences(0, seed=4),
            differences(0.05, seed=3),
        ],
        FIVE,
    )
    assert [one["verdict"] for one in said[:3]] == [HIGHER, LOWER, EQUAL]
    [open_] = judged([differences(0.03, deviation=0.03, seed=5)], Analysis(0.02, (5,)))
    assert open_["verdict"] == UNDECIDED and open_["more_seeds"] > 1 and open_["more_tasks"] is None
    for one in said:
        assert one["low"] < one["mean"] < one["high"] and len(one["each"]) == 5
        assert one["alone"][1] - one["alone"][0] < one["high"] - one["low"], (
            "the family's intervals are wider"
        )


def test_more_tasks_are_advised_where_tasks_are_what_is_missing():
    [found] = judged([differences(0, tasks=64, deviation=0.0)], Analysis(0.02, (5,)))
    assert (
        found["verdict"] == UNDECIDED
        and found["more_tasks"] is not None
        and found["more_tasks"] > 64
    )


@pytest.mark.parametrize("runs", [2, 3, 4])
def test_few_seeds_cannot_decide_unless_normality_is_accepted_by_name(runs):
    table = differences(0.3, runs)
    [found] = judged([table], Analysis(0.05, (runs,)))
    assert found["verdict"] == UNDECIDED and f"{runs} seeds cannot decide" in found["why"]
    assert found["flip"] == 2.0 ** (1 - runs)
    if runs > 2:
        [found] = judged([table], Analysis(0.05, (runs,), normal=True))
        assert found["verdict"] == HIGHER


def test_no_verdict_before_the_first_look_and_none_from_seeds_beyond_the_last():
    [early] = judged([differences(0.3, 4)], Analysis(0.05, (5, 8)))
    assert early["verdict"] == UNDECIDED and early["why"].startswith("4 seeds cannot decide")
    [early] = judged([differences(0.3, 5)], Analysis(0.05, (6, 8)))
    assert (
        early["verdict"] == UNDECIDED
        and "5 of 6 seeds until the first declared look" in early["why"]
    )
    table = np.concatenate([differences(0.0), differences(5.0, seed=9)])
    [found] = judged([table], FIVE)
    assert found["verdict"] == EQUAL and found["judged_seeds"] == 5 and len(found["each"]) == 10


def test_alike_arms_are_equal_only_as_far_as_tasks_can_tell():
    [found] = judged([np.zeros((5, 512))], Analysis(0.02, (5,)))
    assert found["verdict"] == EQUAL and found["low"] < 0 < found["high"]
    [found] = judged([np.zeros((5, 32))], Analysis(0.02, (5,)))
    assert found["verdict"] == UNDECIDED, (
        "32 tasks that agree do not show that 2 points are not there"
    )
    [found] = judged([np.zeros((1, 32))], Analysis(0.02, (5,)))
    assert found["low"] is None and found["verdict"] == UNDECIDED


def test_signs_are_flipped_in_all_ways():
    values = [0.3, -0.1, 0.2, 0.4]
    sums = [sum(s * v for s, v in zip(signs, values)) for signs in product((-1, 1), repeat=4)]
    assert sign_flip(values) == pytest.approx(np.mean([abs(s) >= 0.8 - 1e-9 for s in sums]))
    assert sign_flip([1, 1, 1]) == 0.25
    with pytest.raises(DataError):
        sign_flip([])


def test_what_is_no_analysis_is_refused():
    for wrong in ({"margin": 0}, {"looks": (5, 3)}, {"alpha": 0}):
        with pytest.raises(ConfigError):
            Analysis(**{"margin": 0.02, "looks": (5,)} | wrong)
    with pytest.raises(DataError, match="same seeds and tasks"):
        judged([np.zeros((5, 8)), np.zeros((5, 9))], FIVE)


# ------------------------------------------------------------------------------------------------ made-up tables


def share_of_false(looks, tables_DMRN, alpha_for_all=True):
    analysis = Analysis(0.02, looks)
    p_LDM = np.stack([parts_of(tables_DMRN[..., :look, :]).p_value() for look in looks])
    if not alpha_for_all:
        return float((p_LDM <= 0.05).any(axis=(0, -1)).mean())
    return float((found_at(p_LDM, analysis) >= 0).any(axis=-1).mean())


def test_equal_arms_are_rarely_told_apart_and_pair_by_pair_they_often_are():
    rng, looks = np.random.default_rng(0), (5, 6, 7, 8, 9, 10, 11, 12)
    tables = made_up.normal_tables(made_up.seed_variance(4, 32), 12, 32, family=5)(rng, 600)
    assert share_of_false(looks, tables) <= 0.05
    assert share_of_false(looks, tables, alpha_for_all=False) > 0.15, "the negative control"


def test_the_simulation_is_small_here_and_says_what_does_not_hold():
    result = {
        "coverage": [{"coverage": 0.95}],
        "bimodal": [{"judged": True, "coverage": 0.94}],
        "false": [{"false": 0.03}],
        "power": [{"seeds": 5, "family": 1, "found": 0.88}],
        "detectable": [{"stated": 0.05, "simulated": 0.051}],
        "starts": [{"coverage": 0.95}],
    }
    assert all(held for _, held in made_up.claims(result))
    for kind, row in (
        ("coverage", {"coverage": 0.87}),
        ("bimodal", {"judged": True, "coverage": 0.9}),
        ("false", {"false": 0.12}),
        ("detectable", {"stated": 0.05, "simulated": 0.07}),
        ("starts", {"coverage": 0.7}),
    ):
        assert [held for _, held in made_up.claims(result | {kind: [row]})].count(False) == 1


@pytest.mark.full
def test_a_small_simulation_bears_out_every_claim(monkeypatch):
    monkeypatch.setattr(made_up, "SEEDS", (3, 8))
    monkeypatch.setattr(made_up, "TASKS", (64,))
    result = made_up.measure(600, 1)
    assert all(0.92 < row["coverage"] < 0.98 for row in result["coverage"])
    assert max(row["false"] for row in result["false"]) < 0.08 and result["power"][0]["found"] > 0.8
