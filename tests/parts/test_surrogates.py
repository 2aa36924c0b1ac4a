"""Policy-gradient losses of one completion of three tokens with ratios (1.1, 0.5, 1.5), by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from interlace.parts.surrogates import (
    clip_ratio,
    clipped_surrogate,
    clipped_value_loss,
    clipped_weight_surrogate,
    geometric_ratio,
    importance_ratio,
    label_smoothing,
    mixture_ratio,
    negative_log_likelihood,
    pull_to_half,
    score_function,
    sequence_ratio,
)

ROW = torch.tensor([0, 0, 0])


def log(*p: float) -> Tensor:
    return torch.tensor(p, dtype=torch.float64).log()


OLD = log(0.5, 0.4, 0.2)
NEW = log(0.55, 0.2, 0.3)


def with_gradient(loss: object, logp: Tensor = NEW) -> tuple[list[float], list[float]]:
    """Values of a loss of the leaf, and the gradient of its sum."""
    leaf = logp.clone().requires_grad_()
    value = loss(leaf)  # type: ignore[operator]
    value.sum().backward()
    assert leaf.grad is not None
    return value.tolist(), leaf.grad.tolist()


def constant(a: float) -> Tensor:
    return torch.full((3,), a, dtype=torch.float64)


def test_ratios_of_token_row_and_geometric_mean() -> None:
    assert importance_ratio(NEW, OLD).tolist() == pytest.approx([1.1, 0.5, 1.5])
    assert sequence_ratio(NEW, OLD, ROW, 1).tolist() == pytest.approx([0.825])  # 1.1 * 0.5 * 1.5
    assert geometric_ratio(NEW, OLD, ROW, 1).tolist() == pytest.approx([0.825 ** (1 / 3)])


def test_log_ratios_are_clamped_to_twenty() -> None:
    far = torch.tensor([-1.0, -50.0], dtype=torch.float64)
    near = torch.tensor([-50.0, -1.0], dtype=torch.float64)
    assert importance_ratio(far, near).tolist() == pytest.approx([math.exp(20), math.exp(-20)])
    two = torch.tensor([0, 1])
    assert sequence_ratio(far, near, two, 2).tolist() == pytest.approx([math.exp(20), math.exp(-20)])
    assert geometric_ratio(far, near, two, 2).tolist() == pytest.approx([math.exp(20), math.exp(-20)])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (None, None, [1.1, 0.5, 1.5]),
        (0.2, None, [1.1, 0.8, 1.5]),
        (None, 0.2, [1.1, 0.5, 1.2]),
        (0.2, 0.28, [1.1, 0.8, 1.28]),
    ],
)
def test_a_bound_given_as_none_is_absent(
    low: float | None, high: float | None, expected: list[float]
) -> None:
    assert clip_ratio(importance_ratio(NEW, OLD), low, high).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("a", "low", "high", "value", "gradient"),
    [
        (1.0, 0.2, 0.2, [-1.1, -0.5, -1.2], [-1.1, -0.5, 0]),
        (1.0, 0.2, 0.28, [-1.1, -0.5, -1.28], [-1.1, -0.5, 0]),
        (-1.0, 0.2, 0.2, [1.1, 0.8, 1.5], [1.1, 0, 1.5]),
        (1.0, None, None, [-1.1, -0.5, -1.5], [-1.1, -0.5, -1.5]),
        (-1.0, None, None, [1.1, 0.5, 1.5], [1.1, 0.5, 1.5]),
    ],
)
def test_clipped_surrogate(
    a: float, low: float | None, high: float | None, value: list[float], gradient: list[float]
) -> None:
    got = with_gradient(lambda x: clipped_surrogate(importance_ratio(x, OLD), constant(a), low, high))
    assert got[0] == pytest.approx(value)
    assert got[1] == pytest.approx(gradient)


def test_dual_clip_caps_the_loss_of_a_negative_advantage() -> None:
    # ratio 4, A = -1: min(4, 3) and no gradient; A = -2 and cap 3 |A| = 6 below 8; ratio 2 is under the cap
    old = log(0.2, 0.2, 0.2)
    new = log(0.8, 0.8, 0.4)
    a = torch.tensor([-1.0, -2.0, -1.0], dtype=torch.float64)
    value, gradient = with_gradient(
        lambda x: clipped_surrogate(importance_ratio(x, old), a, 0.2, 0.2, 3.0), new
    )
    assert value == pytest.approx([3, 6, 2])
    assert gradient == pytest.approx([0, 0, 2])


def test_dual_clip_leaves_positive_advantages_alone() -> None:
    value = clipped_surrogate(torch.tensor([4.0]), torch.tensor([1.0]), None, None, 3.0)
    assert value.tolist() == [-4]


def test_score_function_is_minus_a_logp() -> None:
    value, gradient = with_gradient(lambda x: score_function(x, constant(1)))
    assert value == pytest.approx([0.597837, 1.609438, 1.203973], abs=5e-7)
    assert gradient == [-1, -1, -1]


@pytest.mark.parametrize(
    ("low", "high", "value", "gradient"),
    [
        (0.2, 0.28, [0.657621, 1.287550, 1.541085], [-1.1, -0.8, -1.28]),
        (None, 4.0, [0.657621, 0.804719, 1.805959], [-1.1, -0.5, -1.5]),
    ],
)
def test_a_clipped_weight_never_stops_the_gradient(
    low: float | None, high: float, value: list[float], gradient: list[float]
) -> None:
    got = with_gradient(
        lambda x: clipped_weight_surrogate(x, importance_ratio(x, OLD), constant(1), low, high)
    )
    assert got[0] == pytest.approx(value, abs=5e-7)
    assert got[1] == pytest.approx(gradient)


def test_negative_log_likelihood() -> None:
    assert negative_log_likelihood(NEW).tolist() == [-x for x in NEW.tolist()]


def test_pull_to_half_is_differentiated_in_p() -> None:
    # p = (0.9, 0.3): (0.4^2, 0.2^2); d/dlogp = 2 (p - 1/2) p = (0.72, -0.12)
    value, gradient = with_gradient(pull_to_half, log(0.9, 0.3))
    assert value == pytest.approx([0.16, 0.04])
    assert gradient == pytest.approx([0.72, -0.12])


def test_value_loss_takes_the_worse_of_clipped_and_plain() -> None:
    # v .9, old .5, return 1: near = .7; max(.01, .09) / 2
    v, old, ret = (torch.tensor([x], dtype=torch.float64) for x in (0.9, 0.5, 1.0))
    assert clipped_value_loss(v, old, ret, 0.2).tolist() == pytest.approx([0.045])
    assert clipped_value_loss(v, old, ret, None).tolist() == pytest.approx([0.005])


def test_mixture_ratio_on_the_policy_s_own_text() -> None:
    p = log(0.9, 0.1, 0.01)
    # p / (0.75 p + 0.25) = 0.9 / 0.925, 0.1 / 0.325, 0.01 / 0.2575
    assert mixture_ratio(p, p, 1.0).tolist() == pytest.approx([0.97297, 0.30769, 0.03883], abs=5e-6)


def test_mixture_ratio_is_at_most_four() -> None:
    assert mixture_ratio(log(1.0), torch.tensor([-1e4], dtype=torch.float64), 1.0).tolist() == [4.0]


def test_label_smoothing_turns_the_likelihood_into_the_smoothed_one() -> None:
    # Vocabulary (1/2, 1/4, 1/4), target first, e = 0.1: cross-entropy with 0.9 on the target + 0.1 uniform.
    logp = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    target = torch.tensor([0.9 + 0.1 / 3, 0.1 / 3, 0.1 / 3], dtype=torch.float64)
    smoothed = -logp[0] + 0.1 * label_smoothing(logp[0], logp.mean())
    assert smoothed.item() == pytest.approx(-(target * logp).sum().item())
