"""C-RLFT: an expert row of 2 tokens with loss 1 and a weak row of 3 tokens with loss 2."""

import math

import pytest

from interlace import explain
from tests.methods.batches import assert_same_rule, coefficients, random_rows, row
from tests.methods.fixtures import near


def expert(**extra):
    return row("demo", [math.exp(-1)] * 2, extra=extra)


def weak(**extra):
    return row("demo", [math.exp(-2)] * 3, extra=extra)


def test_the_divisor_is_the_sum_of_the_weights():
    out = explain("c_rlft", [expert(class_weight=1.0), weak(class_weight=0.1)])
    assert out["loss"] == pytest.approx(1.13043, abs=5e-6)  # (2 + .6) / (2 + .3)
    assert out["terms"] == [
        {"name": "sft", "coefficient": 1, "denominator": "weights", "n": pytest.approx(2.3)}
    ]
    assert coefficients(out)[0] == near(1 / 2.3, 1 / 2.3)
    assert coefficients(out)[1] == near(*[0.1 / 2.3] * 3)


def test_only_relative_weights_matter():
    once = explain("c_rlft", [expert(class_weight=1.0), weak(class_weight=0.1)])
    often = explain("c_rlft", [expert(class_weight=70), weak(class_weight=7)])
    assert often["loss"] == pytest.approx(once["loss"])
    assert coefficients(often)[1] == pytest.approx(coefficients(once)[1])


def test_sequence_level_counts_every_row_by_its_class_alone():
    out = explain("c_rlft", [expert(class_weight=1.0), weak(class_weight=0.1)], level="sequence")
    assert out["loss"] == pytest.approx(1.09091, abs=5e-6)  # (1 + .2) / (1 + .1)
    assert out["terms"][0]["n"] == pytest.approx(1.1)
    assert coefficients(out)[0] == near(0.5 / 1.1, 0.5 / 1.1)
    assert coefficients(out)[1] == near(*[0.1 / 3 / 1.1] * 3)


def test_weights_from_class_rewards():
    # beta .5: e^(1 / .5) and e^(.5 / .5)
    rows = [expert(class_reward=1.0, class_weight=9.0), weak(class_reward=0.5)]
    out = explain("c_rlft", rows, beta=0.5)
    e1, e2 = math.exp(1), math.exp(2)
    assert out["terms"][0]["n"] == pytest.approx(2 * e2 + 3 * e1)
    assert out["loss"] == pytest.approx((2 * e2 + 6 * e1) / (2 * e2 + 3 * e1))


def test_a_class_of_weight_zero_contributes_nothing():
    out = explain("c_rlft", [expert(), weak(class_weight=0)])
    assert (out["loss"], out["terms"][0]["n"]) == (pytest.approx(1.0), 2)
    assert coefficients(out)[1] == [0, 0, 0]
    nothing = explain("c_rlft", [weak(class_weight=0)])
    assert (nothing["loss"], coefficients(nothing)) == (0, [[0, 0, 0]])


def test_a_step_of_weak_rows_only_is_as_large_as_one_of_experts():
    assert coefficients(explain("c_rlft", [weak(class_weight=0.1)]))[0] == near(*[1 / 3] * 3)


def test_without_classes_it_is_sft():
    def classless(seed):
        return [{**r, "extra": {}} for r in random_rows(seed)]

    assert_same_rule(("c_rlft", {}), ("sft", {}), make=classless)


def test_other_rows_need_no_class():
    rows = [expert(class_reward=1.0), row("rollout", [0.5], 1.0), row("demo", [0.5], verdict="unscorable")]
    assert explain("c_rlft", [*rows, row("demo", [])], beta=1)["loss"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("extra", "options", "message"),
    [
        ({}, {"beta": 1}, r"row 1: 'extra\.class_reward' is needed; accepted is a finite number"),
        ({"class_weight": -1}, {}, r"row 1: 'extra\.class_weight'=-1: accepted is a finite number >= 0"),
        ({"class_weight": "1"}, {}, r"row 1: 'extra\.class_weight'='1': accepted"),
        ({"class_weight": math.nan}, {}, r"row 1: 'extra\.class_weight'=nan: accepted"),
        ({"class_reward": 1}, {"beta": 0.001}, r"row 1: 'extra\.class_reward'=1: accepted .* <= 0\.7"),
    ],
)
def test_impossible_classes_name_row_and_key(extra, options, message):
    with pytest.raises(ValueError, match=message):
        explain("c_rlft", [expert(class_reward=0.1), weak(**extra)], **options)


@pytest.mark.parametrize("beta", [0, -1])
def test_beta_is_positive(beta):
    with pytest.raises(ValueError, match="c_rlft: beta="):
        explain("c_rlft", [], beta=beta)
