"""IFT: numbers of a row with losses (1, 2, 3) and gamma 1/2."""

import math

import pytest

from interlace import explain
from tests.methods.batches import assert_gradient, assert_same_rule, random_rows, row
from tests.methods.fixtures import first, near

ROW = row("demo", [math.exp(-x) for x in (1, 2, 3)])
"""c = (2.75, 3.5, 3), w = c * 3 / 9.25 = (.89189, 1.13514, .97297)."""


def test_loss_of_propagated_errors():
    out = explain("ift", [ROW], gamma=0.5)
    assert out["loss"] == pytest.approx(2.02703, abs=5e-6)
    assert out["terms"][0]["denominator"] == "sequence_means"


@pytest.mark.parametrize(
    ("detach", "coefficients"),
    [(True, (0.29730, 0.37838, 0.32432)), (False, (0.18627, 0.31994, 0.40029))],
)
def test_the_gradient_goes_through_the_weights_unless_detached(detach, coefficients):
    out = explain("ift", [ROW], gamma=0.5, detach=detach)
    assert first(out) == near(*coefficients, abs=5e-6)


@pytest.mark.parametrize("detach", [True, False])
def test_paper_form_counts_places_from_one(detach):
    out = explain("ift", [ROW], weights="sum", detach=detach)
    assert out["loss"] == pytest.approx((1 * 1 + 2 * 2 + 3 * 3) / 3)
    assert first(out) == near(1 / 3, 2 / 3, 1)


def test_defaults_are_the_code_of_the_paper():
    # gamma .95: c = (1 + 1.9 + 2.7075, 2 + 2.85, 3) = (5.6075, 4.85, 3)
    c = (5.6075, 4.85, 3.0)
    assert explain("ift", [ROW])["loss"] == pytest.approx(sum(a * b for a, b in zip(c, (1, 2, 3))) / sum(c))
    assert_gradient("ift", [ROW])


def test_a_response_of_one_token_is_plain_likelihood():
    out = explain("ift", [row("demo", [0.2])], gamma=0.5)
    assert out["loss"] == pytest.approx(-math.log(0.2))
    assert first(out) == near(1)


def test_a_response_without_loss_is_guarded():
    out = explain("ift", [row("demo", [1.0, 1.0]), ROW], gamma=0.5)
    assert out["loss"] == pytest.approx(2.02703 / 2, abs=5e-6)
    assert first(out) == near(0.25, 0.25)


def test_gradient_on_rows_of_every_kind():
    assert_gradient(
        "ift",
        [r | {"old_logp": r["logp"]} for r in random_rows(2, groups=3, rollouts=1, longest=4)],
        denominator="tokens",
    )


def test_without_propagation_it_is_sft_with_a_mean_of_row_means():
    assert_same_rule(("ift", {"gamma": 0}), ("sft", {"denominator": "sequence_means"}))
    assert_same_rule(("ift", {"gamma": 0, "denominator": "tokens"}), ("sft", {}))


@pytest.mark.parametrize("mix", [0, 1, "linear:0,0.5,100", "cosine:0.5,0.1,10,100"])
def test_mixed_embeddings_are_of_training_only(mix):
    assert explain("ift", [ROW], mix=mix) == explain("ift", [ROW])


@pytest.mark.parametrize(
    "options", [{"mix": 1.5}, {"mix": "linear:0,2,10"}, {"gamma": 1.5}, {"weights": "left"}]
)
def test_impossible_parameters(options):
    with pytest.raises(ValueError, match=f"ift: {next(iter(options))}="):
        explain("ift", [], **options)
