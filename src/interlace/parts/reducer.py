"""The only place where losses are averaged.

A denominator is counted once over a whole optimizer step (every micro-batch, every rank) from masks
that are known before any forward pass, never from leaves. A micro-batch's share of the loss is
then its sum over that one number, so no split of the batch can change the gradient.

| name | sum of losses over |
|---|---|
| `tokens` | the number of covered tokens |
| `sequences` | the number of rows with a covered token |
| `sequence_means` | as `sequences`, each loss first divided by its row's covered tokens |
| `length` | rows x max_length |
| `length_sum` | max_length |
| `longest` | rows x the largest covered count of a row |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from interlace.parts.segments import row_count

if TYPE_CHECKING:
    from interlace.types import Batch


@dataclass(frozen=True)
class Counts:
    """What denominators are made of, over one optimizer step: covered tokens, rows with one, the longest."""

    tokens: int
    rows: int
    longest: int

    @classmethod
    def of(cls, covered: Tensor, batch: Batch) -> Counts:
        per_row = row_count(batch.row[covered], batch.n_rows)
        longest = int(per_row.max()) if per_row.numel() else 0
        return cls(int(covered.sum()), int((per_row > 0).sum()), longest)


@dataclass(frozen=True)
class Denominator:
    """A named denominator with a count of its own, for elements that are not tokens or rows.

    Attributes:
        name: `groups`, `pairs`, `weights`, ...
        count: From the batch and the covered decisions (bool [N]); additive over groups and ranks.
    """

    name: str
    count: Callable[[Batch, Tensor], float]


def _groups_covered(batch: Batch, covered: Tensor) -> float:
    return batch.group[batch.row[covered]].unique().numel()


GROUPS = Denominator("groups", _groups_covered)
"""The number of groups with a covered decision."""

STANDARD: Mapping[str, Callable[[Counts, float], float]] = {
    "tokens": lambda c, length: c.tokens,
    "sequences": lambda c, length: c.rows,
    "sequence_means": lambda c, length: c.rows,
    "length": lambda c, length: c.rows * length,
    "length_sum": lambda c, length: length,
    "longest": lambda c, length: c.rows * c.longest,
}
"""Value of each standard denominator from the step's counts and max_length."""


def row_scale(name: str, covered: Tensor, batch: Batch) -> Tensor:
    """float64 [R]: factor of each row's losses before the division (1, or 1 / its covered tokens)."""
    if name == "sequence_means":
        return 1.0 / row_count(batch.row[covered], batch.n_rows).clamp(min=1).double()
    return torch.ones(batch.n_rows, dtype=torch.float64)


def reduce(value: Tensor, row: Tensor, scale: Tensor, n: float) -> Tensor:
    """sum_k value_k * scale[row_k] / n, a scalar; exactly 0 for an empty term.

    Args:
        value: [K] unreduced losses.
        row: int64 [K], the row of each.
        scale: [R] from `row_scale`.
        n: the denominator's value over the whole optimizer step.
    """
    if value.numel() == 0 or n == 0:
        return value.new_zeros(())
    return (value * scale[row]).sum() / n
