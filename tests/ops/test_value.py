"""The critic's loss and its measure, by hand."""

from __future__ import annotations

import pytest
import torch

from workbench.learn.ops.loss import clipped_value_loss, explained_variance


def test_the_loss_by_hand_and_where_the_gradient_is_cut():
    """Target 1, old value 0, clip .5. The value .2 is inside; .8 went too far towards the target: held at .5, no
    gradient; -.8 went too far away from it: the larger loss is the free one, and pulls back."""
    value = torch.tensor([0.2, 0.8, -0.8], requires_grad=True)
    found = clipped_value_loss(value, torch.zeros(3), torch.ones(3), clip=0.5)
    assert found.loss.tolist() == pytest.approx([0.5 * 0.64, 0.5 * 0.25, 0.5 * 3.24])
    assert found.clipped.tolist() == [False, True, False]
    found.loss.sum().backward()
    assert value.grad.tolist() == pytest.approx([-0.8, 0.0, -1.8])


def test_without_a_clip_it_is_half_the_square():
    value = torch.tensor([3.0])
    found = clipped_value_loss(value, torch.zeros(1), torch.ones(1), clip=0.0)
    assert found.loss.tolist() == [2.0] and found.clipped.tolist() == [False]


def test_a_value_that_has_not_moved_is_never_clipped():
    value, target = torch.randn(20), torch.randn(20)
    found = clipped_value_loss(value, value, target, clip=0.01)
    assert torch.equal(found.loss, 0.5 * (value - target) ** 2) and not found.clipped.any()


def test_explained_variance():
    target = torch.tensor([0.0, 1.0, 2.0, 5.0])
    assert explained_variance(target, target) == 1.0
    assert (
        explained_variance(target + 7, target) == 1.0
    )  # a constant error is no unexplained variance
    assert explained_variance(torch.full((4,), 0.3), target) == pytest.approx(0.0)
    assert explained_variance(-target, target) == pytest.approx(-3.0)
    assert (
        explained_variance(target, torch.ones(4)) is None
        and explained_variance(target[:1], target[:1]) is None
    )
