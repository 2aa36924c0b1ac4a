"""Sample estimates of KL(policy || reference) from one log-probability each.

With delta = logp - ref_logp (sampled from the policy):

    k1 = delta                      unbiased; as a loss its expected gradient is zero
    k2 = delta^2 / 2                its gradient is that of the reverse KL
    k3 = exp(-delta) - 1 + delta    unbiased, never negative; its gradient is that of the forward KL

Reference: Schulman, "Approximating KL divergence" (2020).
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
