"""How often do intervals over seeds and problems miss? Two copies of one method, many times over.

    python benchmarks/intervals.py [--repeats 2000] [--draws 400]

Right or wrong answers are simulated: problems of different difficulty, runs that are better or worse as a
whole (the seed effect, in logits), and runs that each solve problems of their own. The two copies are equally
good, so a method that claims a difference at 5 % is wrong; it should be in 5 % of the repeats.

    crossed      `compare.statistics`: the crossed random-effects model
    bootstrap    seeds and problems are both drawn anew, percentiles of the mean difference
    problems     a paired test over problems, as if seeds did not matter
    seeds        a t-test of the seeds' means, as if problems did not matter
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from interlace.compare.statistics import difference

Table = NDArray[np.float64]


def copies(rng: np.random.Generator, seeds: int, problems: int, effect: float) -> tuple[Table, Table]:
    """Scores [seeds, problems] of two equally good methods."""
    difficulty = rng.normal(0, 2, (1, problems))
    noise = rng.normal(0, effect, (2, seeds, 1)) + rng.normal(0, 1, (2, seeds, problems))
    right = rng.random((2, seeds, problems)) < 1 / (1 + np.exp(-(difficulty + noise)))
    return right[0].astype(float), right[1].astype(float)


def bootstrap(rng: np.random.Generator, first: Table, second: Table, draws: int) -> bool:
    """Whether the percentile interval of a two-way bootstrap leaves 0 out."""
    d = second - first
    seeds, problems = d.shape
    rows = rng.integers(seeds, size=(draws, seeds))
    counts = np.stack([np.bincount(r, minlength=seeds) for r in rows]) / seeds
    columns = rng.multinomial(problems, np.full(problems, 1 / problems), size=draws) / problems
    means = np.einsum("ds,sp,dp->d", counts, d, columns)
    low, high = np.quantile(means, [0.025, 0.975])
    return bool(low > 0 or high < 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=400)
    chosen = parser.parse_args()
    claims: dict[str, Callable[[np.random.Generator, Table, Table], bool]] = {
        "crossed": lambda rng, a, b: difference(a, b).p < 0.05,
        "bootstrap": lambda rng, a, b: bootstrap(rng, a, b, chosen.draws),
        "problems": lambda rng, a, b: stats.ttest_rel(b.mean(0), a.mean(0)).pvalue < 0.05,
        "seeds": lambda rng, a, b: stats.ttest_rel(b.mean(1), a.mean(1)).pvalue < 0.05,
    }
    print("| seeds | problems | seed effect | " + " | ".join(claims) + " |")
    print("|---|---|---|" + "---|" * len(claims))
    for seeds in (2, 3, 5):
        for problems in (128, 512):
            for effect in (0.0, 0.1, 0.3):
                rng = np.random.default_rng([seeds, problems, round(10 * effect)])
                wrong = dict.fromkeys(claims, 0)
                for _ in range(chosen.repeats):
                    tables = copies(rng, seeds, problems, effect)
                    for name, claim in claims.items():
                        wrong[name] += claim(rng, *tables)
                rates = " | ".join(f"{100 * n / chosen.repeats:.1f} %" for n in wrong.values())
                print(f"| {seeds} | {problems} | {effect:g} | {rates} |", flush=True)


if __name__ == "__main__":
    main()
