"""Pass@n and majority votes as functions of one sample's probability, by hand and by enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from interlace.parts.operators import log_success, success_elasticity, success_slope


def logs(*p: float) -> Tensor:
    return torch.tensor(p, dtype=torch.float64).log()


CASES = [  # p, n, k, B, d log B / d log p, dB/dp
    (0.25, 4, 1, 0.68359, 0.61714, 1.6875),
    (0.5, 3, 2, 0.5, 1.5, 1.5),
    (0.25, 8, 3, 0.32146, 1.93782, 2.49170),
]


@pytest.mark.parametrize(("p", "n", "k", "success", "elasticity", "slope"), CASES)
def test_worked_values(p: float, n: int, k: int, success: float, elasticity: float, slope: float) -> None:
    assert log_success(logs(p), n, k).exp().item() == pytest.approx(success, abs=5e-6)
    assert success_elasticity(logs(p), n, k).item() == pytest.approx(elasticity, abs=5e-6)
    assert success_slope(logs(p), n, k).item() == pytest.approx(slope, abs=5e-6)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (5, 3), (5, 5)])
def test_success_is_the_share_of_outcomes_with_k_hits(n: int, k: int) -> None:
    p = 0.3
    outcomes = itertools.product((True, False), repeat=n)
    total = math.fsum(math.prod(p if hit else 1 - p for hit in o) for o in outcomes if sum(o) >= k)
    assert log_success(logs(p), n, k).exp().item() == pytest.approx(total)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 1), (16, 9), (64, 26)])
def test_gradient_is_the_elasticity_and_that_of_finite_differences(n: int, k: int) -> None:
    log_p = logs(1e-3, 0.2, 0.6, 0.95).requires_grad_()
    (gradient,) = torch.autograd.grad(log_success(log_p, n, k).sum(), log_p)
    h = 1e-6
    with torch.no_grad():
        difference = (log_success(log_p + h, n, k) - log_success(log_p - h, n, k)) / (2 * h)
        assert gradient.tolist() == success_elasticity(log_p, n, k).tolist()
    assert gradient.tolist() == pytest.approx(difference.tolist(), rel=1e-5, abs=1e-8)


def test_slope_and_elasticity_differ_by_p_over_b() -> None:
    p = logs(0.1, 0.5, 0.9)
    ratio = success_slope(p, 8, 3) * p.exp() / log_success(p, 8, 3).exp()
    assert success_elasticity(p, 8, 3).tolist() == pytest.approx(ratio.tolist())


@pytest.mark.parametrize(("n", "k"), [(16, 1), (16, 9)])
def test_certainty_has_no_weight_and_no_nan(n: int, k: int) -> None:
    # Also where rounding puts log p above 0.
    log_p = torch.tensor([0.0, 1e-9], dtype=torch.float64, requires_grad=True)
    value = log_success(log_p, n, k)
    (gradient,) = torch.autograd.grad(value.sum(), log_p)
    assert value.tolist() == [0, 0]
    assert gradient.tolist() == [0, 0]
    assert success_slope(log_p.detach(), n, k).tolist() == [0, 0]


def test_one_sample_is_the_likelihood_exactly_also_at_certainty() -> None:
    log_p = torch.tensor([0.0, -0.7, -900.0], dtype=torch.float64, requires_grad=True)
    value = log_success(log_p, 1, 1)
    (gradient,) = torch.autograd.grad(value.sum(), log_p)
    assert value.tolist() == log_p.tolist()
    assert gradient.tolist() == [1, 1, 1]
    assert success_slope(log_p.detach(), 1, 1).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("n", "k"), [(16, 1), (8, 3), (5, 5)])
def test_hopeless_sequences_neither_underflow_nor_lose_their_weight(n: int, k: int) -> None:
    # B -> C(n, k) p^k: log B = log C(n, k) + k log p, elasticity k.
    log_p = torch.tensor([-2000.0], dtype=torch.float64)
    assert log_success(log_p, n, k).item() == pytest.approx(math.log(math.comb(n, k)) - 2000 * k)
    assert success_elasticity(log_p, n, k).item() == pytest.approx(k)
