"""iw-SFT: numbers of three tokens with log-ratios (.2, -.1, .3)."""

import math

import pytest

from interlace import explain
from tests.methods.batches import assert_same_rule, coefficients, random_rows, row
from tests.methods.fixtures import first, near


def tilted(*deltas, **given):
    """A demonstration with logp -1 on every token and logp - ref_logp = deltas."""
    return row("demo", [math.exp(-1)] * len(deltas), ref_logp=[-1 - d for d in deltas], **given)


ROW = tilted(0.2, -0.1, 0.3)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [1.14263] * 3),  # exp(.4 / 3)
        ({"level": "mean", "kappa": 2}, [math.exp(0.8 / 3)] * 3),
        ({"level": "product"}, [1.49182] * 3),  # exp .4
        ({"level": "product", "kappa": 0.5}, [math.exp(0.2)] * 3),
        ({"level": "token"}, [1.2214, 0.9048, 1.3499]),
        ({"level": "token", "kappa": 2}, [1.2214, 0.9048, 1.3499]),  # kappa is of row levels
    ],
)
def test_weights_of_each_level(options, weights):
    out = explain("iw_sft", [ROW], **options)
    assert first(out) == pytest.approx([w / 3 for w in weights], abs=2e-5)
    assert out["loss"] == pytest.approx(sum(weights) / 3, abs=5e-5)


def test_the_weight_carries_no_gradient():
    # differentiated, the coefficient of each token would be (w + w nll / 3) / 3 > w / 3
    w = math.exp(0.4 / 3)
    assert first(explain("iw_sft", [ROW])) == pytest.approx([w / 3] * 3, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [16.0, 16.0]),  # e^3 = 20.1
        ({"w_max": 2}, [2.0, 2.0]),
        ({"w_max": 100}, [math.exp(3)] * 2),
        ({"level": "token"}, [1.8, 0.2]),  # e^8 and e^-2
        ({"level": "token", "w_min": 0, "w_max": 3000}, [math.exp(8), math.exp(-2)]),
        ({"level": "token", "w_min": 0.5}, [1.8, 0.5]),
    ],
)
def test_bounds_of_the_weight(options, weights):
    assert first(explain("iw_sft", [tilted(8, -2)], **options)) == pytest.approx([w / 2 for w in weights])


def test_lower_bound_of_row_levels_is_zero_unless_given():
    far = tilted(-3, -3)
    assert first(explain("iw_sft", [far])) == near(*[math.exp(-3) / 2] * 2)
    assert first(explain("iw_sft", [far], w_min="0.3")) == near(0.15, 0.15)


def test_each_row_has_its_own_weight():
    out = explain("iw_sft", [ROW, tilted(-0.5)])
    assert coefficients(out)[1] == near(math.exp(-0.5) / 4)


@pytest.mark.parametrize("level", ["mean", "product"])
def test_kappa_zero_is_sft(level):
    assert_same_rule(("iw_sft", {"level": level, "kappa": 0}), ("sft", {}))


@pytest.mark.parametrize("level", ["mean", "product", "token"])
def test_at_the_reference_it_is_sft(level):
    def at_reference(seed):
        return [{**r, "ref_logp": r["logp"]} for r in random_rows(seed)]

    assert_same_rule(("iw_sft", {"level": level}), ("sft", {}), make=at_reference)


def test_a_missing_reference_names_row_and_key():
    with pytest.raises(ValueError, match="row 1: 'ref_logp' is needed"):
        explain("iw_sft", [ROW, row("demo", [0.5])])


@pytest.mark.parametrize("options", [{"w_min": 3, "w_max": 2}, {"w_min": 20}, {"level": "token", "w_min": 2}])
def test_bounds_out_of_order_are_refused(options):
    with pytest.raises(ValueError, match=r"w_min=.*: accepted are numbers up to w_max="):
        explain("iw_sft", [], **options)
