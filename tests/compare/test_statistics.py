"""Intervals against published examples, scipy, and their own nominal rates."""

import math

import numpy as np
import pytest
from scipy import stats

from interlace.compare.statistics import (
    accuracy,
    components,
    difference,
    expected_precision,
    holm,
    interquartile_interval,
    interquartile_mean,
    mean_of,
    needed,
    not_told_apart,
    precision,
    probability_of_improvement,
)
from interlace.evaluation.metrics import paired_difference, wilson_interval

PENICILLIN = """
27 23 26 23 23 21|27 23 26 23 23 21|25 21 25 24 24 20|26 23 25 23 23 20|25 22 26 22 23 20|24 22 25 23 22 19|
24 20 23 21 22 19|26 22 26 24 24 21|24 21 24 22 22 20|24 21 24 23 22 19|26 23 26 24 24 21|25 22 26 24 24 20|
26 24 26 24 25 22|26 23 26 23 23 20|26 23 25 24 24 22|25 22 25 23 23 20|25 21 24 23 23 20|25 22 24 23 23 19|
24 21 23 21 21 19|26 23 26 24 24 21|25 21 24 22 22 18|25 22 25 22 22 20|24 21 24 22 24 19|24 21 24 22 21 18
"""
"""Zones of inhibition (mm) of six penicillin samples on 24 plates: Davies and Goldsmith 1972, section 6.6."""


def table(text):
    return np.array([[float(x) for x in row.split()] for row in text.replace("\n", "").split("|")])


def test_variance_components_are_those_published_for_the_penicillin_plates():
    # lme4's documentation (REML; in a full table the same as the analysis of variance).
    c = components(table(PENICILLIN))
    assert c.mean == pytest.approx(22.9722, abs=5e-5)
    assert math.sqrt(c.seed) == pytest.approx(0.8467, abs=5e-5)
    assert math.sqrt(c.problem) == pytest.approx(1.9316, abs=5e-5)
    assert math.sqrt(c.rest) == pytest.approx(0.5499, abs=5e-5)
    assert precision(c).error == pytest.approx(0.8086, abs=5e-5)


def test_mean_squares_of_a_two_by_two_table_by_hand():
    c = components([[1, 2], [3, 6]])
    assert c.mean_squares == pytest.approx((9, 4, 1))
    assert (c.seed, c.problem, c.rest) == pytest.approx((4, 1.5, 1))
    p = expected_precision(c, 2, 2)
    assert p.error**2 == pytest.approx(9 / 4)  # two seeds: the wider interval, of their two means alone
    three = expected_precision(c, 3, 2)
    # MS: 2*4+1 = 9, 3*1.5+1 = 5.5, 1; (9 + 5.5 - 1) / 6
    assert three.error**2 == pytest.approx(13.5 / 6)
    assert three.df == pytest.approx(13.5**2 / (81 / 2 + 5.5**2 / 1 + 1 / 2))


def test_where_only_seeds_differ_it_is_the_t_test_of_seed_means():
    by_seed = np.array([0.1, 0.3, 0.25, 0.05])
    d = difference(np.zeros((4, 50)), np.tile(by_seed[:, None], (1, 50)))
    other = stats.ttest_1samp(by_seed, 0)
    low, high = other.confidence_interval()
    assert (d.low, d.high, d.p) == pytest.approx((low, high, other.pvalue))
    assert d.df == pytest.approx(3) and d.better == pytest.approx(1 - other.pvalue / 2)


def test_where_only_problems_differ_it_is_the_t_test_of_problems():
    by_problem = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], size=80, p=[0.1, 0.6, 0.3])
    d = difference(np.zeros((3, 80)), np.tile(by_problem, (3, 1)))
    other = stats.ttest_1samp(by_problem, 0)
    low, high = other.confidence_interval()
    assert (d.low, d.high, d.p) == pytest.approx((low, high, other.pvalue))


def test_one_seed_is_the_paired_interval_over_problems():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 2, (2, 60)).astype(float)
    d, other = difference(a[None], b[None]), paired_difference(a.tolist(), b.tolist())
    assert (d.value, d.low, d.high) == pytest.approx((other.value, other.low, other.high))
    assert d.components is None and needed(d).seeds is None


def simulated(rng, seeds, problems, of_seed, better=0.0):
    """Right or wrong of two methods with the same problems; logits with effects of problem, run and both."""
    hard = rng.normal(0, 2, (1, problems))
    out = []
    for shift in (0.0, better):
        logit = hard + shift + rng.normal(0, of_seed, (seeds, 1)) + rng.normal(0, 1, (seeds, problems))
        out.append((rng.random((seeds, problems)) < 1 / (1 + np.exp(-logit))).astype(float))
    return out


@pytest.mark.parametrize(
    ("seeds", "problems", "of_seed", "least"),
    [(2, 128, 0.3, 0.0), (3, 128, 0.0, 0.0), (3, 128, 0.3, 0.02), (5, 128, 0.4, 0.03)],
)
def test_two_copies_of_a_method_are_told_apart_at_the_nominal_rate(seeds, problems, of_seed, least):
    # Nominal is 5 %; without any seed effect, or with two seeds, the test may be careful, never careless.
    # 800 repeats: the standard deviation of a rate of 5 % is 0.8 points.
    rng = np.random.default_rng(seeds)
    told = [difference(*simulated(rng, seeds, problems, of_seed)).p < 0.05 for _ in range(800)]
    assert least <= np.mean(told) <= 0.075


