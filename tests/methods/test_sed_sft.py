"""SED-SFT: the gate over four tokens, and the pull on p."""

import math

import pytest

from interlace import explain
from tests.methods.batches import assert_gradient, assert_same_rule, coefficients, random_rows, row
from tests.methods.fixtures import first, near


def gated(p, mass=0.5):
    return row("demo", [p], topk_mass=[mass])


@pytest.mark.parametrize(
    ("p", "lam", "loss", "slope"),
    [
        (0.9, 1, 0.26536, 0.028),  # .10536 + .16; -(-.1 + 2 * .4 * .9 * .1)
        (0.3, 1, 1.20397 + 0.04, 0.784),  # below 1/2 the pull adds to the push
        ((1 + math.sqrt(5)) / 4, 2, None, 0.0),  # lam 2 stops at .80902
        (0.9, 0, 0.10536, 0.1),
    ],
)
def test_loss_and_slope_of_the_target_logit_with_the_gate_open(p, lam, loss, slope):
    out = explain("sed_sft", [gated(p)], lam=lam, tau=0.95)
    if loss is not None:
        assert out["loss"] == pytest.approx(loss, abs=5e-6)
    assert first(out)[0] * (1 - p) == pytest.approx(slope, abs=1e-9)


def test_with_the_gate_closed_it_is_likelihood():
    out = explain("sed_sft", [gated(0.9, mass=0.97)], tau=0.95)
    assert out["loss"] == pytest.approx(0.10536, abs=5e-6)
    assert first(out) == [1]


def test_p_is_differentiated():
    assert_gradient(
        "sed_sft",
        [r | {"old_logp": r["logp"]} for r in random_rows(5, groups=3, rollouts=1, longest=4)],
        lam=1.7,
    )


MASSES = row("demo", [0.9] * 4, topk_mass=[0.2, 0.8, 0.4, 0.6])
OPEN, CLOSED = 0.28 / 4, 1 / 4
"""Coefficients of p = .9 among four tokens: 1 - 2 * .4 * .9 with the pull, 1 without."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mask_ratio": 0.75}, (OPEN, CLOSED, CLOSED, CLOSED)),  # the .25-quantile is .35
        ({"mask_ratio": 0.5}, (OPEN, CLOSED, OPEN, CLOSED)),  # .5
        ({}, (OPEN, CLOSED, CLOSED, CLOSED)),  # .7: the .3-quantile is .2 + .9 * .2 = .38
        ({"mask_ratio": 1}, (CLOSED,) * 4),
        ({"mask_ratio": 0}, (OPEN,) * 4),
        ({"tau": 0.6}, (OPEN, CLOSED, OPEN, CLOSED)),  # a mass that equals tau is not below it
        ({"tau": 0.6, "mask_ratio": 1}, (OPEN, CLOSED, OPEN, CLOSED)),
        ({"tau": 0}, (CLOSED,) * 4),
    ],
)
def test_the_gate_opens_where_little_mass_is_on_the_likeliest_tokens(options, expected):
    assert first(explain("sed_sft", [MASSES], **options)) == near(*expected)


def test_the_quantile_is_over_all_demonstration_tokens_and_no_others():
    split = [
        row("demo", [0.9] * 2, topk_mass=[0.2, 0.8]),
        row("rollout", [0.9] * 3, 1.0, topk_mass=[0.0, 0.0, 0.0]),
        row("demo", [0.9] * 2, topk_mass=[0.0, 0.0], verdict="unscorable"),
        row("demo", [0.9] * 2, topk_mass=[0.4, 0.6]),
    ]
    out = coefficients(explain("sed_sft", split, mask_ratio=0.75))
    assert out[0] + out[3] == near(OPEN, CLOSED, CLOSED, CLOSED)
    assert out[1] + out[2] == [0] * 5


def test_rounding_does_not_move_equal_masses_over_the_threshold():
    # 11 tokens, .9 left out: the quantile stands on the second value but for 1 - .9 < .1
    masses = [i / 20 for i in range(11)]
    out = explain("sed_sft", [row("demo", [0.9] * 11, topk_mass=masses)], mask_ratio=0.9)
    assert [c < 1 / 11 for c in first(out)] == [True] + [False] * 10


@pytest.mark.parametrize("options", [{"lam": 0}, {"mask_ratio": 1}])
def test_without_pull_or_gate_it_is_sft(options):
    assert_same_rule(("sed_sft", options), ("sft", {}))


def test_a_missing_mass_names_row_and_key_where_the_gate_reads_it():
    rows = [gated(0.9), row("demo", [0.9])]
    with pytest.raises(ValueError, match="row 1: 'topk_mass' is needed"):
        explain("sed_sft", rows)
    for options in ({"lam": 0}, {"mask_ratio": 0}):
        assert explain("sed_sft", rows, **options)["terms"][0]["n"] == 2


def test_no_demonstration_is_an_empty_term():
    assert explain("sed_sft", [row("rollout", [0.9], 1.0)])["loss"] == 0
