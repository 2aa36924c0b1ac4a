"""Sample estimates of KL(policy || reference) from one log-probability each.

With delta = logp - ref_logp (sampled from the policy):

    k1 = delta                      unbiased; as a loss its expected gradient is zero
    k2 = delta^2 / 2                its gradient is that of the reverse KL
    k3 = exp(-delta) - 1 + delta    unbiased, never negative; its gradient is that of the forward KL

Reference: Schulman, "Approximating KL divergence" (2020).

Generators f of f-divergences are estimates on tokens that the *reference* sampled, u = exp(delta): f and its
gradient are exactly 0 at u = 1. Reference: DPH-RL (arXiv 2509.07430).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-this before they are exponentiated."""


def k1(delta: Tensor) -> Tensor:
    return delta


def k2(delta: Tensor) -> Tensor:
    return delta.square() / 2


def k3(delta: Tensor) -> Tensor:
    return (-delta).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() - 1 + delta


KL_ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def forward_kl(delta: Tensor) -> Tensor:
    """f(u) = u - 1 - ln u, u = exp(delta): its mean over samples of the reference is KL(ref || policy)."""
    return k3(-delta)


def jensen_shannon(delta: Tensor) -> Tensor:
    """f(u) = u ln u - (u + 1) ln((u + 1) / 2): twice the usual Jensen-Shannon divergence in the mean."""
    u_minus_1 = delta.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1()
    return (u_minus_1 + 1) * delta - (u_minus_1 + 2) * (u_minus_1 / 2).log1p()


def alpha_divergence(delta: Tensor, alpha: float) -> Tensor:
    """f(u) = (u^(1 - alpha) - (1 - alpha) u - alpha) / (alpha (alpha - 1)), 0 < alpha < 1.

    alpha -> 1 is the forward KL, alpha -> 0 the reverse KL.
    """
    log_u = delta.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (((1 - alpha) * log_u).expm1() - (1 - alpha) * log_u.expm1()) / (alpha * (alpha - 1))
