"""Sums, means and scans over ragged rows held in one flat vector.

Every function takes values `x` [n] and `row` [n] (int64, the row of each value) and is differentiable
in `x`. Rows need not be stored contiguously except where a function says so.
"""

from __future__ import annotations

import torch
from torch import Tensor


def row_sum(x: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """Sum of each row, [n_rows]; an empty row sums to 0."""
    return torch.zeros(n_rows, dtype=x.dtype, device=x.device).index_add(0, row, x)


def row_count(row: Tensor, n_rows: int) -> Tensor:
    """Number of values of each row, int64 [n_rows]."""
    return torch.bincount(row, minlength=n_rows)


def row_mean(x: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """Mean of each row, [n_rows]; an empty row gives 0."""
    return row_sum(x, row, n_rows) / row_count(row, n_rows).clamp(min=1)


def row_constant(x: Tensor, row: Tensor, n_rows: int) -> Tensor:
    """The value that a row's tokens share, [n_rows]; an empty row gives 0."""
    return torch.zeros(n_rows, dtype=x.dtype, device=x.device).index_put((row,), x)


def to_padded(x: Tensor, row: Tensor, n_rows: int, fill: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows side by side, for scans over time. `row` must be non-decreasing.

    Returns:
        The values [n_rows, longest] with `fill` behind each row's end, a bool mask of what is real, and
        the column of each value, int64 [n].
    """
    count = row_count(row, n_rows)
    column = torch.arange(row.numel()) - (torch.cumsum(count, 0) - count)[row]
    width = int(count.max()) if n_rows else 0
    padded = torch.full((n_rows, width), fill, dtype=x.dtype).index_put((row, column), x)
    real = torch.arange(width) < count[:, None]
    return padded, real, column


def suffix_sum(x: Tensor, row: Tensor, n_rows: int, gamma: float = 1.0) -> Tensor:
    """Discounted sum of what follows: y_t = sum_{k >= t} gamma^(k-t) x_k within the row, [n].

    `row` must be non-decreasing.
    """
    padded, _, column = to_padded(x, row, n_rows)
    columns: list[Tensor] = []
    running = torch.zeros(n_rows, dtype=x.dtype)
    for t in range(padded.shape[1] - 1, -1, -1):
        running = padded[:, t] + gamma * running
        columns.append(running)
    if not columns:
        return x
    return torch.stack(columns[::-1], 1)[row, column]


def position_in_row(row: Tensor, n_rows: int) -> Tensor:
    """0-based place of each value in its row, int64 [n]. `row` must be non-decreasing."""
    count = row_count(row, n_rows)
    return torch.arange(row.numel()) - (torch.cumsum(count, 0) - count)[row]


def last_in_row(row: Tensor, n_rows: int) -> Tensor:
    """bool [n]: the value is the last of its row. `row` must be non-decreasing."""
    return position_in_row(row, n_rows) == row_count(row, n_rows)[row] - 1
