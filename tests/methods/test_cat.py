import math

import pytest

from interlace import explain
from tests.methods.batches import assert_gradient, assert_same_rule, coefficients, random_rows, row


def weight(p, reward=(1.0, 0.0), **given):
    """w of a right rollout of one token of probability p: A = 1/2 over 2 rows, so 4 times its coefficient."""
    rows = [row("rollout", [p], reward[0]), row("rollout", [0.5], reward[1])]
    result = explain("cat", rows, **{"std": False, "kl": 0, **given})
    return coefficients(result)[0][0] * 4


@pytest.mark.parametrize(
    ("p", "given", "success", "elasticity", "slope"),
    [
        (0.25, {"n": 4}, 0.68359, 0.61714, 1.6875),
        (0.5, {"operator": "majority", "n": 3, "k": 2}, 0.5, 1.5, 1.5),
        (0.25, {"operator": "majority", "n": 8, "k": 3}, 0.32146, 1.93782, 2.49170),
    ],
)
def test_weights_of_the_operators(p, given, success, elasticity, slope):
    result = explain("cat", [row("demo", [p])], stage="sft", **given)
    assert result["loss"] == pytest.approx(-math.log(success), abs=2e-5)
    assert coefficients(result)[0] == pytest.approx([elasticity], abs=5e-6)
    assert weight(p, **given) == pytest.approx(slope, abs=5e-6)
    assert weight(p, form="log", **given) == pytest.approx(elasticity, abs=5e-6)


def test_threshold_is_the_majority_unless_given():
    # n = 4: k = 3. B = 4 p^3 (1-p) + p^4 = 5/16 at p = 1/2, dB/dp = 3 * 4 * (1/4) * (1/2).
    assert weight(0.5, operator="majority", n=4) == pytest.approx(1.5)
    assert weight(0.5, operator="majority", n=4, k=3) == pytest.approx(1.5)
    result = explain("cat", [row("demo", [0.5])], stage="sft", operator="majority", n=4)
    assert result["loss"] == pytest.approx(math.log(16 / 5))


def test_p_is_the_probability_of_the_whole_row():
    # p = 0.5 * 0.5, the same weight on both tokens, a mean over rows and not over tokens.
    result = explain("cat", [row("demo", [0.5, 0.5]), row("demo", [0.25])], stage="sft", n=4)
    assert coefficients(result) == [
        pytest.approx([0.61714 / 2] * 2, abs=5e-6),
        pytest.approx([0.30857], abs=5e-6),
    ]
    assert (result["terms"][0]["denominator"], result["terms"][0]["n"]) == ("sequences", 2)
    rows = [row("rollout", [0.5, 0.5], 1.0), row("rollout", [0.5], 0.0)]
    shown = explain("cat", rows, std=False, kl=0, n=4)
    assert coefficients(shown)[0] == pytest.approx([1.6875 / 4] * 2)


def test_all_of_n_must_succeed_at_k_equal_n():
    result = explain("cat", [row("demo", [0.5])], stage="sft", operator="majority", n=5, k=5)
    assert result["loss"] == pytest.approx(5 * math.log(2))
    assert coefficients(result)[0] == pytest.approx([5])


def test_best_of_n_weighs_by_the_rank_in_the_group():
    # Rewards 0, 1, 3, M = 3: q = 1/4, 2/4, 3/4; n q^3 = 1/16, 1/2, 27/16; A = R - 4/3; a mean over 3 rows.
    rows = [row("rollout", [0.5], r) for r in (0.0, 1.0, 3.0)]
    shown = coefficients(explain("cat", rows, operator="best_of", n=4, std=False, kl=0))
    expected = [-4 / 3 / 16 / 3, -1 / 3 / 2 / 3, 5 / 3 * 27 / 16 / 3]
    assert [c[0] for c in shown] == pytest.approx(expected)


def test_ties_share_the_rank_and_other_groups_do_not_count():
    # (1, 1, 0): one row below of M = 3, q = 2/4, w = 2 q = 1; A = 1/3, 1/3, -2/3 with q = 1/4, w = 1/2.
    rows = [row("rollout", [0.5], r) for r in (1.0, 1.0, 0.0)] + [row("rollout", [0.5], -9.0, group="b")]
    shown = coefficients(explain("cat", rows, operator="best_of", n=2, std=False, kl=0))
    assert [c[0] for c in shown] == pytest.approx([1 / 12, 1 / 12, -1 / 12, 0])


def test_success_of_the_group_is_smoothed_and_counts_empty_rows():
    # 1 of 4 correct, one of them empty: p = 2/6; n = 2: w = 2 (1 - 1/3) = 4/3; A = 3/4 over 3 rows.
    rows = [
        row("rollout", [0.9], 1.0),
        *(row("rollout", [0.5], 0.0) for _ in range(2)),
        row("rollout", [], 0.0),
    ]
    shown = coefficients(explain("cat", rows, n=2, success="group", std=False, kl=0))
    assert [c[0] for c in shown[:3]] == pytest.approx([1 / 3, -1 / 9, -1 / 9])


