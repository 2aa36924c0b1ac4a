import math

import pytest

from interlace import explain
from tests.methods.batches import advantages, coefficients, row

P = (0.9, 0.1, 0.01)
E = math.e


def batch(h=1.0, rewards=(1.0, 0.0, 0.0), demo_reward=1.0, demo_h=None):
    rollouts = [row("rollout", [0.5], r, entropy=[h]) for r in rewards]
    return [*rollouts, row("demo", P, demo_reward, entropy=demo_h or [h] * 3)]


def test_demonstration_coefficient_is_imitation_plus_advantage_times_p():
    result = explain("srft", batch())
    # w = 0.5 / e = 0.18394; A of (1, 0, 0 | 1) = 0.5 / sqrt(1/3) = 0.8660; both terms over three tokens.
    a = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    got = [3 * c for c in coefficients(result)[-1]]
    assert got == pytest.approx([0.5 / E + a * p for p in P], rel=1e-12)
    assert got == pytest.approx([0.96336, 0.27054, 0.19260], abs=1e-5)


@pytest.mark.parametrize(("h", "up"), [(1.0, 0.27183), (0.2, 0.12214), (0.5 * math.log(5), 0.22361)])
def test_rollouts_split_by_outcome(h, up):
    result = explain("srft", batch(h))
    assert [3 * c for (c,) in coefficients(result)[:3]] == pytest.approx([up, -1.0, -1.0], abs=5e-6)
    assert [a for (a,) in advantages(result)[:3]] == [1.0, -1.0, -1.0]


@pytest.mark.parametrize(("h", "w"), [(1.0, 0.18394), (0.2, 0.40937), (0.5 * math.log(5), 0.22361)])
def test_imitation_weight_falls_with_entropy(h, w):
    # Equal rewards leave the imitation term alone.
    result = explain("srft", batch(h, rewards=(1.0, 1.0)))
    assert [3 * c for c in coefficients(result)[-1]] == pytest.approx([w] * 3, abs=5e-6)


def test_each_loss_has_its_own_count_and_the_loss_is_their_sum():
    result = explain("srft", batch(rewards=(1.0, 1.0, 1.0)))
    assert [(t["name"], t["coefficient"], t["n"]) for t in result["terms"]] == [
        ("sft", 0.5, 3.0),
        ("demo", 1.0, 3.0),
        ("policy", 1.0, 3.0),
    ]
    nll = -sum(math.log(p) for p in P)
    assert result["loss"] == pytest.approx(0.5 / E * nll / 3 + 0.1 * E * math.log(2))


def test_all_wrong_still_acts_at_full_weight():
    result = explain("srft", batch(rewards=(0.0, 0.0), demo_reward=0.0))
    assert coefficients(result)[:2] == [[-0.5], [-0.5]]


def test_weights_are_parameters():
    result = explain("srft", batch(), sft_weight=2.0, rl_weight=3.0, neg_weight=4.0, std=False)
    assert [3 * c for (c,) in coefficients(result)[:3]] == pytest.approx([3 * E, -4.0, -4.0])
    assert [3 * c for c in coefficients(result)[3]] == pytest.approx([2 / E + 0.5 * p for p in P])


def test_sign_of_the_code_raises_imitation_with_entropy():
    result = explain("srft", batch(rewards=(1.0, 1.0)), sft_sign=1)
    assert [3 * c for c in coefficients(result)[-1]] == pytest.approx([0.5 * E] * 3)


@pytest.mark.parametrize(
    ("level", "demo", "rollouts"),
    [
        ("token", [0.3, 0.6, 0.9], [1.0, 2.0]),
        ("sequence", [0.6, 0.6, 0.6], [1.0, 2.0]),
        ("step", [0.6, 0.6, 0.6], [1.5, 1.5]),  # each term's own tokens
    ],
)
def test_entropy_of_the_token_the_row_or_the_term(level, demo, rollouts):
    rows = batch(rewards=(1.0, 1.0), demo_h=[0.3, 0.6, 0.9])
    rows[0]["entropy"], rows[1]["entropy"] = [1.0], [2.0]
    result = coefficients(explain("srft", rows, entropy_level=level))
    assert [3 * c for c in result[2]] == pytest.approx([0.5 * math.exp(-h) for h in demo])
    assert [2 * c for (c,) in result[:2]] == pytest.approx([0.1 * math.exp(h) for h in rollouts])


