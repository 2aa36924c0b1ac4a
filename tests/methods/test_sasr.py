import random

import pytest

from interlace import explain
from interlace.methods import get
from interlace.methods.sasr import sft_probability
from tests.methods.batches import assert_same_rule, coefficients, row

ROWS = [row("rollout", [0.5], 1.0), row("rollout", [0.5], 0.0), row("demo", [0.5, 0.5])]


def terms(u, g_last, g_warmup=2.0, **given):
    state = {"g_last": g_last, "g_warmup": g_warmup, "u": u}
    return [t["name"] for t in explain("sasr", ROWS, kl=0, state=state, **given)["terms"]]


@pytest.mark.parametrize(
    ("gamma", "g_last", "p"),
    [(1, 2, 1 / 2), (1, 1, 1 / 3), (1, 0.5, 0.2), (0.5, 2, 2 / 3), (0.5, 1, 1 / 2), (0.5, 0.5, 1 / 3)],
)
def test_share_of_sft_steps_follows_the_gradient_norm(gamma, g_last, p):
    assert sft_probability(g_last, 2.0, gamma) == pytest.approx(p)
    assert terms(p - 1e-6, g_last, gamma=gamma) == ["sft"]
    assert terms(p + 1e-6, g_last, gamma=gamma) == ["policy"]


def test_draws_have_the_share():
    choose = get("sasr")(gamma=0.5).choose_stage
    rng = random.Random(0)
    drawn = [choose({"g_last": 1.0, "g_warmup": 2.0, "u": rng.random()}) for _ in range(10_000)]
    assert drawn.count("sft") / 10_000 == pytest.approx(0.5, abs=0.015)


def test_gamma_zero_is_always_sft_and_no_gradient_never():
    assert terms(0.999999, 0.001, gamma=0) == ["sft"] == terms(0.5, 0.0, gamma=0)
    assert terms(0.0, 0.0) == ["policy"] == terms(0.0, 0.0, g_warmup=0.0)


def test_a_given_stage_wins_over_the_state():
    assert terms(0.0, 2.0, stage="rl") == ["policy"]


def test_sft_stage_is_a_token_mean_and_rl_the_default():
    assert coefficients(explain("sasr", ROWS, stage="sft"))[2] == [0.5, 0.5]
    assert coefficients(explain("sasr", ROWS, kl=0, std=False)) == [[0.25], [-0.25], [0.0, 0.0]]


def test_stage_rl_is_grpo_with_its_kl_and_stage_sft_is_sft():
    assert_same_rule(("sasr", {}), ("grpo", {"kl": 0.01}))
    assert_same_rule(("sasr", {"stage": "sft"}), ("sft", {}))


def test_equal_rewards_leave_the_kl():
    rows = [row("rollout", [0.5], 1.0, ref_logp=[-1.0]) for _ in range(2)]
    # d k3 = 1 - exp(ref - logp)
    expected = -0.01 * (1 - 2 * 2.718281828459045**-1) / 2
    assert coefficients(explain("sasr", rows)) == [pytest.approx([expected])] * 2


def test_default_kl_needs_the_reference():
    with pytest.raises(ValueError, match="row 0: 'ref_logp' is needed"):
        explain("sasr", ROWS)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"g_last": 1.0}, "state lacks g_warmup, u"),
        ({"g_last": -1.0, "g_warmup": 1.0, "u": 0.5}, "accepted are gradient norms"),
        ({"g_last": 1.0, "g_warmup": 1.0, "u": 1.5}, "u in"),
    ],
)
def test_impossible_states_raise(state, message):
    with pytest.raises(ValueError, match=message):
        explain("sasr", ROWS, kl=0, state=state)


@pytest.mark.parametrize("bad", [{"gamma": -1}, {"warmup_steps": 0}, {"refresh_every": 0}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="sasr: "):
        explain("sasr", ROWS, **bad)
