"""The results in plain sentences, each made of numbers and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from interlace.compare.budget import short
from interlace.compare.results import BASELINE, Pair, Results, Standing, TaskResults
from interlace.compare.statistics import Difference
from interlace.compare.tables import percent, signed

MOST_NAMED = 9

EQUAL = 1.1
"""Costs within this ratio of each other count as equal (a run ends with a whole step)."""


def sentences(results: Results) -> list[str]:
    """What can be said, the most important first."""
    out = [s for t in results.tasks for s in of_task(t, several=len(results.tasks) > 1)]
    if results.overall:
        best = next(iter(results.overall))
        o = results.overall[best]
        out.append(
            f"Over all {len(results.tasks)} tasks {best} has the highest interquartile mean, "
            f"{percent(o['value'])} % [{percent(o['low'])}, {percent(o['high'])}]."
        )
    if results.open:
        out.append(f"{results.open} jobs are still to be done; the same command goes on with them.")
    return out


def of_task(t: TaskResults, several: bool = False) -> list[str]:
    """Sentences on one task."""
    if not t.ranking:
        return [f"No run on {t.task} has ended with a result."]
    return [*_lead(t, several), *_told(t), *_baseline(t), *_needed(t), *_cost(t), *_missing(t)]


def _lead(t: TaskResults, several: bool) -> Iterator[str]:
    first = t.ranking[0]
    seeds = len(first.seeds)
    where = f"On {t.task}, " if several else ""
    yield (
        f"{where}{first.label} has the highest {t.metric} accuracy of {len(t.ranking)} methods: "
        f"{percent(first.accuracy.value)} % [{percent(first.accuracy.low)}, {percent(first.accuracy.high)}] "
        f"on {len(t.problems)} held-out problems, {seeds} seed{'s' if seeds != 1 else ''}"
        + ("." if first.gain is None else f", {signed(first.gain)} points over the start model.")
    )


def _told(t: TaskResults) -> Iterator[str]:
    first, rest = t.ranking[0], t.ranking[1:]
    if not rest:
        return
    pairs = {s.label: t.pair(first.label, s.label) for s in rest}
    apart = [s.label for s in rest if (p := pairs[s.label]) is not None and p.told]
    same = [(s, p) for s in rest if (p := pairs[s.label]) is not None and not p.told]
    if apart:
        yield f"It is told apart from {listed(apart)} ({100 * t.level:g} %, adjusted for all pairs)."
    if same:
        closest = same[0][1]
        yield (
            f"It is not distinguishable from {listed([s.label for s, _ in same])} at this budget: the "
            f"difference to {same[0][0].label} is {points(closest.difference, -1)}, and the probability that "
            f"{first.label} is truly the better of the two is {100 * (1 - closest.difference.better):.0f} %."
        )


def _baseline(t: TaskResults) -> Iterator[str]:
    others = [s for s in t.ranking if s.against is not None]
    if not others:
        return
    pairs = {s.label: t.pair(BASELINE, s.label) for s in others}
    told = [s for s in others if (p := pairs[s.label]) is not None and p.told]
    better = [s for s in told if s.against is not None and s.against.value > 0]
    worse = [s for s in told if s.against is not None and s.against.value < 0]
    parts = [f"{_named(better)} better" if better else "", f"{_named(worse)} worse" if worse else ""]
    said = " and ".join(p for p in parts if p) or "no method is told apart from it"
    rest = [s.label for s in others if s not in told]
    more = f"; {listed(rest)} cannot be told from it" if rest and told else ""
    yield f"Against the corrected baseline {BASELINE}: {said}{more}."


def _named(standings: Sequence[Standing]) -> str:
    names = [f"{s.label} ({signed(s.against)})" for s in standings]
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"


def _needed(t: TaskResults) -> Iterator[str]:
    pair = next((p for p in t.pairs if not p.told and p.first == t.ranking[0].label), None)
    if pair is None:
        return
    ways = needed_ways(pair)
    if ways:
        yield (
            f"If the true difference between {pair.first} and {pair.second} is as measured, "
            f"{' or '.join(ways)} would tell them apart four times out of five."
        )
    elif pair.difference.components is not None:
        yield (
            f"The measured difference between {pair.first} and {pair.second} is too small for any number of "
            f"seeds or problems that one could run."
        )


def needed_ways(pair: Pair) -> list[str]:
    """What would tell a pair apart: seeds in all, or problems in all."""
    d, ways = pair.difference, []
    if pair.needed.seeds is not None and pair.needed.seeds > d.seeds:
        ways.append(f"{pair.needed.seeds} seeds on these problems")
    if pair.needed.problems is not None and pair.needed.problems > d.problems:
        ways.append(f"{pair.needed.problems:,} problems with these seeds".replace(",", " "))
    return ways


def _cost(t: TaskResults) -> Iterator[str]:
    costs = {s.label: s.numbers["cost/flops"] for s in t.ranking if "cost/flops" in s.numbers}
    if costs and max(costs.values()) > EQUAL * min(costs.values()):
        low, high = min(costs, key=lambda k: costs[k]), max(costs, key=lambda k: costs[k])
        yield (
            f"The costs are not equal: {low} took {short(costs[low])}, {high} {short(costs[high])} "
            f"({costs[high] / costs[low]:.1f} times as much)."
        )
    searches = {label: s for label, s in t.searches.items() if s.cost}
    if searches and t.budget:
        total = sum(s.cost for s in searches.values())
        runs = sum(s.runs for s in searches.values())
        yield (
            f"Choosing settings on validation problems took {runs} further runs, {short(total)} in all "
            f"({', '.join(f'{label} {short(s.cost)}' for label, s in searches.items())})."
        )


def _missing(t: TaskResults) -> Iterator[str]:
    for s in t.ranking:
        if s.missing:
            n = len(s.missing) + len(s.seeds)
            reasons = listed(sorted({r.partition(":")[0] for r in s.missing.values()}))
            yield f"{len(s.missing)} of {n} runs of {s.label} ended without a result ({reasons})."
    for label, seeds in t.absent.items():
        if seeds:
            states = sorted({reason.split(":")[0] for reason in seeds.values()})
            yield f"{label} has no result: {listed(states)}."


def points(d: Difference, sign: int = 1) -> str:
    """A difference in points, turned around where `sign` is -1."""
    low, high = (d.low, d.high) if sign > 0 else (-d.high, -d.low)
    return f"{100 * sign * d.value:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence; of very many the first."""
    if len(names) < 2:
        return "".join(names)
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[: MOST_NAMED - 2])} and {len(names) - MOST_NAMED + 2} others"
    return f"{', '.join(names[:-1])} and {names[-1]}"
