"""Accuracy, pass@k, majority@k and best-of-k with their uncertainty: numbers in, numbers out.

Everything at k < n is the exact expectation over k of the n samples drawn without replacement, so it does
not depend on the order of the samples and is unbiased for k independent ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
"""Confidence of every interval unless another is asked for."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` problems with its confidence interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{100 * self.value:.1f}% [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Probability that at least one of k samples is correct: 1 - C(n - correct, k) / C(n, k).

    Args:
        n: Samples drawn for a problem.
        correct: How many of them are correct.
        k: 1 <= k <= n.

    Raises:
        ValueError: k or correct lies outside its range.

    Reference:
        Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv 2107.03374.
    """
    _require_k(n, k)
    if not 0 <= correct <= n:
        raise ValueError(f"correct={correct}: accepted are 0 to n={n}")
    return 1.0 - math.prod(max(n - correct - i, 0) / (n - i) for i in range(k))


def majority_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int) -> float:
    """Probability that the most frequent answer of k samples is correct.

    A tie is decided by a fair lot among the tied answers. A sample without an answer (`None`) does not
    vote; where nobody votes the result counts as wrong. Where a verifier judged samples with the same
    answer differently, the answer is as correct as their share.

    Args:
        answers: The answer read from each of the n samples.
        correct: Whether each sample is correct.
        k: 1 <= k <= n.

    Reference:
        Wang et al. 2023, "Self-Consistency Improves Chain of Thought Reasoning in Language Models",
        arXiv 2203.11171.
    """
    _require_k(len(answers), k)
    return majority_curve(answers, correct, k)[-1]


def majority_curve(answers: Sequence[Hashable | None], correct: Sequence[bool], longest: int) -> list[float]:
    """`majority_at_k` for k = 1 ... longest."""
    n = len(answers)
    _require_k(n, longest)
    if n > 1000:
        raise ValueError(f"{n} samples: majority@k is computed for at most 1000")
    votes = Counter(a for a in answers if a is not None)
    right = Counter(a for a, c in zip(answers, correct, strict=True) if a is not None and c)
    # Answers with equally many votes have the same chances.
    share_by_votes: Counter[int] = Counter()
    for answer, hits in right.items():
        share_by_votes[votes[answer]] += hits / votes[answer]  # type: ignore[assignment]
    won = np.zeros(longest + 1)
    for own, share in share_by_votes.items():
        others = sorted(votes.values())
        others.remove(own)
        for drawn in range(1, min(own, longest) + 1):
            ways = _ways_to_stay_below(others, n - votes.total(), drawn, longest - drawn)
            won[drawn:] += share * math.comb(own, drawn) * ways
    return [float(min(won[k] / math.comb(n, k), 1.0)) for k in range(1, longest + 1)]


def _ways_to_stay_below(others: list[int], abstained: int, top: int, room: int) -> NDArray[np.float64]:
    """Ways in which the other samples fill 0 ... room places with no answer over `top` votes, [room + 1].

    A way in which t other answers also reach `top` counts 1 / (1 + t).
    """
    ways = np.zeros((room + 1, room // top + 1))  # [places filled, answers that reached top]
    ways[0, 0] = 1.0
    for votes in others:
        extended = np.zeros_like(ways)
        for taken in range(min(votes, top - 1, room) + 1):
            extended[taken:] += math.comb(votes, taken) * ways[: room + 1 - taken]
        if top <= min(votes, room):
            extended[top:, 1:] += math.comb(votes, top) * ways[: room + 1 - top, :-1]
        ways = extended
    shared = ways @ (1.0 / np.arange(1, ways.shape[1] + 1))
    silent = [float(math.comb(abstained, i)) for i in range(min(abstained, room) + 1)]
    return np.convolve(shared, silent)[: room + 1]


def best_of_k(scores: Sequence[float], values: Sequence[float], k: int) -> float:
    """Expected value of the sample with the highest score among k; equal scores are decided by a fair lot.

    Args:
        scores: What the choice goes by, one per sample (a reward model's score, a length, ...).
        values: What is wanted of the chosen sample (its correctness, its reward).
        k: 1 <= k <= n.
    """
    n = len(scores)
    _require_k(n, k)
    by_score: dict[float, list[float]] = {}
    for score, value in zip(scores, values, strict=True):
        by_score.setdefault(score, []).append(value)
    expected, below = 0.0, 0
    for score in sorted(by_score):
        tied = by_score[score]
        # P(every draw is at or under this score) - P(every draw is under it)
        highest = pass_at_k(n, n - below, k) - pass_at_k(n, n - below - len(tied), k)
        expected += highest * sum(tied) / len(tied)
        below += len(tied)
    return expected


def wilson_interval(share: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a share among n independent trials (n need not be whole).

    Reference:
        Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    z = _quantile(level)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def estimate(values: Sequence[float], trials: int | None = None, level: float = LEVEL) -> Estimate:
    """Mean over problems of numbers in [0, 1], with an interval for other problems of the same kind.

    Each problem is one cluster: samples of one problem are not independent, problems are. The interval is
    Wilson's with the effective number of trials n_eff = share (1 - share) / Var(mean), so with one 0/1
    outcome per problem it is Wilson's interval exactly, and it has a width even where all values are equal.

    Args:
        values: One number per problem (0/1, a share of correct samples, a pass@k).
        trials: Independent trials altogether, an upper bound of n_eff; `None` is one per problem.

    Raises:
        ValueError: there are no values, or one lies outside [0, 1].

    Reference:
        Franco, Little, Louis and Slud 2019, "Comparative study of confidence intervals for proportions in
        complex sample surveys".
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise ValueError("no values: an estimate needs at least one problem")
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise ValueError("accepted are values in [0, 1]")
    share, n = float(x.mean()), int(x.size)
    variance = float(x.var())
    most = max(trials or n, n)
    if share in (0.0, 1.0):
        effective = float(n)
    elif variance * most <= share * (1 - share) * n:
        effective = float(most)
    else:
        effective = n * share * (1 - share) / variance
    return Estimate(share, *wilson_interval(share, effective, level), n)


@dataclass(frozen=True)
class PairedDifference:
    """Second minus first on the same problems.

    Attributes:
        value, low, high: Mean difference with its interval.
        n: Problems compared.
        wins, losses: Problems on which the second is higher, lower.
    """

    value: float
    low: float
    high: float
    n: int
    wins: int
    losses: int

    def __str__(self) -> str:
        return (
            f"{100 * self.value:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}], "
            f"{self.wins} won, {self.losses} lost of {self.n}"
        )


def paired_difference(
    first: Sequence[float], second: Sequence[float], level: float = LEVEL
) -> PairedDifference:
    """Mean of second - first over paired numbers in [0, 1], with an interval.

    The adjusted Wald interval: two pairs are added, one of them split evenly between a full win and a full
    loss, so that the interval is honest for few differences and has a width where there are none.

    Raises:
        ValueError: nothing to compare, or different lengths.

    Reference:
        Agresti and Min 2005, "Simple improved confidence intervals for comparing matched proportions".
    """
    if len(first) != len(second) or len(first) == 0:
        raise ValueError(f"{len(first)} and {len(second)} numbers: accepted are as many, at least one")
    d = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    n = int(d.size)
    centre = float(d.sum()) / (n + 2)
    variance = (float((d * d).sum()) + 1) / (n + 2) - centre**2
    half = _quantile(level) * math.sqrt(variance / (n + 2))
    return PairedDifference(
        float(d.mean()),
        max(-1.0, centre - half),
        min(1.0, centre + half),
        n,
        wins=int((d > 0).sum()),
        losses=int((d < 0).sum()),
    )


def _quantile(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: accepted are numbers between 0 and 1, as 0.95")
    return NormalDist().inv_cdf((1 + level) / 2)


def _require_k(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k={k}: accepted are 1 to the number of samples, {n}")
