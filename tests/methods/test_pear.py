"""PEAR: numbers of three tokens with log-ratios (.5, -.2, .1) to the policy that wrote them."""

import math

import pytest

from interlace import explain
from tests.methods.batches import assert_same_rule, coefficients, random_rows, row
from tests.methods.fixtures import first, near


def written(*deltas):
    """A demonstration with logp -1 on every token and logp - behaviour_logp = deltas."""
    return row("demo", [math.exp(-1)] * len(deltas), behaviour_logp=[-1 - d for d in deltas])


ROW = written(0.5, -0.2, 0.1)  # clipped to (.3, -.08, .1)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"gamma": 0.9}, (0.8264, 0.9947, 1.0)),  # .81 e^(-.08 + .1), .9 e^.1, 1
        ({"gamma": 1}, (1.0202, 1.1052, 1.0)),
        ({"level": "sequence"}, (1.3771, 1.3771, 1.3771)),  # e^.32, whatever gamma is
        ({"level": "block", "block": 2, "gamma": 0.9}, (0.9947, 0.9947, 1.0)),
        ({"level": "block", "block": 1, "gamma": 0.9}, (0.8264, 0.9947, 1.0)),
        ({"level": "block", "gamma": 0.9}, (1, 1, 1)),  # 4 tokens a block: nothing follows
        ({"delta_high": 1, "delta_low": -1, "level": "sequence"}, (math.exp(0.4),) * 3),
    ],
)
def test_weights_of_each_level(options, weights):
    out = explain("pear", [ROW], **options)
    assert [3 * c for c in first(out)] == pytest.approx(weights, abs=5e-5)
    assert out["loss"] == pytest.approx(sum(weights) / 3, abs=5e-5)


def test_blocks_count_to_the_end_of_the_last_incomplete_block():
    # 5 tokens, blocks of 2: ends 2, 4, 5; gamma .5: .5^3 e^.6, .5^1 e^.2, 1
    out = explain("pear", [written(0.1, 0.1, 0.2, 0.2, 0.2)], level="block", block=2, gamma=0.5)
    first_block = 0.125 * math.exp(0.6)
    second_block = 0.5 * math.exp(0.2)
    assert [5 * c for c in first(out)] == near(first_block, first_block, second_block, second_block, 1)


def test_default_discount():
    assert [3 * c for c in first(explain("pear", [written(0, 0, 0)]))] == near(0.999**2, 0.999, 1)


def test_the_log_weight_is_clipped_at_both_ends():
    assert [3 * c for c in first(explain("pear", [ROW], gamma=1, log_g_max=0.05))] == near(
        math.exp(0.02), math.exp(0.05), 1
    )
    # a much stronger teacher: 199 times -.08 is -15.92, below the floor of -10
    far = first(explain("pear", [written(*[-5.0] * 200)], gamma=1))
    assert [200 * far[0], 200 * far[-2], 200 * far[-1]] == near(math.exp(-10), math.exp(-0.08), 1)
    all_ = first(explain("pear", [written(*[5.0] * 200)], level="sequence"))
    assert 200 * all_[0] == pytest.approx(math.exp(5))


def test_tokens_that_are_not_covered_are_not_counted():
    hinted = row(
        ["hint", "hint", "demo", "demo"], [0.5] * 4, behaviour_logp=[None, None, *[math.log(0.5)] * 2]
    )
    assert [2 * c for c in first(explain("pear", [hinted], gamma=0.9))] == near(0, 0, 0.9, 1)


def test_rows_do_not_reach_into_each_other():
    out = explain("pear", [written(0.1), ROW, written(0.2)], gamma=0.9)
    assert [[5 * c for c in r] for r in (coefficients(out)[0], coefficients(out)[2])] == [[1], [1]]
    assert [5 * c for c in coefficients(out)[1]] == pytest.approx([0.8264, 0.9947, 1], abs=5e-5)


@pytest.mark.parametrize("options", [{"gamma": 1}, {"gamma": 1, "level": "block"}, {"level": "sequence"}])
def test_on_demonstrations_of_the_policy_itself_it_is_sft(options):
    def own(seed):
        return [{**r, "behaviour_logp": r["logp"]} for r in random_rows(seed)]

    assert_same_rule(("pear", options), ("sft", {}), make=own)


def test_a_missing_behaviour_names_row_and_key_and_is_no_silent_weight_of_one():
    with pytest.raises(ValueError, match="row 1: 'behaviour_logp' is needed"):
        explain("pear", [ROW, row("demo", [0.5])])


@pytest.mark.parametrize("options", [{"gamma": 0}, {"gamma": 1.1}, {"block": 0}, {"delta_low": 0.5},
                                     {"log_g_min": 6}, {"level": "suffix"}])  # fmt: skip
def test_impossible_parameters(options):
    with pytest.raises(ValueError, match=f"pear: .*{next(iter(options))}"):
        explain("pear", [], **options)
