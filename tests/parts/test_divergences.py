"""KL estimators: values, gradients, expectations, by hand and by enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from interlace.parts.divergences import KL_ESTIMATORS, k1, k2, k3

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "value", "gradient"),
    [
        ("k1", [0.095310, -0.693147, 0.405465], [1, 1, 1]),
        ("k2", [0.004542, 0.240227, 0.082201], [0.095310, -0.693147, 0.405465]),
        ("k3", [0.004401, 0.306853, 0.072132], [0.090909, -1, 0.333333]),
    ],
)
def test_values_and_gradients_of_three_tokens(name: str, value: list[float], gradient: list[float]) -> None:
    delta = torch.tensor([1.1, 0.5, 1.5], dtype=torch.float64).log().requires_grad_()
    k = KL_ESTIMATORS[name](delta)
    k.sum().backward()
    assert k.tolist() == pytest.approx(value, abs=1e-6)
    assert delta.grad is not None
    assert delta.grad.tolist() == pytest.approx(gradient, abs=1e-6)


def test_expectations_under_the_policy() -> None:
    # KL(P || Q) = .5 ln 2.5 + .3 ln .6 + .2 ln(2/3) = .223805; k1 and k3 are unbiased, k2 is not
    delta = (P / Q).log()
    kl = 0.5 * math.log(2.5) + 0.3 * math.log(0.6) + 0.2 * math.log(2 / 3)
    assert kl == pytest.approx(0.223805, abs=5e-7)
    assert float((P * k1(delta)).sum()) == pytest.approx(kl)
    assert float((P * k3(delta)).sum()) == pytest.approx(kl)
    assert float((P * k2(delta)).sum()) == pytest.approx(0.265479, abs=5e-7)


def kl_gradient(divergence: Callable[[Tensor], Tensor]) -> list[float]:
    logits = P.log().requires_grad_()
    divergence(logits.log_softmax(0)).backward()
    assert logits.grad is not None
    return logits.grad.tolist()


@pytest.mark.parametrize(
    ("estimator", "target"),
    [
        (k1, lambda logp: 0 * logp.sum()),
        (k2, lambda logp: (logp.exp() * (logp - Q.log())).sum()),  # reverse KL(pi || ref)
        (k3, lambda logp: (Q * (Q.log() - logp)).sum()),  # forward KL(ref || pi)
    ],
)
def test_expected_gradient_as_a_loss_on_own_samples(
    estimator: Callable[[Tensor], Tensor], target: Callable[[Tensor], Tensor]
) -> None:
    # samples drawn from P: the expectation's weights carry no gradient
    as_loss = kl_gradient(lambda logp: (P * estimator(logp - Q.log())).sum())
    assert as_loss == pytest.approx(kl_gradient(target), abs=1e-12)


def test_k3_stays_finite_far_from_the_reference() -> None:
    assert float(k3(torch.tensor(-50.0, dtype=torch.float64))) == pytest.approx(math.exp(20) - 1 - 50)
