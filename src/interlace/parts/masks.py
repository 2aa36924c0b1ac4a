"""Which rows and decisions take part, and which rewards count."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from interlace.parts.segments import position_in_row, row_count, to_padded
from interlace.types import Batch, Finish

TIE_TOLERANCE = 1e-9
"""Top shares and quantiles are compared with this, so equal numbers packed differently fall together."""

RESPONSE = ("rollout", "demo", "prefix")
"""Sources of a response: everything but what stands in the prompt."""


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


def has_token(batch: Batch, *sources: str) -> Tensor:
    """bool [R]: active rows with at least one decision of these sources."""
    per_row = row_count(batch.row[batch.is_source(*sources)], batch.n_rows)
    return batch.active & (per_row > 0)


def best_of_group(batch: Batch, candidates: Tensor, keep: int = 1) -> Tensor:
    """bool [R]: the `keep` best-rewarded candidates (bool [R]) of each group, ties to the smallest row id."""
    order = batch.row_id.argsort()
    order = order[candidates[order]]
    order = order[(-batch.reward[order]).argsort(stable=True)]
    order = order[batch.group[order].argsort(stable=True)]
    place = position_in_row(batch.group[order], int(batch.group.max()) + 1 if batch.n_rows else 0)
    best = torch.zeros(batch.n_rows, dtype=torch.bool)
    best[order[place < keep]] = True
    return best


def in_group_with(group: Tensor, rows: Tensor) -> Tensor:
    """bool [R]: rows whose group [R] holds at least one of `rows` (bool [R])."""
    found = torch.zeros(int(group.max()) + 1 if group.numel() else 0, dtype=torch.bool)
    found[group[rows]] = True
    return found[group]


def beside_rollouts(batch: Batch) -> Tensor:
    """bool [R]: rows whose group holds an active rollout row (themselves included)."""
    return in_group_with(batch.group, batch.active & batch.is_rollout)


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
    return at_least(values, top_threshold(values, share))


def top_threshold(values: Tensor, share: float) -> float:
    """The smallest of the ceil(share n) largest values; infinite where there is none."""
    keep = math.ceil(share * values.numel() - TIE_TOLERANCE)
    return float(values.sort(descending=True).values[keep - 1]) if keep > 0 else math.inf


def at_least(values: Tensor, threshold: Tensor | float) -> Tensor:
    """bool [n]: values that reach the threshold."""
    return values >= threshold - TIE_TOLERANCE


def top_share_of_rows(values: Tensor, row: Tensor, n_rows: int, share: float) -> Tensor:
    """bool [n]: as `top_share`, each row's values [n] by themselves. `row` must be non-decreasing."""
    keep = (share * row_count(row, n_rows).double() - TIE_TOLERANCE).ceil().long()
    padded, _, _ = to_padded(values, row, n_rows, -math.inf)
    ranked = torch.cat([padded.new_full((n_rows, 1), math.inf), padded.sort(1, descending=True).values], 1)
    threshold = ranked.gather(1, keep.clamp(min=0)[:, None])[:, 0]
    return at_least(values, threshold[row])


TOP_SHARES: Mapping[str, Callable[[Tensor, Tensor, int, float], Tensor]] = {
    "step": lambda values, row, n_rows, share: top_share(values, share),
    "row": top_share_of_rows,
}
"""Top shares by `entropy_scope`: pooled over the step, or of each row."""


def hard_gate(values: Tensor, threshold: float) -> Tensor:
    """1 where the threshold is reached, else 0, [n]."""
    return at_least(values, threshold).to(values.dtype)


def soft_gate(values: Tensor, threshold: float, temperature: float) -> Tensor:
    """sigmoid((values - threshold) / temperature), [n]."""
    return ((values - threshold) / temperature).sigmoid()


def upper_quantile(values: Tensor, share: float) -> float:
    """The value above which a `share` of `values` [n] lies, by linear interpolation; infinite for share 0.

    Reference:
        SED-SFT's threshold (arXiv 2602.07464).
    """
    if share == 0 or values.numel() == 0:
        return math.inf
    return float(torch.quantile(values, 1 - share))


def below(values: Tensor, threshold: float) -> Tensor:
    """bool [n]: values below the threshold; one that equals it is not."""
    return values < threshold - TIE_TOLERANCE
