"""Is one method better than another: paired by problem first, seeds as a second level.

Two methods answer the same problems in runs with the same seeds, so what is analysed is the difference
d[seed, problem] of their scores:

    d = delta + seed effect + problem effect + rest

Seeds and problems are both samples of what one wants to speak about: other seeds, other problems. This is
the crossed random-effects model, and with every seed on every problem its analysis of variance is exact:

    Var(mean) = (MS_seed + MS_problem - MS_rest) / (seeds x problems)

with Student's t and Satterthwaite's degrees of freedom. A bootstrap over three seeds draws too little
variance (a factor of 2/3) and takes it for known; `benchmarks/intervals.py` measures both.

References:
    Clark 1973, "The language-as-fixed-effect fallacy", J. Verb. Learn. Verb. Behav. 12 (quasi-F).
    Satterthwaite 1946, "An approximate distribution of estimates of variance components".
    Holm 1979, "A simple sequentially rejective multiple test procedure".
    Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice",
    arXiv 2108.13264 (interquartile mean, probability of improvement).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from interlace.evaluation.metrics import LEVEL, Estimate, estimate, paired_difference, wilson_interval

POWER = 0.8
"""Chance of telling a difference apart that "how many more" asks for."""

MOST_SEEDS, MOST_PROBLEMS = 1000, 1_000_000


@dataclass(frozen=True)
class Components:
    """Variances of one number per (seed, problem).

    Attributes:
        mean: Of all.
        seed, problem, rest: Variance components, not below 0.
        seeds, problems: How many of each.
        mean_squares: Of seeds, problems and rest, as the analysis of variance has them.
    """

    mean: float
    seed: float
    problem: float
    rest: float
    seeds: int
    problems: int
    mean_squares: tuple[float, float, float]


def components(values: ArrayLike) -> Components:
    """Analysis of variance of a full table.

    Args:
        values: [seeds, problems], at least 2 x 2, nothing missing.

    Raises:
        ValueError: another shape.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 2 or min(x.shape) < 2:
        raise ValueError(f"a table of shape {x.shape}: accepted is [seeds, problems], at least 2 of each")
    s, n = x.shape
    mean = float(x.mean())
    by_seed, by_problem = x.mean(1), x.mean(0)
    rest = x - by_seed[:, None] - by_problem[None, :] + mean
    ms_seed = n * float(((by_seed - mean) ** 2).sum()) / (s - 1)
    ms_problem = s * float(((by_problem - mean) ** 2).sum()) / (n - 1)
    ms_rest = float((rest**2).sum()) / ((s - 1) * (n - 1))
    return Components(
        mean,
        max(0.0, (ms_seed - ms_rest) / n),
        max(0.0, (ms_problem - ms_rest) / s),
        ms_rest,
        s,
        n,
        (ms_seed, ms_problem, ms_rest),
    )


@dataclass(frozen=True)
class Precision:
    """Standard error of a mean and its degrees of freedom."""

    error: float
    df: float

    def half_width(self, level: float = LEVEL) -> float:
        return float(stats.t.ppf((1 + level) / 2, self.df)) * self.error

    def p_value(self, difference: float) -> float:
        """Two-sided, of a true difference of 0."""
        if self.error == 0:
            return float(difference == 0)
        return float(2 * stats.t.sf(abs(difference) / self.error, self.df))


def precision(c: Components, level: float = LEVEL, floor: float = 0.0) -> Precision:
    """How well the mean of a table is known, for other seeds and other problems.

    The sum of mean squares is not let below its largest part (a negative variance component is chance). With
    two seeds the interval is at least that of the two seeds' means: one degree of freedom cannot be improved
    on.

    Args:
        floor: The smallest standard error.
    """
    seed, problem, rest = c.mean_squares
    s, n = c.seeds, c.problems
    total = max(seed + problem - rest, seed, problem)
    spread = seed**2 / (s - 1) + problem**2 / (n - 1) + rest**2 / ((s - 1) * (n - 1))
    df = total**2 / spread if spread else float((s - 1) * (n - 1))
    crossed = Precision(max(math.sqrt(total / (s * n)), floor), df)
    of_seeds = Precision(max(math.sqrt(seed / (s * n)), floor), s - 1)
    if s == 2 and of_seeds.half_width(level) > crossed.half_width(level):
        return of_seeds
    return crossed


