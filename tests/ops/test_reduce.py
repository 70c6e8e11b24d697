"""Sums that say what they are divided by (invariant 4)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.ops.loss import REDUCTIONS, masked_sum_over, reduction


def test_by_hand():
    values, weights = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 0.0, 0.5])
    assert masked_sum_over(values, weights, 2).item() == 1.5


def test_what_has_no_weight_stays_out_even_if_it_is_not_a_number():
    values = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
    total = masked_sum_over(values, torch.tensor([1.0, 0.0, 0.0]), 1)
    total.backward()
    assert total.item() == 1.0 and values.grad.tolist() == [1.0, 0.0, 0.0]


def test_what_has_a_weight_is_never_hidden():
    assert masked_sum_over(torch.tensor([float("nan")]), torch.tensor([1.0]), 1).isnan()


@pytest.mark.parametrize("denominator", [0, -1, float("nan"), float("inf")])
def test_a_denominator_that_is_no_count_is_refused(denominator):
    with pytest.raises(ValueError, match="count of trained tokens"):
        masked_sum_over(torch.ones(2), torch.ones(2), denominator)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="same shape"):
        masked_sum_over(torch.ones(2), torch.ones(3), 1)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=20), st.integers(1, 19))
def test_pieces_add_up_to_the_whole(values, cut):
    values = torch.tensor(values, dtype=torch.float64)
    weights, cut = torch.ones_like(values), cut % len(values)
    whole = masked_sum_over(values, weights, len(values))
    parts = [
        masked_sum_over(values[i], weights[i], len(values)) for i in (slice(cut), slice(cut, None))
    ]
    assert float(sum(parts)) == pytest.approx(float(whole), abs=1e-12)


def test_negative_control_a_mean_of_means_does_not_add_up():
    values = torch.tensor([1.0, 1.0, 1.0, 5.0])
    assert (values[:3].mean() + values[3:].mean()) / 2 != masked_sum_over(values, torch.ones(4), 4)


# ------------------------------------------------------------------------------------------------ reductions


COUNTS, ROWS = (
    torch.tensor([True, True, True, False, True, False]),
    torch.tensor([0, 0, 0, 0, 1, 2]),
)


@pytest.mark.parametrize(
    "kind, scale, denominator",
    [
        ("token-mean", [1, 1, 1, 1], 4),
        ("seq-mean-token-mean", [1 / 3, 1 / 3, 1 / 3, 1], 2),
        ("seq-mean-token-sum", [1, 1, 1, 1], 2),
        ("fixed-length", [1, 1, 1, 1], 20),
    ],
)
def test_a_reduction_by_hand(kind, scale, denominator):
    found = reduction(kind, COUNTS, ROWS, fixed_length=10 * (kind == "fixed-length"))
    assert found.scale[COUNTS].tolist() == pytest.approx(scale) and found.denominator == denominator


def test_what_is_no_reduction_is_refused():
    with pytest.raises(ValueError, match="one of token-mean, seq-mean"):
        reduction("mean", COUNTS, ROWS)
    with pytest.raises(ValueError, match="at least 1 token"):
        reduction("fixed-length", COUNTS, ROWS)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_trajectories_of_the_same_length_count_the_same_in_all_of_them(lengths):
    """With one length, the three means agree; a sum is that many times as much."""
    rows = torch.arange(len(lengths)).repeat_interleave(lengths[0])
    counts = torch.ones(len(rows), dtype=torch.bool)
    found = {kind: reduction(kind, counts, rows) for kind in REDUCTIONS[:3]}
    totals = {kind: float(some.scale.sum() / some.denominator) for kind, some in found.items()}
    assert totals["token-mean"] == pytest.approx(1) and totals[
        "seq-mean-token-mean"
    ] == pytest.approx(1)
    assert totals["seq-mean-token-sum"] == pytest.approx(lengths[0])
