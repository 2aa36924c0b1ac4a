import math

import pytest

from interlace import explain
from tests.methods.batches import (
    advantages,
    assert_gradient,
    assert_same_rule,
    coefficients,
    random_rows,
    row,
)


def rehearsal(*ratios):
    """A cached answer of the start policy with these ratios u = pi / pi_0, at pi_0 = 1/4."""
    return {**row("demo", [u / 4 for u in ratios]), "ref_logp": [math.log(0.25)] * len(ratios)}


@pytest.mark.parametrize(
    ("divergence", "f", "gradient"),
    [
        ("forward_kl", (0.193147, 0, 0.306853), (-0.5, 0, 1)),
        ("js", (0.084950, 0, 0.169899), (-0.202733, 0, 0.575364)),
        # u (1 - u^-0.2) / 0.2: 2.5 (1 - 2^0.2) = -0.371746, 10 (1 - 2^-0.2) = 1.294494.
        ("alpha", (0.160318, 0, 0.368118), (-0.371746, 0, 1.294494)),
    ],
)
def test_divergence_on_tokens_of_the_start_policy(divergence, f, gradient):
    result = explain("dph_rl", [rehearsal(0.5, 1, 2)], divergence=divergence, div_coef=0.3)
    assert coefficients(result)[0] == pytest.approx([-0.1 * g for g in gradient], abs=1e-7)
    assert result["loss"] == pytest.approx(0.1 * sum(f), abs=2e-7)
    assert result["terms"][1] == {"name": "divergence", "coefficient": 0.3, "denominator": "tokens", "n": 3}


@pytest.mark.parametrize("divergence", ["forward_kl", "js", "alpha"])
def test_nothing_at_the_start_policy(divergence):
    result = explain("dph_rl", [rehearsal(1, 1)], divergence=divergence)
    assert (result["loss"], coefficients(result)) == (0, [[0, 0]])


def test_alpha_moves_between_the_two_kls():
    # d f / d logp = u (1 - u^-alpha) / alpha: u - 1 at alpha -> 1, u ln u at alpha -> 0.
    forward, reverse = (explain("dph_rl", [rehearsal(2)], divergence="alpha", alpha=a, div_coef=1)
                        for a in (1 - 1e-9, 1e-6))  # fmt: skip
    assert coefficients(forward)[0] == pytest.approx([-1.0], abs=1e-6)
    assert coefficients(reverse)[0] == pytest.approx([-2 * math.log(2)], abs=1e-5)


def test_rollouts_and_rehearsal_have_a_denominator_each():
    # A = +-1/2, 2 rollout tokens; u - 1 = 1 and 3 over 2 rehearsal tokens, 0.05 in front.
    rows = [*(row("rollout", [0.5], r) for r in (1.0, 0.0)), rehearsal(2, 4)]
    result = explain("dph_rl", rows, std=False)
    assert coefficients(result) == [[0.25], [-0.25], pytest.approx([-0.025, -0.075])]
    assert [t["n"] for t in result["terms"]] == [2, 2]
    assert advantages(result) == [[0.5], [-0.5], [1, 1]]
    shown = explain("dph_rl", rows, std=False, div_denominator="sequences")
    assert coefficients(shown)[2] == pytest.approx([-0.05, -0.15])


def test_upper_clip_is_higher():
    rows = [row("rollout", [0.5], 1.0, old_logp=[math.log(0.5 / 1.25)]), row("rollout", [], -1.0)]
    assert coefficients(explain("dph_rl", rows, std=False))[0] == pytest.approx([1.25])  # A = 1, inside 1.28
    assert coefficients(explain("dph_rl", rows, std=False, clip_high=0.2))[0] == [0]


@pytest.mark.parametrize("divergence", ["forward_kl", "js", "alpha"])
def test_gradient_is_that_of_the_loss(divergence):
    rows = [
        {"old_logp": [x - 0.1 for x in r["logp"]], **r}
        for r in random_rows(2, groups=3, rollouts=2, longest=3)
    ]
    assert_gradient("dph_rl", rows, divergence=divergence, div_coef=1)


def test_without_divergence_it_is_dapo_with_every_group():
    assert_same_rule(("dph_rl", {"div_coef": 0}), ("dapo", {"dynamic_sampling": False}))


def test_without_rehearsal_it_is_dapo_with_every_group():
    assert_same_rule(("dph_rl", {}), ("dapo", {"dynamic_sampling": False}),
                     lambda seed: random_rows(seed, demos=False))  # fmt: skip


def test_reference_is_needed_on_rehearsal_tokens_alone():
    rows = [row("rollout", [0.5], 1.0), rehearsal(2)]
    explain("dph_rl", rows)
    del rows[1]["ref_logp"]
    with pytest.raises(ValueError, match="row 1: 'ref_logp' is needed"):
        explain("dph_rl", rows)


@pytest.mark.parametrize(
    "bad",
    [{"divergence": "hellinger"}, {"alpha": 0}, {"alpha": 1}, {"div_coef": -1}, {"samples": 0}, {"kl": 0.1}],
)
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="dph_rl: "):
        explain("dph_rl", [], **bad)
