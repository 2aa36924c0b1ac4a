import math
from functools import partial

import pytest

from interlace import explain
from tests.methods.batches import (
    advantages,
    assert_gradient,
    assert_same_rule,
    coefficients,
    random_rows,
    row,
)

P = (0.9, 0.1, 0.01)
GROUP = [
    row("rollout", [0.5], 1.0),
    row("rollout", [0.5], 0.0),
    row("rollout", [0.5], 0.0),
    row("demo", P, 1.0),
]
# Mean of (1, 0, 0, 1) is 0.5, so A = +-0.5 without std.


def demo_coefficients(rows=GROUP, **given):
    """Of the last row, times the six tokens of the denominator."""
    result = explain("luffy", rows, std=False, **given)
    assert result["terms"][0]["n"] == 6
    return [6 * c for c in coefficients(result)[-1]]


def test_demonstration_coefficient_is_a_gamma_p_over_p_plus_gamma_squared():
    # 0.5 * 0.1 * (0.9 / 1.0^2, 0.1 / 0.2^2, 0.01 / 0.11^2)
    assert demo_coefficients() == pytest.approx([0.045, 0.125, 0.0005 / 0.0121], rel=1e-12)


def test_rollouts_and_demonstration_share_one_term():
    result = explain("luffy", GROUP, std=False)
    assert [6 * c for (c,) in coefficients(result)[:3]] == pytest.approx([0.5, -0.5, -0.5])
    # Rollouts: -(0.5 - 0.5 - 0.5); demonstration: -0.5 (0.9 + 0.5 + 0.01 / 0.11) = -0.745455.
    assert result["loss"] == pytest.approx((0.5 - 0.5 * (0.9 + 0.5 + 1 / 11)) / 6)
    assert result["terms"] == [{"name": "policy", "coefficient": 1.0, "denominator": "tokens", "n": 6.0}]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("identity", [0.45, 0.05, 0.005]),  # A p
        ("sqrt", [0.25 * math.sqrt(p) for p in P]),  # A sqrt(p) / 2
        ("log", [0.5, 0.5, 0.5]),  # A
    ],
)
def test_shapes_of_the_demonstration_loss(shape, expected):
    assert demo_coefficients(shape=shape) == pytest.approx(expected, rel=1e-12)


def test_teacher_shape_divides_by_the_stored_probability():
    teacher = (0.5, 0.2, 0.01)
    rows = [*GROUP[:3], row("demo", P, 1.0, behaviour_logp=[math.log(q) for q in teacher])]
    expected = [0.5 * p / (q + 1e-6) for p, q in zip(P, teacher, strict=True)]
    assert demo_coefficients(rows, shape="teacher") == pytest.approx(expected, rel=1e-12)


def test_teacher_shape_needs_behaviour_logp():
    with pytest.raises(ValueError, match="row 3: 'behaviour_logp' is needed"):
        explain("luffy", GROUP, shape="teacher")


@pytest.mark.parametrize("k", [2.0, 7.5])
def test_coefficient_is_symmetric_around_gamma_on_a_log_scale(k):
    rows = [*GROUP[:3], row("demo", [0.1 * k, 0.1 / k, 0.1], 1.0)]
    up, down, peak = demo_coefficients(rows)
    assert up == pytest.approx(down, rel=1e-12)
    assert peak == pytest.approx(0.5 / 4) and peak > up


def test_gamma_moves_the_peak():
    # 0.5 * 0.3 * (0.9 / 1.2^2, 0.1 / 0.4^2, 0.01 / 0.31^2)
    expected = [0.15 * 0.9 / 1.44, 0.15 * 0.1 / 0.16, 0.15 * 0.01 / 0.0961]
    assert demo_coefficients(gamma=0.3) == pytest.approx(expected, rel=1e-12)


def test_default_divides_by_the_deviation_of_the_mixed_group():
    # Bessel-corrected variance of (1, 0, 0, 1): 4 * 0.25 / 3.
    a = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert [x[0] for x in advantages(explain("luffy", GROUP))] == pytest.approx([a, -a, -a, a], rel=1e-12)


def test_wrong_demonstration_is_pushed_down():
    rows = [row("rollout", [0.5], 1.0), row("demo", [0.1], 0.0)]
    # A = -0.5, coefficient -0.5 / 4, two tokens.
    assert coefficients(explain("luffy", rows, std=False))[1] == pytest.approx([-0.0625])


def test_equal_rewards_give_exactly_nothing():
    result = explain("luffy", [row("rollout", [0.3], 1.0), row("demo", P, 1.0)])
    assert coefficients(result) == [[0.0], [0.0, 0.0, 0.0]]


def test_only_rollouts_are_clipped_and_the_code_variant_does_not_clip():
    old = {"old_logp": [math.log(0.2)]}  # ratio 0.5 / 0.2 = 2.5 > 1.2
    rows = [row("rollout", [0.5], 1.0, **old), row("rollout", [0.5], 0.0), row("demo", [0.5], 0.0, **old)]
    # Mean 1/3: A = (2/3, -1/3, -1/3); the demonstration's f ignores old_logp: 0.1 * 0.5 / 0.36.
    paper = coefficients(explain("luffy", rows, std=False, denominator="length", max_length=2))
    code = coefficients(explain("luffy", rows, variant="code", max_length=2))
    assert [6 * c for (c,) in paper] == pytest.approx([0.0, -1 / 3, -0.05 / 0.36 / 3])
    assert [6 * c for (c,) in code] == pytest.approx([2.5 * 2 / 3, -1 / 3, -0.05 / 0.36 / 3])
    assert explain("luffy", rows, variant="code", max_length=2)["terms"][0]["n"] == 6.0  # 3 rows x 2


def test_prefix_tokens_count_as_demonstration():
    mixed = row(["prefix", "rollout"], [0.1, 0.5], 1.0)
    result = explain("luffy", [mixed, row("rollout", [0.5], 0.0)], std=False)
    # A = +-0.5, three tokens: prefix 0.5 / 4, rollout 0.5.
    assert coefficients(result)[0] == pytest.approx([0.125 / 3, 0.5 / 3])


def test_demonstration_without_reward_has_no_term_and_warns():
    rows = [row("rollout", [0.5], 1.0), row("rollout", [0.5], 0.0), row("demo", P)]
    with pytest.warns(UserWarning, match="row 2: a demonstration without 'reward'"):
        result = explain("luffy", rows, std=False)
    assert coefficients(result) == [[0.25], [-0.25], [0.0, 0.0, 0.0]]
    assert result["terms"][0]["n"] == 2


@pytest.mark.parametrize("shape", ["shaped", "identity", "sqrt", "log", "teacher"])
def test_shape_is_differentiated(shape):
    rows = [{**r, "old_logp": [x - 0.05 for x in r["logp"]]} for r in random_rows(3, groups=3)]
    assert_gradient("luffy", [r for r in rows if r["reward"] is not None], shape=shape, variant="code")


def test_code_variant_without_demonstrations_is_dr_grpo_without_clip():
    assert_same_rule(
        ("luffy", {"variant": "code"}),
        ("dr_grpo", {"clip_low": None, "clip_high": None}),
        partial(random_rows, demos=False, prefixes=False),
    )


@pytest.mark.parametrize("bad", [{"gamma": 0}, {"shape": "cubic"}, {"entropy_bonus": -1}, {"gama": 0.1}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="luffy: "):
        explain("luffy", GROUP, **bad)
