"""Pairs of rows and their losses, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from interlace.parts.pair_losses import (
    length_normalised,
    logistic_preference,
    longest_of_group,
    pairs_by_reward,
    pairs_in_group,
    preference_weight,
    ranking_hinge,
)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_logistic_preference_of_a_margin() -> None:
    # margin 0.3: ln(1 + e^-0.3) = 0.55436, gradient -sigmoid(-0.3) = -0.42556
    margin = numbers(0.3, 0.0).requires_grad_()
    loss = logistic_preference(margin)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.55436, 0.69315], abs=5e-6)
    assert margin.grad is not None
    assert margin.grad.tolist() == pytest.approx([-0.42556, -0.5], abs=5e-6)


def test_logistic_preference_is_finite_far_away() -> None:
    assert logistic_preference(numbers(-1000, 1000)).tolist() == pytest.approx([1000, 0])


def test_hinge_has_no_gradient_once_the_order_is_right() -> None:
    worse, better = numbers(-0.5, -0.5, 1.0).requires_grad_(), numbers(-1.0, -0.2, 1.0).requires_grad_()
    loss = ranking_hinge(worse, better)
    loss.sum().backward()
    assert loss.tolist() == [0.5, 0, 0]
    assert worse.grad is not None and better.grad is not None
    assert worse.grad.tolist() == [1, 0, 0]
    assert better.grad.tolist() == [-1, 0, 0]


def test_length_normalisation_by_a_power_of_the_length() -> None:
    total, length = numbers(-6, -6, 0), torch.tensor([3, 4, 0])
    assert length_normalised(total, length, 1.0).tolist() == [-2, -1.5, 0]
    assert length_normalised(total, length, 0.5).tolist() == pytest.approx([-6 / 3**0.5, -3, 0])
    assert length_normalised(total, length, 0.0).tolist() == [-6, -6, 0]


def test_longest_row_of_each_group() -> None:
    length, group = torch.tensor([2, 5, 3, 1]), torch.tensor([4, 0, 4, 0])
    assert longest_of_group(length, group).tolist() == [3, 5, 3, 5]
    assert longest_of_group(length[:0], group[:0]).tolist() == []


def test_pairs_stay_within_their_group() -> None:
    group = torch.tensor([0, 1, 0, 0, 1])
    first = torch.tensor([True, True, False, False, False])
    second = torch.tensor([False, False, True, True, True])
    i, j = pairs_in_group(group, first, second)
    assert list(zip(i.tolist(), j.tolist())) == [(0, 2), (0, 3), (1, 4)]


def test_equal_rewards_form_no_pair() -> None:
    group, everyone = torch.tensor([0, 0, 0, 1]), torch.ones(4, dtype=torch.bool)
    worse, better = pairs_by_reward(group, numbers(1, 0, 1, 5), everyone)
    assert list(zip(worse.tolist(), better.tolist())) == [(1, 0), (1, 2)]
    worse, _ = pairs_by_reward(group, numbers(1, 0, 1, 5), torch.tensor([True, False, True, True]))
    assert worse.tolist() == []


def test_preference_weight_is_the_slope_of_the_preference() -> None:
    # sigmoid(-0.05) = 0.487503, sigmoid(0) = 1/2, sigmoid(2) = 0.880797
    margin = torch.tensor([0.05, 0, -2], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(logistic_preference(margin).sum(), margin)
    weight = preference_weight(margin.detach())
    assert weight.tolist() == pytest.approx([0.487503, 0.5, 0.880797], abs=5e-7)
    assert weight.tolist() == pytest.approx((-slope).tolist())
    assert preference_weight(torch.tensor([-1e4, 1e4])).tolist() == [1, 0]
