import math
from functools import partial

import pytest
import torch

from interlace import explain
from interlace.methods import get
from interlace.parts.token_weights import trust_region_probability
from tests.methods.batches import advantages, assert_same_rule, coefficients, random_rows, row

P = (0.02, 0.1, 0.6)


def guided(reward, p=P, **given):
    return row(["prefix"] * len(p) + ["rollout"], [*p, 0.5], reward, **given)


EIGHT = [
    *[row("rollout", [0.5], 0.0) for _ in range(4)],
    guided(0.0),
    guided(1.0),
    guided(1.0, (*P, 0.3)),
    row("demo", (*P, 0.3, 0.2), 1.0),
]


def test_one_baseline_over_guided_and_unguided_rows():
    a = advantages(explain("trapo", EIGHT))
    # Three successes in eight.
    assert [x[-1] for x in a[:7]] == [-0.375] * 5 + [0.625] * 2


def test_prefix_weight_is_one_inside_the_trust_region_and_p_over_alpha_outside():
    result = explain("trapo", EIGHT, max_length=10)
    assert result["terms"][0]["n"] == 80
    # (0.02, 0.1, 0.6) with alpha 0.1: (0.2, 1, 1), whatever the reward; the continuation has A.
    assert coefficients(result)[4] == pytest.approx([0.2 / 80, 1 / 80, 1 / 80, -0.375 / 80])
    assert advantages(result)[4] == [1.0, 1.0, 1.0, -0.375]


def test_loss_is_the_ratio_of_p_to_the_region():
    # One prefix of 0.2 + 1 + 1; equal rewards leave nothing else; two rows x 1.
    rows = [guided(1.0), row("rollout", [0.5], 1.0)]
    assert explain("trapo", rows, max_length=1)["loss"] == pytest.approx(-2.2 / 2)


def test_a_shared_prefix_is_trained_once():
    got = coefficients(explain("trapo", EIGHT, max_length=1))
    assert got[5][:3] == [0.0, 0.0, 0.0] and got[5][3] == pytest.approx(0.625 / 8)
    assert got[6][:4] == pytest.approx([0.2 / 8, 1 / 8, 1 / 8, 1 / 8])  # a longer prefix is another one


def test_the_whole_expert_gets_the_prefix_loss_alone():
    got = coefficients(explain("trapo", EIGHT, max_length=1))[7]
    assert got == pytest.approx([0.2 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8])


def test_tokens_of_a_prefix_trained_elsewhere_are_in_no_denominator():
    result = explain("trapo", EIGHT, denominator="tokens")
    # 4 + (3 + 1) + 1 + (4 + 1) + 5
    assert result["terms"][0]["n"] == 19


def test_prefix_id_says_what_is_shared():
    def prefix_sums(*ids):
        rows = [guided(1.0, extra={} if i is None else {"prefix_id": i}) for i in ids]
        return [c[0] != 0 for c in coefficients(explain("trapo", rows))]

    assert prefix_sums("x", "y", "x", 1, 1) == [True, True, False, True, False]
    assert prefix_sums(None, "x", None) == [True, True, False]
    other = [guided(1.0, extra={"prefix_id": "x"}), guided(1.0, group="b", extra={"prefix_id": "x"})]
    assert all(c[0] for c in coefficients(explain("trapo", other)))


def test_a_row_left_out_does_not_carry():
    rows = [guided(1.0, verdict="unscorable"), guided(1.0), guided(0.0)]
    assert [c[1] != 0 for c in coefficients(explain("trapo", rows))] == [False, True, False]


@pytest.mark.parametrize(("alpha", "weights"), [(0, [1, 1, 1]), (1, P), (0.3, [0.02 / 0.3, 0.1 / 0.3, 1])])
def test_alpha_goes_from_likelihood_to_weighting_by_p(alpha, weights):
    rows = [guided(1.0), row("rollout", [0.5], 1.0)]
    assert coefficients(explain("trapo", rows, alpha=alpha, max_length=1))[0][:3] == pytest.approx(
        [w / 2 for w in weights]
    )


def test_expert_row_without_reward_keeps_the_prefix_loss_outside_the_statistics(recwarn):
    rows = [row("rollout", [0.5], 1.0), row("rollout", [0.5], 0.0), row("demo", [0.5])]
    result = explain("trapo", rows)
    assert advantages(result) == [[0.5], [-0.5], [1.0]]
    assert coefficients(result)[2] == pytest.approx([1 / 3])
    assert not recwarn.list


def test_rollouts_have_neither_clip_nor_std():
    rows = [row("rollout", [0.5], 1.0, old_logp=[math.log(0.1)]), row("rollout", [0.5], 0.0)]
    assert coefficients(explain("trapo", rows))[0] == pytest.approx([5 * 0.5 / 2])
    assert coefficients(explain("trapo", rows, std=True, clip_high=0.2))[0] == [0.0]


def test_expected_expert_gradient_vanishes_where_the_tail_is_dropped():
    # p* = p_E / 0.9 on the kept tokens and 0 on those with p_E < alpha * 0.9.
    expert = torch.tensor([0.6, 0.3, 0.06, 0.04], dtype=torch.float64)
    p = torch.tensor([2 / 3, 1 / 3, 1e-12, 1e-12], dtype=torch.float64)

    def slope(alpha):
        logits = p.log().requires_grad_()
        logp = logits.log_softmax(0)
        return torch.autograd.grad((expert * trust_region_probability(logp, alpha)).sum(), logits)[0]

    assert slope(0.1).abs().max() < 1e-10
    assert slope(0.0).abs().max() > 0.03  # plain likelihood still pulls at the tail


def test_without_prefixes_it_is_dr_grpo_without_clip():
    assert_same_rule(
        ("trapo", {}),
        ("dr_grpo", {"clip_low": None, "clip_high": None}),
        partial(random_rows, demos=False, prefixes=False),
    )


def test_lists_are_read_from_text():
    h = get("trapo").validate(sizes="4,3,1", ratios="0, 0.25, 1", thresholds="-1,0.5,0.9")
    assert (h.sizes, h.ratios, h.thresholds) == ((4, 3, 1), (0.0, 0.25, 1.0), (-1.0, 0.5, 0.9))


@pytest.mark.parametrize(
    "bad", [{"sizes": "4,4"}, {"ratios": "0,0.2,0.5,1.5"}, {"alpha": 2}, {"sizes": "4,2,1,0"}]
)
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="trapo: "):
        explain("trapo", EIGHT, **bad)


def test_prefix_id_must_be_a_name():
    with pytest.raises(ValueError, match=r"row 0: 'extra.prefix_id'=\[1\]"):
        explain("trapo", [guided(1.0, extra={"prefix_id": [1]})])