def test_entropy_is_capped_before_the_exponential():
    result = coefficients(explain("srft", batch(5.0, rewards=(1.0, 1.0)), entropy_cap=1.0))
    assert result[0] == pytest.approx([0.05 * E])
    assert result[2] == pytest.approx([0.5 / E / 3] * 3)


def test_advantage_form_keeps_ratio_and_group_advantage_and_shrinks_only_the_positive_ones():
    rows = batch()
    for r in rows[:3]:
        r["old_logp"] = [math.log(0.25)]  # ratio 2, beyond any clip
    result = explain("srft", rows, rollout_loss="advantage", std=False)
    # -rho z w: 2 * 0.5 * 0.1 e, and 2 * -0.5
    assert [3 * c for (c,) in coefficients(result)[:3]] == pytest.approx([0.1 * E, -1.0, -1.0])
    assert [a for (a,) in advantages(result)[:3]] == [0.5, -0.5, -0.5]


def test_shaped_demonstration_uses_gamma():
    got = coefficients(explain("srft", batch(), shape="shaped", sft_weight=0.0, std=False))[-1]
    assert [3 * c for c in got] == pytest.approx([0.045, 0.125, 0.0005 / 0.0121])
    got = coefficients(explain("srft", batch(), shape="shaped", gamma=0.3, sft_weight=0.0, std=False))[-1]
    assert [3 * c for c in got] == pytest.approx([0.15 * p / (p + 0.3) ** 2 for p in P])


def test_verdict_decides_what_is_correct():
    rows = [
        row("rollout", [0.5], 0.2, verdict="pass", entropy=[0.0]),
        row("rollout", [0.5], 0.4, entropy=[0.0]),
    ]
    assert coefficients(explain("srft", rows)) == [pytest.approx([0.05]), [-0.5]]


def test_code_variant():
    result = explain("srft", batch(), variant="code")
    a = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert [3 * c for (c,) in coefficients(result)[:3]] == pytest.approx([a * 0.1 * E, -a, -a])
    expected = [0.5 * E + a * 0.1 * p / (p + 0.1) ** 2 for p in P]
    assert [3 * c for c in coefficients(result)[-1]] == pytest.approx(expected)


def test_reimplementation_variant():
    rows = batch(rewards=(1.0, 0.0, 0.0), demo_h=[0.5, 1.0, 1.5])
    result = explain("srft", rows, variant="reimplementation", max_length=10)
    assert [t["n"] for t in result["terms"]] == [3.0, 10.0, 30.0]
    # H = 1 on the row; A = 0.5; imitation over 3 tokens, shaped term over 1 row x 10, rollouts over 3 x 10.
    expected = [0.5 / E / 3 + 0.5 * 0.1 * p / (p + 0.1) ** 2 / 10 for p in P]
    assert coefficients(result)[-1] == pytest.approx(expected)
    assert [30 * c for (c,) in coefficients(result)[:3]] == pytest.approx([0.1 * E, -1.0, -1.0])


def test_demonstration_without_reward_is_imitated_alone_and_warns():
    rows = batch(demo_reward=None)
    with pytest.warns(UserWarning, match="row 3: a demonstration without 'reward'"):
        result = explain("srft", rows)
    assert coefficients(result)[-1] == pytest.approx([0.5 / E / 3] * 3)
    assert [t["n"] for t in result["terms"]] == [3.0, 0.0, 3.0]


@pytest.mark.parametrize("i", [0, 3])
def test_entropy_is_needed_on_rollouts_and_demonstrations(i):
    rows = batch()
    del rows[i]["entropy"]
    with pytest.raises(ValueError, match=f"row {i}: 'entropy' is needed"):
        explain("srft", rows)


@pytest.mark.parametrize(
    "bad", [{"sft_sign": 2}, {"entropy_level": "word"}, {"entropy_cap": -1}, {"kl": 0.1}]
)
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="srft: "):
        explain("srft", batch(), **bad)
