import math
from functools import partial

import pytest

from interlace import explain
from tests.methods.batches import advantages, assert_same_rule, coefficients, random_rows, row


def group(rewards, label=1.0):
    return [*(row("rollout", [0.5], r) for r in rewards), row("demo", [0.2, 0.4], label)]


def advantage(rewards, label=1.0, **given):
    return [a[0] for a in advantages(explain("visurf", group(rewards, label), **given))]


@pytest.mark.parametrize(
    ("rewards", "population", "default"),
    [
        # Mean 0.2, deviations (-0.2 x4, 0.8): variance 0.16 or 0.2.
        ((0, 0, 0, 0), [-0.5] * 4 + [2.0], [-0.4472] * 4 + [1.7889]),
        # A rollout reaches the label, whose reward becomes 0.25: its A is 0.
        ((1, 0, 0, 0), [1.9365] + [-0.6455] * 3 + [0.0], [1.7320] + [-0.5773] * 3 + [0.0]),
        # None reaches it: mean 0.3.
        ((0.5, 0, 0, 0), [0.5] + [-0.75] * 3 + [1.75], [0.4472] + [-0.6708] * 3 + [1.5652]),
    ],
)
def test_label_in_the_group_after_smoothing(rewards, population, default):
    assert advantage(rewards, std_correction=0) == pytest.approx(population, abs=1e-4)
    assert advantage(rewards) == pytest.approx(default, abs=1e-4)


def test_without_smoothing_the_label_keeps_a_positive_advantage():
    # (1, 0, 0, 0 | 1): mean 0.4, std sqrt(0.3).
    got = advantage((1, 0, 0, 0), smooth=False)
    assert got == pytest.approx(
        [0.6 / math.sqrt(0.3), *[-0.4 / math.sqrt(0.3)] * 3, 0.6 / math.sqrt(0.3)], rel=1e-5
    )


def test_smoothing_looks_at_valid_rollouts_of_the_label_s_own_group():
    rows = [
        *group((0, 0)),
        row("rollout", [0.5], 1.0, verdict="unscorable"),
        row("rollout", [0.5], 1.0, group="b"),
    ]
    # (0, 0 | 1) as it is: mean 1/3.
    result = explain("visurf", rows, std=False)
    assert advantages(result)[:3] == [
        pytest.approx([-1 / 3]),
        pytest.approx([-1 / 3]),
        pytest.approx([2 / 3] * 2),
    ]


def test_each_label_is_smoothed_by_itself():
    rows = [*group((0.5, 0.0), label=0.5), row("demo", [0.3], 1.0)]
    # The first becomes 0.25, the second stays 1: mean of (0.5, 0, 0.25, 1) is 0.4375.
    got = [a[0] for a in advantages(explain("visurf", rows, std=False))]
    assert got == pytest.approx([0.0625, -0.4375, -0.1875, 0.5625])


def test_every_row_weighs_the_same_whatever_its_length():
    result = explain("visurf", group((0, 0, 0, 0)), std=False)
    # A = (-0.2, 0.8) over five rows, the label's halved for its two tokens.
    assert coefficients(result) == [*[pytest.approx([-0.04])] * 4, pytest.approx([0.08, 0.08])]
    assert result["terms"] == [
        {"name": "policy", "coefficient": 1.0, "denominator": "sequence_means", "n": 5.0}
    ]


def test_label_is_clipped_against_its_own_old_probability():
    rows = group((0, 0))
    rows[-1]["old_logp"] = [math.log(0.1), math.log(0.4 / 1.1)]  # ratios 2 and 1.1
    # A = 2/3 over three rows and two tokens; the first token is beyond 1.2.
    assert coefficients(explain("visurf", rows, std=False))[-1] == pytest.approx([0.0, 1.1 * 2 / 3 / 3 / 2])


def test_label_without_reward_has_no_term_and_warns():
    with pytest.warns(UserWarning, match="row 2: a demonstration without 'reward'"):
        result = explain("visurf", group((1, 0), label=None), std=False)
    assert coefficients(result) == [[0.25], [-0.25], [0.0, 0.0]]


def test_equal_rewards_give_exactly_nothing():
    assert coefficients(explain("visurf", group((1, 1)))) == [[0.0], [0.0], [0.0, 0.0]]


def test_without_labels_it_is_grpo():
    assert_same_rule(("visurf", {}), ("grpo", {}), partial(random_rows, demos=False))


@pytest.mark.parametrize("bad", [{"kl": 0.1}, {"smooth": "maybe"}, {"denominator": "rows"}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="visurf: "):
        explain("visurf", group((1, 0)), **bad)
