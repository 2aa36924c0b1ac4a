import pytest

from interlace import explain
from tests.methods.batches import advantages, assert_same_rule, coefficients, random_rows, row

DEMO = row("demo", [0.9, 0.1, 0.01], 1.0)


def group(solved, size=8, demo=DEMO):
    rollouts = [row("rollout", [0.5], float(i < solved)) for i in range(size)]
    return [*rollouts, demo] if demo else rollouts


def numbers(result):
    return {t["name"]: t["n"] for t in result["terms"]}


def test_unsolved_prompt_trains_its_demonstration_alone():
    result = explain("hpt", group(0), std=False)
    assert coefficients(result) == [[0.0]] * 8 + [pytest.approx([1 / 3] * 3)]
    assert numbers(result) == {"policy": 0, "sft": 3}


def test_solved_prompt_trains_its_rollouts_alone():
    result = explain("hpt", group(1), std=False)
    # A = 1 - 1/8 once and -1/8 seven times, over 8 tokens.
    assert coefficients(result) == [[7 / 64], *[[-1 / 64]] * 7, [0.0, 0.0, 0.0]]
    assert numbers(result) == {"policy": 8, "sft": 0}


def test_gate_is_compared_with_a_tolerance():
    rows = group(1, size=3)
    assert numbers(explain("hpt", rows, gate=0.3333333333))["sft"] == 3  # 3e-11 below 1/3
    assert numbers(explain("hpt", rows, gate=0.33333))["sft"] == 0


def test_verdict_decides_the_pass_rate():
    rows = [row("rollout", [0.5], 0.2, verdict="pass"), row("rollout", [0.5], 0.9, verdict="fail"), DEMO]
    assert numbers(explain("hpt", rows, gate=0.4))["sft"] == 0  # P = 1/2
    assert numbers(explain("hpt", rows, gate=0.5))["sft"] == 3


def test_every_demonstration_of_the_group_is_an_sft_row():
    rows = [*group(0), row("demo", [0.2], None)]
    assert coefficients(explain("hpt", rows))[8:] == [pytest.approx([0.25] * 3), pytest.approx([0.25])]


def test_without_demonstration_an_unsolved_prompt_falls_back_to_rl():
    for rows in (group(2, demo=None), [*group(2, demo=None), row("demo", [], 1.0)]):
        result = explain("hpt", rows, gate=0.5, std=False)
        assert numbers(result) == {"policy": 8, "sft": 0}
        assert coefficients(result)[0] == pytest.approx([0.75 / 8])


def test_group_without_a_valid_rollout_contributes_nothing():
    rows = [row("rollout", [0.5], 1.0, verdict="unscorable"), row("rollout", [0.5], None), DEMO]
    result = explain("hpt", rows)
    assert coefficients(result) == [[0.0], [0.0], [0.0, 0.0, 0.0]]
    assert numbers(result) == {"policy": 0, "sft": 0}


def test_between_the_gates_the_demonstration_is_a_shaped_row_of_a_mixed_group():
    rows = group(1, size=4, demo=row("demo", [0.1], 1.0))
    result = explain("hpt", rows, gate_off=0.5, std=False)
    # Mean of (1, 0, 0, 0, 1) is 0.4; p = gamma gives 0.6 / 4; five tokens.
    assert advantages(result) == [pytest.approx([a]) for a in (0.6, -0.4, -0.4, -0.4, 0.6)]
    assert coefficients(result) == [pytest.approx([a / 5]) for a in (0.6, -0.4, -0.4, -0.4, 0.15)]
    assert numbers(result) == {"policy": 5, "sft": 0}
    # P = 3/4 is above both gates: the demonstration is ignored.
    assert coefficients(explain("hpt", group(3, size=4), gate_off=0.5))[-1] == [0.0, 0.0, 0.0]


def test_gamma_shapes_the_mixed_demonstration():
    rows = group(1, size=4, demo=row("demo", [0.1], 1.0))
    # 0.6 * 0.3 * 0.1 / 0.4^2 over five tokens.
    got = coefficients(explain("hpt", rows, gate_off=0.5, std=False, gamma=0.3))[-1]
    assert got == pytest.approx([0.6 * 0.03 / 0.16 / 5])


def test_mixed_demonstration_without_reward_has_no_term_and_warns():
    rows = group(1, size=4, demo=row("demo", [0.1]))
    with pytest.warns(UserWarning, match="row 4: a demonstration without 'reward'"):
        result = explain("hpt", rows, gate_off=0.5, std=False)
    assert numbers(result) == {"policy": 4, "sft": 0}


def test_sft_row_needs_no_reward(recwarn):
    assert numbers(explain("hpt", group(0, demo=row("demo", [0.1]))))["sft"] == 1
    assert not recwarn.list


def test_sft_and_rl_have_their_own_coefficient_and_denominator():
    solved = [{**r, "group": "b"} for r in group(1, size=2, demo=None)]
    result = explain("hpt", [*group(0), *solved], std=False, sft_coef=0.3, sft_denominator="sequences")
    # SFT: 0.3 over one row; RL: +-0.5 over the two tokens of group b.
    assert coefficients(result)[8:] == [pytest.approx([0.3] * 3), [0.25], [-0.25]]
    assert [(t["name"], t["coefficient"], t["n"]) for t in result["terms"]] == [
        ("policy", 1.0, 2.0),
        ("sft", 0.3, 1.0),
    ]


def test_dropped_rollouts_leave_the_deviation_of_the_step():
    solved = [{**r, "group": "b"} for r in group(1, size=2, demo=None)]
    result = explain("hpt", [*group(0), *solved], std_scope="step")
    # Only rewards (1, 0) are left: std sqrt(1/2).
    assert advantages(result)[9] == pytest.approx([0.5 / (0.5**0.5 + 1e-6)])


def test_code_variant_has_no_std_no_clip_and_a_constant_length():
    rows = group(1, size=2, demo=None)
    rows[0]["old_logp"] = [rows[0]["logp"][0] - 1.0]  # ratio e
    result = explain("hpt", rows, variant="code", max_length=10)
    assert result["terms"][0] == {"name": "policy", "coefficient": 1.0, "denominator": "length", "n": 20.0}
    assert coefficients(result)[0] == pytest.approx([0.5 * 2.718281828459045 / 20])
    assert coefficients(explain("hpt", rows, max_length=10))[0] == [0.0]


def test_a_gate_below_zero_is_grpo_with_a_token_mean():
    assert_same_rule(("hpt", {"gate": -1}), ("grpo", {"denominator": "tokens"}))


def demonstrated(seed):
    """Every prompt with a demonstration and a measured rollout."""
    rows = [r for r in random_rows(seed) if r.get("verdict") != "unscorable"]
    have = {r.get("group") for r in rows if r["logp"] and r["source"] == ["demo"] * len(r["logp"])}
    return [r for r in rows if r.get("group") in have]


def test_a_gate_of_one_is_sft():
    assert_same_rule(("hpt", {"gate": 1}), ("sft", {}), demonstrated)


@pytest.mark.parametrize("bad", [{"gate": 0.5, "gate_off": 0.25}, {"skip_grad_norm": 0}, {"sft_coef": -1}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="hpt: "):
        explain("hpt", group(0), **bad)
