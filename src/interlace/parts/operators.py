"""Test-time operators: what n samples achieve, as a function of one sample's success probability p.

    B(p) = sum_{i >= k} C(n, i) p^i (1 - p)^(n - i)        at least k of n samples succeed

k = 1 is pass@n (B = 1 - (1 - p)^n), k above n/2 a majority vote. Everything works on log p [R], so that the
tiny probabilities of whole sequences neither underflow nor cancel, and p = 1 gives no NaN.

Reference: Compute Aligned Training (arXiv 2604.24957).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def success_slope(log_p: Tensor, n: int, k: int) -> Tensor:
    """dB/dp = k C(n, k) p^(k - 1) (1 - p)^(n - k), [R]: the weight of a policy gradient on B."""
    return (_log_elasticity_times_b(log_p, n, k) - log_p).exp()


def success_elasticity(log_p: Tensor, n: int, k: int) -> Tensor:
    """d log B / d log p = p (dB/dp) / B, [R]: the weight of a log-likelihood under -log B; k as p -> 0."""
    return (_log_elasticity_times_b(log_p, n, k) - _log_tail(log_p, n, k)).exp()


def log_success(log_p: Tensor, n: int, k: int) -> Tensor:
    """log B, [R], differentiable in log p."""
    return _LogSuccess.apply(log_p, n, k)


class _LogSuccess(torch.autograd.Function):
    """log B with its derivative in closed form: autograd would multiply 0 and infinity at p = 1."""

    @staticmethod
    def forward(ctx: Any, log_p: Tensor, n: int, k: int) -> Tensor:
        ctx.save_for_backward(log_p)
        ctx.n, ctx.k = n, k
        return _log_tail(log_p, n, k)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (log_p,) = ctx.saved_tensors
        return gradients[0] * success_elasticity(log_p, ctx.n, ctx.k), None, None


def _log_tail(log_p: Tensor, n: int, k: int) -> Tensor:
    hits = torch.arange(k, n + 1, dtype=log_p.dtype)
    choose = torch.tensor([math.log(math.comb(n, i)) for i in range(k, n + 1)], dtype=log_p.dtype)
    log_p = log_p[:, None]
    return torch.logsumexp(choose + hits * log_p + _log_failures(log_p, n - hits), 1).clamp(max=0)


def _log_elasticity_times_b(log_p: Tensor, n: int, k: int) -> Tensor:
    failures = _log_failures(log_p, torch.tensor(n - k, dtype=log_p.dtype))
    return math.log(k * math.comb(n, k)) + k * log_p + failures


def _log_failures(log_p: Tensor, count: Tensor) -> Tensor:
    """count log(1 - p), and 0 for count 0 also at p = 1; rounding of p above 1 counts as 1."""
    return torch.special.xlogy(count, -log_p.clamp(max=0).expm1())
