"""What must hold for every algorithm in the table, on random trajectories: what has no part in credit, and what none gets.

A new algorithm is tested here from the moment it has a line in the table.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from credit_data import batch_of, credit_of, draw, same
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.base import needs_critic
from workbench.values import StopReason
from workbench.values.errors import DataError

VARIANTS = {
    **{name: algorithm() for name, algorithm in ALGORITHMS.items()},
    "grpo, no std": ALGORITHMS["grpo"](estimator={"normalize_std": False}),
    "reinforce, no baseline, gamma .9": ALGORITHMS["reinforce"](
        estimator={"baseline": "none", "gamma": 0.9}
    ),
    "reinforce_pp, gamma .9": ALGORITHMS["reinforce_pp"](estimator={"gamma": 0.9}),
    "gigpo, gamma 1": ALGORITHMS["gigpo"](estimator={"gamma": 1.0}),
    **{
        f"{name}, lam .9": ALGORITHMS[name](
            estimator={"gamma": 0.95, "lam": 0.9, "whiten": False},
            critic={"bootstrap": "truncated"},
        )
        for name in ("ppo", "turn_ppo", "bilevel_ppo")
    },
}
every = pytest.mark.parametrize("algorithm", VARIANTS.values(), ids=VARIANTS)
# Whose advantages do not feel what all trajectories of a group earn alike. GiGPO and REINFORCE discount it by turn.
RELATIVE = {
    name: algorithm
    for name, algorithm in VARIANTS.items()
    if algorithm.estimator.says("compares") and name != "gigpo"
}
relative = pytest.mark.parametrize("algorithm", RELATIVE.values(), ids=RELATIVE)
few = settings(max_examples=4)
seeds = st.integers(0, 10_000)


def changed(groups, task: int, number: int, **changes):
    """The same groups, with one trajectory changed."""
    return tuple(
        tuple(replace(a, **changes) if (t, n) == (task, number) else a for n, a in enumerate(group))
        for t, group in enumerate(groups)
    )


def test_every_algorithm_of_the_table_is_here():
    assert set(ALGORITHMS) <= set(VARIANTS) and len(RELATIVE) >= 8
    assert all(algorithm().name == name for name, algorithm in ALGORITHMS.items())


@every
@few
@given(seeds)
def test_observations_and_histories_change_no_bit(algorithm, seed):
    """More tokens of the environment, none at all, or a new segment per turn: credit is the same, and it chains across
    the segments of a trajectory. Nor does it matter what stands where no value was asked for."""
    groups = draw(seed)
    plain = credit_of(algorithm, batch_of(groups))
    for other in (
        batch_of(groups, observation=7),
        batch_of(groups, observation=0),
        batch_of(groups, fresh=True),
        batch_of(groups, fresh=True, observation=5),
        batch_of(groups, elsewhere=99.0),
    ):
        assert same(plain, credit_of(algorithm, other))


@every
@few
@given(seeds, st.randoms(use_true_random=False), st.booleans())
def test_the_order_of_groups_and_trajectories_does_not_matter(algorithm, seed, random, fresh):
    batch = batch_of(draw(seed), fresh=fresh)
    order = list(range(batch.num_trajectories))
    random.shuffle(order)
    straight = credit_of(algorithm, batch)
    assert same(credit_of(algorithm, batch.select(order)), [straight[n] for n in order], atol=1e-9)


@every
@few
@given(seeds, st.booleans())
def test_a_trajectory_that_is_not_scored_leaves_baseline_whitening_and_loss(algorithm, seed, fresh):
    """As if it had never been, whatever its reward would have been; and so does one that failed before any token."""
    groups = draw(seed)
    without = credit_of(
        algorithm, batch_of((groups[0], groups[1][:2] + groups[1][3:], groups[2]), fresh=fresh)
    )
    for nothing in ({"scored": False}, {"turns": (), "stop": StopReason.ENV_ERROR}):
        found = credit_of(algorithm, batch_of(changed(groups, 1, 2, **nothing), fresh=fresh))
        assert not found[6][1].any() and not found[6][0].any() and found[6][2].isnan().all()
        assert same(found[:6] + found[7:], without)


@every
@few
@given(seeds, st.sampled_from([0.0, 0.1, 1.0]))
def test_never_nan_whatever_is_missing_or_the_same(algorithm, seed, paid):
    """A group with nobody scored, one with a single scored trajectory, a flat one, and one in which nothing was said."""
    drawn = draw(seed, tasks=4)
    nobody = tuple(replace(a, scored=False) for a in drawn[0])
    one = tuple(replace(a, scored=not n) for n, a in enumerate(drawn[1]))
    flat = tuple(replace(a, turns=((2, 0.0, "s"), (1, paid, None))) for a in drawn[2])
    silent = (replace(drawn[3][0], turns=(), stop=StopReason.ENGINE_ERROR), *drawn[3][1:])
    for trajectories in ((nobody, one, flat, silent), (flat,), (nobody,)):
        batch = batch_of(trajectories)
        credit, scored_T = algorithm.credit(batch), batch.scored_N[batch.trajectory_of_token_T]
        assert bool(credit.advantage_T.isfinite().all()) and bool(credit.weight_T.isfinite().all())
        assert (
            not credit.weight_T[~scored_T].any()
            and not credit.advantage_T[credit.weight_T == 0].any()
        )
        assert all(value == value for value in credit.notes.values())
        assert (credit.return_T is not None) == needs_critic(algorithm)


@relative
@few
@given(seeds, st.lists(st.sampled_from([-3.0, 0.5, 100.0]), min_size=3, max_size=3))
def test_what_all_trajectories_of_a_group_earn_alike_teaches_nothing(algorithm, seed, constants):
    groups = draw(seed)
    moved = tuple(
        tuple(replace(a, outcome=constant) for a in group)
        for group, constant in zip(groups, constants)
    )
    assert same(
        credit_of(algorithm, batch_of(moved)), credit_of(algorithm, batch_of(groups)), atol=1e-8
    )


@pytest.mark.parametrize(
    "name", ["reinforce_pp", "reinforce, no baseline, gamma .9", "ppo, lam .9"]
)
def test_negative_control_without_a_baseline_it_does(name):
    groups = draw(1)
    moved = tuple(
        tuple(replace(a, outcome=5.0 * t) for a in group) for t, group in enumerate(groups)
    )
    assert not same(
        credit_of(VARIANTS[name], batch_of(moved)),
        credit_of(VARIANTS[name], batch_of(groups)),
        atol=0.1,
    )


@pytest.mark.parametrize(
    "algorithm", [*RELATIVE.values(), ALGORITHMS["gigpo"]()], ids=[*RELATIVE, "gigpo"]
)
@few
@given(seeds, st.sampled_from([0.1, 0.7, 1 / 3, 0.0]))
def test_a_flat_group_is_exact_zeros_beside_one_that_is_not(algorithm, seed, paid):
    """0.1 + 0.1 + 0.1 is not 3 * 0.1: without care this would become credit."""
    other, flat = draw(seed, tasks=2, attempts=3)
    flat = tuple(replace(a, turns=((1, 0.0, "a"), (n + 1, paid, "b"))) for n, a in enumerate(flat))
    found = credit_of(algorithm, batch_of((flat, other)))
    assert all(not advantage.any() for advantage, _, _ in found[:3])
    assert any(bool(advantage.any()) for advantage, _, _ in found[3:])


@pytest.mark.parametrize(
    "algorithm", [*RELATIVE.values(), ALGORITHMS["gigpo"]()], ids=[*RELATIVE, "gigpo"]
)
def test_a_group_of_one_has_no_baseline(algorithm):
    """Alone it is an error, beside others it gets zero: nothing says which of its tokens were good."""
    with pytest.raises(DataError, match="at least 2 trajectories per task"):
        algorithm.credit(batch_of(draw(3, attempts=1)))
    alone, *others = draw(3)
    alone = replace(
        alone[0], turns=((2, 5.0, "a"), (1, 1.0, "b"))
    )  # no two turns in the same state
    assert not credit_of(algorithm, batch_of(((alone,), *others)))[0][0].any()


@pytest.mark.parametrize(
    "name", [n for n, a in VARIANTS.items() if n not in RELATIVE and a.min_group_size == 1]
)
def test_who_compares_no_trajectories_needs_only_one(name):
    assert any(
        bool(advantage.any())
        for advantage, _, _ in credit_of(VARIANTS[name], batch_of(draw(3, attempts=1)))
    )


@every
def test_credit_is_about_what_was_earned(algorithm):
    """Negative control of the whole page: with other rewards it is another."""
    groups = draw(5)
    better = changed(groups, 0, 0, turns=((2, 9.0, "s0"),))
    worse = changed(groups, 0, 0, turns=((2, -9.0, "s0"),))
    assert not same(
        credit_of(algorithm, batch_of(better)), credit_of(algorithm, batch_of(worse)), atol=0.01
    )


@every
def test_the_batch_is_left_as_it_was(algorithm):
    batch = batch_of(draw(6))
    before = {
        name: value.clone()
        for name, value in vars(batch).items()
        if isinstance(value, torch.Tensor)
    }
    algorithm.credit(batch)
    assert all(
        torch.allclose(getattr(batch, name), value, equal_nan=True, atol=0, rtol=0)
        for name, value in before.items()
    )
