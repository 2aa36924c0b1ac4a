"""KL estimators: values, gradients, expectations, by hand and by enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from interlace.parts.divergences import (
    KL_ESTIMATORS,
    alpha_divergence,
    forward_kl,
    jensen_shannon,
    k1,
    k2,
    k3,
)

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


@pytest.mark.parametrize(
    ("f", "value", "gradient"),
    [
        (forward_kl, [0.193147, 0, 0.306853], [-0.5, 0, 1]),
        (jensen_shannon, [0.084950, 0, 0.169899], [-0.202733, 0, 0.575364]),
        # u (1 - u^-0.2) / 0.2
        (lambda d: alpha_divergence(d, 0.2), [0.160318, 0, 0.368118], [-0.371746, 0, 1.294494]),
    ],
)
def test_generators_of_three_ratios(
    f: Callable[[Tensor], Tensor], value: list[float], gradient: list[float]
) -> None:
    delta = torch.tensor([0.5, 1, 2], dtype=torch.float64).log().requires_grad_()
    out = f(delta)
    (slope,) = torch.autograd.grad(out.sum(), delta)
    assert out.tolist() == pytest.approx(value, abs=6e-7)
    assert slope.tolist() == pytest.approx(gradient, abs=6e-7)
    assert (out[1].item(), slope[1].item()) == (0, 0)  # exactly, at u = 1


START = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def under_start(f: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """The expectation of f over three tokens that the start policy samples."""
    return (START * f(logits.log_softmax(0) - START.log())).sum()


def test_gradient_of_the_forward_kl_is_that_of_cross_entropy() -> None:
    logits = torch.tensor([0.2, -0.4, 1.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(under_start(forward_kl, logits), logits)
    assert slope.tolist() == pytest.approx((logits.softmax(0) - START).tolist())
    exact = (START * (START / logits.softmax(0)).log()).sum()
    assert under_start(forward_kl, logits).item() == pytest.approx(exact.item())


def test_expected_jensen_shannon_is_both_kls_to_the_middle() -> None:
    p = torch.tensor([0.2, -0.4, 1.0], dtype=torch.float64).softmax(0)
    middle = (p + START) / 2
    both = (p * (p / middle).log()).sum() + (START * (START / middle).log()).sum()
    assert under_start(jensen_shannon, p.log()).item() == pytest.approx(both.item())


def test_expected_alpha_divergence_tends_to_the_two_kls() -> None:
    p = torch.tensor([0.2, -0.4, 1.0], dtype=torch.float64).softmax(0)
    forward, reverse = (START * (START / p).log()).sum().item(), (p * (p / START).log()).sum().item()
    assert under_start(lambda d: alpha_divergence(d, 1 - 1e-6), p.log()).item() == pytest.approx(
        forward, rel=1e-5
    )
    assert under_start(lambda d: alpha_divergence(d, 1e-6), p.log()).item() == pytest.approx(
        reverse, rel=1e-5
    )


def test_generators_stay_finite_far_from_the_reference() -> None:
    for f in (forward_kl, jensen_shannon, lambda d: alpha_divergence(d, 0.2)):
        delta = torch.tensor([-500.0, 500.0], dtype=torch.float64, requires_grad=True)
        out = f(delta)
        (slope,) = torch.autograd.grad(out.sum(), delta)
        assert bool(out.isfinite().all() and slope.isfinite().all())