def test_a_clear_difference_is_found():
    rng = np.random.default_rng(5)
    found = [difference(*simulated(rng, 3, 256, 0.1, better=1.2)) for _ in range(50)]
    assert np.mean([d.low > 0 for d in found]) > 0.8
    assert np.mean([d.value for d in found]) > 0.1


def test_methods_that_never_differ_have_an_interval_with_a_width():
    same = np.tile([0.0, 1.0], (3, 20))
    d = difference(same, same)
    assert d.low < 0 < d.high and d.p == 1 and d.better == 0.5


def test_accuracy_of_one_seed_is_wilson_and_several_seeds_widen_it():
    right = np.array([1.0] * 30 + [0.0] * 70)
    one = accuracy(right[None])
    assert (one.low, one.high) == pytest.approx(wilson_interval(0.3, 100))
    rng = np.random.default_rng(0)
    spread = np.array([rng.random(100) < share for share in (0.15, 0.3, 0.45)], dtype=float)
    many = accuracy(spread)
    assert many.high - many.low > one.high - one.low
    assert accuracy(np.zeros((3, 50))).low == 0 and accuracy(np.zeros((3, 50))).high > 0


def test_accuracy_that_is_almost_nothing_is_known_to_be_so() -> None:
    scores = np.zeros((3, 128))
    scores[0, 5] = 1 / 8  # one right sample in 3072
    assert accuracy(scores).high < 0.02


def test_what_would_tell_a_difference_is_the_smallest_number_that_does():
    # Only seeds vary: error^2 = u / seeds. Brute force over scipy's quantiles.
    rows = np.array([0.02, 0.10, 0.06])
    d = difference(np.zeros((3, 40)), np.tile(rows[:, None], (1, 40)))
    u = rows.var(ddof=1)

    def tells(k):
        quantiles = stats.t.ppf(0.975, k - 1) + stats.t.ppf(0.8, k - 1)
        return d.value >= quantiles * math.sqrt(u / k)

    assert needed(d).seeds == next(k for k in range(3, 1000) if tells(k))
    assert needed(d).problems is None  # no number of problems makes three seeds more alike


def test_holm_adjusts_as_in_a_worked_example():
    # p = 0.01, 0.04, 0.03, 0.005: adjusted 0.03, 0.06, 0.06, 0.02 (step by step by hand).
    raw = {("a", "b"): 0.01, ("a", "c"): 0.04, ("a", "d"): 0.03, ("b", "c"): 0.005}
    adjusted = holm(raw)
    assert [adjusted[pair] for pair in raw] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm({("a", "b"): 0.6, ("a", "c"): 0.7})["a", "b"] == 1


def test_no_claim_among_four_equal_methods_is_made_more_often_than_the_level():
    rng = np.random.default_rng(9)
    wrong = 0
    for _ in range(300):
        hard = rng.normal(0, 2, (1, 96))
        logits = hard + rng.normal(0, 0.3, (4, 4, 1)) + rng.normal(0, 1, (4, 4, 96))
        tables = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
        pairs = {
            (str(i), str(j)): difference(tables[i], tables[j]).p for i in range(4) for j in range(i + 1, 4)
        }
        wrong += min(holm(pairs).values()) < 0.05
    assert wrong / 300 <= 0.08


def test_interquartile_mean_is_the_mean_of_the_middle_half():
    scores = np.array([[0, 10], [1, 20], [2, 30], [100, 40]])  # sorted: 0 1 2 10 20 30 40 100
    assert interquartile_mean(scores) == pytest.approx((2 + 10 + 20 + 30) / 4)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None))
    low, high = interquartile_interval(scores)
    assert 0 <= low < 15.5 < high <= 100
    flat = np.full((3, 2), 0.4)
    assert interquartile_interval(flat) == pytest.approx((0.4, 0.4))


def test_probability_of_improvement_is_the_mann_whitney_statistic_over_all_pairs():
    assert probability_of_improvement([[1], [2]], [[2], [3]]) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 6, (5, 3)).astype(float), rng.integers(1, 7, (4, 3)).astype(float)
    by_task = [stats.mannwhitneyu(b[:, t], a[:, t]).statistic / 20 for t in range(3)]
    assert probability_of_improvement(a, b) == pytest.approx(np.mean(by_task))


def test_the_mean_over_tasks_adds_variances():
    rng = np.random.default_rng(4)
    tasks = [difference(*simulated(rng, 3, 64, 0.2)) for _ in range(3)]
    mean = mean_of(tasks)
    assert mean.value == pytest.approx(np.mean([d.value for d in tasks]))
    assert mean.error**2 == pytest.approx(sum(d.error**2 for d in tasks) / 9)
    assert mean_of(tasks[:1]) is tasks[0]


def test_methods_share_a_letter_if_and_only_if_they_are_not_told_apart():
    assert not_told_apart(["a", "b", "c"], {("a", "c"): True}) == ["a", "ab", "b"]
    assert not_told_apart(["a", "b"], {}) == ["a", "a"]
    rng = np.random.default_rng(6)
    names = list("uvwxyz")
    for _ in range(30):
        told = {(x, y): bool(rng.random() < 0.4) for i, x in enumerate(names) for y in names[i + 1 :]}
        letters = dict(zip(names, not_told_apart(names, told), strict=True))
        for (x, y), apart in told.items():
            assert apart == (not set(letters[x]) & set(letters[y]))


def test_tables_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(3, 3\)"):
        difference(np.zeros((2, 3)), np.zeros((3, 3)))
    with pytest.raises(ValueError, match="at least 2"):
        components(np.zeros((1, 5)))
