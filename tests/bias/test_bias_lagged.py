"""Gradients under a policy that has moved on, and the KL term's: held against closed forms, and against errors planted here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from workbench.extensions.bias import lagged
from workbench.extensions.bias.lagged import (
    AS_IT_IS,
    BY_TOKEN,
    CORRECTIONS,
    WHOLE,
    PolicyPair,
    correction_rows,
    kl_gradient,
    kl_rows,
    lag_faults,
    path,
    reward_gradient,
    softmax_task,
    with_logits,
)
from workbench.extensions.bias.tasks import bandit, three_turns
from workbench.extensions.bias.trajectories import SoftmaxPolicy, templates


@pytest.fixture(scope="module")
def corrections():
    return list(correction_rows((0, 4)))


@pytest.fixture(scope="module")
def kls():
    return list(kl_rows((0, 2)))


def of(rows, label, task, lag):
    return next(row for row in rows if (row.label, row.task, row.lag) == (label, task, lag))


def probabilities(logits):
    weights = np.exp(np.array([0.0, *logits]))
    return weights / weights.sum()


def test_the_gradient_of_kl_is_the_closed_form_of_a_softmax():
    task = softmax_task()
    policy = SoftmaxPolicy(task)
    reference_D = policy.logits_D + torch.tensor([-0.6, 0.8, -0.8], dtype=torch.float64)
    p = probabilities(policy.logits_D.tolist())
    q = probabilities(reference_D.tolist())
    apart = np.log(p / q)
    closed = (p * (apart - (p * apart).sum()))[1:]
    assert kl_gradient(task, policy.logp_V(reference_D)).numpy() == pytest.approx(closed, abs=1e-14)


def test_the_terms_of_kl_are_their_closed_forms(kls):
    """One token of four: k1 in the loss is no gradient, k2 the gradient of KL, k3 that of the reverse divergence."""
    p = probabilities((0.4, -0.3, 0.9))
    q = probabilities((0.4 - 0.6, -0.3 + 0.8, 0.9 - 0.8))
    score = np.eye(4) - p  # d log p(token) / d logit
    k2 = -(p * np.log(p / q)) @ score
    k3 = -(p * (1 - q / p)) @ score
    assert of(kls, "k1 in the loss", "softmax", 0).estimate == pytest.approx((0, 0, 0), abs=1e-12)
    assert of(kls, "k2 in the loss", "softmax", 0).estimate == pytest.approx(tuple(k2[1:]))
    assert of(kls, "k3 in the loss", "softmax", 0).estimate == pytest.approx(tuple(k3[1:]))
    reverse = (q - p)[1:]  # -d KL(reference || policy) / d logit
    assert tuple(k3[1:]) == pytest.approx(tuple(reverse))
    number = (q / p - 1) - np.log(q / p)
    k3_paid = -(p * number) @ score
    assert of(kls, "k3 in the reward", "softmax", 0).estimate == pytest.approx(tuple(k3_paid[1:]))


def test_which_kl_terms_are_without_bias(kls):
    exact = {(row.task, row.label, row.lag) for row in kls if row.bias <= lagged.ROUNDING}
    always = {(task, AS_IT_IS, lag) for task in ("softmax", "lengths") for lag in (0, 2)}
    paid = {(task, "k1 in the reward", 0) for task in ("softmax", "lengths")}
    assert exact == always | paid | {("softmax", "k2 in the loss", 0)}
    assert of(kls, "k3 in the reward", "softmax", 0).scale < 0, "it pushes away from the reference"


def test_corrections_by_closed_form_on_the_bandit(corrections):
    """One decision: without a correction the estimate is p(1-p) at the old policy, with the ratio it is that at the new one."""
    task = bandit(0.1)
    now = path(task, 4, reward_gradient)[4]
    was = 0.3
    logit = float(SoftmaxPolicy(now).logits_D)
    p = 1 / (1 + np.exp(-logit))
    gain = 0.25 - 0.1
    plain = of(corrections, "no correction", "bandit-0.1", 4)
    # The others' mean leaves half of a pair's difference: arms differ with probability 2 was (1 - was).
    assert plain.estimate[0] == pytest.approx(was * (1 - was) * gain)
    assert of(corrections, WHOLE, "bandit-0.1", 4).estimate[0] == pytest.approx(p * (1 - p) * gain)
    for label in BY_TOKEN:
        assert of(corrections, label, "bandit-0.1", 4).bias <= lagged.ROUNDING


def test_without_a_lag_nothing_is_biased(corrections):
    assert {row.label for row in corrections} == {*CORRECTIONS, WHOLE}
    assert all(row.bias <= lagged.ROUNDING for row in corrections if row.lag == 0)
    assert all(row.drift == pytest.approx(0) for row in corrections if row.lag == 0)


def test_with_a_lag_only_whole_ratios_are_without_bias_over_several_decisions(corrections):
    late = [row for row in corrections if row.lag and row.task != "bandit-0.1"]
    assert {row.label for row in late if row.bias <= lagged.ROUNDING} == {WHOLE}
    assert all(row.error > 0 and row.noise > 0 for row in late)
    assert not lag_faults(corrections)


def test_lags_along_a_path_are_steps_of_one_length():
    tasks = path(three_turns(), 3, reward_gradient)
    logits = torch.stack([SoftmaxPolicy(task).logits_D for task in tasks])
    assert logits.diff(dim=0).norm(dim=1).tolist() == pytest.approx([lagged.STEP] * 3)
    again = with_logits(three_turns(), logits[0])
    assert SoftmaxPolicy(again).logits_D.tolist() == logits[0].tolist()


def test_an_estimator_that_forgets_the_ratio_is_a_fault():
    """Negative control: called unbiased, and a bench that enumerates under the new policy would not see it."""
    task = bandit(0.1)
    pair = PolicyPair(templates(task), SoftmaxPolicy(path(task, 4, reward_gradient)[4]))
    truth_D = reward_gradient(with_logits(task, pair.now.logits_D))
    forgetful = replace(pair, old=templates(task))
    estimator = lagged.loss_of(lagged._rloo(), forgetful, recomputed=True)
    row = lagged._row("correction", "planted", 4, "unbiased", pair, truth_D, estimator)
    assert row.bias > 0.1 and not row.holds
    assert "planted on bandit-0.1, 4 updates later: NOT unbiased" in lag_faults([row])[0]


def test_what_is_called_biased_and_is_not_is_a_fault(corrections):
    honest = replace(of(corrections, WHOLE, "bandit-0.1", 4), says="biased")
    assert lag_faults([honest]) == [f"{WHOLE} is documented as biased, but no row shows it"]
    far = replace(honest, says="unbiased", z=7.0)
    assert "standard errors from the enumeration" in lag_faults([far])[0]


def test_tables_of_lags_stand_in_the_view(corrections, kls):
    from workbench.extensions.bias.view import show_bias

    report = SimpleNamespace(
        notes=(), passed=True, rows=(), curves=(), traps=(), faults=(), lagged=(*corrections, *kls)
    )
    text = show_bias(report).text
    assert (
        WHOLE in text
        and "k3 in the reward" in text
        and "updates since the data were sampled" in text
    )
