"""Flat batches: what is built from groups, what is left out, and that nothing is ever changed in place."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning_data import FIRST, make_groups, span, unscore
from torch import Tensor

from workbench.learn.algorithms import GRPO
from workbench.learn.batch import Batch, concatenated_ranges, deal
from workbench.values import (
    Group,
    Sampling,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Trajectory,
    Turn,
    trajectories_of,
)
from workbench.values.errors import DataError


def one(segments, **changes) -> Batch:
    settings = dict(turns=(Turn(0, "", reward=1.0),), stop_reason=StopReason.TERMINATED) | changes
    return Batch.from_groups(
        [Group((Trajectory(Task("t", "test", 0), 0, 0, FIRST, segments=segments, **settings),))]
    )


def test_a_small_batch_written_out():
    rng = np.random.default_rng(0)
    first = Segment(
        (
            Span(Source.PROMPT, 0, [5, 6]),
            Span(Source.POLICY, 0, [7, 8], [-0.5, -0.25], policy_version=3, sampled=True),
            Span(Source.ENV, 0, [9]),
        )
    )
    again = Segment(
        (
            Span(Source.PROMPT, 0, [5]),
            Span(Source.POLICY, 0, [7, 8]),  # shown again, not sampled here
            Span(Source.SCAFFOLD, 1, [4]),
            span(Source.POLICY, 1, [3], rng, sampled=True),
        )
    )
    batch = one(
        (first, again), turns=(Turn(0, "", reward=0.25), Turn(1, "", reward=None)), outcome=2.0
    )
    assert batch.token_ids_T.tolist() == [5, 6, 7, 8, 9, 5, 7, 8, 4, 3]
    assert batch.segment_offsets.tolist() == [0, 5, 10]
    assert batch.source_T.tolist() == [0, 0, 2, 2, 3, 0, 2, 2, 1, 2]
    assert batch.eligible_T.int().tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0, 1]
    assert batch.response_T.int().tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 1]
    assert batch.policy_version_T.tolist() == [-1, -1, 3, 3, -1, -1, -1, -1, -1, 0]
    assert batch.rollout_logp_T[2:4].tolist() == [-0.5, -0.25]
    assert batch.rollout_logp_T.isnan().tolist() == (~batch.eligible_T).tolist()
    assert batch.position_T.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert batch.segment_of_token_T.tolist() == [0] * 5 + [1] * 5
    assert batch.trajectory_of_token_T.tolist() == [0] * 10
    assert batch.turn_reward_K[0] == 0.25 and batch.turn_reward_K[1].isnan()
    assert (
        batch.reward_N.isnan().all() and not batch.scored_N.any()
    )  # a turn without a reward: None is not zero
    assert batch.outcome_N.tolist() == [2.0] and batch.names_N == ("t/0",)
    assert batch.old_logp_T is None and batch.ref_logp_T is None and batch.value_T is None


@given(
    st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.booleans()
)
def test_flat_storage_is_the_segments_end_to_end(seed, tasks, attempts, turns, fresh):
    groups = make_groups(seed, tasks=tasks, attempts=attempts, turns=turns, fresh=fresh)
    batch = Batch.from_groups(groups)
    trajectories = trajectories_of(groups)
    segments = [segment for t in trajectories for segment in t.segments]
    assert batch.num_tokens == sum(map(len, segments)) and batch.num_trajectories == len(
        trajectories
    )
    for s, segment in enumerate(segments):
        low, high = int(batch.segment_offsets[s]), int(batch.segment_offsets[s + 1])
        assert batch.token_ids_T[low:high].tolist() == segment.token_ids.tolist()
        assert batch.eligible_T[low:high].tolist() == segment.eligible.tolist()
        assert batch.turn_T[low:high].tolist() == segment.turns.tolist()
    assert int(batch.eligible_T.sum()) == sum(t.num_sampled for t in trajectories)
    assert batch.group_of_trajectory_N.tolist() == [
        g for g, group in enumerate(groups) for _ in group
    ]
    assert batch.num_groups == tasks


def test_unscored_is_nan_and_not_zero():
    batch = Batch.from_groups(unscore(make_groups(), task=1, attempt=2))
    assert batch.scored_N.tolist() == [i != 6 for i in range(12)]
    assert batch.reward_N[6].isnan() and batch.reward_N[batch.scored_N].isfinite().all()


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_a_number_is_unscored(reward):
    batch = Batch.from_groups(make_groups(rewards=[[1.0, reward]], tasks=1, attempts=2))
    assert batch.scored_N.tolist() == [True, False]


def test_plain_logprobs_are_the_unbent_ones_or_unknown():
    bent = Sampling(temperature=0.5)
    segment = Segment(
        (
            Span(Source.PROMPT, 0, [1]),
            Span(Source.POLICY, 0, [2], [-1.0], sampling=Sampling(), sampled=True),
            Span(Source.POLICY, 1, [3], [-2.0], sampling=bent, sampled=True),
            Span(Source.POLICY, 2, [4], [-3.0], plain_logprobs=[-3.5], sampling=bent, sampled=True),
        )
    )
    plain = one((segment,)).plain_logp_T
    assert plain[[1, 3]].tolist() == [-1.0, -3.5] and plain[[0, 2]].isnan().all()


def test_a_segment_that_opens_with_a_sampled_token_is_refused():
    opened = Segment((Span(Source.POLICY, 0, [2], [-1.0], sampled=True),))
    with pytest.raises(DataError, match="trajectory t/0, segment 1.*nothing stands before it"):
        one((Segment((Span(Source.PROMPT, 0, [1]),)), opened))


def test_no_groups_and_no_tokens():
    with pytest.raises(DataError, match="at least one group"):
        Batch.from_groups([])
    empty = one(
        (), turns=(), stop_reason=StopReason.ENV_ERROR
    )  # the environment died before its first word
    assert empty.num_tokens == 0 and not empty.scored_N.any()


# ------------------------------------------------------------------------------------------------ frozen (invariant 6)


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    return {
        f.name: getattr(batch, f.name)
        for f in fields(batch)
        if isinstance(getattr(batch, f.name), Tensor)
    }


def test_frozen_means_fields_and_tensors():
    """Nothing that is done with a batch rebinds a field or writes into a tensor (torch counts the writes)."""
    batch = Batch.from_groups(make_groups())
    before = {name: (t._version, t.clone()) for name, t in tensors_of(batch).items()}
    with pytest.raises(FrozenInstanceError):
        batch.old_logp_T = batch.rollout_logp_T
    later = replace(batch, old_logp_T=torch.zeros(batch.num_tokens))
    assert batch.old_logp_T is None and later.token_ids_T is batch.token_ids_T
    batch.select([3, 1])
    GRPO().credit(batch)
    for name, tensor in tensors_of(batch).items():
        version, copy = before[name]
        assert tensor._version == version and torch.equal(tensor.nan_to_num(), copy.nan_to_num()), (
            name
        )


def test_negative_control_the_version_counter_sees_a_write():
    batch = Batch.from_groups(make_groups())
    version = batch.reward_N._version
    batch.reward_N.add_(0.0)
    assert batch.reward_N._version != version


def test_a_batch_shares_no_memory_with_its_trajectories():
    groups = make_groups()
    batch = Batch.from_groups(groups)
    ids = groups[0][0].segments[0].token_ids.copy()
    batch.token_ids_T.zero_()
    assert groups[0][0].segments[0].token_ids.tolist() == ids.tolist()


# ------------------------------------------------------------------------------------------------ select and deal


@given(st.integers(0, 1000), st.permutations(range(6)), st.integers(1, 6), st.booleans())
def test_select_is_the_batch_of_the_chosen_trajectories(seed, order, count, fresh):
    groups = make_groups(seed, tasks=2, attempts=3, fresh=fresh)
    batch, chosen = Batch.from_groups(groups), list(order)[:count]
    picked = batch.select(chosen)
    trajectories = trajectories_of(groups)
    expected = [i for n in chosen for s in trajectories[n].segments for i in s.token_ids.tolist()]
    assert picked.token_ids_T.tolist() == expected
    assert picked.reward_N.tolist() == batch.reward_N[chosen].tolist()
    assert picked.names_N == tuple(batch.names_N[n] for n in chosen)
    same = batch.group_of_trajectory_N[chosen]
    assert torch.equal(
        same[:, None] == same, picked.group_of_trajectory_N[:, None] == picked.group_of_trajectory_N
    )
    assert int(picked.group_of_trajectory_N.max()) + 1 == len(same.unique())
    assert picked.turn_offsets[-1] == len(picked.turn_reward_K)


@pytest.mark.parametrize("wrong", [[], [0, 0], [-1], [99]])
def test_select_refuses_what_is_not_there(wrong):
    with pytest.raises(DataError):
        Batch.from_groups(make_groups()).select(wrong)


def test_select_takes_later_facts_along_and_leaves_out_what_was_not_computed():
    batch = Batch.from_groups(make_groups(tasks=1, attempts=3))
    assert batch.select([1]).final_value_N is None
    value_T, final_N = torch.rand(batch.num_tokens), torch.tensor([0.5, torch.nan, 2.0])
    picked = replace(batch, value_T=value_T, final_value_N=final_N).select([2, 0])
    assert picked.final_value_N.tolist() == [2.0, 0.5] and picked.old_logp_T is None
    at = torch.cat([(batch.trajectory_of_token_T == n).nonzero()[:, 0] for n in (2, 0)])
    assert torch.equal(picked.value_T, value_T[at])


@given(st.integers(0, 200), st.booleans(), st.sets(st.integers(0, 5)))
def test_a_token_after_the_end_is_an_index_and_changes_nothing_before_it(seed, fresh, chosen):
    batch = Batch.from_groups(make_groups(seed, tasks=2, attempts=3, fresh=fresh))
    order = torch.tensor(sorted(chosen, reverse=seed % 2 == 1), dtype=torch.int64)
    longer, old_T, added = batch.with_a_token_after(order)
    assert longer.num_tokens == batch.num_tokens + len(order) and len(added) == len(order)
    assert sorted([*old_T.tolist(), *added.tolist()]) == list(range(longer.num_tokens))
    assert torch.equal(longer.token_ids_T[old_T], batch.token_ids_T)
    assert torch.equal(
        longer.position_T[old_T], batch.position_T
    )  # every old token stands where it stood
    assert torch.equal(longer.trajectory_of_token_T[added], order)
    assert torch.equal(added, longer.last_token_N[order])
    assert torch.equal(longer.position_T[added] - 1, batch.position_T[batch.last_token_N[order]])


def test_a_trajectory_without_tokens_has_no_end():
    empty = one((), turns=(), stop_reason=StopReason.ENV_ERROR)
    assert empty.last_token_N.tolist() == [-1]
    with pytest.raises(DataError, match="without tokens"):
        empty.with_a_token_after(torch.tensor([0]))


@given(st.lists(st.integers(1, 300), max_size=40), st.integers(1, 8))
def test_deal_gives_every_row_once_and_balances_tokens(lengths, ranks):
    hands = deal(lengths, ranks)
    assert len(hands) == ranks and sorted(row for hand in hands for row in hand) == list(
        range(len(lengths))
    )
    loads = [sum(lengths[row] for row in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert hands == deal(lengths, ranks)


def test_deal_when_rows_are_fewer_than_ranks():
    assert deal([5], 3) == ((0,), (), ())


def test_concatenated_ranges():
    assert concatenated_ranges(torch.tensor([0, 4, 7]), torch.tensor([1, 0])).tolist() == [
        4,
        5,
        6,
        0,
        1,
        2,
        3,
    ]
