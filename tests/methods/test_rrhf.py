"""RRHF: three candidates with p = (-1, -.5, -2) and rewards (1, 0, .5)."""

import math

import pytest

from interlace import explain
from interlace.methods import get
from tests.methods.batches import assert_gradient, coefficients, random_rows, row
from tests.methods.fixtures import near


def candidate(reward, *logp, source="rollout", **given):
    return {**row(source, [1.0] * len(logp), reward, **given), "logp": list(logp)}


ROWS = [candidate(1.0, -1.0), candidate(0.0, -0.5), candidate(0.5, -2.0)]
"""Violated: 2 over 1 by .5 and 2 over 3 by 1.5; 3 under 1 is in order. Best: 1."""


def test_ranking_and_imitation():
    out = explain("rrhf", ROWS)
    assert out["loss"] == pytest.approx(2.0 + 1.0)
    assert [c[0] for c in coefficients(out)] == [1 + 1, -2, 1]  # minus (-1, 2, -1), and the best row's 1
    assert out["terms"] == [
        {"name": "rank", "coefficient": 1.0, "denominator": "groups", "n": 1.0},
        {"name": "best", "coefficient": 1.0, "denominator": "groups", "n": 1.0},
    ]


@pytest.mark.parametrize("coef", [0, 0.5, 100])
def test_the_coefficient_is_of_the_ranking(coef):
    out = explain("rrhf", ROWS, rank_coef=coef)
    assert out["loss"] == pytest.approx(2.0 * coef + 1.0)
    assert [c[0] for c in coefficients(out)] == [coef + 1, -2 * coef, coef]
    assert out["terms"][0]["coefficient"] == coef


def test_only_the_order_of_rewards_matters():
    scaled = [{**r, "reward": 10 * r["reward"] - 3} for r in ROWS]
    assert explain("rrhf", scaled) == explain("rrhf", ROWS)


def test_the_order_of_rows_does_not_matter():
    turned = explain("rrhf", [ROWS[2], ROWS[0], ROWS[1]])
    assert turned["loss"] == explain("rrhf", ROWS)["loss"]
    assert [c[0] for c in coefficients(turned)] == [1, 2, -2]


LONG = [candidate(1.0, -1.0, -1.0, -1.0, -1.0), candidate(0.0, -1.5, -1.5)]
"""Sums -4 and -3, lengths 4 and 2, the means in order: -1 > -1.5."""


@pytest.mark.parametrize(
    ("options", "rank", "best", "worse"),
    [
        ({}, 0.0, 0.0, 0.0),  # -1 and -1.5: in order
        ({"length": "padded"}, 0.25, 1 / 4, -1 / 4),  # -4/4 and -3/4
        ({"length_power": 0}, 1.0, 1.0, -1.0),  # -4 and -3
        ({"length_power": 0.5}, 0.0, 0.0, 0.0),  # -2 and -3/sqrt 2 = -2.12
        ({"length_power": 0.5, "length": "padded"}, 0.5, 0.5, -0.5),  # -2 and -1.5
    ],
)
def test_length_normalisation(options, rank, best, worse):
    out = explain("rrhf", LONG, **options)
    assert out["loss"] == pytest.approx(rank + 4)
    assert coefficients(out)[0] == near(*[best + 1] * 4)
    assert coefficients(out)[1] == near(*[worse] * 2)


def test_padded_is_the_longest_candidate_of_the_group_only():
    longer = candidate(1.0, *[-9.0] * 8, group="other")
    unscored = candidate(1.0, *[-9.0] * 8, verdict="unscorable")
    out = explain("rrhf", [*LONG, longer, unscored], length="padded", rank_coef=8)
    assert coefficients(out)[1] == near(-1, -1)  # 8 / 4, over two groups


def test_imitation_by_sum_or_mean():
    assert explain("rrhf", LONG, ft="sum")["loss"] == pytest.approx(4)
    out = explain("rrhf", LONG, ft="mean")
    assert out["loss"] == pytest.approx(1)
    assert coefficients(out)[0] == near(*[0.25] * 4)


def test_equal_rewards_form_no_pair_and_ties_imitate_the_first():
    out = explain("rrhf", [candidate(0.5, -3.0), candidate(0.5, -1.0), candidate(0.5, -2.0)])
    assert out["loss"] == 3
    assert coefficients(out) == [[1], [0], [0]]


def test_groups_share_the_mean_and_rank_apart():
    other = [candidate(0.0, -0.1, group="b"), candidate(1.0, -0.6, group="b")]
    out = explain("rrhf", [*ROWS, *other])
    assert out["terms"][0]["n"] == 2
    assert out["loss"] == pytest.approx((2 + 1 + 0.5 + 0.6) / 2)
    assert [c[0] for c in coefficients(out)] == near(1, -1, 0.5, -0.5, 1)


def test_a_single_candidate_is_imitated():
    rows = [candidate(0.0, -1.0, -2.0, group=i, source="demo") for i in range(3)]
    ours, theirs = explain("rrhf", rows), explain("sft", rows, denominator="sequences")
    assert ours["loss"] == pytest.approx(theirs["loss"])
    assert coefficients(ours) == coefficients(theirs)


def test_candidates_are_rows_with_a_reward_whoever_wrote_them():
    rows = [
        candidate(1.0, -1.0, source="demo"),
        candidate(0.0, -0.5, -0.5, source=["prefix", "rollout"]),
        candidate(5.0),  # empty
        candidate(5.0, -0.1, verdict="unscorable"),
        candidate(5.0, -0.1, source="hint"),  # nothing of a response
        {"logp": [-1.0], "source": "rollout", "reward": None, "group": "left out"},
    ]
    out = explain("rrhf", rows)
    assert out["terms"][0]["n"] == 1
    assert coefficients(out) == [[1 + 1], [-0.5, -0.5], [], [0], [0], [0]]


def test_hints_are_no_part_of_a_response():
    rows = [candidate(1.0, -9.0, -1.0, source=["hint", "demo"]), candidate(0.0, -0.5)]
    assert coefficients(explain("rrhf", rows)) == [[0, 2], [-1]]


def test_a_verdict_stands_for_a_reward():
    rows = [{k: v for k, v in r.items() if k != "reward"} for r in ROWS[:2]]
    out = explain("rrhf", [{**rows[0], "verdict": "pass"}, {**rows[1], "verdict": "fail"}])
    assert [c[0] for c in coefficients(out)] == [2, -1]


def test_a_demonstration_without_reward_is_no_candidate_and_warns():
    demo = {"logp": [-0.1], "source": "demo", "group": "a"}
    with pytest.warns(UserWarning, match="row 3: a demonstration without 'reward'"):
        out = explain("rrhf", [*ROWS, demo])
    assert coefficients(out)[3] == [0]
    assert out["loss"] == explain("rrhf", ROWS)["loss"]


@pytest.mark.filterwarnings("ignore:row")
@pytest.mark.parametrize("options", [{}, {"length": "padded", "ft": "mean", "length_power": 0.7}])
def test_gradient_on_rows_of_every_kind(options):
    assert_gradient("rrhf", random_rows(4, groups=3, rollouts=2, longest=3), **options)


def test_log_probabilities_are_read_at_temperature_one():
    assert all(term.at_temperature_one for term in get("rrhf")().terms)


@pytest.mark.parametrize("options", [{"rank_coef": -1}, {"length_power": math.nan}, {"length": "mean"}])
def test_impossible_parameters(options):
    with pytest.raises(ValueError, match=f"rrhf: {next(iter(options))}="):
        explain("rrhf", [], **options)
