import math
from functools import partial

import pytest

from interlace import explain
from tests.methods.batches import assert_same_rule, coefficients, random_rows, row

P = (0.9, 0.1, 0.01)
ROLLOUTS = [row("rollout", [0.5], r) for r in (1.0, 0.0, 0.0)]
GROUP = [*ROLLOUTS, row("demo", P, 1.0, old_logp=[math.log(p) for p in P])]
# variant=code: A = (0.5, -0.5, -0.5 | 0.5); four rows x 3 tokens.


def external(rows=GROUP, **given):
    result = explain("rl_plus", rows, variant="code", max_length=3, **given)
    assert result["terms"][0]["n"] == 12
    return [12 * c for c in coefficients(result)[-1]]


def test_external_coefficient_is_advantage_times_ratio_times_focal_factor():
    # r = p / (0.75 p + 0.25) = (0.97297, 0.30769, 0.03883); sqrt(1 - p) = (0.31623, 0.94868, 0.99499)
    assert external() == pytest.approx([0.15384, 0.14595, 0.01932], abs=5e-6)
    assert external() == pytest.approx([0.5 * p / (0.75 * p + 0.25) * math.sqrt(1 - p) for p in P], rel=1e-12)


def test_loss_is_the_surrogate():
    # Rollouts -(0.5 - 0.5 - 0.5); external -0.319112.
    result = explain("rl_plus", GROUP, variant="code", max_length=3)
    assert result["loss"] == pytest.approx((0.5 - 0.319112) / 12, abs=1e-7)


def test_absent_old_logp_is_the_policy_itself():
    assert external([*ROLLOUTS, row("demo", P, 1.0)]) == pytest.approx(external(), rel=1e-12)


def test_gradient_flows_through_the_numerator_alone():
    # p_old = 0.5 everywhere: r = 2p / (0.75 + 0.5); the focal factor is held.
    rows = [*ROLLOUTS, row("demo", P, 1.0, old_logp=[math.log(0.5)] * 3)]
    assert external(rows) == pytest.approx([0.5 * 1.6 * p * math.sqrt(1 - p) for p in P], rel=1e-12)


def test_uniform_of_one_over_the_vocabulary_is_focal_sft():
    # The denominator is about 0.75 p_old: r = 4/3; 0.5 * 4/3 * 0.99499 = 0.6633 at p = 0.01.
    assert external(uniform=1e-9)[2] == pytest.approx(0.6633, abs=1e-4)


def test_kappa_is_the_exponent_of_the_focal_factor():
    assert external(kappa=2) == pytest.approx([0.5 * p / (0.75 * p + 0.25) * (1 - p) ** 2 for p in P])


def test_certain_token_is_already_known():
    rows = [*ROLLOUTS, row("demo", [1.0, 0.5, 0.5], 1.0)]
    assert external(rows)[0] == 0.0


def test_default_divides_by_the_deviation_of_the_mixed_group():
    a = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    result = explain("rl_plus", GROUP)
    assert [r["advantage"][0] for r in result["rows"]] == pytest.approx([a, -a, -a, a])


def test_wrong_solution_is_pushed_down():
    rows = [row("rollout", [0.5], 1.0), row("demo", [0.1], 0.0)]
    # A = -0.5; two rows x 1.
    got = coefficients(explain("rl_plus", rows, variant="code"))[1]
    assert got == pytest.approx([-0.5 * 0.1 / 0.325 * math.sqrt(0.9) / 2])


def test_rollouts_are_not_clipped_unless_asked():
    rows = [row("rollout", [0.5], 1.0, old_logp=[math.log(0.1)]), row("rollout", [0.5], 0.0)]
    assert coefficients(explain("rl_plus", rows, variant="code"))[0] == pytest.approx([5 * 0.5 / 2])
    assert coefficients(explain("rl_plus", rows, variant="code", clip_high=0.2))[0] == [0.0]


def test_prefix_tokens_count_as_external():
    rows = [row(["prefix", "rollout"], [0.1, 0.5], 1.0), row("rollout", [0.5], 0.0)]
    got = coefficients(explain("rl_plus", rows, variant="code", max_length=1))[0]
    assert got == pytest.approx([0.5 * 0.1 / 0.325 * math.sqrt(0.9) / 2, 0.25])


def test_solution_without_reward_has_no_term_and_warns():
    with pytest.warns(UserWarning, match="row 3: a demonstration without 'reward'"):
        result = explain("rl_plus", [*ROLLOUTS, row("demo", P)], max_length=1)
    assert result["terms"][0]["n"] == 3 and coefficients(result)[3] == [0.0] * 3


def test_without_focal_factor_and_denominator_it_is_luffy_with_the_identity():
    # kappa = 0 and p_old = uniform = 1: r = 2p / 2.
    def known(seed):
        rows = [r for r in random_rows(seed, prefixes=False) if r["reward"] is not None]
        return [{**r, "old_logp": [0.0] * len(r["logp"])} if "demo" in r["source"] else r for r in rows]

    for seed in (0, 1):
        ours = explain("rl_plus", known(seed), variant="code", kappa=0)
        luffy = explain("luffy", known(seed), variant="code", shape="identity")
        for a, b in zip(coefficients(ours), coefficients(luffy), strict=True):
            assert a == pytest.approx(b, rel=1e-12, abs=1e-15)


def test_code_variant_without_solutions_is_dr_grpo_without_clip():
    assert_same_rule(
        ("rl_plus", {"variant": "code"}),
        ("dr_grpo", {"clip_low": None, "clip_high": None}),
        partial(random_rows, demos=False, prefixes=False),
    )


@pytest.mark.parametrize("bad", [{"kappa": -1}, {"uniform": 0}, {"uniform": 2}, {"variant": "v2"}])
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="rl_plus: "):
        explain("rl_plus", GROUP, **bad)
