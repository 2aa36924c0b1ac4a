"""Which rows and decisions take part, and which rewards count."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from interlace.types import Batch, Finish

TIE_TOLERANCE = 1e-9
"""Top shares and quantiles are compared with this, so equal numbers packed differently fall together."""


def has_reward(batch: Batch) -> Tensor:
    """bool [R]: active rows that carry a reward."""
    return batch.active & ~batch.reward.isnan()


def first_of_episode(batch: Batch) -> Tensor:
    """bool [R]: the row with the smallest row id of its episode."""
    smallest = torch.full(
        (int(batch.episode.max()) + 1 if batch.n_rows else 0,), torch.iinfo(torch.int64).max
    )
    smallest = smallest.scatter_reduce(0, batch.episode, batch.row_id, "amin")
    return batch.row_id == smallest[batch.episode]


def counted_rollouts(batch: Batch) -> Tensor:
    """bool [R]: rollout rows whose reward enters group statistics, each episode once."""
    return has_reward(batch) & batch.is_rollout & first_of_episode(batch)


def counted_mixed(batch: Batch) -> Tensor:
    """bool [R]: rollout and demonstration rows whose reward enters group statistics, each episode once."""
    return has_reward(batch) & first_of_episode(batch)


def correct(batch: Batch) -> Tensor:
    """bool [R]: verdict pass, or, where no verdict is given, reward above 0.5."""
    return torch.where(batch.verdict == 2, batch.reward > 0.5, batch.verdict == 1) & batch.active


def pass_rate(batch: Batch) -> Tensor:
    """float64 [n_groups]: share of correct rows among a group's counted rollouts; NaN where there is none."""
    counted = counted_rollouts(batch)
    n_groups = int(batch.group.max()) + 1 if batch.n_rows else 0
    total = torch.zeros(n_groups, dtype=torch.float64).index_add(0, batch.group, counted.double())
    right = torch.zeros(n_groups, dtype=torch.float64).index_add(
        0, batch.group, (counted & correct(batch)).double()
    )
    return right / total


def leave_out(batch: Batch, rows: Tensor) -> Batch:
    """The batch without these rows (bool [R]): out of statistics, terms and denominators."""
    return replace(batch, active=batch.active & ~rows)


def drop_truncated(batch: Batch) -> Batch:
    """Rollout rows that hit the length limit leave the loss and its denominator, not the baseline."""
    return leave_out(batch, batch.is_rollout & (batch.finish == Finish.LENGTH))


def drop_equal_rewards(batch: Batch) -> Batch:
    """Groups with fewer than two distinct counted rollout rewards leave everything (dynamic sampling)."""
    counted = counted_rollouts(batch)
    n_groups = int(batch.group.max()) + 1 if batch.n_rows else 0
    low = torch.full((n_groups,), math.inf, dtype=torch.float64)
    low = low.scatter_reduce(0, batch.group, torch.where(counted, batch.reward, math.inf), "amin")
    high = torch.full((n_groups,), -math.inf, dtype=torch.float64)
    high = high.scatter_reduce(0, batch.group, torch.where(counted, batch.reward, -math.inf), "amax")
    return leave_out(batch, ~(high > low)[batch.group])


def overlong_penalty(length: Tensor, max_length: int, buffer: int, penalty: float) -> Tensor:
    """Soft overlong punishment, added to the reward: 0 up to max_length - buffer, then linear to -penalty.

    Reference:
        DAPO (arXiv 2503.14476), equation 13.
    """
    return (penalty * (max_length - buffer - length.double()) / buffer).clamp(-penalty, 0.0)


def top_share(values: Tensor, share: float) -> Tensor:
    """bool [n]: the ceil(share n) largest values, ties with the last one kept; share 0 keeps none."""
    keep = math.ceil(share * values.numel() - TIE_TOLERANCE)
    if keep <= 0:
        return torch.zeros(values.numel(), dtype=torch.bool)
    threshold = values.sort(descending=True).values[keep - 1]
    return values >= threshold - TIE_TOLERANCE