def test_weight_is_capped():
    assert weight(1e-9, n=64) == pytest.approx(50)
    assert weight(1e-9, n=64, w_max=10) == pytest.approx(10)
    assert weight(1e-9, n=64, w_max=100) == pytest.approx(64)


@pytest.mark.parametrize("given", [{}, {"form": "log"}, {"operator": "majority"}])
def test_a_certain_row_has_no_weight_and_no_nan(given):
    assert weight(1.0, **given) == 0
    result = explain("cat", [row("demo", [1.0, 1.0])], stage="sft", **given)
    assert (result["loss"], coefficients(result)) == (0, [[0, 0]])


def test_a_row_of_no_probability_has_the_limit_weights():
    rows = [{**row("demo", [1.0]), "logp": [-1000.0]}]
    result = explain("cat", rows, stage="sft", n=16)
    assert result["loss"] == pytest.approx(1000 - math.log(16))
    assert coefficients(result)[0] == pytest.approx([1])
    assert coefficients(explain("cat", rows, stage="sft", operator="majority", n=8, k=3))[0] == pytest.approx(
        [3]
    )


def test_advantage_is_standardised_by_default():
    # A = 1/2 over a deviation of sqrt(1/2), n = 1 has w = 1.
    assert weight(0.3, n=1, std=True) == pytest.approx(2 * 0.5 / (math.sqrt(0.5) + 1e-6))


def test_kl_is_a_token_mean_of_its_own_and_not_weighted():
    # k3 has gradient 1 - exp(-ln 2) = 1/2 on each of 3 tokens; A = 0.
    rows = [row("rollout", [0.5, 0.5], 1.0), row("rollout", [0.5], 1.0)]
    rows = [{**r, "ref_logp": [math.log(0.25)] * len(r["logp"])} for r in rows]
    result = explain("cat", rows)
    assert coefficients(result) == [pytest.approx([-0.05 / 6] * 2), pytest.approx([-0.05 / 6])]
    assert [(t["name"], t["coefficient"], t["denominator"], t["n"]) for t in result["terms"]] == [
        ("policy", 1, "sequences", 2), ("kl", 0.05, "tokens", 3),
    ]  # fmt: skip
    # k2 has gradient delta = ln 2.
    shown = coefficients(explain("cat", rows, kl=0.3, kl_estimator="k2"))
    assert shown[1] == pytest.approx([-0.1 * math.log(2)])


def test_reference_is_needed_with_the_kl():
    rows = [row("rollout", [0.5], 1.0)]
    explain("cat", rows, kl=0)
    with pytest.raises(ValueError, match="row 0: 'ref_logp' is needed"):
        explain("cat", rows)


@pytest.mark.parametrize(
    "given", [{}, {"operator": "majority"}, {"operator": "majority", "n": 5, "k": 4}, {"operator": "best_of"}]
)
def test_gradient_is_that_of_the_loss(given):
    assert_gradient("cat", random_rows(0, groups=3, rollouts=2, longest=3), stage="sft", **given)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_sample_is_sft_and_plain_rl(seed):
    # The row sums of the losses round differently, the gradients do not.
    rows = [{k: v for k, v in r.items() if k != "old_logp"} for r in random_rows(seed)]
    sft = explain("sft", rows, denominator="sequences")
    grpo = explain("grpo", rows, denominator="sequences")
    for operator in ("pass", "majority", "best_of"):
        shown = explain("cat", rows, stage="sft", n=1, operator=operator)
        assert coefficients(shown) == coefficients(sft)
        assert shown["loss"] == pytest.approx(sft["loss"], rel=1e-14)
        for success in ("sequence", "group"):
            given = {"n": 1, "kl": 0, "operator": operator, "success": success}
            assert coefficients(explain("cat", rows, **given)) == coefficients(grpo)


def test_best_of_in_stage_sft_uses_pass():
    assert_same_rule(("cat", {"stage": "sft", "operator": "best_of"}), ("cat", {"stage": "sft"}))


def test_stage_rl_is_the_default():
    assert explain("cat", random_rows(0)) == explain("cat", random_rows(0), stage="rl")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"operator": "best_of", "form": "log"}, "best_of has only the form 'raw'"),
        ({"n": 4, "k": 5}, "k=5"),
        ({"n": 0}, "n=0"),
        ({"operator": "median"}, "operator='median'"),
        ({"w_max": 0}, "w_max=0"),
        ({"success": "row"}, "success='row'"),
        ({"denominator": "tokens"}, "unknown parameter 'denominator'"),
    ],
)
def test_impossible_parameters_raise(bad, message):
    with pytest.raises(ValueError, match=f"cat: .*{message}"):
        explain("cat", [], **bad)
