"""On-policy SFT: kept responses of 2 and 4 tokens with loss 1, and a wrong one of 3."""

import math

import pytest

from interlace import explain
from tests.methods.batches import advantages, coefficients, row
from tests.methods.fixtures import near

E = math.exp(-1)


def answer(n, reward=1.0, p=E, **given):
    return row("rollout", [p] * n, reward, **given)


ROWS = [answer(2), answer(3, 0.0), answer(4)]


@pytest.mark.parametrize(
    ("options", "loss", "n", "short", "long"),
    [
        ({}, 0.75, 2 * 4, 1 / 8, 1 / 8),
        ({"variant": "code"}, 1.0, 6, 1 / 6, 1 / 6),
        ({"denominator": "sequence_means"}, 1.0, 2, 1 / 4, 1 / 8),  # token weights 2 : 1
        ({"variant": "code", "denominator": "longest"}, 0.75, 8, 1 / 8, 1 / 8),
    ],
)
def test_normalisers(options, loss, n, short, long):
    out = explain("on_policy_sft", ROWS, **options)
    assert out["loss"] == pytest.approx(loss)
    assert out["terms"][0]["n"] == n
    assert coefficients(out)[0] == near(*[short] * 2)
    assert coefficients(out)[2] == near(*[long] * 4)
    assert coefficients(out)[1] == [0, 0, 0]


def test_a_kept_token_has_advantage_one_and_every_other_zero():
    assert advantages(explain("on_policy_sft", ROWS)) == [[1] * 2, [0] * 3, [1] * 4]


def test_it_is_reinforce_without_baseline_over_the_kept_fraction():
    ours = explain("on_policy_sft", ROWS, denominator="sequences")
    theirs = explain("reinforce", ROWS, denominator="sequences")
    for a, b in zip(coefficients(ours), coefficients(theirs), strict=True):
        assert [2 / 3 * x for x in a] == pytest.approx(b)


def test_a_wrong_response_changes_nothing():
    assert explain("on_policy_sft", [ROWS[0], answer(9, 0.0, p=0.01), ROWS[2]]) == {
        **explain("on_policy_sft", [ROWS[0], answer(9, 0.0), ROWS[2]])
    }
    assert explain("on_policy_sft", ROWS)["loss"] == explain("on_policy_sft", [ROWS[0], ROWS[2]])["loss"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"finish": "length"}, False),
        ({"finish": "stop"}, True),
        ({"verdict": "fail"}, False),
        ({"verdict": "unscorable"}, False),
        ({"reward": 0.5}, False),
        ({"reward": 0.0, "verdict": "pass"}, True),
        ({"reward": None, "verdict": "pass"}, True),
        ({"reward": None}, False),
    ],
)
def test_kept_is_correct_and_not_cut_off(given, kept):
    out = explain("on_policy_sft", [{**answer(2), **given}])
    assert out["terms"][0]["n"] == (2 if kept else 0)
    assert coefficients(out)[0] == ([0.5, 0.5] if kept else [0, 0])


def test_demonstrations_and_prefixes_are_not_trained():
    rows = [row("demo", [0.5], 1.0), row(["prefix", "rollout"], [0.5, 0.5], 1.0)]
    assert coefficients(explain("on_policy_sft", rows)) == [[0], [0, 1]]


def test_nothing_kept_is_an_empty_loss():
    assert explain("on_policy_sft", [answer(3, 0.0)])["loss"] == 0


def test_group_size_is_of_training_only():
    assert explain("on_policy_sft", ROWS, group_size=8) == explain("on_policy_sft", ROWS)
