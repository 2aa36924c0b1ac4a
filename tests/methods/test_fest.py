import math

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


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def shifted(source, p, by, reward=None, **given):
    """A row whose summed log-ratio to the reference is `by`, the same on each token."""
    r = row(source, p, reward, **given)
    return {**r, "ref_logp": [x - by / len(p) for x in r["logp"]]}


def one_pair():
    """r+ = 2, r- = -3; the only rollout is wrong and alone, so A = 0 and beta = beta1."""
    return [shifted("demo", [0.5, 0.2], 2.0), shifted("rollout", [0.1, 0.4, 0.5], -3.0, 0.0)]


@pytest.mark.parametrize(("beta", "omega"), [(0.01, 0.00487503), (0.1, 0.0377541)])
def test_weight_of_the_demonstration_decays_with_the_margin(beta, omega):
    # beta * sigmoid(beta (r- - r+)) = 0.01 * sigmoid(-0.05) and 0.1 * sigmoid(-0.5).
    result = explain("fest", one_pair(), beta1=beta)
    assert coefficients(result) == [pytest.approx([omega] * 2, rel=2e-6), [0, 0, 0]]
    assert result["loss"] == pytest.approx(-omega * math.log(0.1), rel=2e-6)  # log(0.5 * 0.2)
    assert [t["n"] for t in result["terms"]] == [0, 3, 1]  # no answer-only rollout; 1 row x 3 tokens; 1 pair


def test_dpo_moves_both_rows_of_a_pair_by_the_same_weight():
    result = explain("fest", one_pair(), form="dpo", beta1=0.01)
    omega = pytest.approx([0.00487503] * 2, abs=5e-9)
    assert coefficients(result)[0] == omega
    assert [-c for c in coefficients(result)[1][:2]] == omega
    assert result["loss"] == pytest.approx(-math.log(sigmoid(0.05)))
    assert advantages(result) == [[1, 1], [1, 1, 1]]


def test_weight_at_the_start_is_half_of_beta():
    rows = [shifted("demo", [0.5], 0.0), shifted("rollout", [0.5], 0.0, 0.0)]
    for form in ("grpo", "dpo"):
        assert coefficients(explain("fest", rows, form=form))[0] == [0.025]


def test_beta_follows_what_the_prompt_can_solve():
    # At r = 0 the weight is beta / 2: wrong beside a right one (beta2), right (beta3), mean over 2 pairs.
    rows = [shifted("demo", [0.5], 0.0), *(shifted("rollout", [0.5], 0.0, r) for r in (0.0, 1.0))]
    shown = explain("fest", rows, form="dpo", beta1=9, beta2=0.4, beta3=0.1)
    assert coefficients(shown) == [pytest.approx([0.125]), pytest.approx([-0.1]), pytest.approx([-0.025])]
    rows[2]["verdict"] = "fail"  # now none is correct, whatever the reward
    assert coefficients(explain("fest", rows, form="dpo", beta1=0.8))[0] == pytest.approx([0.4])


def test_the_three_terms_have_a_denominator_each():
    free = [row("rollout", [0.5], r, group="free") for r in (1.0, 0.0)]
    guided = [shifted("rollout", [0.5], 0.0, r, group="guided") for r in (1.0, 0.0, 0.0)]
    demo = shifted("demo", [0.5], 0.0, group="guided")
    result = explain("fest", [*free, *guided, demo], max_length=10, beta2=0.6, beta3=0.6)
    assert [(t["name"], t["denominator"], t["n"]) for t in result["terms"]] == [
        ("policy", "length", 20), ("policy_guided", "length", 30), ("pairs", "pairs", 3),
    ]  # fmt: skip
    # A = R - mean: 1/2, -1/2 over 20 and 2/3, -1/3, -1/3 over 30; the demonstration 0.6 / 2.
    expected = [0.5 / 20, -0.5 / 20, 2 / 90, -1 / 90, -1 / 90, 0.3]
    assert [c[0] for c in coefficients(result)] == pytest.approx(expected)
    assert advantages(result)[-1] == [1]


def test_dpo_has_no_policy_gradient_beside_a_demonstration():
    rows = [row("rollout", [0.5], r, group="free") for r in (1.0, 0.0)] + one_pair()
    result = explain("fest", rows, form="dpo")
    assert [t["name"] for t in result["terms"]] == ["policy", "pairs"]
    assert result["terms"][0]["n"] == 2 * 3


def test_sft_coef_scales_the_pairs_alone():
    rows = [*one_pair(), shifted("rollout", [0.5], 0.0, 1.0)]
    one, two = (coefficients(explain("fest", rows, sft_coef=c)) for c in (1, 2))
    assert two[0] == pytest.approx([2 * c for c in one[0]])
    assert two[1:] == one[1:]
    assert coefficients(explain("fest", rows, sft_coef=0))[0] == [0, 0]


def test_pairs_are_each_demonstration_with_each_valid_rollout_that_is_not_empty():
    rows = [
        *(shifted("demo", [0.5], 0.0) for _ in range(2)),
        *(shifted("rollout", [0.5], 0.0, 0.0) for _ in range(3)),
        row("rollout", [], 0.0),
        row("demo", []),
        row("rollout", [0.5]),
        row("rollout", [0.5], 0.0, verdict="unscorable"),
    ]
    assert explain("fest", rows)["terms"][-1]["n"] == 6


def test_demonstration_without_rollouts_has_no_pair_and_needs_no_reference():
    result = explain("fest", [row("demo", [0.5]), row("rollout", [0.5], 1.0, group="other")])
    assert (result["loss"], result["terms"][-1]["n"]) == (0, 0)


def small(seed):
    return random_rows(seed, groups=3, rollouts=2, longest=3)


@pytest.mark.parametrize("seed", [0, 1])
def test_dpo_gradient_is_that_of_its_loss(seed):
    rows = [{"old_logp": [x - 0.1 for x in r["logp"]], **r} for r in small(seed)]
    assert_gradient("fest", rows, form="dpo", beta1=0.5, beta2=0.3, beta3=0.2)


def test_without_demonstrations_it_is_dr_grpo():
    for form in ("grpo", "dpo"):
        assert_same_rule(("fest", {"form": form}), ("dr_grpo", {"clip_high": 0.28}),
                         lambda seed: random_rows(seed, demos=False))  # fmt: skip


def test_reference_is_needed_beside_demonstrations():
    rows = one_pair()
    del rows[1]["ref_logp"]
    with pytest.raises(ValueError, match="row 1: 'ref_logp' is needed"):
        explain("fest", rows)


@pytest.mark.parametrize("bad", [{"form": "ipo"}, {"beta2": -1}, {"sft_coef": -1}, {"kl": 0.1}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="fest: "):
        explain("fest", [], **bad)
