import math

import pytest

from interlace import explain
from tests.methods.batches import advantages, assert_same_rule, coefficients, random_rows, row


def scored(source, rewards, **given):
    return row(source, [0.5] * len(rewards), extra={"token_reward": list(rewards)}, **given)


TWO = [scored("rollout", (1, 2)), scored("rollout", (0, 1))]
"""Last rewards 2 and 1: mean 1.5, Bessel-corrected deviation sqrt(1/2)."""


def irl(rows, **given):
    return explain("irl_dense_reward", rows, **given)


def flat(result):
    return [a for r in advantages(result) for a in r]


def test_token_rewards_against_the_groups_last_ones():
    assert flat(irl(TWO, std_eps=1e-4)) == pytest.approx([-0.0707, 0.7070, -2.7573, -0.7070], abs=5e-5)
    # The library's eps: a = (-0.7071, 0.7071) and (-2.1213, -0.7071), A_1 = a_1 + 0.9 a_2.
    assert flat(irl(TWO)) == pytest.approx([-0.0707, 0.7071, -2.7577, -0.7071], abs=5e-5)


def test_gamma_zero_is_the_token_reward_itself():
    shown = flat(irl(TWO, gamma=0))
    assert shown == pytest.approx([-0.7071, 0.7071, -2.1213, -0.7071], abs=5e-5)


def test_coefficient_is_a_mean_over_rows_of_their_means():
    # ratio 1: A over 2 tokens over 2 rows.
    result = irl(TWO)
    assert [c for r in coefficients(result) for c in r] == pytest.approx([a / 4 for a in flat(result)])


def test_a_constant_shift_of_the_rewards_changes_nothing():
    for mode in ("grpo", "prime", "sparse"):
        shifted = [scored("rollout", (6, 7)), scored("rollout", (5, 6))]
        assert flat(irl(shifted, mode=mode)) == pytest.approx(flat(irl(TWO, mode=mode)))


def test_prime_subtracts_the_last_reward_of_the_others():
    # a = (1, 2) - 1 and (0, 1) - 2; A_1 = a_1 + 0.9 a_2.
    assert flat(irl(TWO, mode="prime")) == pytest.approx([0.9, 1, -2.9, -1])
    # Of three rows the mean of the other two: last 4, 1, 1.
    rows = [scored("rollout", (r,)) for r in (4, 1, 1)]
    assert flat(irl(rows, mode="prime")) == pytest.approx([3, -1.5, -1.5])


def test_sparse_is_the_group_advantage_of_the_last_reward_on_every_token():
    assert flat(irl(TWO, mode="sparse")) == pytest.approx([0.70711, 0.70711, -0.70711, -0.70711], abs=5e-6)
    rewards = [{**r, "reward": r["extra"]["token_reward"][-1]} for r in TWO]
    assert irl(TWO, mode="sparse") == explain("grpo", rewards)


def test_temperature_divides_the_rewards():
    assert flat(irl(TWO, mode="prime", temperature=2)) == pytest.approx([0.45, 0.5, -1.45, -0.5])
    assert flat(irl(TWO, std_eps=0, temperature=2)) == pytest.approx(flat(irl(TWO, std_eps=0)))


def test_an_injected_demonstration_is_a_member_with_ratio_one():
    # Last rewards 2, 1, 3: mean 2, deviation 1, so A = 0, -1, 1 on rows of one token; the old log-prob given
    # for the demonstration would be outside the clip.
    rows = [*(scored("rollout", (r,)) for r in (2, 1)), scored("demo", (3,), old_logp=[math.log(0.25)])]
    result = irl(rows, std_eps=0)
    assert flat(result) == [0, -1, 1]
    assert [c[0] for c in coefficients(result)] == pytest.approx([0, -1 / 3, 1 / 3])
    assert (result["terms"][0]["n"], result["loss"]) == (3, 0)


