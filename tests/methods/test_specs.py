import math

import pytest

from interlace import explain
from tests.methods.batches import assert_gradient, assert_same_rule, coefficients, random_rows, row


def side(role, p, by, **given):
    """A row in a role whose summed log-ratio to the reference is `by`."""
    r = row("demo", p, extra={"role": role}, **given)
    return {**r, "ref_logp": [x - by / len(p) for x in r["logp"]]}


def pair():
    return [side("chosen", [0.5, 0.2], -1.0), side("rejected", [0.4, 0.1], -3.0)]


def test_preference_moves_both_rows_apart():
    # m = -1 + 3, 0.1 m = 0.2: -log sigmoid(0.2) = 0.59814, weight 0.1 sigmoid(-0.2) = 0.045017.
    result = explain("specs", pair(), sft_coef=0)
    assert result["loss"] == pytest.approx(0.59814, abs=5e-6)
    assert coefficients(result)[0] == pytest.approx([0.045017] * 2, abs=5e-7)
    assert coefficients(result)[1] == pytest.approx([-0.045017] * 2, abs=5e-7)
    assert result["terms"][0] == {"name": "preference", "coefficient": 1, "denominator": "pairs", "n": 1}


def test_chosen_rows_are_also_trained_by_likelihood():
    # A token mean over the 2 chosen tokens, times sft_coef.
    low = coefficients(explain("specs", pair(), sft_coef=0))
    shown = explain("specs", pair(), sft_coef=0.5)
    assert coefficients(shown)[0] == pytest.approx([c + 0.25 for c in low[0]])
    assert coefficients(shown)[1] == low[1]
    assert shown["terms"][1] == {"name": "sft", "coefficient": 0.5, "denominator": "tokens", "n": 2}


def test_beta_scales_the_margin():
    # 1 * sigmoid(-2) at beta = 1.
    shown = explain("specs", pair(), beta=1, sft_coef=0)
    assert coefficients(shown)[0] == pytest.approx([1 / (1 + math.e**2)] * 2)


def test_a_small_beta_leaves_sft_on_the_chosen_rows():
    shown = coefficients(explain("specs", pair(), beta=1e-9))
    assert shown[0] == pytest.approx([0.5, 0.5], abs=1e-8)
    assert shown[1] == pytest.approx([0, 0], abs=1e-8)


def test_pairs_are_each_chosen_with_each_rejected_row_of_a_group():
    # 2 x 2 pairs at margin 0: 0.05 per pair, each row is in 2 of 4.
    rows = [side(role, [0.5], 0.0) for role in ("chosen", "chosen", "rejected", "rejected")]
    rows += [side("rejected", [0.5], 0.0, group="b"), row("demo", [0.5]), side("chosen", [], 0.0)]
    result = explain("specs", rows, sft_coef=0)
    assert result["terms"][0]["n"] == 4
    assert coefficients(result) == [*[[0.025]] * 2, *[[-0.025]] * 2, [0], [0], []]


def test_a_chosen_row_without_partner_keeps_its_likelihood_and_needs_no_reference():
    rows = [row("demo", [0.5, 0.5], extra={"role": "chosen"})]
    assert coefficients(explain("specs", rows)) == [[0.5, 0.5]]


def test_sampled_rows_may_be_chosen_too():
    rows = [{**r, "source": "rollout", "reward": 1.0} for r in pair()]
    assert coefficients(explain("specs", rows)) == coefficients(explain("specs", pair()))


def with_roles(seed):
    rows = random_rows(seed, groups=3, rollouts=3, longest=3, left_out=False)
    for i, r in enumerate(rows):
        r["extra"] = {"role": ("chosen", "rejected", None)[i % 3]}
    return rows


def test_gradient_is_that_of_the_loss():
    assert_gradient("specs", with_roles(1), beta=0.7)


def test_stage_rl_is_grpo():
    assert_same_rule(("specs", {"stage": "rl", "kl": 0.1}), ("grpo", {"kl": 0.1}))
    assert explain("specs", pair(), stage="cold_start") == explain("specs", pair())


def test_reference_is_needed_in_pairs():
    rows = pair()
    del rows[1]["ref_logp"]
    with pytest.raises(ValueError, match="row 1: 'ref_logp' is needed"):
        explain("specs", rows)


def test_unknown_role_names_the_row():
    rows = [pair()[0], {**pair()[1], "extra": {"role": "rejcted"}}]
    with pytest.raises(ValueError, match=r"row 1: 'extra.role'='rejcted'; did you mean 'rejected'"):
        explain("specs", rows)


@pytest.mark.parametrize(
    "bad", [{"beta": 0}, {"sft_coef": -1}, {"format_stop": 1.5}, {"mask_truncated": True}]
)
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="specs: "):
        explain("specs", pair(), **bad)
