import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binomtest

from interlace.evaluation.metrics import (
    best_of_k,
    estimate,
    majority_at_k,
    majority_curve,
    paired_difference,
    pass_at_k,
    wilson_interval,
)


def majority_by_enumeration(answers, correct, k):
    """The definition: every k-subset, every tied answer equally likely, its share of correct samples."""
    share = {
        a: Fraction(sum(c for b, c in zip(answers, correct) if b == a), answers.count(a)) for a in answers
    }
    total, draws = Fraction(0), 0
    for subset in itertools.combinations(range(len(answers)), k):
        votes = Counter(answers[i] for i in subset if answers[i] is not None)
        draws += 1
        if votes:
            tied = [a for a, v in votes.items() if v == max(votes.values())]
            total += sum(share[a] for a in tied) / len(tied)
    return total / draws


def test_pass_at_k_is_one_minus_the_share_of_subsets_without_a_correct_sample():
    # C(3,3) / C(5,3) = 1/10 of the subsets miss both correct samples.
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9)
    for n, c in ((1, 0), (1, 1), (6, 0), (6, 2), (6, 5), (6, 6)):
        for k in range(1, n + 1):
            hits = [any(i < c for i in s) for s in itertools.combinations(range(n), k)]
            assert pass_at_k(n, c, k) == pytest.approx(sum(hits) / len(hits), abs=1e-12)


def test_pass_at_one_is_the_share_and_one_correct_sample_gives_k_over_n_at_any_size():
    assert pass_at_k(8, 3, 1) == pytest.approx(3 / 8)
    assert pass_at_k(100_000, 1, 25_000) == pytest.approx(0.25, rel=1e-9)


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_what_has_no_meaning(n, correct, k):
    with pytest.raises(ValueError, match="accepted are"):
        pass_at_k(n, correct, k)


def test_majority_of_three_hand_worked_samples():
    # a, a (right), b (wrong). k=1: 2/3. k=2: {aa} right, twice {ab} tied: (1 + 1/2 + 1/2) / 3. k=3: right.
    assert majority_curve(["a", "a", "b"], [True, True, False], 3) == pytest.approx([2 / 3, 2 / 3, 1.0])


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ("aabbc", "a"),
        ("aabbcc", "ab"),
        ("abcdefg", "cf"),
        ("aaaabbbccd", "b"),
        ("aa--b-", "b"),
        ("----", ""),
        ("aaaa", "a"),
    ],
)
def test_majority_equals_the_enumeration_of_every_subset(answers, right):
    votes = [None if a == "-" else a for a in answers]
    correct = [a in right for a in answers]
    for k, value in enumerate(majority_curve(votes, correct, len(votes)), start=1):
        assert value == pytest.approx(float(majority_by_enumeration(votes, correct, k)), abs=1e-12)


def test_an_answer_that_was_judged_both_ways_counts_by_its_share():
    votes, correct = ["a", "a", "a", "b"], [True, False, True, False]
    for k in range(1, 5):
        expected = majority_by_enumeration(votes, correct, k)
        assert majority_at_k(votes, correct, k) == pytest.approx(float(expected), abs=1e-12)
    assert majority_at_k(votes, correct, 4) == pytest.approx(2 / 3)


def test_majority_does_not_depend_on_the_order_of_samples():
    rng = np.random.default_rng(0)
    votes = list("aaabbbbcdeee")
    correct = [v == "e" for v in votes]
    order = rng.permutation(len(votes))
    assert majority_at_k(votes, correct, 7) == majority_at_k(
        [votes[i] for i in order], [correct[i] for i in order], 7
    )


def test_majority_of_many_samples_agrees_with_drawing_them():
    rng = np.random.default_rng(1)
    votes = ["r"] * 30 + ["w"] * 26 + [f"x{i}" for i in range(8)]
    correct = [v == "r" for v in votes]
    wins = 0.0
    draws = 4000
    for _ in range(draws):
        counted = Counter(votes[i] for i in rng.choice(64, 9, replace=False))
        top = [a for a, v in counted.items() if v == max(counted.values())]
        wins += ("r" in top) / len(top)
    error = 4 * math.sqrt(0.25 / draws)
    assert majority_at_k(votes, correct, 9) == pytest.approx(wins / draws, abs=error)


