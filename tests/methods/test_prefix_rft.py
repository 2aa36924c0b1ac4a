import math
from functools import partial

import pytest

from interlace import explain
from interlace.rules.schedules import Cosine
from tests.methods.batches import advantages, assert_same_rule, coefficients, random_rows, row

H = [0.1, 2.0, 0.5, 0.05, 0.3]


def hybrid(reward=1.0, entropy=(0.4,), p=0.5, **given):
    k = len(entropy)
    return row(["prefix"] * k + ["rollout"], [p] * (k + 1), reward, entropy=[*entropy, None], **given)


def pure(*rewards):
    return [row("rollout", [0.5], r) for r in rewards]


GROUP = [*pure(1.0, *[0.0] * 6), hybrid(entropy=H)]


def test_joint_group_gives_prefix_and_continuation_the_same_advantage():
    result = explain("prefix_rft", GROUP, top_entropy=1)
    # Mean of two successes in eight: 0.25.
    assert advantages(result) == [[0.75], *[[-0.25]] * 6, [0.75] * 6]


def test_only_the_most_uncertain_prefix_tokens_are_trained():
    result = explain("prefix_rft", GROUP, max_length=10)
    # ceil(0.2 * 5) = 1: the token with entropy 2.0; 8 rows x 10.
    assert coefficients(result)[-1] == pytest.approx([0.0, 0.75 / 80, 0.0, 0.0, 0.0, 0.75 / 80])
    assert result["terms"][0]["n"] == 80


def test_masked_prefix_tokens_stay_in_the_denominator():
    result = explain("prefix_rft", GROUP, denominator="tokens", top_entropy=0)
    assert result["terms"][0]["n"] == 13
    assert coefficients(result)[-1] == pytest.approx([0.0] * 5 + [0.75 / 13])


def test_entropy_share_of_the_step_or_of_each_row():
    rows = [hybrid(1.0, [2.0, 1.9]), hybrid(0.0, [0.2, 0.1])]
    step = explain("prefix_rft", rows, top_entropy=0.5, max_length=1)
    each = explain("prefix_rft", rows, top_entropy=0.5, max_length=1, entropy_scope="row")
    # A = +-0.5 over two rows: the step keeps both tokens of the first row, else one of each row.
    assert coefficients(step) == [pytest.approx([0.25, 0.25, 0.25]), pytest.approx([0.0, 0.0, -0.25])]
    assert coefficients(each) == [pytest.approx([0.25, 0.0, 0.25]), pytest.approx([-0.25, 0.0, -0.25])]


def test_share_follows_a_schedule():
    rows = [hybrid(1.0, [4.0, 3.0, 2.0, 1.0]), *pure(0.0)]
    for step, kept in ((0, 0), (5, 2), (10, 4), (99, 4)):
        result = explain("prefix_rft", rows, step=step, top_entropy="linear:0,1,10")
        assert sum(c > 0 for c in coefficients(result)[0][:4]) == kept


def test_prefix_aware_advantages_judge_prefix_and_continuation_apart():
    result = explain("prefix_rft", GROUP, advantage="prefix", top_entropy=1)
    # Pure mean 1/7: 6/7 and -1/7; prefix 1 - 1/7; a lone continuation keeps R.
    a = advantages(result)
    assert a[0] == pytest.approx([6 / 7]) and a[1] == pytest.approx([-1 / 7])
    assert a[-1] == pytest.approx([6 / 7] * 5 + [1.0])


def test_several_continuations_are_centred_among_themselves():
    rows = [*pure(1.0), hybrid(1.0), hybrid(0.0)]
    result = explain("prefix_rft", rows, advantage="prefix", top_entropy=1)
    # One pure row: no baseline for itself, but one for the prefixes: R - 1.
    assert advantages(result) == [[0.0], [0.0, 0.5], [-1.0, -0.5]]


def test_prefix_without_pure_rows_has_no_advantage():
    result = explain("prefix_rft", [hybrid(1.0)], advantage="prefix", top_entropy=1)
    assert advantages(result) == [[0.0, 1.0]]


def test_joint_advantage_can_be_standardised():
    result = explain("prefix_rft", [*pure(0.0), hybrid(1.0)], std=True, top_entropy=1)
    assert advantages(result)[1] == pytest.approx([0.5 / (math.sqrt(0.5) + 1e-6)] * 2)


def test_dual_clip_bounds_a_failed_prefix():
    rows = [*pure(1.0), hybrid(0.0, old_logp=[math.log(0.1)] * 2)]  # ratio 5
    result = explain("prefix_rft", rows, top_entropy=1, max_length=1)
    # A = -0.5: the loss is at most 3 * 0.5 and no gradient is left; the pure row gives -0.5; two rows.
    assert coefficients(result)[1] == [0.0, 0.0]
    assert result["loss"] == pytest.approx((1.5 + 1.5 - 0.5) / 2)
    free = explain("prefix_rft", rows, top_entropy=1, max_length=1, dual_clip=None)
    assert coefficients(free)[1] == pytest.approx([-5 * 0.25] * 2)


def test_prefix_is_measured_against_the_old_policy():
    rows = [*pure(0.0), hybrid(1.0, old_logp=[math.log(0.4)] * 2)]  # ratio 1.25 > 1.2, A > 0: clipped
    assert coefficients(explain("prefix_rft", rows, top_entropy=1))[1] == [0.0, 0.0]
    assert coefficients(explain("prefix_rft", rows, top_entropy=1, clip_high=0.3, max_length=1))[
        1
    ] == pytest.approx([1.25 * 0.25] * 2)


def test_entropy_is_needed_on_prefix_tokens_alone():
    explain("prefix_rft", GROUP)
    with pytest.raises(ValueError, match="row 1: 'entropy' is needed"):
        explain("prefix_rft", [*pure(0.0), row(["prefix", "rollout"], [0.5, 0.5], 1.0)])


def test_lower_bound_of_the_prefix_share_falls_by_half_a_cosine():
    low = Cosine(0.95, 0.05, 0, 500)
    # 0.05 + 0.45 (1 + cos(pi t / 500))
    assert [low(t) for t in (0, 125, 250, 375, 500)] == pytest.approx(
        [0.95, 0.818198, 0.5, 0.181802, 0.05], abs=1e-6
    )


@pytest.mark.parametrize("advantage", ["joint", "prefix"])
def test_without_prefixes_it_is_dr_grpo_with_a_dual_clip(advantage):
    assert_same_rule(
        ("prefix_rft", {"advantage": advantage}),
        ("dr_grpo", {"dual_clip": 3}),
        partial(random_rows, prefixes=False),
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"top_entropy": 1.2},
        {"top_entropy": "linear:0,2,10"},
        {"low_end": 0.9, "high": 0.5},
        {"dual_clip": 1.0},
        {"advantage": "both"},
    ],
)
def test_impossible_parameters_raise(bad):
    with pytest.raises(ValueError, match="prefix_rft: "):
        explain("prefix_rft", GROUP, **bad)