def test_demonstrations_do_not_take_part_without_injection():
    rows = [*TWO, scored("demo", (3,))]
    without = irl(rows, inject=False)
    assert without["rows"][:2] == irl(TWO)["rows"]
    assert without["rows"][2] == {"advantage": [0], "coefficient": [0]}


def test_rollout_ratio_is_clipped():
    rows = [{**r, "old_logp": [math.log(0.25)] * 2} for r in TWO]  # ratio 2
    assert coefficients(irl(rows, clip_high=0.2))[0] == pytest.approx([-0.0707 / 2, 0], abs=5e-5)


def test_kl_acts_on_the_same_tokens():
    # k2 has gradient delta = ln 2 on each of 2 rows of one token, A = 0 in a group of equal last rewards.
    rows = [{**scored(s, (1,)), "ref_logp": [math.log(0.25)]} for s in ("rollout", "demo")]
    shown = coefficients(irl(rows, kl=0.1, kl_estimator="k2"))
    assert [c[0] for c in shown] == pytest.approx([-0.05 * math.log(2)] * 2)


@pytest.mark.parametrize("mode", ["grpo", "prime", "sparse"])
def test_equal_last_rewards_or_a_single_row_give_nothing_on_inner_tokens_too(mode):
    equal = [scored("rollout", (5, 1)), scored("rollout", (-3, 1)), scored("rollout", (7, 2), group="alone")]
    assert flat(irl(equal, mode=mode)) == [0] * 6


def test_rollouts_without_token_reward_are_left_out():
    rows = [*TWO, row("rollout", [0.5], 1.0), scored("rollout", (9,), verdict="unscorable")]
    result = irl(rows)
    assert result["rows"][:2] == irl(TWO)["rows"]
    assert result["terms"][0]["n"] == 2


def test_a_demonstration_without_token_reward_has_no_term_and_warns():
    with pytest.warns(UserWarning, match=r"row 2: a demonstration without 'extra.token_reward'"):
        result = irl([*TWO, row("demo", [0.5], 1.0)])
    assert result["rows"][:2] == irl(TWO)["rows"]
    assert result["rows"][2]["coefficient"] == [0]


def test_prefix_and_hint_tokens_are_not_covered():
    # The reward of the prefix token is neither a last reward nor part of a return.
    rows = [row(["prefix", "rollout", "rollout"], [0.5] * 3, extra={"token_reward": [99, 1, 2]}), TWO[1]]
    assert advantages(irl(rows))[0] == [0, *advantages(irl(TWO))[0]]


def test_an_empty_row_has_no_last_reward():
    rows = [*TWO, scored("rollout", ())]
    assert irl(rows)["rows"][:2] == irl(TWO)["rows"]


def test_reward_and_verdict_do_not_matter():
    rows = random_rows(0, left_out=False)
    bare = [{k: v for k, v in r.items() if k not in ("reward", "verdict")} for r in rows]
    assert irl(bare) == irl(rows)


def test_sparse_on_last_rewards_is_grpo():
    def with_last(seed):
        rows = random_rows(seed, demos=False, left_out=False)
        for r in rows:
            r["reward"] = (r["extra"]["token_reward"] or [None])[-1]
        return [r for r in rows if r["reward"] is not None]

    assert_same_rule(("irl_dense_reward", {"mode": "sparse"}), ("grpo", {}), with_last)


@pytest.mark.parametrize("value", [[1.0], [1.0, "x"], [1.0, math.nan], [1.0, True], 3.0, "ab"])
def test_token_rewards_are_one_finite_number_per_token(value):
    rows = [TWO[0], row("rollout", [0.5, 0.5], extra={"token_reward": value})]
    with pytest.raises(
        ValueError, match=r"row 1: 'extra.token_reward'.* accepted is a list of 2 finite numbers"
    ):
        irl(rows)


@pytest.mark.parametrize(
    "bad",
    [
        {"mode": "dense"},
        {"gamma": 1.5},
        {"temperature": 0},
        {"smoothing": 1},
        {"reward_lr": 0},
        {"std_eps": -1},
    ],
)
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="irl_dense_reward: "):
        irl(TWO, **bad)
