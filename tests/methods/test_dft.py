"""DFT: numbers of three tokens with p = (.5, .1, .9)."""

import math

import pytest

from interlace import explain
from tests.methods.batches import coefficients, random_rows, row
from tests.methods.fixtures import first, near

P = (0.5, 0.1, 0.9)


def test_loss_is_the_mean_of_minus_p_log_p():
    # -p ln p = (.34657, .23026, .09482); the cross-entropy is 1.03370
    assert explain("dft", [row("demo", P)])["loss"] == pytest.approx(0.22389, abs=5e-6)
    assert explain("sft", [row("demo", P)])["loss"] == pytest.approx(1.03370, abs=5e-6)


def test_the_weight_is_detached_so_every_target_logit_rises():
    # d logp / d target logit = 1 - p; with p differentiated the middle one would be (1 + ln .1) .1 .9 < 0
    c = first(explain("dft", [row("demo", P)]))
    assert c == near(*[p / 3 for p in P])
    assert [x * (1 - p) for x, p in zip(c, P)] == near(0.25 / 3, 0.09 / 3, 0.09 / 3)


def test_certain_tokens_have_no_loss():
    assert explain("dft", [row("demo", (1.0, 1.0))])["loss"] == 0


def test_dividing_by_p_recovers_sft():
    rows = random_rows(3)
    for given, weighted, plain in zip(
        rows, coefficients(explain("dft", rows)), coefficients(explain("sft", rows))
    ):
        assert [c / math.exp(x) for c, x in zip(weighted, given["logp"])] == pytest.approx(plain)


@pytest.mark.parametrize(("level", "weight"), [("sequence", 0.045), ("geometric", 0.045 ** (1 / 3))])
def test_row_levels_give_every_token_of_a_row_one_weight(level, weight):
    out = explain("dft", [row("demo", P), row("demo", (0.2,))], level=level)
    assert coefficients(out)[0] == near(*[weight / 4] * 3)
    assert coefficients(out)[1] == near(0.2 / 4)


def test_row_levels_see_covered_tokens_only():
    # the hint's p = .3 is not in the product .5 * .4
    out = explain("dft", [row(["hint", "demo", "demo"], (0.3, 0.5, 0.4))], level="sequence")
    assert first(out) == near(0, 0.1, 0.1)


def test_denominator_and_levels_validate():
    assert explain("dft", [row("demo", P)], denominator="length", max_length=6)["terms"][0]["n"] == 6
    with pytest.raises(ValueError, match=r"level='row': .*'token', 'sequence' or 'geometric'"):
        explain("dft", [], level="row")
