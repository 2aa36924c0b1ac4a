import math

import pytest

from interlace import explain
from tests.methods.batches import advantages, assert_same_rule, coefficients, row

P = (0.9, 0.3, 0.99)
H = [0.33, 1.2, 0.06]


def wrong(**given):
    """One wrong row with A = -1 (std off), its mean held by an empty right row."""
    return [row("rollout", P, -1.0, entropy=H, **given), row("rollout", [], 1.0)]


def rl(rows, **given):
    return explain("egspo", rows, **{"std": False, **given})


def test_confident_tokens_of_a_wrong_row_are_lowered_weakly():
    # w = (0.9*0.1, 1, 0.99*0.01), A = -1, 3 tokens; without A in the closed branch the first would be +0.03.
    result = rl(wrong(), tau=0.5)
    assert coefficients(result)[0] == pytest.approx([-0.03, -1 / 3, -0.0033])
    assert result["loss"] == pytest.approx((0.09 + 1 + 0.0099) / 3)  # -A w rho / 3
    assert advantages(result)[0] == [-1.0] * 3
    assert result["terms"][0]["n"] == 3  # not the sum of the weights


@pytest.mark.parametrize(
    ("phi", "first", "last"),
    [
        ("p1mp", 0.09, 0.0099),
        ("4p(1-p)", 0.36, 0.0396),
        ("4p1mp", 0.36, 0.0396),
        ("0.5", 0.5, 0.5),
        (0, 0, 0),
    ],
)
def test_phi_weighs_the_closed_tokens(phi, first, last):
    assert coefficients(rl(wrong(), tau=0.5, phi=phi))[0] == pytest.approx([-first / 3, -1 / 3, -last / 3])


def test_threshold_is_the_smallest_entropy_of_the_share_pooled_over_the_step():
    # 5 tokens, share 0.4: the two largest entropies, 2.0 and 1.5, stand in different rows.
    rows = [
        row("rollout", [0.5, 0.5, 0.5], 1.0, entropy=[0.1, 2.0, 0.5]),
        row("rollout", [0.5, 0.5], -1.0, entropy=[1.5, 0.05]),
    ]
    shown = coefficients(rl(rows, top_entropy=0.4))
    assert shown == [pytest.approx([0.05, 0.2, 0.05]), pytest.approx([-0.2, -0.05])]


def test_ties_with_the_last_of_the_share_are_open():
    rows = [row("rollout", [0.5] * 3, -1.0, entropy=[1.0, 1.0, 0.2]), row("rollout", [], 1.0)]
    assert coefficients(rl(rows, top_entropy=0.2))[0] == pytest.approx([-1 / 3, -1 / 3, -1 / 12])


def test_share_zero_opens_no_gate():
    assert coefficients(rl(wrong(), top_entropy=0))[0] == pytest.approx([-0.03, -0.07, -0.0033])


def test_soft_gate_is_half_open_at_the_threshold():
    # sigmoid(0) = 1/2 and sigmoid(ln 3) = 3/4: w = phi + (1 - phi) s.
    rows = [row("rollout", [0.5, 0.5], -1.0, entropy=[1.0, 1.0 + 2 * math.log(3)]), row("rollout", [], 1.0)]
    shown = coefficients(rl(rows, tau=1.0, gate_temperature=2.0))[0]
    assert shown == pytest.approx([-(0.25 + 0.75 / 2) / 2, -(0.25 + 0.75 * 0.75) / 2])
    assert coefficients(rl(rows, top_entropy=0, gate_temperature=2.0))[0] == pytest.approx([-0.125, -0.125])


def test_kl_is_not_weighted():
    # k3 has gradient 1 - exp(-delta) = 1/2 at delta = ln 2.
    rows = wrong(ref_logp=[math.log(p / 2) for p in P])
    shown = coefficients(rl(rows, tau=0.5, kl=0.1))[0]
    assert shown == pytest.approx([(-w - 0.05) / 3 for w in (0.09, 1, 0.0099)])


def test_clip_bounds_hold_under_the_weight():
    # rho = 0.5 < 0.8 with A < 0: clipped, no gradient; the gate is open on token 2 only.
    rows = wrong(old_logp=[math.log(0.9), math.log(0.6), math.log(0.99)])
    assert coefficients(rl(rows, tau=0.5))[0] == pytest.approx([-0.03, 0, -0.0033])


@pytest.mark.parametrize("given", [{"top_entropy": 1}, {"phi": 1}, {"phi": "1", "top_entropy": 0}])
def test_open_gate_is_grpo(given):
    assert_same_rule(("egspo", given), ("grpo", {"denominator": "tokens"}))


def test_stage_sft_is_sft():
    assert_same_rule(("egspo", {"stage": "sft"}), ("sft", {}))


def test_entropy_is_needed_on_rollout_tokens_alone():
    rows = [*wrong(), row("demo", [0.5], 1.0)]
    rl(rows)
    del rows[0]["entropy"]
    with pytest.raises(ValueError, match=r"row 0: 'entropy' is needed"):
        rl(rows)


@pytest.mark.parametrize(
    "bad",
    [{"phi": "p^2"}, {"phi": 2}, {"top_entropy": 1.5}, {"tau": -1}, {"gate_temperature": 0},
     {"warmup_epochs": -1}, {"max_length": 0}],
)  # fmt: skip
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="egspo: "):
        explain("egspo", wrong(), **bad)
