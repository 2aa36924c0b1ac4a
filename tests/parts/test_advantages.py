"""Advantages of three rows, and of three tokens, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from interlace.parts.advantages import (
    dense_leave_one_out,
    dense_normalised,
    generalised_advantage,
    group_centred,
    group_mean,
    group_normalised,
    group_range,
    leave_one_out,
    prefix_aware,
    reward_to_go,
    share_below,
    smoothed_labels,
    smoothed_share,
    standard_deviation,
    whiten,
)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


ONE_RIGHT = numbers(1, 0, 0)
SAME = torch.tensor([0, 0, 0])
ALL = torch.ones(3, dtype=torch.bool)


def test_standard_deviation_of_one_right_of_three() -> None:
    # deviations (2/3, -1/3, -1/3), squares sum to 2/3
    assert float(standard_deviation(ONE_RIGHT)) == pytest.approx(math.sqrt(1 / 3))
    assert float(standard_deviation(ONE_RIGHT, correction=0)) == pytest.approx(math.sqrt(2 / 9))


def test_standard_deviation_without_spread_is_exactly_zero() -> None:
    assert float(standard_deviation(numbers(0.1, 0.1, 0.1))) == 0
    assert float(standard_deviation(numbers(3))) == 0
    assert float(standard_deviation(numbers())) == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1.154699, -0.577349, -0.577349]),  # 2/3 over sqrt(1/3) + 1e-6
        ({"eps": 1e-4}, [1.154500, -0.577250, -0.577250]),
        ({"std": False}, [2 / 3, -1 / 3, -1 / 3]),
        ({"correction": 0, "eps": 0}, [math.sqrt(2), -math.sqrt(0.5), -math.sqrt(0.5)]),
        ({"scope": "step"}, [1.154699, -0.577349, -0.577349]),
    ],
)
def test_group_normalised(options: dict[str, float], expected: list[float]) -> None:
    a = group_normalised(ONE_RIGHT, SAME, ALL, **options)  # type: ignore[arg-type]
    assert a.tolist() == pytest.approx(expected, abs=1e-6)


def test_step_scope_takes_the_deviation_of_all_rewards_and_keeps_group_means() -> None:
    # groups (2, 0) and (5, 5): all of (2, 0, 5, 5): mean 3, squares 1 + 9 + 4 + 4 = 18, variance 6
    reward, group = numbers(2, 0, 5, 5), torch.tensor([0, 0, 1, 1])
    a = group_normalised(reward, group, torch.ones(4, dtype=torch.bool), eps=0, scope="step")
    assert a.tolist() == pytest.approx([1 / math.sqrt(6), -1 / math.sqrt(6), 0, 0])


def test_groups_go_by_id_wherever_their_rows_stand() -> None:
    a = group_centred(numbers(1, 10, 3, 20), torch.tensor([0, 1, 0, 1]), torch.ones(4, dtype=torch.bool))
    assert a.tolist() == [-1, -5, 1, 5]


def test_rows_that_are_not_counted_leave_the_statistics_but_get_their_value() -> None:
    counted = torch.tensor([True, True, False])
    assert group_centred(numbers(1, 0, 7), SAME, counted).tolist() == [0.5, -0.5, 6.5]


def test_rows_without_reward_get_zero() -> None:
    counted = torch.tensor([True, True, False])
    assert group_centred(numbers(1, 0, math.nan), SAME, counted).tolist() == [0.5, -0.5, 0]


@pytest.mark.parametrize("rule", [group_normalised, leave_one_out, group_centred])
def test_equal_rewards_give_exactly_zero(rule: object) -> None:
    # the mean of three times 0.1 is not 0.1 in floating point
    assert rule(numbers(0.1, 0.1, 0.1), SAME, ALL).tolist() == [0, 0, 0]  # type: ignore[operator]


@pytest.mark.parametrize("rule", [group_normalised, leave_one_out, group_centred])
def test_fewer_than_two_counted_rewards_give_zero(rule: object) -> None:
    one = torch.tensor([True, False, False])
    assert rule(ONE_RIGHT, SAME, one).tolist() == [0, 0, 0]  # type: ignore[operator]
    assert rule(ONE_RIGHT, torch.tensor([0, 1, 2]), ALL).tolist() == [0, 0, 0]  # type: ignore[operator]


def test_leave_one_out_is_the_distance_to_the_mean_of_the_others() -> None:
    assert leave_one_out(ONE_RIGHT, SAME, ALL).tolist() == pytest.approx([1, -0.5, -0.5])


def test_whitened_tokens_have_zero_mean_and_the_eps_added_to_the_deviation() -> None:
    # three ones and three zeros: mean 1/2, variance 6 * 0.25 / 5 = 0.3
    expected = 0.5 / (math.sqrt(0.3) + 1e-6)
    assert whiten(numbers(1, 1, 1, 0, 0, 0)).tolist() == pytest.approx([expected] * 3 + [-expected] * 3)
    assert expected == pytest.approx(0.912869, abs=5e-7)


def test_whitening_fewer_than_two_tokens_or_equal_ones_gives_zero() -> None:
    assert whiten(numbers()).tolist() == []
    assert whiten(numbers(3)).tolist() == [0]
    assert whiten(numbers(0.1, 0.1, 0.1)).tolist() == [0, 0, 0]


def test_return_to_go_discounts_the_reward_of_the_last_token() -> None:
    row, none = torch.tensor([0, 0, 0]), torch.zeros(3, dtype=torch.float64)
    assert reward_to_go(numbers(1), none, row, 0.9).tolist() == pytest.approx([0.81, 0.9, 1])


def test_return_to_go_adds_penalties_where_they_fall() -> None:
    # rows of 2 and 1 tokens, gamma 1/2: last tokens 4 - 1 = 3 and -2 + 5 = 3, first 1 + 3/2
    a = reward_to_go(numbers(4, -2), numbers(1, -1, 5), torch.tensor([0, 0, 1]), 0.5)
    assert a.tolist() == [2.5, 3, 3]


def test_generalised_advantage_of_three_tokens() -> None:
    # delta = (0 + .5 - .2, 0 + .7 - .5, 1 - .7) = (.3, .2, .3); A = .3, .2 + .95 * .3, .3 + .95 * .485
    row, none = torch.tensor([0, 0, 0]), torch.zeros(3, dtype=torch.float64)
    values = numbers(0.2, 0.5, 0.7)
    a = generalised_advantage(numbers(1), none, values, row, 1.0, 0.95)
    assert a.tolist() == pytest.approx([0.76075, 0.485, 0.3])
    assert (a + values).tolist() == pytest.approx([0.96075, 0.985, 1.0])
    assert whiten(a).tolist() == pytest.approx([1.058825, -0.130466, -0.928359], abs=5e-7)


@pytest.mark.parametrize(("gae_lambda", "expected"), [(1.0, [1, 1, 1]), (0.0, [0, 0, 1])])
def test_generalised_advantage_without_a_critic(gae_lambda: float, expected: list[float]) -> None:
    row, none = torch.tensor([0, 0, 0]), torch.zeros(3, dtype=torch.float64)
    assert generalised_advantage(numbers(1), none, none, row, 1.0, gae_lambda).tolist() == expected


def test_value_after_the_last_token_is_zero_in_every_row() -> None:
    # gamma 1, lambda 0, rows of 2 and 1: delta = (3 - 2, 10 - 3, 20 - 7)
    row, none = torch.tensor([0, 0, 1]), torch.zeros(3, dtype=torch.float64)
    a = generalised_advantage(numbers(10, 20), none, numbers(2, 3, 7), row, 1.0, 0.0)
    assert a.tolist() == [1, 7, 13]


def test_range_and_mean_of_the_counted_rewards_of_each_group() -> None:
    reward, group = numbers(3, 1, 7, 5), torch.tensor([1, 1, 1, 0])
    counted = torch.tensor([True, True, False, False])
    low, high = group_range(reward, group, counted)
    assert low.tolist() == [1, 1, 1, math.inf] and high.tolist() == [3, 3, 3, -math.inf]
    mean = group_mean(reward, group, counted).tolist()
    assert mean[:3] == [2, 2, 2] and math.isnan(mean[3])


def test_mean_of_equal_rewards_is_exact() -> None:
    # 0.1 * 3 / 3 is 0.10000000000000002 in floating point
    assert group_mean(numbers(0.1, 0.1, 0.1), SAME, ALL).tolist() == [0.1] * 3


def test_prefix_aware_advantages() -> None:
    reward, group = numbers(1, 0, 1, 0, 1), torch.tensor([0, 0, 0, 0, 1])
    prefixed = torch.tensor([False, False, True, True, True])
    prefix, sampled = prefix_aware(reward, group, prefixed, torch.ones(5, dtype=torch.bool))
    # Pure mean 0.5; the two continuations around 0.5; the lone one of group 1 has no pure rows.
    assert prefix.tolist() == [0.5, -0.5, 0.5, -0.5, 0.0]
    assert sampled.tolist() == [0.5, -0.5, 0.5, -0.5, 1.0]


def test_label_that_a_rollout_reaches_takes_the_mean_of_the_rollouts() -> None:
    label = torch.tensor([False, False, True, True])
    got = smoothed_labels(numbers(1, 0, 1, 2), torch.zeros(4, dtype=torch.int64), label, ~label)
    assert got.tolist() == [1, 0, 0.5, 2]


def test_label_without_rollouts_keeps_its_reward() -> None:
    label = torch.tensor([True])
    assert smoothed_labels(numbers(1), torch.tensor([0]), label, ~label).tolist() == [1]


DENSE_ROW = torch.tensor([0, 0, 1, 1, 3])
DENSE = torch.tensor([1.0, 2, 0, 1, 8], dtype=torch.float64)
LAST = torch.tensor([2.0, 1, 0, 8], dtype=torch.float64)
"""Rows of 2, 2, 0 and 1 token rewards; the empty row 2 is not counted, row 3 has a group of its own."""
DENSE_GROUP = torch.tensor([0, 0, 0, 1])
DENSE_COUNTED = torch.tensor([True, True, False, True])


def test_dense_rewards_are_normalised_by_the_last_ones_of_the_group() -> None:
    # Last 2 and 1: mean 1.5, deviation sqrt(1/2) = 0.70711.
    a = dense_normalised(DENSE, DENSE_ROW, LAST, DENSE_GROUP, DENSE_COUNTED, eps=1e-4)
    assert a.tolist() == pytest.approx([-0.7070, 0.7070, -2.1210, -0.7070, 0], abs=5e-5)


def test_dense_rewards_against_the_last_ones_of_the_others() -> None:
    a = dense_leave_one_out(DENSE, DENSE_ROW, LAST, DENSE_GROUP, DENSE_COUNTED)
    assert a.tolist() == [0, 1, -2, -1, 0]


def test_equal_last_rewards_silence_inner_tokens() -> None:
    last = torch.ones(4, dtype=torch.float64)
    assert not dense_normalised(DENSE, DENSE_ROW, last, DENSE_GROUP, DENSE_COUNTED, eps=0).any()
    assert not dense_leave_one_out(DENSE, DENSE_ROW, last, DENSE_GROUP, DENSE_COUNTED).any()


def test_share_below_is_the_smoothed_rank_of_counted_rows() -> None:
    reward = torch.tensor([0.0, 1, 1, 3, 5, 2], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 0, 0, 1])
    counted = torch.tensor([True, True, True, True, False, True])
    # M = 4: 0, 1, 1, 3 rows below; the row that is not counted stands above all 4; alone M = 1.
    assert share_below(reward, group, counted).tolist() == [0.2, 0.4, 0.4, 0.8, 1.0, 0.5]


def test_share_of_hits_by_the_rule_of_succession() -> None:
    hit = torch.tensor([True, False, False, True, False])
    counted = torch.tensor([True, True, True, False, True])
    group = torch.tensor([0, 0, 0, 0, 1])
    assert smoothed_share(hit, group, counted).tolist() == [0.4, 0.4, 0.4, 0.4, 1 / 3]
