"""MergeMix: mean log-probs -.5 after the clean and -1 after the mixed prompt, lambda .8."""

import math

import pytest

from interlace import explain
from interlace.methods import get
from tests.methods.batches import assert_gradient, coefficients, random_rows, row
from tests.methods.fixtures import near


def answer(role, *logp, mix=None, source="demo", **given):
    extra = {"role": role} | ({} if mix is None else {"mix_lambda": mix})
    return {**row(source, [1.0] * len(logp), extra=extra, **given), "logp": list(logp)}


PAIR = [answer("chosen", -0.4, -0.6), answer("rejected", -1.0, mix=0.8)]
slope = 1 / (1 + math.exp(0.3))
"""sigmoid(-z) of z = -.5 + 1 - (1 - .8) = .3: .42556."""


def test_half_of_the_likelihood_and_half_of_the_preference():
    out = explain("mergemix", PAIR)
    assert round(slope, 5) == 0.42556
    assert out["loss"] == pytest.approx((0.5 + 0.55436) / 2, abs=5e-6)
    assert out["terms"] == [
        {"name": "sft", "coefficient": 0.5, "denominator": "tokens", "n": 2.0},
        {"name": "rank", "coefficient": 0.5, "denominator": "pairs", "n": 1.0},
    ]
    assert coefficients(out)[0] == near(*[0.5 * (1 / 2 + slope / 2)] * 2)
    assert coefficients(out)[1] == near(-0.5 * slope)


@pytest.mark.parametrize("options", [{"variant": "code"}, {"detach_rejected": True}])
def test_in_the_code_only_the_chosen_side_has_a_gradient(options):
    out = explain("mergemix", PAIR, **options)
    assert out["loss"] == explain("mergemix", PAIR)["loss"]
    assert coefficients(out)[0] == coefficients(explain("mergemix", PAIR))[0]
    assert coefficients(out)[1] == [0]
    assert coefficients(explain("mergemix", PAIR, variant="code", detach_rejected="false"))[1] != [0]


@pytest.mark.parametrize(
    ("options", "z"),
    [({"margin": 0.2}, 0.3), ({"margin": 0}, 0.5), ({"margin": "none"}, 0.3), ({"beta": 2}, 0.6)],
)
def test_margin_and_beta(options, z):
    loss = explain("mergemix", PAIR, **options)["loss"]
    assert loss == pytest.approx((0.5 + math.log1p(math.exp(-z))) / 2)


def test_a_copy_of_the_prompt_asks_for_no_margin():
    same = [answer("chosen", -0.5), answer("rejected", -0.5, mix=1.0)]
    assert explain("mergemix", same)["loss"] == pytest.approx((0.5 + math.log(2)) / 2)


def test_equal_log_probabilities_leave_the_margin():
    same = [answer("chosen", -0.5), answer("rejected", -0.5, mix=0.4)]
    assert explain("mergemix", same)["loss"] == pytest.approx((0.5 + math.log1p(math.exp(0.6))) / 2)


def test_each_chosen_row_pairs_with_each_rejected_one_of_its_group():
    rows = [
        answer("chosen", -1.0),
        answer("rejected", -1.0, mix=1.0),
        answer("chosen", -1.0),
        answer("rejected", -1.0, mix=1.0),
        answer("rejected", -1.0, mix=1.0),
        answer("chosen", -1.0, group="b"),
        answer("rejected", -1.0, mix=1.0, group="b"),
        answer("rejected", -1.0, group="c"),  # alone: no pair, so no lambda is needed
    ]
    out = explain("mergemix", rows)
    assert out["terms"][1]["n"] == 6 + 1
    # every pair has slope 1/2: a chosen row of "a" is in 3 of 7 pairs, a rejected one in 2
    chosen = 0.5 * (1 / 3 + 3 / 7 / 2)
    other = 0.5 * (1 / 3 + 1 / 7 / 2)
    assert [c[0] for c in coefficients(out)] == near(
        chosen, -1 / 14, chosen, -1 / 14, -1 / 14, other, -1 / 28, 0
    )


def test_a_chosen_row_without_partner_is_still_imitated():
    out = explain("mergemix", PAIR[:1])
    assert out["terms"][1]["n"] == 0
    assert out["loss"] == 0.25
    assert coefficients(out) == [[0.25, 0.25]]


def test_empty_and_left_out_rows_are_in_no_pair():
    rows = [*PAIR, answer("rejected", mix=0.5), answer("rejected", -1.0, verdict="unscorable")]
    assert explain("mergemix", rows)["terms"] == explain("mergemix", PAIR)["terms"]


def test_rows_without_role_have_no_term():
    out = explain("mergemix", [*PAIR, row("demo", [0.5]), row("rollout", [0.5], 1.0)])
    assert coefficients(out)[2:] == [[0], [0]]


def test_gradient_on_rows_of_every_kind():
    rows = random_rows(1, groups=3, rollouts=2, longest=3)
    for i, r in enumerate(rows):
        r["extra"]["role"] = ("chosen", "rejected", None)[i % 3]
    assert explain("mergemix", rows)["terms"][1]["n"] > 3
    assert_gradient("mergemix", rows)
    assert_gradient("mergemix", rows, margin=0.1, beta=2.5, denominator="sequence_means")


def test_log_probabilities_are_read_at_temperature_one():
    assert all(term.at_temperature_one for term in get("mergemix")().terms)


@pytest.mark.parametrize(
    ("rejected", "message"),
    [
        (answer("rejected", -1.0), r"row 1: 'extra\.mix_lambda' is needed; accepted is a finite number >= 0"),
        (answer("rejected", -1.0, mix=1.5), r"row 1: 'extra\.mix_lambda'=1\.5: accepted .* <= 1"),
        (answer("reject", -1.0, mix=0.5), r"row 1: 'extra\.role'='reject'; did you mean 'rejected'\?"),
    ],
)
def test_impossible_rows_name_row_and_key(rejected, message):
    with pytest.raises(ValueError, match=message):
        explain("mergemix", [PAIR[0], rejected])


def test_a_given_margin_needs_no_lambda():
    assert explain("mergemix", [PAIR[0], answer("rejected", -1.0)], margin=0.2)["loss"] == pytest.approx(
        explain("mergemix", PAIR)["loss"]
    )


@pytest.mark.parametrize("options", [{"beta": 0}, {"margin": "wide"}, {"variant": "paper2"}])
def test_impossible_parameters(options):
    with pytest.raises(ValueError, match=f"mergemix: {next(iter(options))}="):
        explain("mergemix", [], **options)
