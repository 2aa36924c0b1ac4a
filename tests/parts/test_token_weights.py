"""Token weights of short rows, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from interlace.parts.token_weights import (
    ENTROPY_LEVELS,
    PROBABILITY_WEIGHTS,
    attenuated,
    bernoulli_variance,
    entropy_weight,
    focal,
    following_log_ratio,
    place,
    probability_up_to,
    propagated_error,
    root_probability,
    row_log_ratio,
    shaped_probability,
    share_of_mean,
    teacher_ratio,
    trust_region_probability,
)

ROWS = torch.tensor([0, 0, 0, 2])
"""Rows of three, no and one token."""


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [0.5, 0.1, 0.9, 0.2]),
        ("sequence", [0.045] * 3 + [0.2]),  # 0.5 * 0.1 * 0.9
        ("geometric", [0.045 ** (1 / 3)] * 3 + [0.2]),
    ],
)
def test_own_probability_of_token_row_and_geometric_mean(level: str, expected: list[float]) -> None:
    logp = numbers(0.5, 0.1, 0.9, 0.2).log()
    assert PROBABILITY_WEIGHTS[level](logp, ROWS, 3).tolist() == pytest.approx(expected)


DELTA = numbers(0.3, -0.08, 0.1, 7.0)


def test_what_follows_a_token_does_not_include_itself() -> None:
    g = following_log_ratio(DELTA, ROWS, 3, 0.9).exp().tolist()
    # (0.9^2 e^(-0.08 + 0.1), 0.9 e^0.1, 1), and 1 on a row of one token
    assert g == pytest.approx([0.81 * math.exp(0.02), 0.9 * math.exp(0.1), 1, 1])
    assert g[:3] == pytest.approx([0.8264, 0.9947, 1.0], abs=5e-5)


def test_what_follows_without_discount() -> None:
    g = following_log_ratio(DELTA, ROWS, 3, 1.0).exp().tolist()
    assert g == pytest.approx([1.0202, 1.1052, 1.0, 1.0], abs=5e-5)


def test_what_follows_a_block() -> None:
    # blocks (1, 2) and (3): both tokens of the first see one token after it
    g = following_log_ratio(DELTA, ROWS, 3, 0.9, block=2).exp().tolist()
    assert g == pytest.approx([0.9 * math.exp(0.1)] * 2 + [1, 1])


def test_a_block_longer_than_the_row_has_nothing_after_it() -> None:
    assert following_log_ratio(DELTA, ROWS, 3, 0.9, block=4).tolist() == [0, 0, 0, 0]


def test_the_log_ratio_of_a_row_stands_on_each_of_its_tokens() -> None:
    g = row_log_ratio(DELTA, ROWS, 3).exp().tolist()
    assert g[:3] == pytest.approx([math.exp(0.32)] * 3)
    assert g[0] == pytest.approx(1.3771, abs=5e-5)


def test_propagated_error_is_one_on_average() -> None:
    # gamma 1/2: c = (1 + 1 + .75, 2 + 1.5, 3), their sum 9.25, times T = 3
    w = propagated_error(numbers(1, 2, 3, 5), ROWS, 3, 0.5).tolist()
    assert w == pytest.approx([2.75 * 3 / 9.25, 3.5 * 3 / 9.25, 3 * 3 / 9.25, 1])
    assert w[:3] == pytest.approx([0.89189, 1.13514, 0.97297], abs=5e-6)


def test_no_propagation_is_one_and_not_the_limit_of_the_formula() -> None:
    nll = numbers(1, 2, 3, 5)
    assert propagated_error(nll, ROWS, 3, 0.0).tolist() == [1, 1, 1, 1]
    near = propagated_error(nll, ROWS, 3, 1e-12).tolist()
    assert near == pytest.approx([0.5, 1, 1.5, 1])


def test_a_row_without_loss_propagates_nothing_and_has_a_finite_gradient() -> None:
    nll = numbers(0, 0, 0, 5).requires_grad_()
    w = propagated_error(nll, ROWS, 3, 0.5)
    assert w.tolist() == [1, 1, 1, 1]
    (w * nll).sum().backward()
    assert nll.grad is not None
    assert nll.grad.tolist() == pytest.approx([1, 1, 1, 1])


def test_gradient_goes_through_the_propagated_error() -> None:
    nll = numbers(1, 2, 3).requires_grad_()
    (propagated_error(nll, ROWS[:3], 1, 0.5) * nll).mean().backward()
    assert nll.grad is not None
    assert nll.grad.tolist() == pytest.approx([0.18627, 0.31994, 0.40029], abs=5e-6)


def test_place_counts_from_one() -> None:
    assert place(numbers(9, 9, 9, 9), ROWS, 3).tolist() == [1, 2, 3, 1]


def slope(weight: Tensor, logp: Tensor) -> list[float]:
    return torch.autograd.grad(weight.sum(), logp)[0].tolist()


def test_shaped_probability_is_steepest_at_gamma() -> None:
    logp = numbers(0.9, 0.1, 0.01).log().requires_grad_()
    f = shaped_probability(logp, 0.1)
    # p / (p + 0.1), slope 0.1 p / (p + 0.1)^2
    assert f.tolist() == pytest.approx([0.9, 0.5, 1 / 11])
    assert slope(f, logp) == pytest.approx([0.09, 0.25, 0.001 / 0.0121])


def test_root_of_the_probability() -> None:
    logp = numbers(0.25, 0.01).log().requires_grad_()
    f = root_probability(logp)
    assert f.tolist() == pytest.approx([0.5, 0.1])
    assert slope(f, logp) == pytest.approx([0.25, 0.05])


def test_teacher_ratio_is_safe_where_the_teacher_gave_nothing() -> None:
    ratio = teacher_ratio(numbers(0.5, 0.5).log(), numbers(0.25, 0.0).log())
    assert ratio.tolist() == pytest.approx([0.5 / 0.250001, 0.5e6])


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.1, [0.2, 1, 1]), (0.0, [1, 1, 1]), (1.0, [0.02, 0.1, 0.6])]
)
def test_trust_region_weighs_by_p_over_alpha_outside(alpha: float, expected: list[float]) -> None:
    logp = numbers(0.02, 0.1, 0.6).log().requires_grad_()
    ratio = trust_region_probability(logp, alpha)
    assert ratio.tolist() == pytest.approx(expected)
    assert slope(ratio, logp) == pytest.approx(expected)


def test_trust_region_of_a_vanished_probability_is_finite() -> None:
    logp = numbers(-1e4).requires_grad_()
    assert slope(trust_region_probability(logp, 0.0), logp) == [1.0]
    assert slope(trust_region_probability(logp, 0.1), logp) == [0.0]


def test_focal_weight_vanishes_on_what_is_known() -> None:
    p = numbers(0.0, 0.75, 1.0, 1.0 + 1e-12)
    assert focal(p, 0.5).tolist() == [1.0, 0.5, 0.0, 0.0]
    assert focal(p, 0.0).tolist() == [1.0] * 4


def test_entropy_weights_cross_at_half_the_logarithm_of_their_ratio() -> None:
    h = numbers(0.5 * math.log(5))
    # 0.5 e^-H = 0.1 e^H = 0.1 sqrt(5)
    assert (0.5 * entropy_weight(h, -1)).tolist() == pytest.approx([0.1 * math.sqrt(5)])
    assert (0.1 * entropy_weight(h, 1)).tolist() == pytest.approx([0.1 * math.sqrt(5)])
    assert entropy_weight(numbers(5.0), 1, cap=1.0).tolist() == pytest.approx([math.e])


def test_entropy_of_the_token_its_row_or_all() -> None:
    h = numbers(0.3, 0.6, 0.9, 2.2)
    levels = {name: level(h, ROWS, 3).tolist() for name, level in ENTROPY_LEVELS.items()}
    assert levels["token"] == [0.3, 0.6, 0.9, 2.2]
    assert levels["sequence"] == pytest.approx([0.6, 0.6, 0.6, 2.2])
    assert levels["step"] == pytest.approx([1.0] * 4)


def test_bernoulli_variance_and_rounding_above_one() -> None:
    p = torch.tensor([0.1, 0.5, 0.9, 1.0, 1.0000001], dtype=torch.float64)
    assert bernoulli_variance(p).tolist() == pytest.approx([0.09, 0.25, 0.09, 0, 0])


def test_probability_up_to_a_cutoff_and_nothing_above() -> None:
    p = torch.tensor([0.1, 0.4, 0.41, 0.9], dtype=torch.float64)
    assert probability_up_to(p, 0.4).tolist() == [0.1, 0.4, 0, 0]


def test_share_of_the_mean_is_one_on_average() -> None:
    assert share_of_mean(torch.tensor([1.0, 2, 3])).tolist() == [0.5, 1, 1.5]
    assert share_of_mean(torch.zeros(2)).tolist() == [0, 0]
    assert share_of_mean(torch.zeros(0)).tolist() == []


def test_attenuated_mixes_one_and_the_weight() -> None:
    gate, weight = torch.tensor([1.0, 0, 0.5]), torch.tensor([0.2, 0.2, 0.2])
    assert attenuated(gate, weight).tolist() == pytest.approx([1, 0.2, 0.6])
