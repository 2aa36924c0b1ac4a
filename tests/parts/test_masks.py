"""Which rows and tokens take part, on small batches by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from interlace.analysis.explain import parse_rows
from interlace.parts.masks import (
    TOP_SHARES,
    at_least,
    below,
    beside_rollouts,
    best_of_group,
    correct,
    counted_mixed,
    counted_rollouts,
    drop_equal_rewards,
    drop_truncated,
    first_of_episode,
    hard_gate,
    has_reward,
    has_token,
    in_group_with,
    leave_out,
    overlong_penalty,
    pass_rate,
    soft_gate,
    top_share,
    top_share_of_rows,
    top_threshold,
    upper_quantile,
)
from interlace.types import Batch


def batch_of(*rows: dict[str, Any]) -> Batch:
    """One group of rollouts of two tokens, unless a row says otherwise."""
    return parse_rows([{"logp": [-1.0, -1.0], "source": "rollout", "group": "g", **row} for row in rows])


def test_rows_with_a_reward_are_active_and_not_nan() -> None:
    batch = batch_of({"reward": 1.0}, {"reward": None}, {"reward": 0.0})
    assert has_reward(batch).tolist() == [True, False, True]
    left = leave_out(batch, torch.tensor([True, False, False]))
    assert has_reward(left).tolist() == [False, False, True]


def test_demonstrations_count_only_in_mixed_statistics() -> None:
    batch = batch_of({"reward": 1.0}, {"reward": 0.5, "source": "demo"}, {"source": "demo"})
    assert counted_rollouts(batch).tolist() == [True, False, False]
    assert counted_mixed(batch).tolist() == [True, True, False]


def test_an_episode_counts_once_by_its_smallest_row_id() -> None:
    batch = batch_of({"reward": 1.0}, {"reward": 1.0}, {"reward": 0.0})
    batch.episode.copy_(torch.tensor([0, 0, 1]))
    batch.row_id.copy_(torch.tensor([7, 3, 5]))
    assert first_of_episode(batch).tolist() == [False, True, True]
    assert counted_rollouts(batch).tolist() == [False, True, True]


def test_correct_is_the_verdict_or_else_a_reward_above_one_half() -> None:
    batch = batch_of(
        {"reward": 0.0, "verdict": "pass"},
        {"reward": 1.0, "verdict": "fail"},
        {"reward": 0.6},
        {"reward": 0.5},
        {"reward": 1.0, "verdict": "unscorable"},
    )
    assert correct(batch).tolist() == [True, False, True, False, False]


def test_pass_rate_is_over_counted_rollouts_and_nan_where_there_is_none() -> None:
    batch = batch_of(
        {"reward": 1.0},
        {"reward": 0.0},
        {"reward": 1.0, "source": "demo"},
        {"reward": None},
        {"reward": 1.0, "source": "demo", "group": "h"},
    )
    rate = pass_rate(batch).tolist()
    assert rate[0] == 0.5
    assert math.isnan(rate[1])


def test_rows_with_a_token_of_a_source() -> None:
    batch = batch_of(
        {"source": ["prefix", "rollout"]}, {"source": "demo"}, {"logp": [], "source": "rollout"}, {}
    )
    assert has_token(batch, "rollout").tolist() == [True, False, False, True]
    assert has_token(batch, "prefix", "demo").tolist() == [True, True, False, False]
    left = leave_out(batch, torch.tensor([True, False, False, False]))
    assert has_token(left, "rollout").tolist() == [False, False, False, True]


def test_best_of_group_keeps_the_first_row_among_ties() -> None:
    batch = batch_of(
        {"reward": 0.5},
        {"reward": 1.0},
        {"reward": 1.0},
        {"reward": 9.0},
        {"reward": 0.1, "group": "h"},
    )
    candidates = torch.tensor([True, True, True, False, True])
    assert best_of_group(batch, candidates).tolist() == [False, True, False, False, True]
    assert best_of_group(batch, candidates, 2).tolist() == [False, True, True, False, True]
    assert best_of_group(batch, candidates, 9).tolist() == candidates.tolist()
    batch.row_id.copy_(torch.tensor([4, 3, 2, 1, 0]))
    assert best_of_group(batch, candidates).tolist() == [False, False, True, False, True]


def test_best_of_nothing() -> None:
    assert best_of_group(parse_rows([]), torch.zeros(0, dtype=torch.bool)).tolist() == []


def test_truncated_rollouts_are_left_out() -> None:
    batch = drop_truncated(
        batch_of({"finish": "length"}, {"finish": "stop"}, {}, {"finish": "length", "source": "demo"})
    )
    assert batch.active.tolist() == [False, True, True, True]


def test_groups_without_two_distinct_rewards_are_left_out_whole() -> None:
    batch = batch_of(
        *({"reward": r, "group": "equal"} for r in (1.0, 1.0)),
        *({"reward": r, "group": "live"} for r in (1.0, 0.0)),
        {"reward": 1.0, "group": "single"},
        {"reward": 0.0, "group": "equal", "source": "demo"},
        {"reward": None, "group": "live"},
    )
    assert drop_equal_rewards(batch).active.tolist() == [False, False, True, True, False, False, True]


@pytest.mark.parametrize(
    ("length", "penalty"), [(1, 0.0), (6, 0.0), (7, -0.25), (8, -0.5), (10, -1.0), (12, -1.0)]
)
def test_overlong_penalty_falls_from_the_buffer_to_the_limit(length: int, penalty: float) -> None:
    assert float(overlong_penalty(torch.tensor(length), 10, 4, 1.0)) == penalty
    assert float(overlong_penalty(torch.tensor(length), 10, 4, 0.5)) == penalty / 2


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, [False] * 5),
        (0.2, [False, True, False, False, False]),
        (0.21, [False, True, True, False, True]),  # ceil(1.05) = 2, and the tie with the second
        (0.6, [False, True, True, False, True]),
        (1.0, [True] * 5),
    ],
)
def test_top_share_keeps_ties_with_the_last_one(share: float, expected: list[bool]) -> None:
    values = torch.tensor([0.1, 0.9, 0.5, 0.3, 0.5], dtype=torch.float64)
    assert top_share(values, share).tolist() == expected


def test_top_share_is_not_moved_by_rounding() -> None:
    # 0.1 * 30 is 3.0000000000000004 and must keep 3
    values = torch.arange(30, dtype=torch.float64)
    assert int(top_share(values, 0.1).sum()) == 3
    nearly = torch.tensor([0.5, 0.5 - 1e-12, 0.1], dtype=torch.float64)
    assert top_share(nearly, 0.3).tolist() == [True, True, False]


def test_upper_quantile_interpolates_linearly() -> None:
    values = torch.tensor([0.2, 0.8, 0.4, 0.6], dtype=torch.float64)
    # 0.75 left out: the 0.25-quantile of (.2, .4, .6, .8) stands at 0.75 of the way from .2 to .4
    assert upper_quantile(values, 0.75) == pytest.approx(0.35)
    assert upper_quantile(values, 1.0) == pytest.approx(0.2)
    assert upper_quantile(values, 0.0) == math.inf
    assert upper_quantile(values[:0], 0.5) == math.inf


def test_a_value_that_equals_the_threshold_is_not_below_it() -> None:
    values = torch.tensor([0.3, 0.3 - 1e-12, 0.3 - 1e-6], dtype=torch.float64)
    assert below(values, 0.3).tolist() == [False, False, True]
    assert below(values, math.inf).tolist() == [True] * 3


def test_rows_of_groups_that_hold_one_of_the_rows() -> None:
    group = torch.tensor([1, 0, 1, 2])
    found = in_group_with(group, torch.tensor([True, False, False, False]))
    assert found.tolist() == [True, False, True, False]


def test_rows_beside_an_active_rollout() -> None:
    batch = batch_of(
        {"logp": [-1.0], "source": "demo", "group": "a"},
        {"logp": [], "source": "rollout", "group": "a"},
        {"logp": [-1.0], "source": "demo", "group": "b"},
        {"logp": [-1.0], "source": "rollout", "group": "c"},
    )
    assert beside_rollouts(batch).tolist() == [True, True, False, True]
    left = leave_out(batch, torch.tensor([False, False, False, True]))
    assert beside_rollouts(left).tolist() == [True, True, False, False]


def test_top_threshold_is_the_smallest_value_of_the_share() -> None:
    values = torch.tensor([0.1, 2.0, 0.5, 1.5, 0.05], dtype=torch.float64)
    assert top_threshold(values, 0.4) == 1.5
    assert top_threshold(values, 0.41) == 0.5  # ceil(2.05) = 3
    assert top_threshold(values, 1) == 0.05
    assert top_threshold(values, 0) == math.inf
    assert top_threshold(values[:0], 0.5) == math.inf
    assert at_least(values, 1.5).tolist() == [False, True, False, True, False]


def test_top_share_of_each_row_keeps_ties_and_empty_rows_keep_nothing() -> None:
    # Rows (3, 2, 2), none and (1, 4); share 0.5: ceil(1.5) = 2 with the tie, and 1 of 2.
    values = torch.tensor([3.0, 2, 2, 1, 4], dtype=torch.float64)
    row = torch.tensor([0, 0, 0, 2, 2])
    assert top_share_of_rows(values, row, 3, 0.5).tolist() == [True, True, True, False, True]
    assert top_share_of_rows(values, row, 3, 0.3).tolist() == [True, False, False, False, True]
    assert not top_share_of_rows(values, row, 3, 0).any()
    assert top_share_of_rows(values, row, 3, 1).all()
    pooled = TOP_SHARES["step"](values, row, 3, 0.2)
    assert pooled.tolist() == [False, False, False, False, True]


def test_gates_at_and_around_their_threshold() -> None:
    values = torch.tensor([1.0, 1.0 + 2 * math.log(3), 0.5], dtype=torch.float64)
    assert hard_gate(values, 1.0).tolist() == [1, 1, 0]
    # sigmoid(0), sigmoid(ln 3) = 3/4, sigmoid(-1/4)
    expected = [0.5, 0.75, 1 / (1 + math.exp(0.25))]
    assert soft_gate(values, 1.0, 2.0).tolist() == pytest.approx(expected)
    assert soft_gate(values, math.inf, 2.0).tolist() == [0, 0, 0]
