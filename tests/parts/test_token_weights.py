"""Token weights of short rows, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from interlace.parts.token_weights import (
    PROBABILITY_WEIGHTS,
    following_log_ratio,
    place,
    propagated_error,
    row_log_ratio,
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
