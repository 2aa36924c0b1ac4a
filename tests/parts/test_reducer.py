"""Denominators of rows with losses (1, 2, 3) and (10), by hand."""

from __future__ import annotations

import pytest
import torch

from interlace.analysis.explain import parse_rows
from interlace.parts.reducer import GROUPS, STANDARD, Counts, reduce, row_scale

BATCH = parse_rows(
    [
        {"logp": [-1.0] * 3, "source": "rollout", "group": "a"},
        {"logp": [], "source": "rollout", "group": "b"},
        {"logp": [-1.0, -1.0], "source": "demo", "group": "c"},
        {"logp": [-1.0], "source": "rollout", "group": "a"},
    ]
)
COVERED = BATCH.is_source("rollout")
LOSS = torch.tensor([1.0, 2, 3, 10], dtype=torch.float64)
ROW = BATCH.row[COVERED]


def test_counts_are_of_covered_tokens_only() -> None:
    assert Counts.of(COVERED, BATCH) == Counts(tokens=4, rows=2, longest=3)


def test_counts_of_nothing_are_zero() -> None:
    assert Counts.of(torch.zeros_like(COVERED), BATCH) == Counts(0, 0, 0)
    empty = parse_rows([])
    assert Counts.of(torch.zeros(0, dtype=torch.bool), empty) == Counts(0, 0, 0)


@pytest.mark.parametrize(
    ("name", "n", "loss"),
    [
        ("tokens", 4, 16 / 4),
        ("sequences", 2, 16 / 2),
        ("sequence_means", 2, (2 + 10) / 2),
        ("length", 2 * 3, 16 / 6),
        ("length_sum", 3, 16 / 3),
        ("longest", 2 * 3, 16 / 6),
    ],
)
def test_each_denominator(name: str, n: float, loss: float) -> None:
    value = STANDARD[name](Counts.of(COVERED, BATCH), 3)
    assert value == n
    reduced = reduce(LOSS, ROW, row_scale(name, COVERED, BATCH), value)
    assert float(reduced) == pytest.approx(loss)


def test_length_and_longest_differ_once_the_limit_is_not_the_longest_row() -> None:
    counts = Counts.of(COVERED, BATCH)
    assert STANDARD["length"](counts, 7) == 14
    assert STANDARD["length_sum"](counts, 7) == 7
    assert STANDARD["longest"](counts, 7) == 6


def test_scale_is_one_over_the_covered_tokens_of_a_row() -> None:
    assert row_scale("sequence_means", COVERED, BATCH).tolist() == pytest.approx([1 / 3, 1, 1, 1])
    assert row_scale("tokens", COVERED, BATCH).tolist() == [1] * 4


def test_shares_of_micro_batches_add_up_to_the_whole() -> None:
    scale, n = row_scale("sequence_means", COVERED, BATCH), 2
    parts = [reduce(LOSS[ROW.eq(r)], ROW[ROW.eq(r)], scale, n) for r in (0, 3)]
    assert float(sum(parts)) == float(reduce(LOSS, ROW, scale, n))


@pytest.mark.parametrize("n", [0.0, 5.0])
def test_an_empty_term_is_exactly_zero(n: float) -> None:
    nothing = reduce(LOSS[:0], ROW[:0], row_scale("tokens", COVERED, BATCH), n)
    assert float(nothing) == 0


def test_a_denominator_of_zero_gives_zero() -> None:
    assert float(reduce(LOSS, ROW, row_scale("tokens", COVERED, BATCH), 0)) == 0


def test_groups_are_those_with_a_covered_decision() -> None:
    assert GROUPS.name == "groups"
    assert GROUPS.count(BATCH, COVERED) == 1
    assert GROUPS.count(BATCH, torch.ones_like(COVERED)) == 2
    assert GROUPS.count(BATCH, torch.zeros_like(COVERED)) == 0
