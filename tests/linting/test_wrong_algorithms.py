"""Wrong algorithms of one's own: with a reference implementation each is named, without one it is named or "not checked", never passed.

The right ones, under the same conditions, are clean: that is the negative control.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import pytest
import torch

from tests.counts import reduced
from tests.linting.credited import draw, tiny_model, updated
from workbench.basics.findings import LintReport
from workbench.learn.algorithms import GRPO, PPO, ReinforcePP
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Advantages
from workbench.learn.algorithms.estimators import (
    GAE,
    GROUP_RELATIVE,
    REINFORCE,
    REINFORCE_PP,
    Estimator,
)
from workbench.learn.algorithms.objectives import (
    CISPOObjective,
    ClipObjective,
    Clipped,
    GSPOObjective,
)
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.linting import Evidence, all_rules, check
from workbench.linting.probe import probe_of
from workbench.plain import loss as plain_loss

RULES = all_rules()

GROUPS = draw(11)
CREDIT, LOSS = (
    ("R6",),
    ("R18", "R19"),
)  # the rules that hold credit, and loss, against a reference implementation
BOUNDS = {"low": 0.2, "high": 0.2}


def asked(algorithm: Any, *rules: str) -> LintReport:
    """What these rules say of a step of training with it."""
    evidence = updated(GROUPS, algorithm)
    if "R19" in rules:
        evidence = replace(
            evidence, probe=probe_of(tiny_model(), algorithm, LearnerConfig(), CriticConfig())
        )
    return check(evidence, [RULES[rule] for rule in rules])


# ------------------------------------------------------------------------------------------------ estimators


def minus_the_advantage(inputs, right, **settings):
    return -right(inputs, **settings).advantage_A


def of_the_neighbour(inputs, right, **settings):
    """Each trajectory has what the one before it earned."""
    advantage_A = right(inputs, **settings).advantage_A
    rows, first = torch.unique(inputs.row_A, return_inverse=True)
    of_row = torch.zeros(len(rows), dtype=advantage_A.dtype).index_copy(0, first, advantage_A)
    return of_row.roll(1)[first]


def shifted_by_a_token(inputs, right, **settings):
    return right(inputs, **settings).advantage_A.roll(1)


def divided_though_it_says_no(inputs, right, **settings):
    advantage_A = right(inputs, **settings).advantage_A
    return advantage_A / (advantage_A.std() + 1e-6)


def of_half_the_size(inputs, right, **settings):
    return right(inputs, **settings).advantage_A / 2


def above_the_mean_of_the_batch(inputs, right, **settings):
    return (inputs.reward_N - inputs.reward_N.nanmean()).nan_to_num(0.0)[inputs.row_A]


def above_the_first_trajectory(inputs, right, **settings):
    first = torch.stack(
        [inputs.reward_N[inputs.group_N == g][0] for g in range(int(inputs.group_N.max()) + 1)]
    )
    return (inputs.reward_N - first[inputs.group_N]).nan_to_num(0.0)[inputs.row_A]


def size_alone(inputs, right, **settings):
    return right(inputs, **settings).advantage_A.abs()


def the_same_for_all(inputs, right, **settings):
    return torch.ones_like(right(inputs, **settings).advantage_A)


def on_the_last_turn_alone(inputs, right, **settings):
    last_N = torch.zeros(len(inputs.reward_N), dtype=inputs.turn_A.dtype).scatter_reduce(
        0, inputs.row_A, inputs.turn_A, "amax"
    )
    return torch.where(
        inputs.turn_A == last_N[inputs.row_A], right(inputs, **settings).advantage_A, 0.0
    )


def over_its_own_length(inputs, right, **settings):
    return right(inputs, **settings).advantage_A / inputs.row_A.bincount()[inputs.row_A]


def in_half_precision(inputs, right, **settings):
    return right(inputs, **settings).advantage_A.half().double()


WRONG_GROUP = (
    minus_the_advantage,
    of_the_neighbour,
    shifted_by_a_token,
    divided_though_it_says_no,
    of_half_the_size,
    above_the_mean_of_the_batch,
    above_the_first_trajectory,
    size_alone,
    the_same_for_all,
    on_the_last_turn_alone,
    over_its_own_length,
    in_half_precision,
)


def gamma_twice(inputs, *, gamma: float = 0.9, lam: float = 1.0, whiten: bool = True):
    return GAE.function(inputs, gamma=gamma**2, lam=lam, whiten=whiten)


def lambda_is_one(inputs, *, gamma: float = 0.9, lam: float = 0.8, whiten: bool = True):
    return GAE.function(inputs, gamma=gamma, lam=1.0, whiten=whiten)


def never_whitened(inputs, *, gamma: float = 0.9, lam: float = 1.0, whiten: bool = True):
    return GAE.function(inputs, gamma=gamma, lam=lam, whiten=False)


def whitened_over_one_token_less(inputs, *, gamma: float = 1.0):
    whiten_T = inputs.whiten_T.clone()
    whiten_T[inputs.token_A[-1]] = False
    return REINFORCE_PP.function(replace(inputs, whiten_T=whiten_T), gamma=gamma)


def discounted_from_the_front(inputs, *, gamma: float = 0.9, baseline: str = "others"):
    turned = replace(inputs, reward_A=inputs.reward_A.flip(0))
    return REINFORCE.function(turned, gamma=gamma, baseline=baseline)


WRONG_OVER_TIME = {
    gamma_twice: (PPO, GAE),
    lambda_is_one: (PPO, GAE),
    never_whitened: (PPO, GAE),
    whitened_over_one_token_less: (ReinforcePP, REINFORCE_PP),
    discounted_from_the_front: (GRPO, REINFORCE),
}


def wrong_estimators() -> dict[str, Callable[[bool], Algorithm]]:
    """Name -> the algorithm, with a reference implementation (that of the right one) or without."""
    no_std = GROUP_RELATIVE.with_settings(normalize_std=False)

    def of_a_group(wrong: Callable, with_reference: bool) -> Algorithm:
        def function(inputs, *, normalize_std: bool = False):
            return Advantages(wrong(inputs, no_std.function, normalize_std=normalize_std))

        return replace(
            GRPO,
            name=wrong.__name__,
            estimator=Estimator(
                function, plain=no_std.plain if with_reference else None, compares=True
            ),
        )

    def over_time(wrong: Callable, with_reference: bool) -> Algorithm:
        base, right = WRONG_OVER_TIME[wrong]
        own = Estimator(
            wrong,
            plain=right.plain if with_reference else None,
            per=right.per,
            critic=right.critic,
            compares=right.compares,
        )
        return replace(base, name=wrong.__name__, estimator=own)

    return {wrong.__name__: partial(of_a_group, wrong) for wrong in WRONG_GROUP} | {
        wrong.__name__: partial(over_time, wrong) for wrong in WRONG_OVER_TIME
    }


@pytest.mark.parametrize("name", wrong_estimators())
def test_wrong_credit_is_named_with_a_reference_implementation_and_never_passes_without(name):
    make = wrong_estimators()[name]
    assert asked(make(True), *CREDIT).named == CREDIT
    found = asked(make(False), *CREDIT)["R6"]
    assert found.status != "passed" and (
        found.findings or "reference implementation" in found.missing[0]
    )


@pytest.mark.parametrize(
    "name", ["minus_the_advantage", "of_the_neighbour", "above_the_mean_of_the_batch"]
)
def test_credit_against_the_rewards_of_its_group_needs_no_reference_implementation(name):
    make = wrong_estimators()[name]
    if name != "above_the_mean_of_the_batch":
        assert any(
            "of its group earned" in finding.what
            for finding in asked(make(False), *CREDIT)["R6"].errors
        )
    else:  # the same order as by the group's own mean: nothing runs against anything
        assert not asked(make(False), *CREDIT)["R6"].errors


def test_an_estimator_may_say_that_it_runs_against_rewards():
    def curious(inputs, *, normalize_std: bool = False):
        return Advantages(-GROUP_RELATIVE.function(inputs, normalize_std=normalize_std).advantage_A)

    assert asked(replace(GRPO, name="curious", estimator=Estimator(curious)), *CREDIT)["R6"].errors
    curious.against_rewards = True
    found = asked(replace(GRPO, name="curious", estimator=Estimator(curious)), *CREDIT)["R6"]
    assert not found.findings and found.status == "partly checked"


# ------------------------------------------------------------------------------------------------ objectives


def ratio_of(inputs):
    return (inputs.logp_M - inputs.old_logp_M).exp()


def clipped(ratio_M, advantage_M):
    return torch.minimum(ratio_M * advantage_M, ratio_M.clamp(0.8, 1.2) * advantage_M)


OBJECTIVES: dict[str, Callable] = {
    "the sign is flipped": lambda i: clipped(ratio_of(i), i.advantage_M),
    "minus the advantage": lambda i: -clipped(ratio_of(i), -i.advantage_M),
    "the ratio has no gradient": lambda i: (
        -clipped(ratio_of(i).detach(), i.advantage_M) + 0.0 * i.logp_M
    ),
    "half of the ratio has no gradient": lambda i: (
        -ratio_of(i).detach() * ratio_of(i) * i.advantage_M
    ),
    "the ratio is upside down": lambda i: -clipped(1 / ratio_of(i), i.advantage_M),
    "the clip is on the wrong side": lambda i: (
        -torch.maximum(ratio_of(i) * i.advantage_M, ratio_of(i).clamp(0.8, 1.2) * i.advantage_M)
    ),
    "nothing is clipped": lambda i: -ratio_of(i) * i.advantage_M,
    "bounds are swapped": lambda i: (
        -torch.minimum(ratio_of(i) * i.advantage_M, ratio_of(i).clamp(0.5, 1.2) * i.advantage_M)
    ),
    "the advantage of the next token": lambda i: -clipped(ratio_of(i), i.advantage_M.roll(1)),
    "credit is not used": lambda i: -clipped(ratio_of(i), torch.ones_like(i.advantage_M)),
    "divided by its own count": lambda i: -clipped(ratio_of(i), i.advantage_M) / len(i.logp_M),
    "advantages are centred once more": lambda i: (
        -clipped(ratio_of(i), i.advantage_M - i.advantage_M.mean())
    ),
    "a pull the wrong way": lambda i: (
        -clipped(ratio_of(i), i.advantage_M) - 0.1 * (i.logp_M - i.old_logp_M + 1.0)
    ),
    "logarithm for ratio": lambda i: -(i.logp_M - i.old_logp_M + 1.0) * i.advantage_M,
}
# Of these, something is found without a reference implementation, too.
NAMED_WITHOUT = {
    "the sign is flipped",
    "minus the advantage",
    "the ratio has no gradient",
    "half of the ratio has no gradient",
    "the ratio is upside down",
    "the advantage of the next token",
    "credit is not used",
}


@dataclass(frozen=True)
class OwnObjective:
    """A loss of somebody's own: `what` it is, and whether it claims to be PPO's clip."""

    what: str
    claims: bool

    name: ClassVar[str] = "own"

    def loss(self, inputs):
        ratio_M = ratio_of(inputs)
        state_M = ((ratio_M > 1.2) & (inputs.advantage_M > 0)).to(torch.int8) - (
            (ratio_M < 0.8) & (inputs.advantage_M < 0)
        ).to(torch.int8)
        return Clipped(OBJECTIVES[self.what](inputs), ratio_M, state_M)

    @property
    def plain(self):
        return partial(plain_loss.clip, **BOUNDS) if self.claims else None


def with_objective(what: str, claims: bool) -> Algorithm:
    return replace(
        GRPO, name="own", objective=OwnObjective(what, claims), epochs=2, entropy_coef=0.01
    )


QUICK = (
    "the sign is flipped",
    "half of the ratio has no gradient",
    "the clip is on the wrong side",
    "nothing is clipped",
    "the advantage of the next token",
    "credit is not used",
)


@pytest.mark.parametrize(
    "what", reduced(OBJECTIVES, QUICK), ids=lambda what: what.replace(" ", "-")
)
def test_a_wrong_loss_is_named_with_a_reference_implementation_and_never_passes_without(what):
    report = asked(with_objective(what, True), *LOSS)
    assert "R19" in report.named, report.text
    without = asked(with_objective(what, False), *LOSS)
    assert all(answer.status != "passed" for answer in without), without.text
    assert bool(without["R19"].findings) or what not in NAMED_WITHOUT, without.text


# ------------------------------------------------------------------------------------------------ the right ones


def test_negative_control_the_right_loss_is_clean():
    OBJECTIVES["right"] = lambda i: -clipped(ratio_of(i), i.advantage_M)
    try:
        report = asked(with_objective("right", True), *CREDIT, *LOSS)
        assert report.ok and all(answer.status == "passed" for answer in report), report.text
        without = asked(with_objective("right", False), *CREDIT, *LOSS)
        assert without.ok and without["R6"].status == "passed"
        assert all(without[rule].status == "partly checked" for rule in LOSS), without.text
    finally:
        del OBJECTIVES["right"]


PARTS = list(
    product(
        (GROUP_RELATIVE, GAE, REINFORCE, REINFORCE_PP),
        (ClipObjective(), GSPOObjective(), CISPOObjective()),
    )
)


@pytest.mark.parametrize(
    "parts", reduced(PARTS, PARTS[::4]), ids=lambda p: f"{p[0].function.__name__}-{p[1].name}"
)
def test_negative_control_parts_of_this_package_are_clean(parts):
    estimator, objective = parts
    algorithm = Algorithm("mixed", estimator, objective=objective, epochs=2)
    report = asked(algorithm, *CREDIT, *LOSS)
    assert report.ok and all(answer.status == "passed" for answer in report), report.text
    own = replace(algorithm, estimator=replace(estimator, plain=None))
    found = asked(own, *CREDIT)["R6"]
    assert not found.errors and found.status == "partly checked"


def test_weights_on_unscored_rows_and_on_observations_need_no_reference_implementation():
    """Credit is of a class of somebody's own: nothing of it has a reference implementation."""
    from tests.linting.credited import batch_of, with_unscored

    groups = with_unscored(GROUPS, 0, 1)
    batch: Batch = batch_of(groups)
    credit = GRPO.credit(batch)
    unscored = replace(credit, weight_T=batch.eligible_T.double())
    observed = replace(
        credit, weight_T=batch.response_T * batch.scored_N[batch.trajectory_of_token_T].double()
    )
    for wrong in (unscored, observed):
        evidence = Evidence(
            tuple(map(tuple, groups)), batch=batch, credit=wrong, algorithm=_Stranger()
        )
        report = check(evidence, [RULES["R6"], RULES["R10"]])
        assert "R6" in report.named, report.text


class _Stranger:
    """No composition of parts."""

    name, requires, min_group_size, entropy_coef = "stranger", (), 1, 0.0
