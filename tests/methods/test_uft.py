import math
from functools import partial

import pytest

from interlace import explain
from interlace.rules.schedules import Cosine
from tests.methods.batches import assert_same_rule, coefficients, random_rows, row

P = (0.9, 0.1, 0.01)
HINTED = [row(["hint"] * 3 + ["rollout"], [*P, 0.5], r) for r in (1.0, 0.0)]


def test_hint_loss_is_the_coefficient_times_the_token_mean_of_its_nll():
    rows = [row(["hint"] * 3, P)]
    result = explain("uft", rows, variant="code", kl=0.0)
    # 0.001 (0.10536 + 2.30259 + 4.60517) / 3
    assert result["loss"] == pytest.approx(0.00233771, abs=5e-9)
    assert coefficients(result) == [pytest.approx([0.001 / 3] * 3)]


def test_paper_sums_over_the_row():
    result = explain("uft", HINTED, kl=0.0, std=False)
    # Hint: 0.001 over two rows. Continuation: A = +-0.5 over two rows.
    assert coefficients(result) == [
        pytest.approx([0.0005] * 3 + [0.25]),
        pytest.approx([0.0005] * 3 + [-0.25]),
    ]
    assert [(t["name"], t["denominator"], t["n"]) for t in result["terms"]] == [
        ("policy", "sequences", 2.0),
        ("hint", "sequences", 2.0),
    ]


def test_code_variant_takes_token_means():
    result = explain("uft", HINTED, variant="code", kl=0.0)
    assert [(t["denominator"], t["n"]) for t in result["terms"]] == [("tokens", 2.0), ("tokens", 6.0)]


def test_default_divides_by_the_deviation():
    # (1, 0): std sqrt(1/2).
    result = explain("uft", HINTED, kl=0.0)
    assert result["rows"][0]["advantage"] == pytest.approx([1.0] * 3 + [0.5 / (math.sqrt(0.5) + 1e-6)])


def test_equal_rewards_leave_the_hint_term():
    rows = [row(["hint", "rollout"], [0.1, 0.5], 1.0) for _ in range(2)]
    assert coefficients(explain("uft", rows, kl=0.0, hint_coef=0.1)) == [pytest.approx([0.05, 0.0])] * 2


def test_kl_acts_on_the_continuation_alone():
    delta = math.log(2)
    rows = [row(["hint", "rollout"], [0.1, 0.5], 1.0, ref_logp=[None, math.log(0.5) - delta])]
    result = explain("uft", rows, kl=0.02, hint_coef=0.0)
    # k3 = e^-delta - 1 + delta, d/dlogp = 1 - e^-delta = 0.5; one row, a lone reward gives A = 0.
    assert coefficients(result) == [pytest.approx([0.0, -0.02 * 0.5])]
    assert result["loss"] == pytest.approx(0.02 * (0.5 - 1 + delta))


def test_default_kl_needs_the_reference():
    with pytest.raises(ValueError, match="row 0: 'ref_logp' is needed"):
        explain("uft", HINTED)


def test_rollout_without_reward_leaves_both_terms():
    result = explain("uft", [*HINTED, row(["hint", "rollout"], [0.5, 0.5])], kl=0.0)
    assert [t["n"] for t in result["terms"]] == [2.0, 2.0]
    assert coefficients(result)[2] == [0.0, 0.0]


def test_mean_share_of_the_hint_falls_by_half_a_cosine():
    share = Cosine(0.95, 0.05, 0, 300)
    # 0.05 + 0.45 (1 + cos(pi t / 300))
    assert [share(t) for t in (0, 75, 150, 225, 300)] == pytest.approx(
        [0.95, 0.818198, 0.5, 0.181802, 0.05], abs=1e-6
    )


def test_without_hints_it_is_grpo_over_sequences():
    assert_same_rule(
        ("uft", {}),
        ("grpo", {"denominator": "sequences", "kl": 0.001}),
        partial(random_rows, hints=False),
    )


@pytest.mark.parametrize("bad", [{"p_low": 0.9, "p_high": 0.5}, {"buckets": 0}, {"hint_steps": -1}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="uft: "):
        explain("uft", HINTED, **bad)