@dataclass(frozen=True)
class Difference:
    """How much better the second of two methods is than the first.

    Attributes:
        value, low, high: Mean difference of the scores and its interval.
        error, df: Standard error, degrees of freedom.
        p: Two-sided, of no difference.
        better: Probability that the second is truly better, given these data and nothing else.
        seeds, problems: What was compared.
        components: Variances; `None` with one seed, where the interval says nothing about other seeds.
    """

    value: float
    low: float
    high: float
    error: float
    df: float
    p: float
    better: float
    seeds: int
    problems: int
    components: Components | None = None

    def __str__(self) -> str:
        return f"{100 * self.value:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


def difference(first: ArrayLike, second: ArrayLike, level: float = LEVEL) -> Difference:
    """Second minus first, for tables [seeds, problems] of scores in [0, 1] with the same seeds and problems.

    Raises:
        ValueError: the tables do not fit together.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 2 or a.size == 0:
        raise ValueError(f"tables of shapes {a.shape} and {b.shape}: accepted are two [seeds, problems]")
    d = b - a
    seeds, problems = d.shape
    value = float(d.mean())
    if seeds == 1 or problems == 1:
        # One seed: problems are the only sample; one problem: seeds are.
        paired = paired_difference(a.ravel().tolist(), b.ravel().tolist(), level)
        error = (paired.high - paired.low) / 2 / float(stats.norm.ppf((1 + level) / 2))
        known, found = Precision(error, math.inf), None
        low, high = paired.low, paired.high
    else:
        found = components(d)
        # As if one more pair differed (Agresti and Min 2005): equal columns have an interval too.
        known = precision(found, level, floor=1 / (d.size + 2))
        half = known.half_width(level)
        low, high = max(-1.0, value - half), min(1.0, value + half)
    p = known.p_value(value)
    better = 1 - p / 2 if value > 0 else p / 2
    return Difference(value, low, high, known.error, known.df, p, better, seeds, problems, found)


def mean_of(differences: Sequence[Difference], level: float = LEVEL) -> Difference:
    """The mean of differences on several tasks (the tasks themselves are no sample)."""
    if len(differences) == 1:
        return differences[0]
    n = len(differences)
    value = math.fsum(d.value for d in differences) / n
    variance = math.fsum(d.error**2 for d in differences)
    spread = math.fsum(d.error**4 / d.df for d in differences)
    known = Precision(math.sqrt(variance) / n, variance**2 / spread if spread else math.inf)
    half, p = known.half_width(level), known.p_value(value)
    return Difference(
        value,
        value - half,
        value + half,
        known.error,
        known.df,
        p,
        1 - p / 2 if value > 0 else p / 2,
        min(d.seeds for d in differences),
        sum(d.problems for d in differences),
    )


def accuracy(scores: ArrayLike, level: float = LEVEL) -> Estimate:
    """Mean score of one method with its interval for other seeds and problems.

    Args:
        scores: [seeds, problems] in [0, 1].

    With one seed the interval is that of `evaluation.metrics.estimate`; with several it is Wilson's with the
    effective number of trials that gives the crossed model's standard error and degrees of freedom.
    """
    x = np.asarray(scores, dtype=np.float64)
    if x.shape[0] == 1 or x.shape[1] == 1:
        return estimate(x.ravel().tolist(), level=level)
    share = float(x.mean())
    known = precision(components(x), level)
    z = float(stats.norm.ppf((1 + level) / 2))
    wider = float(stats.t.ppf((1 + level) / 2, known.df)) / z
    trials = share * (1 - share) / (known.error * wider) ** 2 if known.error > 0 else float(x.shape[1])
    low, high = wilson_interval(share, max(trials, 1.0), level)
    return Estimate(share, low, high, x.shape[1])


def holm(p_values: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Adjusted p-values: the chance of any false claim among all stays at the level that is read."""
    ordered = sorted(p_values, key=lambda pair: p_values[pair])
    adjusted: dict[tuple[str, str], float] = {}
    highest = 0.0
    for i, pair in enumerate(ordered):
        highest = max(highest, min(1.0, (len(ordered) - i) * p_values[pair]))
        adjusted[pair] = highest
    return adjusted


