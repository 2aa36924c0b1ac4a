"""Ragged sums, means and scans, by hand."""

from __future__ import annotations

import pytest
import torch

from interlace.parts.segments import (
    last_in_row,
    position_in_row,
    row_constant,
    row_count,
    row_mean,
    row_sum,
    suffix_sum,
    to_padded,
)

X = torch.tensor([1.0, 2, 3, 4, 5, 6], dtype=torch.float64)
ROW = torch.tensor([0, 0, 0, 2, 2, 3])
"""Rows of 3, 0, 2 and 1 values."""


def test_row_sum_of_an_empty_row_is_zero() -> None:
    assert row_sum(X, ROW, 4).tolist() == [6, 0, 9, 6]


def test_row_count_counts_rows_behind_the_last_value_too() -> None:
    assert row_count(ROW, 5).tolist() == [3, 0, 2, 1, 0]


def test_row_mean_of_an_empty_row_is_zero() -> None:
    assert row_mean(X, ROW, 4).tolist() == [2, 0, 4.5, 6]


def test_rows_of_a_sum_may_stand_anywhere() -> None:
    assert row_sum(X, torch.tensor([0, 2, 0, 1, 2, 0]), 3).tolist() == [1 + 3 + 6, 4, 2 + 5]


def test_gradient_of_a_row_mean_is_one_over_its_count() -> None:
    x = X.clone().requires_grad_()
    row_mean(x, ROW, 4).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([1 / 3] * 3 + [1 / 2] * 2 + [1])


def test_padded_rows_stand_side_by_side() -> None:
    padded, real, column = to_padded(X, ROW, 4, fill=-1)
    assert padded.tolist() == [[1, 2, 3], [-1, -1, -1], [4, 5, -1], [6, -1, -1]]
    assert real.tolist() == [[True] * 3, [False] * 3, [True, True, False], [True, False, False]]
    assert column.tolist() == [0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        (1.0, [6, 5, 3, 9, 5, 6]),
        (0.5, [1 + 0.5 * 3.5, 2 + 0.5 * 3, 3, 4 + 0.5 * 5, 5, 6]),
        (0.0, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_suffix_sum_stays_within_its_row(gamma: float, expected: list[float]) -> None:
    assert suffix_sum(X, ROW, 4, gamma).tolist() == expected


def test_gradient_of_a_suffix_sum_is_the_discounted_prefix() -> None:
    x = X.clone().requires_grad_()
    suffix_sum(x, ROW, 4, 0.5).sum().backward()
    assert x.grad is not None  # value k stands in the sums of t <= k: sum of 0.5^(k-t)
    assert x.grad.tolist() == [1, 1.5, 1.75, 1, 1.5, 1]


def test_position_and_last_of_a_row() -> None:
    assert position_in_row(ROW, 4).tolist() == [0, 1, 2, 0, 1, 0]
    assert last_in_row(ROW, 4).tolist() == [False, False, True, False, True, True]


def test_no_values_at_all() -> None:
    none, row = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    for n_rows in (0, 2):
        assert row_sum(none, row, n_rows).tolist() == [0] * n_rows
        assert row_mean(none, row, n_rows).tolist() == [0] * n_rows
        assert suffix_sum(none, row, n_rows).tolist() == []
        assert last_in_row(row, n_rows).tolist() == []
        assert to_padded(none, row, n_rows)[0].shape == (n_rows, 0)


def test_value_shared_by_a_rows_tokens_is_exact() -> None:
    x = torch.tensor([0.05, 0.05, 0.05, 0.1, 0.1, 7], dtype=torch.float64)
    assert row_constant(x, ROW, 4).tolist() == [0.05, 0, 0.1, 7]  # a mean would round 3 * 0.05 / 3
