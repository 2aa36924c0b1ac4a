"""Advantages: rewards minus a baseline, never differentiated.

Row functions take `reward` [R] (float64), `group` [R] (int64, dense) and `counted` [R] (bool: the rows
that enter the statistics, each episode once) and return [R]. A group statistic over fewer than 2 counted
rows is 0, and a group whose counted rewards are all equal gives exactly 0, whatever rounding does to its
mean. Token functions work on flat decisions with their `row` (non-decreasing).
"""

from __future__ import annotations

import torch
from torch import Tensor

from interlace.parts.segments import last_in_row, row_sum, suffix_sum, to_padded


def group_range(reward: Tensor, group: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest counted reward of each row's group, [R] each; inf and -inf where none counts."""
    n_groups = int(group.max()) + 1 if group.numel() else 0
    low = torch.full((n_groups,), torch.inf, dtype=reward.dtype)
    high = -low
    low = low.scatter_reduce(0, group, torch.where(counted, reward, torch.inf), "amin")
    high = high.scatter_reduce(0, group, torch.where(counted, reward, -torch.inf), "amax")
    return low[group], high[group]


def group_mean(reward: Tensor, group: Tensor, counted: Tensor) -> Tensor:
    """Mean counted reward of each row's group, [R]; NaN where none counts, exact where all are equal."""
    n_groups = int(group.max()) + 1 if group.numel() else 0
    total = row_sum(torch.where(counted, reward, 0.0), group, n_groups)
    mean = (total / row_sum(counted.to(reward.dtype), group, n_groups))[group]
    return torch.where(mean.isnan(), mean, mean.clamp(*group_range(reward, group, counted)))


def _group_statistics(
    reward: Tensor, group: Tensor, counted: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations of each row's group, and whether it has no signal."""
    n_groups = int(group.max()) + 1 if group.numel() else 0
    value = torch.where(counted, reward, 0.0)
    count = row_sum(counted.to(reward.dtype), group, n_groups)
    mean = row_sum(value, group, n_groups) / count.clamp(min=1)
    deviation = torch.where(counted, reward - mean[group], 0.0)
    squares = row_sum(deviation.square(), group, n_groups)
    low, high = group_range(reward, group, counted)
    return count[group], mean[group], squares[group], (count[group] < 2) | (low == high)


def standard_deviation(values: Tensor, correction: int = 1) -> Tensor:
    """Standard deviation of a vector; 0 for fewer than 2 values or equal ones."""
    if values.numel() < 2 or bool((values == values[0]).all()):
        return values.new_zeros(())
    return values.std(correction=correction)


def group_normalised(
    reward: Tensor,
    group: Tensor,
    counted: Tensor,
    *,
    std: bool = True,
    eps: float = 1e-6,
    correction: int = 1,
    scope: str = "group",
) -> Tensor:
    """Reward minus group mean, over (standard deviation + eps) if `std`.

    Args:
        correction: 1 divides the variance by n - 1, 0 by n.
        scope: `group`, or `step` for the deviation of all counted rewards of the step.

    Returns:
        [R], 0 on rows outside a group of two or more counted rows. Rows that are not counted but have a
        reward (a later row of a counted episode) get the value that their reward gives.

    Reference:
        GRPO (arXiv 2402.03300) with `std`, Dr.GRPO (arXiv 2503.20783) without.
    """
    count, mean, squares, silent = _group_statistics(reward, group, counted)
    advantage = reward - mean
    if std:
        if scope == "step":
            deviation = standard_deviation(reward[counted], correction)
        else:
            deviation = (squares / (count - correction).clamp(min=1)).sqrt()
        advantage = advantage / (deviation + eps)
    return torch.where(silent | reward.isnan(), 0.0, advantage)


def leave_one_out(reward: Tensor, group: Tensor, counted: Tensor) -> Tensor:
    """Reward minus the mean reward of the group's other rows, [R].

    Reference:
        RLOO (arXiv 2402.14740): equal to G / (G - 1) times the distance to the group mean.
    """
    count, mean, _, silent = _group_statistics(reward, group, counted)
    return torch.where(silent | reward.isnan(), 0.0, (reward - mean) * count / (count - 1).clamp(min=1))


def group_centred(reward: Tensor, group: Tensor, counted: Tensor) -> Tensor:
    """Reward minus group mean, [R]."""
    return group_normalised(reward, group, counted, std=False)


def prefix_aware(reward: Tensor, group: Tensor, prefixed: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Advantages of prefix tokens and of sampled tokens where some rows of a group start with a prefix.

    Prefix tokens: R minus the mean of the group's rows without prefix, 0 where there is none. Sampled
    tokens: rows without prefix are centred among themselves; rows with one too, and a lone one keeps R.

    Args:
        prefixed: bool [R], rows that start with a demonstration prefix.

    Returns:
        For each row the advantage of its prefix tokens and that of its sampled tokens, [R] each.

    Reference:
        Prefix-RFT (arXiv 2507.01679), official code's option `prefix`.
    """
    gain = (reward - group_mean(reward, group, counted & ~prefixed)).nan_to_num()
    n_groups = int(group.max()) + 1 if group.numel() else 0
    lone = row_sum((counted & prefixed).to(reward.dtype), group, n_groups)[group] < 2
    continued = torch.where(lone, reward, group_centred(reward, group, counted & prefixed))
    sampled = torch.where(prefixed, continued, group_centred(reward, group, counted & ~prefixed))
    return gain, sampled


def smoothed_labels(reward: Tensor, group: Tensor, label: Tensor, counted: Tensor) -> Tensor:
    """Rewards [R] in which a label that a counted rollout of its group reaches has the rollouts' mean.

    Args:
        label: bool [R], the demonstration rows.

    Reference:
        ViSurf (arXiv 2510.10606): such a label's group advantage is 0.
    """
    _, best = group_range(reward, group, counted)
    return torch.where(label & (best >= reward), group_mean(reward, group, counted), reward)


def whiten(values: Tensor, eps: float = 1e-6) -> Tensor:
    """(values - mean) / (standard deviation + eps), Bessel-corrected; fewer than 2 or equal ones give 0."""
    deviation = standard_deviation(values)
    if deviation == 0:
        return torch.zeros_like(values)
    return (values - values.mean()) / (deviation + eps)


def reward_to_go(reward: Tensor, penalty: Tensor, row: Tensor, gamma: float) -> Tensor:
    """Discounted return of each token: per-token `penalty` [n], with the row's reward on its last token.

    Args:
        reward: [R].
        penalty: [n], added to the reward of each token (e.g. -kl * k1).
    """
    rewards = penalty + torch.where(last_in_row(row, reward.numel()), reward[row], 0.0)
    return suffix_sum(rewards, row, reward.numel(), gamma)


def generalised_advantage(
    reward: Tensor, penalty: Tensor, values: Tensor, row: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Generalised advantage estimation over the decisions of each row, [n].

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lambda A_{t+1}; V is 0 after the last
    decision. Observation tokens are no decisions, so values are carried across them.

    Args:
        reward: [R], added on the last decision of the row.
        penalty: [n], added to the reward of each decision.
        values: [n], the critic's estimates at the start of the rollout step.

    Reference:
        Schulman et al. (arXiv 1506.02438).
    """
    n_rows = reward.numel()
    r = penalty + torch.where(last_in_row(row, n_rows), reward[row], 0.0)
    following, _, column = to_padded(values, row, n_rows)
    following = torch.cat([following[:, 1:], following.new_zeros(n_rows, 1)], 1)
    delta = r + gamma * following[row, column] - values
    return suffix_sum(delta, row, n_rows, gamma * gae_lambda)


def dense_normalised(
    token_reward: Tensor, row: Tensor, last: Tensor, group: Tensor, counted: Tensor, *, eps: float
) -> Tensor:
    """Token rewards minus the group's mean last-token reward, over its deviation + eps, [n].

    Args:
        token_reward: [n], one reward per decision.
        last: [R], the last decision's reward of each row; the group's mean and deviation are of these.

    Returns:
        0 in a group with fewer than two counted rows or equal last rewards, inner tokens included.

    Reference:
        R-AIRL (arXiv 2510.01857).
    """
    count, mean, squares, silent = _group_statistics(last, group, counted)
    deviation = (squares / (count - 1).clamp(min=1)).sqrt()
    return torch.where(silent[row], 0.0, (token_reward - mean[row]) / (deviation[row] + eps))


def dense_leave_one_out(
    token_reward: Tensor, row: Tensor, last: Tensor, group: Tensor, counted: Tensor
) -> Tensor:
    """Token rewards minus the mean last-token reward of the group's other rows, [n].

    0 in a group with fewer than two counted rows or equal last rewards.

    Reference:
        PRIME (arXiv 2502.01456).
    """
    baseline = last - leave_one_out(last, group, counted)
    silent = _group_statistics(last, group, counted)[3]
    return torch.where(silent[row], 0.0, token_reward - baseline[row])


def share_below(reward: Tensor, group: Tensor, counted: Tensor) -> Tensor:
    """(counted rows of the group strictly below + 1) / (counted rows + 1), [R]: the row's smoothed rank."""
    below = (reward[:, None] > reward[None, :]) & (group[:, None] == group[None, :]) & counted[None, :]
    n_groups = int(group.max()) + 1 if group.numel() else 0
    count = row_sum(counted.double(), group, n_groups)[group]
    return (below.sum(1) + 1) / (count + 1)


def smoothed_share(hit: Tensor, group: Tensor, counted: Tensor) -> Tensor:
    """(counted rows of the group that hit + 1) / (counted rows + 2), [R]: Laplace's rule of succession."""
    n_groups = int(group.max()) + 1 if group.numel() else 0
    hits = row_sum((hit & counted).double(), group, n_groups)
    count = row_sum(counted.double(), group, n_groups)
    return ((hits + 1) / (count + 2))[group]