@dataclass(frozen=True)
class Needed:
    """What would tell a difference of the measured size apart, with probability `POWER`.

    Attributes:
        seeds: Seeds in all on the same problems; `None` if no number up to `MOST_SEEDS` would.
        problems: Problems in all with the same seeds; `None` if no number up to `MOST_PROBLEMS` would.
    """

    seeds: int | None
    problems: int | None


def needed(d: Difference, level: float = LEVEL, power: float = POWER) -> Needed:
    """How many seeds, or how many problems, would tell a difference as large as the measured one."""
    c = d.components
    if c is None or d.value == 0:
        return Needed(None, None)
    return Needed(
        _smallest(c, d.value, c.seeds, MOST_SEEDS, lambda k: (k, c.problems), level, power),
        _smallest(c, d.value, c.problems, MOST_PROBLEMS, lambda k: (c.seeds, k), level, power),
    )


def expected_precision(c: Components, seeds: int, problems: int) -> Precision:
    """The precision to expect with other numbers of seeds and problems."""
    squares = (problems * c.seed + c.rest, seeds * c.problem + c.rest, c.rest)
    return precision(
        Components(c.mean, c.seed, c.problem, c.rest, seeds, problems, squares),
    )


def _smallest(c, value, least, most, numbers, level, power) -> int | None:  # type: ignore[no-untyped-def]
    def tells(k: int) -> bool:
        known = expected_precision(c, *numbers(k))
        quantiles = stats.t.ppf([(1 + level) / 2, power], known.df)
        return abs(value) >= float(quantiles.sum()) * known.error

    if not tells(most):
        return None
    low, high = least, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if tells(middle) else (middle + 1, high)
    return low


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all runs on all tasks, [runs, tasks]."""
    return float(stats.trim_mean(np.asarray(scores, dtype=np.float64), 0.25, axis=None))


def interquartile_interval(
    scores: ArrayLike, level: float = LEVEL, repeats: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the interquartile mean; runs are drawn anew within each task."""
    x = np.asarray(scores, dtype=np.float64)
    runs, tasks = x.shape
    drawn = np.random.default_rng(seed).integers(runs, size=(repeats, runs, tasks))
    scores_drawn = np.take_along_axis(x[None], drawn, axis=1).reshape(repeats, runs * tasks)
    found = stats.trim_mean(scores_drawn, 0.25, axis=1)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def probability_of_improvement(first: ArrayLike, second: ArrayLike) -> float:
    """Chance that a run of the second beats a run of the first on a task drawn at random, ties half.

    Args:
        first, second: Scores [runs, tasks]; runs need not be paired.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    wins = np.sign(b[:, None, :] - a[None, :, :])
    return float((wins.mean(axis=(0, 1)) / 2 + 0.5).mean())


def not_told_apart(names: Sequence[str], told: Mapping[tuple[str, str], bool]) -> list[str]:
    """Letters of a compact display: methods that share one are not told apart.

    Args:
        names: In the order of the ranking.
        told: Whether the two of a pair (in either order) are told apart.

    Returns:
        For each name its letters, as `ab`.

    Reference:
        Piepho 2004, "An algorithm for a letter-based representation of all-pairwise comparisons"
        (insert and absorb).
    """

    def apart(x: str, y: str) -> bool:
        return told.get((x, y), told.get((y, x), False))

    columns: list[set[str]] = [set(names)]
    for i, x in enumerate(names):
        for y in names[i + 1 :]:
            if not apart(x, y):
                continue
            split: list[set[str]] = []
            for column in columns:
                split += [column - {x}, column - {y}] if {x, y} <= column else [column]
            columns = [c for j, c in enumerate(split) if not _absorbed(c, j, split)]
    columns.sort(key=lambda column: [name not in column for name in names])
    letters = dict.fromkeys(names, "")
    for i, column in enumerate(columns):
        for name in names:
            letters[name] += _letter(i) if name in column else ""
    return [letters[name] for name in names]


def _absorbed(column: set[str], place: int, columns: Sequence[set[str]]) -> bool:
    return any(
        column < other or (column == other and j < place) for j, other in enumerate(columns) if j != place
    )


def _letter(i: int) -> str:
    return chr(ord("a") + i % 26) + ("" if i < 26 else str(i // 26))
