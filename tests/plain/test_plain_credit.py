"""Credit by `plain` and by the code that trains: random steps under random settings, token by token; numbers of another
program, and numbers by hand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import golden
from tests.composed import of_class, of_estimator
from tests.linting.credited import batch_of, draw, groups_of, with_unscored
from tests.plain.golden_plain import INSTEAD
from tests.plain.recipes import flat, recipe_of, trajectories_with_facts
from workbench.learn.algorithms import ALGORITHMS, GRPO, PPO, Algorithm, Reinforce
from workbench.learn.algorithms.credit import rewards_at_turn_ends
from workbench.learn.algorithms.parts import READS, Filter, Masks, Rewards
from workbench.learn.algorithms.plain_recipe import PARTS, plain_recipe
from workbench.learn.ops.normalize import METHODS, normalization
from workbench.plain import credit
from workbench.plain.credit import CreditLine, Recipe, credit_of, updates_per_epoch
from workbench.plain.rewards import (
    FilterRule,
    above_the_others,
    by_spread,
    normalized,
    payments,
    trajectory_tokens_of,
)
from workbench.values.errors import ConfigError, DataError

filters = st.one_of(
    st.just(Filter()),
    st.builds(Filter, zero_variance=st.just("drop")),
    *(
        st.builds(
            Filter,
            st.just(keep),
            share=st.sampled_from([0.25, 0.5, 0.75]),
            p=st.sampled_from([0.3, 0.5, 0.9]),
            mass=st.sampled_from(["linear", "softmax"]),
            slack=st.sampled_from([0.0, 0.01, 0.3]),
            groups=st.integers(1, 4),
            ratio=st.sampled_from([0.2, 0.5, 1.0]),
            low=st.sampled_from([0.0, 0.25, 0.5]),
            high=st.sampled_from([0.75, 1.0]),
            attempts=st.integers(2, 4),
            zero_variance=st.sampled_from(["keep", "drop"]),
            equal_updates=st.just(False),
        )
        for keep in READS
        if keep != "all"
    ),
)
sets = st.sampled_from([None, None, "actions", "response"])
switches = {f.name: sets for f in fields(Masks) if f.name.endswith("over")}
masks = st.builds(Masks, st.booleans(), st.booleans(), **switches)
scales = st.builds(Rewards, st.sampled_from(METHODS), st.sampled_from(["group", "batch", "tag"]))


@st.composite
def algorithms(draw_value, names=tuple(ALGORITHMS)):
    """Any of them, under any settings that it takes."""
    kind = ALGORITHMS[draw_value(st.sampled_from(names))]
    known = {f.name for f in fields(kind)}
    choices = {
        "gamma": st.sampled_from([1.0, 0.9, 0.0]),
        "lam": st.sampled_from([1.0, 0.8]),
        "whiten": st.booleans(),
        "gamma_turn": st.sampled_from([1.0, 0.7]),
        "bootstrap": st.sampled_from(["never", "truncated", "context_full"]),
        "normalize_std": st.booleans(),
        "omega": st.sampled_from([0.0, 0.5]),
        "entropy_coef": st.sampled_from([0.0, 0.1]),
        "kl_coef": st.sampled_from([0.0, 0.0, 0.1]),
        "kl_in": st.sampled_from(["loss", "reward"]),
        "kl_estimator": st.sampled_from(["k1", "k2", "k3", "abs"]),
        "baseline": st.sampled_from(["others", "none"]),
        "minibatch_size": st.sampled_from([0, 3]),
        "masks": masks,
        "rewards": scales,
        "filter": filters,
    }
    chosen = {
        name: draw_value(choice)
        for name, choice in choices.items()
        if name in known and draw_value(st.booleans())
    }
    if chosen.get("minibatch_size") and "filter" in chosen and draw_value(st.booleans()):
        chosen["filter"] = replace(chosen["filter"], equal_updates=True)
    try:
        return kind(**chosen)
    except ConfigError:
        return kind(
            **{name: value for name, value in chosen.items() if name not in ("kl_in", "filter")}
        )


def differences(algorithm, recipe, groups, seed: int) -> dict[str, float]:
    """The largest difference of each column, by the size of the credit; empty where no credit can be given."""
    batch = batch_of(groups, seed)
    try:
        theirs = algorithm.credit(batch)
    except DataError:
        return {}
    trajectories = trajectories_with_facts(groups, batch)
    mine = credit_of(trajectories, recipe)
    columns = {"advantage": (flat([own.advantage for own in mine]), theirs.advantage_T)}
    for term in mine[0].weights:
        columns[term] = flat([own.weights[term] for own in mine]), theirs.weights_of(term)
    assert ("critic" in mine[0].weights) == (theirs.return_T is not None)
    if theirs.return_T is not None:
        columns["target"] = flat([own.target for own in mine]), theirs.return_T
    found = {}
    if theirs.minibatches is not None:
        found["updates"] = abs(updates_per_epoch(trajectories, recipe) - theirs.minibatches)
    size = 1 + float(theirs.advantage_T.abs().max())
    return found | {
        name: golden.difference(torch.from_numpy(one), two.tolist()) / size
        for name, (one, two) in columns.items()
    }


def close(algorithm, groups, seed) -> bool:
    return all(
        apart <= 1e-12
        for apart in differences(algorithm, recipe_of(algorithm), groups, seed).values()
    )


@settings(max_examples=150)
@given(algorithms(), st.integers(0, 10_000), st.booleans(), st.sampled_from([None, 0, 5]))
def test_it_is_the_credit_that_trains(algorithm, seed, fresh, unscored):
    assert close(algorithm, draw(seed, fresh=fresh, unscored=unscored), seed)


@pytest.mark.full
@settings(max_examples=3000)
@given(algorithms(), st.integers(0, 10**9), st.booleans(), st.sampled_from([None, 0, 5]))
def test_it_is_the_credit_that_trains_often(algorithm, seed, fresh, unscored):
    assert close(algorithm, draw(seed, fresh=fresh, unscored=unscored), seed)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_as_it_is_set(name):
    found = [
        differences(ALGORITHMS[name](), recipe_of(ALGORITHMS[name]()), draw(seed), seed)
        for seed in range(5)
    ]
    assert all(each and max(each.values()) <= 1e-12 for each in found)


def test_every_algorithm_of_the_table_has_a_reference_implementation_of_every_part():
    assert all(plain_recipe(kind()).missing == () for kind in ALGORITHMS.values())


def test_parts_of_your_own_without_a_reference_implementation_are_named():
    class OwnCredit(Algorithm):
        def credit(self, batch):
            return super().credit(batch)

    class OwnObjective:
        name, plain = "own", None

    class OwnMasks(Masks):
        pass

    assert plain_recipe(of_estimator(lambda inputs: None)).missing == ("estimator",)
    assert plain_recipe(replace(GRPO, objective=OwnObjective())).missing == ("objective",)
    assert plain_recipe(GRPO(masks=OwnMasks())).missing == ("masks",)
    assert plain_recipe(of_class(OwnCredit)).missing == ("estimator",)
    assert plain_recipe(object()) == (None, PARTS)


# ------------------------------------------------------------------------------------------ the parts by themselves


reward = st.sampled_from([0.0, 0.1, 0.3, 1.0, -1.0, None])
rewards_of_groups = st.lists(st.lists(reward, min_size=1, max_size=5), min_size=1, max_size=5)


def flattened(rewards) -> tuple[list, list, torch.Tensor, torch.Tensor]:
    earned, group_of = (
        [r for group in rewards for r in group],
        [g for g, group in enumerate(rewards) for _ in group],
    )
    reward_N = torch.tensor([float("nan") if r is None else r for r in earned], dtype=torch.float64)
    return earned, group_of, reward_N, torch.tensor(group_of)


@settings(max_examples=200)
@given(filters, rewards_of_groups)
def test_filters_keep_the_same(rule, rewards):
    earned, group_of, reward_N, group_N = flattened(rewards)
    plain = FilterRule(**{f.name: getattr(rule, f.name) for f in fields(FilterRule)})
    assert (
        by_spread(earned, group_of, plain)
        == rule.kept(reward_N, group_N, ~reward_N.isnan()).tolist()
    )


@given(st.sampled_from(METHODS), rewards_of_groups)
def test_scales_of_rewards(method, rewards):
    earned, group_of, reward_N, group_N = flattened(
        [[r for r in group if r is not None] for group in rewards]
    )
    change = normalization(reward_N, group_N, torch.ones(len(earned), dtype=torch.bool), method)
    theirs = zip(change.scale_N.tolist(), change.shift_N.tolist(), strict=True)
    assert normalized(earned, group_of, method) == [
        pytest.approx(each, rel=1e-9, abs=1e-9) for each in theirs
    ]


def test_payments_are_made_at_the_last_tokens_of_turns():
    groups = draw(11, fresh=True)
    batch = batch_of(groups)
    at_E = batch.eligible_T.nonzero()[:, 0]
    paid_E = rewards_at_turn_ends(
        batch.turn_reward_K,
        batch.turn_offsets,
        batch.outcome_N,
        batch.trajectory_of_token_T[at_E],
        batch.turn_T[at_E],
    )
    theirs = torch.zeros(batch.num_tokens, dtype=torch.float64).index_copy(0, at_E, paid_E)
    trajectories = trajectory_tokens_of(groups)
    assert np.allclose(
        flat([payments(trajectory, trajectory.sampled) for trajectory in trajectories]),
        theirs.numpy(),
        atol=1e-15,
    )


def line(paid, group=0, **more) -> CreditLine:
    """One token a turn."""
    return CreditLine(group, float(sum(paid)), np.array(paid, float), np.arange(len(paid)), **more)


def test_estimators_by_hand():
    """Two trajectories of one task: turns of one token paid 1 and 2; one turn, paid 5."""
    lines = [line([1, 2], value=np.array([0.5, 0.5])), line([5], value=np.array([0.5]))]

    def found(estimator, **settings):
        return [own.tolist() for own in estimator(lines, **settings)[0]]

    assert found(credit.rloo) == [[-2, -2], [2]]
    assert found(credit.group_relative, normalize_std=False) == [[-1, -1], [1]]
    assert found(credit.group_relative)[1] == pytest.approx([1 / (2**0.5 + 1e-6)])
    # Turn 0 is worth 1 + .5 * 2, the other trajectory earned 5.
    assert found(credit.reinforce, gamma=0.5) == [[-3, -3], [3]]
    assert found(credit.reinforce, baseline="none") == [[3, 2], [5]]
    assert (
        found(credit.gae, whiten=False)
        == found(credit.turn_gae, whiten=False)
        == [[2.5, 1.5], [4.5]]
    )
    assert np.concatenate(found(credit.reinforce_pp)).mean() == pytest.approx(0)
    assert above_the_others([1.0, 3.0, 7.0], ["a", "a", None]) == [-1, 1, 0]


def test_unscored_is_not_zero():
    trajectories = trajectory_tokens_of(
        with_unscored(groups_of([[((1, 1.0),), ((1, 3.0),), ((1, 0.0),)]]), 0, 2)
    )
    found = credit_of(trajectories, Recipe(credit.group_relative, {"normalize_std": False}))
    assert [float(own.advantage.sum()) for own in found] == [-1, 1, 0]
    assert [float(own.weights["policy"].sum()) for own in found] == [1, 1, 0]


def test_a_reference_implementation_of_your_own_is_a_function():
    """One for all tokens of a trajectory that earned more than half a point; it needs no change of the package."""

    def half_a_point(lines, *, more):
        return [np.full(len(line.paid), more if line.reward > 0.5 else 0.0) for line in lines], None

    trajectories = trajectory_tokens_of(groups_of([[((2, 1.0),), ((1, 0.0),)]]))
    found = credit_of(trajectories, Recipe(half_a_point, {"more": 2.0}))
    assert [
        own.advantage[trajectory.sampled].tolist() for own, trajectory in zip(found, trajectories)
    ] == [
        [2, 2],
        [0],
    ]


# ------------------------------------------------------------------------------------------ another program's numbers


@pytest.mark.parametrize("name", ["advantages_and_losses.json", "golden_edges.json"])
def test_golden_numbers_of_another_program(name, monkeypatch):
    """Every entry, with the same documented differences as the code that trains."""
    raw = json.loads((golden.FILE.parent / name).read_text())
    theirs = golden.check(raw)
    for function, plain in INSTEAD.items():
        monkeypatch.setattr(golden, function, plain)
    mine = golden.check(raw)
    assert [finding.line() for finding in mine if not finding.passed] == []

    def documented(findings) -> Counter:
        return Counter(
            (each.where, each.habits, each.entry)
            for finding in findings
            for each in finding.documented
        )

    assert documented(mine) == documented(theirs) and sum(finding.cases for finding in mine) > 50


def test_a_wrong_formula_is_noticed_by_the_golden_numbers(monkeypatch):
    for function, plain in INSTEAD.items():
        monkeypatch.setattr(golden, function, plain)
    monkeypatch.setattr(
        golden,
        "discounted_return",
        lambda reward_A, row_A, *, gamma: INSTEAD["discounted_return"](
            reward_A, row_A, gamma=0.99 * gamma
        ),
    )
    failed = {
        finding.entry
        for finding in golden.check(json.loads(golden.FILE.read_text()))
        if not finding.passed
    }
    assert failed == {"reinforce_pp"}


# ------------------------------------------------------------------------------------------------ negative controls


def of_the_neighbour(lines, **settings):
    found, targets = credit.group_relative(lines, **settings)
    numbers = [own[0] if len(own) else 0.0 for own in found]
    return [
        np.full(len(own), number) for own, number in zip(found, [*numbers[1:], numbers[0]])
    ], targets


WRONG = {
    "minus": lambda lines, **settings: (
        [-own for own in credit.group_relative(lines, **settings)[0]],
        None,
    ),
    "of the neighbour": of_the_neighbour,
    "of the batch": lambda lines, **settings: credit.group_relative(
        [replace(own, group=0) for own in lines], **settings
    ),
    "on the last token alone": lambda lines, **settings: (
        [
            own * (np.arange(len(own)) == len(own) - 1)
            for own in credit.group_relative(lines, **settings)[0]
        ],
        None,
    ),
    "of another divisor": lambda lines, **settings: (
        [own * 1.001 for own in credit.group_relative(lines, **settings)[0]],
        None,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_estimator_is_noticed(name):
    groups = draw(3)
    found = differences(GRPO(), replace(recipe_of(GRPO()), estimator=WRONG[name]), groups, 3)
    assert found["advantage"] > 1e-4 and found["policy"] == 0


@pytest.mark.parametrize(
    "one, other",
    [
        (GRPO(), GRPO(estimator={"normalize_std": False})),
        (PPO(), PPO(estimator={"gamma": 0.9})),
        (PPO(), PPO(critic={"bootstrap": "truncated"})),
        (Reinforce(), Reinforce(estimator={"gamma": 0.9})),
        (GRPO(), GRPO(filter=Filter("top_k", groups=1))),
        (PPO(), PPO(masks=Masks(whiten_over="response"))),
        (PPO(reference={"kl_coef": 0.1}), PPO(reference={"kl_coef": 0.1, "kl_estimator": "k3"})),
        (GRPO(), GRPO(masks=Masks(loss_over="response"))),
        (Reinforce(), Reinforce(rewards=Rewards("asym_clip"))),
    ],
)
def test_another_setting_is_noticed(one, other):
    groups = draw(3)
    assert max(differences(one, recipe_of(one), groups, 3).values()) <= 1e-12
    assert max(differences(one, recipe_of(other), groups, 3).values()) > 1e-3
