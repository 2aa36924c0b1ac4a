"""What to try next, and why: every line rests on a number of the report; without one there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from interlace.compare.results import Results, Run, TaskResults
from interlace.compare.statistics import POWER
from interlace.compare.summary import listed, needed_ways, points

FEW_LIVE_GROUPS = 0.4
RISING = 0.01
"""Points of validation accuracy in the last quarter of the budget, in every seed, that count as rising."""
GAP = 0.10
"""Training pass rate over validation accuracy from which a run counts as memorising."""
CUT = 0.05
FORGOTTEN = 0.05
"""Nats a token by which the log-probability of other texts falls."""
COLLAPSED = 0.5
"""Part of its entropy that a run has left."""


@dataclass(frozen=True)
class Advice:
    """One line.

    Attributes:
        what: What to try.
        why: The numbers that it rests on.
    """

    what: str
    why: str


def advice(results: Results) -> list[Advice]:
    """Everything that the numbers suggest, task by task."""
    found: list[Advice] = []
    for t in results.tasks:
        for rule in RULES:
            for line in rule(t):
                if line not in found:
                    found.append(line)
    return found


def more_seeds(t: TaskResults) -> Iterator[Advice]:
    """The two best are not told apart, and a number of seeds or problems would do."""
    if len(t.ranking) < 2:
        return
    pair = t.pair(t.ranking[0].label, t.ranking[1].label)
    if pair is None or pair.told:
        return
    ways = needed_ways(pair)
    seeds = pair.needed.seeds
    d = points(pair.difference, -1)
    if seeds is not None and seeds <= 4 * pair.difference.seeds:
        yield Advice(
            f"Run more seeds: the same command with seeds={seeds}; what is done is kept.",
            f"{pair.first} over {pair.second}: {d}; {' or '.join(ways)} would tell a difference of this size "
            f"with probability {POWER:g}.",
        )
    elif pair.needed.problems is not None and pair.needed.problems <= 16 * pair.difference.problems:
        yield Advice(
            f"Test on more problems: test_problems={pair.needed.problems} (in a new folder).",
            f"{pair.first} over {pair.second}: {d}; it varies more with problems than with seeds.",
        )
    else:
        yield Advice(
            f"Take {pair.first} or {pair.second}, whichever is simpler; they cannot be told apart here.",
            f"{pair.first} over {pair.second}: {d}"
            + (
                f"; it would take {' or '.join(ways)}." if ways else "; no feasible number of seeds would do."
            ),
        )


def more_budget(t: TaskResults) -> Iterator[Advice]:
    """A curve that still rises at its end, in every seed."""
    for s in t.ranking[:3]:
        rises = [r for run in t.of(s.label) if (r := _last_quarter(run)) is not None]
        if len(rises) >= 2 and min(b - a for a, b in rises) > RISING:
            before, after = (100 * float(np.mean([x[i] for x in rises])) for i in (0, 1))
            budget = "" if t.budget is None else " Double the budget."
            yield Advice(
                f"{s.label} had not levelled off; its place at a larger budget may be another.{budget}",
                f"validation accuracy rose from {before:.1f} % to {after:.1f} % in the last quarter of its "
                f"budget, in each of {len(rises)} seeds.",
            )


def _last_quarter(run: Run) -> tuple[float, float] | None:
    looks = [x for x in run.outcome["looks"] if x["greedy"] is not None]
    if len(looks) < 3:
        return None
    end = looks[-1]["flops"]
    early = [x for x in looks if x["flops"] <= 0.8 * end]
    return (early[-1]["greedy"], looks[-1]["greedy"]) if early else None


def room_in_samples(t: TaskResults) -> Iterator[Advice]:
    """The answers are among the samples, and not yet the first."""
    s = t.ranking[0] if t.ranking else None
    if s is None:
        return
    ks = sorted(int(n.removeprefix("pass@")) for n in s.numbers if n.startswith("pass@"))
    if not ks or ks[-1] == 1:
        return
    k = ks[-1]
    at_k, greedy = s.numbers[f"pass@{k}"], s.numbers.get("greedy", 0.0)
    if at_k > greedy + 0.15:
        vote = s.numbers.get(f"majority@{k}")
        voted = f"; a vote of {k} answers has {100 * vote:.1f} %" if vote is not None else ""
        yield Advice(
            f"There is room for RL on {s.label}: right answers are among its samples, not yet first.",
            f"pass@{k} is {100 * at_k:.1f} %, greedy accuracy {100 * greedy:.1f} %{voted}.",
        )


def dead_groups(t: TaskResults) -> Iterator[Advice]:
    """Most groups teach nothing."""
    live = {s.label: s.numbers["live groups"] for s in t.ranking if "live groups" in s.numbers}
    few = {label: share for label, share in live.items() if share < FEW_LIVE_GROUPS}
    if few:
        yield Advice(
            f"{listed(list(few))}: a larger group_size, problems nearer to what the model can do, a better "
            f"start, or dynamic sampling (dapo, arXiv 2503.14476).",
            f"groups with different rewards, the only ones that give a gradient: {_shares(few)}.",
        )


def collapse(t: TaskResults) -> Iterator[Advice]:
    """Entropy is gone, and with it answers among many samples."""
    k = max((int(n.removeprefix("pass@")) for s in t.ranking for n in s.numbers if "pass@" in n), default=1)
    at_k = {s.label: s.numbers[f"pass@{k}"] for s in t.ranking if f"pass@{k}" in s.numbers}
    for s in t.ranking:
        falls = [f for run in t.of(s.label) if (f := _entropy_fall(run)) is not None]
        if falls and k > 1 and s.label in at_k and np.mean([b / a for a, b in falls]) < COLLAPSED:
            lost = max(at_k.values()) - at_k[s.label]
            if lost > 0.05:
                a, b = (float(np.mean([x[i] for x in falls])) for i in (0, 1))
                yield Advice(
                    f"{s.label}: keep more variety, with clip_high=0.28 (arXiv 2503.14476), a smaller lr, or "
                    f"demonstrations in the loss.",
                    f"its entropy fell from {a:.2f} to {b:.2f} nats a token, and its pass@{k} is "
                    f"{100 * lost:.1f} points below the best.",
                )


def _entropy_fall(run: Run) -> tuple[float, float] | None:
    known = [x["entropy"] for x in run.outcome["looks"] if x.get("entropy")]
    return (known[0], known[-1]) if len(known) > 1 else None


def memorising(t: TaskResults) -> Iterator[Advice]:
    """What is rewarded in training is not what is solved on new problems."""
    for s in t.ranking:
        gaps = []
        for run in t.of(s.label):
            passed = run.outcome["training"]["series"].get("reward/pass")
            looks = [x["sampled"] for x in run.outcome["looks"] if x["sampled"] is not None]
            if passed and looks:
                gaps.append((float(np.mean([y for _, y in passed[-5:]])), looks[-1]))
        if gaps and min(a - b for a, b in gaps) > GAP:
            a, b = (100 * float(np.mean([x[i] for x in gaps])) for i in (0, 1))
            yield Advice(
                f"{s.label}: more training problems; it does better on those that it trains on.",
                f"{a:.1f} % of its last training rollouts pass, {b:.1f} % of samples on validation problems.",
            )


def cut_answers(t: TaskResults) -> Iterator[Advice]:
    """Answers that reach the limit."""
    cut = {s.label: s.numbers.get("truncated", 0.0) for s in t.ranking}
    many = {label: share for label, share in cut.items() if share > CUT}
    if many:
        yield Advice(
            f"{listed(list(many))}: raise max_new_tokens, or look at why answers do not end.",
            f"test answers cut at the token limit: {_shares(many)}.",
        )


def _shares(of: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {100 * share:.0f} %" for label, share in of.items())


def forgetting(t: TaskResults) -> Iterator[Advice]:
    """What the start model knew is less likely now."""
    if t.base.get("outcome", {}).get("untrained"):
        return
    for name, kept in t.base.get("measured", {}).get("retention", {}).items():
        now = {s.label: s.numbers.get(f"retention/{name}/logp", kept["logp"]) for s in t.ranking}
        lost = {label: logp for label, logp in now.items() if kept["logp"] - logp > FORGOTTEN}
        if lost:
            fell = ", ".join(f"{label} {logp:.2f}" for label, logp in lost.items())
            yield Advice(
                f"{listed(list(lost))}: hold on to the start model, with kl=0.01, a smaller lr, or data of "
                f"{name}.",
                f"log-probability of a token of {name}, in nats: {kept['logp']:.2f} at the start, then "
                f"{fell}.",
            )


def search_edges(t: TaskResults) -> Iterator[Advice]:
    """The chosen setting is the first or last of what was tried."""
    for label, search in t.searches.items():
        for name in ("switch", "lr"):
            tried = sorted({v for c in search.scores for k, v in _pairs(c) if k == name}, key=_number)
            chosen = dict(_pairs(search.choice)).get(name)
            if len(tried) > 1 and chosen in (tried[0], tried[-1]):
                side = "below" if chosen == tried[0] else "above"
                score = search.scores.get(search.choice)
                yield Advice(
                    f"{label}: try {name} {side} {chosen} too.",
                    f"{name}={chosen} is the {'lowest' if side == 'below' else 'highest'} of "
                    f"{', '.join(tried)} and did best on validation problems"
                    + ("." if score is None else f" ({100 * score:.1f} %)."),
                )


def _pairs(choice: str) -> list[tuple[str, str]]:
    return [(k, v) for k, _, v in (part.partition("=") for part in choice.split())]


def _number(value: str) -> float:
    try:
        return float(value.removeprefix("x"))
    except ValueError:
        return 0.0


def broken_runs(t: TaskResults) -> Iterator[Advice]:
    """Runs that diverged, or could not learn anything."""
    for run in t.runs:
        if run.state == "diverged":
            yield Advice(f"{run.label}: a lower lr.", f"seed {run.seed} diverged: {run.error}.")
        elif run.state == "dead":
            start = "; start=sft lets it begin where some answers are right" if run.job.init is None else ""
            yield Advice(
                f"{run.label}: give it rewards that differ{start}.", f"seed {run.seed} stopped: {run.error}."
            )


RULES: tuple[Callable[[TaskResults], Iterator[Advice]], ...] = (
    more_seeds,
    broken_runs,
    more_budget,
    search_edges,
    room_in_samples,
    memorising,
    dead_groups,
    collapse,
    cut_answers,
    forgetting,
)
