"""Weights of likelihood losses, one per token.

A weight is differentiable in its arguments; a method that puts it under a stop-gradient passes detached
log-probabilities. `row` [n] is the row of each token and must be non-decreasing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from interlace.parts.segments import position_in_row, row_count, row_mean, row_sum, suffix_sum


def own_probability(logp: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """p of each token, [n].

    Reference:
        DFT (arXiv 2508.05629).
    """
    return logp.exp()


def row_probability(logp: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """Product of the row's p on each of its tokens, [n] (DFT's sequence ablation)."""
    return row_sum(logp, row, n_rows).exp()[row]


def geometric_probability(logp: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """Geometric mean of the row's p on each of its tokens, [n] (DFT's geometric ablation)."""
    return row_mean(logp, row, n_rows).exp()[row]


PROBABILITY_WEIGHTS: Mapping[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "token": own_probability,
    "sequence": row_probability,
    "geometric": geometric_probability,
}


def row_log_ratio(delta: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """Sum of the row's log-ratios on each of its tokens, [n]."""
    return row_sum(delta, row, n_rows)[row]


def following_log_ratio(delta: Tensor, row: Tensor, n_rows: int, gamma: float, block: int = 1) -> Tensor:
    """Log of the discounted ratio of all that follows a token's block, its own block not included, [n].

    With rows cut into blocks of `block` tokens and e the last place (from 1) of a token's block in its row
    of T tokens: (T - e) log(gamma) + sum_{j > e} delta_j; 0 in the last block.

    Args:
        delta: [n], log-ratio of policy and behaviour policy.
        gamma: Discount in (0, 1].
        block: Tokens of a block; 1 is PEAR's token variant.

    Reference:
        PEAR (arXiv 2602.01058).
    """
    count = row_count(row, n_rows)
    start = (torch.cumsum(count, 0) - count)[row]
    end = torch.minimum((position_in_row(row, n_rows) // block + 1) * block, count[row])
    following = (suffix_sum(delta, row, n_rows) - delta)[start + end - 1]
    return (count[row] - end).to(delta.dtype) * math.log(gamma) + following


def propagated_error(nll: Tensor, row: Tensor, n_rows: int, gamma: float) -> Tensor:
    """The discounted loss of a token and all that follows it, over its row's mean: 1 on average, [n].

    c_t = sum_{k >= t} gamma^(k-t) nll_k, w_t = c_t T / sum_k c_k. gamma = 0 means no propagation, w = 1
    (not the limit of the formula); so does a row without any loss.

    Reference:
        IFT (arXiv 2405.11870), official code.
    """
    if gamma == 0:
        return torch.ones_like(nll)
    c = suffix_sum(nll, row, n_rows, gamma)
    total = row_sum(c, row, n_rows)[row]
    lossless = total == 0
    share = c / torch.where(lossless, 1.0, total)
    return torch.where(lossless, 1.0, share * row_count(row, n_rows)[row])


def place(nll: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """The token's place in its row, from 1, [n]: a sum over all suffixes counts it so often.

    Reference:
        IFT (arXiv 2405.11870), paper form.
    """
    return (position_in_row(row, n_rows) + 1).to(nll.dtype)


def shaped_probability(logp: Tensor, gamma: float) -> Tensor:
    """p / (p + gamma): its gradient p gamma / (p + gamma)^2 in logp is largest, 1/4, at p = gamma.

    Reference:
        LUFFY (arXiv 2504.14945).
    """
    p = logp.exp()
    return p / (p + gamma)


def root_probability(logp: Tensor) -> Tensor:
    """sqrt(p) (a shape in LUFFY's code)."""
    return (logp / 2).exp()


def teacher_ratio(logp: Tensor, behaviour_logp: Tensor) -> Tensor:
    """p / (p_teacher + 1e-6), where the teacher's probabilities are stored (LUFFY's code)."""
    return logp.exp() / (behaviour_logp.exp() + 1e-6)


def trust_region_probability(logp: Tensor, alpha: float) -> Tensor:
    """p / max(sg[p], alpha): the gradient in logp is 1 where p >= alpha, p / alpha below; alpha = 0 is 1.

    Reference:
        TrSFT of TRAPO (arXiv 2512.17636).
    """
    floor = math.log(alpha) if alpha > 0 else -math.inf
    return (logp - logp.detach().clamp(min=floor)).exp()


def focal(p: Tensor, exponent: float) -> Tensor:
    """(1 - p)^exponent: near 0 on what is already known. `p` detached; rounding above 1 counts as 1."""
    return (1 - p).clamp(min=0) ** exponent


def entropy_weight(entropy: Tensor, sign: float, cap: float | None = None) -> Tensor:
    """exp(sign min(H, cap)), H in nats.

    Reference:
        SRFT (arXiv 2506.19767).
    """
    return (sign * entropy.clamp(max=cap)).exp() if cap is not None else (sign * entropy).exp()


ENTROPY_LEVELS: Mapping[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "token": lambda entropy, row, n_rows: entropy,
    "sequence": lambda entropy, row, n_rows: row_mean(entropy, row, n_rows)[row],
    "step": lambda entropy, row, n_rows: torch.full_like(entropy, float(entropy.mean())),
}
"""Entropy [n] of the token itself, the mean of its row, or the mean of all tokens given."""


def bernoulli_variance(p: Tensor) -> Tensor:
    """p (1 - p): small for what is certain and for what is out of reach, at most 1/4.

    Reference:
        CHORD-phi (arXiv 2508.11408).
    """
    return p * (1 - p).clamp(min=0)


def probability_up_to(p: Tensor, cutoff: float) -> Tensor:
    """p, and 0 where p > cutoff: the clipped importance weight of CHORD's ablation (expert density 1)."""
    return torch.where(p > cutoff, 0.0, p)


def share_of_mean(values: Tensor) -> Tensor:
    """Values over their mean, [n]: 1 on average; 0 where all are 0."""
    mean = values.mean()
    return values / mean if mean > 0 else torch.zeros_like(values)


def attenuated(gate: Tensor, weight: Tensor) -> Tensor:
    """1 where the gate is open (1), `weight` where it is closed (0), the mixture in between, [n].

    Reference:
        EGSPO (arXiv 2602.03309).
    """
    return gate + (1 - gate) * weight