def test_best_of_k_equals_the_enumeration_and_is_pass_at_k_where_the_score_is_the_correctness():
    scores, values = [0.1, 0.7, 0.7, 0.3, 0.9], [1.0, 0.0, 1.0, 1.0, 0.5]
    for k in range(1, 6):
        expected = []
        for subset in itertools.combinations(range(5), k):
            top = [values[i] for i in subset if scores[i] == max(scores[j] for j in subset)]
            expected.append(sum(top) / len(top))
        assert best_of_k(scores, values, k) == pytest.approx(np.mean(expected))
    right = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    for k in range(1, 7):
        assert best_of_k(right, right, k) == pytest.approx(pass_at_k(6, 2, k))


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (1, 1), (412, 1000)])
def test_an_estimate_of_single_outcomes_is_wilsons_interval(k, n):
    expected = binomtest(k, n).proportion_ci(0.95, method="wilson")
    e = estimate([1.0] * k + [0.0] * (n - k))
    assert (e.value, e.n) == (k / n, n)
    assert (e.low, e.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert wilson_interval(k / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_an_estimate_of_shares_uses_the_effective_number_of_trials():
    # mean 1/2, variance of the values 1/8, so n_eff = 4 * (1/4) / (1/8) = 8.
    values = [0.0, 0.5, 1.0, 0.5]
    e = estimate(values, trials=40)
    assert (e.low, e.high) == pytest.approx(wilson_interval(0.5, 8))
    # ... but never more than there were trials.
    assert estimate(values, trials=6).high == pytest.approx(wilson_interval(0.5, 6)[1])
    equal = estimate([0.5] * 4, trials=40)
    assert (equal.low, equal.high) == pytest.approx(wilson_interval(0.5, 40))


def test_samples_of_one_problem_are_not_independent_trials():
    # Every problem is solved always or never: 100 samples of each say no more than one.
    values = [1.0] * 20 + [0.0] * 30
    assert estimate(values, trials=5000) == estimate(values)


def test_an_interval_has_a_width_where_all_values_are_equal():
    e = estimate([0.0] * 50, trials=400)
    assert e.low == 0.0 and 0.05 < e.high < 0.1


def test_the_interval_of_sampled_accuracy_covers_the_truth():
    rng = np.random.default_rng(2)
    covered, runs = 0, 600
    for _ in range(runs):
        difficulty = rng.beta(0.4, 1.2, size=80)
        e = estimate(rng.binomial(8, difficulty) / 8, trials=640)
        covered += e.low <= 0.25 <= e.high
    assert covered / runs == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("values", [[], [1.2], [-0.1, 0.4], [math.nan]])
def test_an_estimate_refuses_what_is_no_share(values):
    with pytest.raises(ValueError):
        estimate(values)


def test_paired_difference_by_hand():
    # 86 pairs: 16 won, 8 lost. Two pairs added: centre 8/88, variance ((16 + 8 + 1) - 8^2/88) / 88^2.
    first = [0] * 16 + [1] * 8 + [1] * 53 + [0] * 9
    second = [1] * 16 + [0] * 8 + [1] * 53 + [0] * 9
    d = paired_difference(first, second)
    half = 1.959964 * math.sqrt((25 - 64 / 88) / 88**2)
    assert (d.value, d.n, d.wins, d.losses) == (pytest.approx(8 / 86), 86, 16, 8)
    assert (d.low, d.high) == pytest.approx((8 / 88 - half, 8 / 88 + half), abs=1e-6)
    assert (d.low, d.high) == pytest.approx((-0.01882, 0.20064), abs=1e-4)


def test_paired_difference_is_antisymmetric_and_has_a_width_without_differences():
    rng = np.random.default_rng(3)
    a, b = rng.random(30), rng.random(30)
    forth, back = paired_difference(a, b), paired_difference(b, a)
    assert (forth.value, forth.low, forth.wins) == pytest.approx((-back.value, -back.high, back.losses))
    same = paired_difference(a, a)
    assert same.value == 0 and same.low < 0 < same.high


def test_the_paired_interval_is_narrower_than_the_difference_of_unpaired_ones_and_covers_the_truth():
    rng = np.random.default_rng(4)
    covered, runs, widths = 0, 500, []
    for _ in range(runs):
        base = rng.random(100) < 0.4
        flip = rng.random(100)
        other = np.where(flip < 0.1, True, np.where(flip > 0.95, False, base))
        truth = 0.1 * 0.6 - 0.05 * 0.4
        d = paired_difference(base, other)
        covered += d.low <= truth <= d.high
        widths.append(d.high - d.low)
    assert covered / runs == pytest.approx(0.95, abs=0.03)
    assert np.mean(widths) < 2 * 1.96 * math.sqrt(2 * 0.24 / 100)
