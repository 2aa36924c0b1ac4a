"""Losses of pairs of rows, one per pair, and which rows form pairs."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def logistic_preference(margin: Tensor) -> Tensor:
    """-log sigmoid(margin): the margin by which the chosen row is preferred should be large.

    Reference:
        Bradley-Terry as in DPO (arXiv 2305.18290) and SimPO (arXiv 2405.14734).
    """
    return softplus(-margin)


def preference_weight(margin: Tensor) -> Tensor:
    """sigmoid(-margin), the derivative of -`logistic_preference`: it fades once the preference is learned."""
    return (-margin).sigmoid()


def ranking_hinge(worse: Tensor, better: Tensor) -> Tensor:
    """max(0, worse - better): no margin, no gradient once the order is right.

    Reference:
        RRHF (arXiv 2304.05302).
    """
    return (worse - better).relu()


def length_normalised(total: Tensor, length: Tensor, power: float) -> Tensor:
    """Summed log-probability of a row over length^power, [R]; an empty row counts as length 1.

    Reference:
        RRHF (arXiv 2304.05302).
    """
    return total / length.clamp(min=1).to(total.dtype) ** power


def longest_of_group(length: Tensor, group: Tensor) -> Tensor:
    """The largest `length` [R] (int64) in each row's `group` [R], int64 [R]."""
    n_groups = int(group.max()) + 1 if group.numel() else 0
    return length.new_zeros(n_groups).scatter_reduce(0, group, length, "amax")[group]


def pairs_in_group(group: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of `first` with each row of `second` (bool [R]) of its group.

    Returns:
        Row indices of the two sides, int64 [P] each, ordered by the first, then the second.
    """
    i, j = first.nonzero()[:, 0], second.nonzero()[:, 0]
    a, b = (group[i][:, None] == group[j][None, :]).nonzero(as_tuple=True)
    return i[a], j[b]


def pairs_by_reward(group: Tensor, reward: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of candidates of a group with unequal rewards: the worse row and the better, int64 [P] each."""
    worse, better = pairs_in_group(group, candidate, candidate)
    ordered = reward[worse] < reward[better]
    return worse[ordered], better[ordered]
