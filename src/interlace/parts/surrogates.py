"""Policy-gradient losses per token (or per row), before any reduction.

`logp` is the leaf that is differentiated; everything else is detached. A bound given as `None` is absent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from interlace.parts.divergences import LOG_RATIO_LIMIT
from interlace.parts.segments import row_mean, row_sum


def importance_ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """exp(logp - old_logp), the log-ratio clamped to +-20."""
    return (logp - old_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_ratio(logp: Tensor, old_logp: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """exp of the row's summed log-ratio, [n_rows]."""
    return row_sum(logp - old_logp, row, n_rows).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def geometric_ratio(logp: Tensor, old_logp: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """exp of the row's mean log-ratio, [n_rows] (GSPO, arXiv 2507.18071)."""
    return row_mean(logp - old_logp, row, n_rows).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def mixture_ratio(logp: Tensor, old_logp: Tensor, uniform: float) -> Tensor:
    """2p / (w + p_old) for text of an unknown author of probability w = (p_old + uniform) / 2.

    Reference:
        RL-PLUS (arXiv 2508.00222): at most 4 with uniform = 1.
    """
    return 2 * logp.exp() / (1.5 * old_logp.exp() + 0.5 * uniform)


def clip_ratio(ratio: Tensor, low: float | None, high: float | None) -> Tensor:
    """The ratio inside [1 - low, 1 + high]."""
    if low is None and high is None:
        return ratio
    return ratio.clamp(None if low is None else 1 - low, None if high is None else 1 + high)


def clipped_surrogate(
    ratio: Tensor,
    advantage: Tensor,
    low: float | None = 0.2,
    high: float | None = 0.2,
    dual: float | None = None,
) -> Tensor:
    """-min(ratio A, clip(ratio) A); for A < 0 at most `dual` |A|.

    Reference:
        PPO (arXiv 1707.06347); separate bounds: DAPO (arXiv 2503.14476); dual clip: arXiv 1912.09729.
    """
    loss = -torch.minimum(ratio * advantage, clip_ratio(ratio, low, high) * advantage)
    if dual is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)
    return loss


def score_function(logp: Tensor, advantage: Tensor) -> Tensor:
    """-A logp (REINFORCE)."""
    return -advantage * logp


def clipped_weight_surrogate(
    logp: Tensor, ratio: Tensor, advantage: Tensor, low: float | None, high: float | None
) -> Tensor:
    """-sg[clip(ratio)] A logp: the weight is bounded, the gradient never vanishes.

    Reference:
        CISPO (arXiv 2506.13585).
    """
    return -clip_ratio(ratio, low, high).detach() * advantage * logp


def negative_log_likelihood(logp: Tensor) -> Tensor:
    """-logp."""
    return -logp


def label_smoothing(logp: Tensor, mean_logp: Tensor) -> Tensor:
    """logp - mean over the vocabulary of logp: times e, it makes NLL (1 - e) NLL + e (uniform cross-entropy).

    Reference:
        Szegedy et al. (arXiv 1512.00567).
    """
    return logp - mean_logp


def pull_to_half(logp: Tensor) -> Tensor:
    """(p - 1/2)^2 with p = exp(logp) differentiated: a diversity pull where several tokens are plausible.

    Reference:
        SED-SFT (arXiv 2602.07464).
    """
    return (logp.exp() - 0.5).square()


def clipped_value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """max((v - return)^2, (v clipped to old +- clip - return)^2) / 2.

    Reference:
        PPO2 (openai/baselines).
    """
    loss = (value - returns).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return loss / 2
