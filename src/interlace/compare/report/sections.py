"""The sections of the report that are tables: ranking, pairs, costs, search, answers, advice, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import yaml

from interlace.compare.advice import Advice
from interlace.compare.budget import short
from interlace.compare.report import charts
from interlace.compare.report.charts import Interval, Scale, text
from interlace.compare.report.markup import (
    Colours,
    difference,
    folded,
    max_k,
    method,
    note,
    number,
    points,
    short_count,
    sub,
    table,
    turned,
)
from interlace.compare.results import BASELINE, Results, Standing, TaskResults, numbers_of
from interlace.compare.tables import FIRST, SHARED, interval, percent

SAMPLE_PROBLEMS = 8
TEXT_AT_MOST = 700


def ranking(t: TaskResults, colours: Colours) -> str:
    """Methods with their intervals on one scale, the best first."""
    base = numbers_of(t.base.get("measured", {})).get(t.metric)
    starts = [] if base is None else [base]
    values = [v for s in t.ranking for v in (s.accuracy.low, s.accuracy.high)] + starts
    low, high = charts.covering(values, zero=True, least=0.05)
    scale = Scale(max(low, 0.0), min(high, 1.0), 16, 300)
    axis = charts.axis_strip(scale, points, [(v, "start model") for v in starts])
    k = max_k(t)
    title = SHARED if t.lettered else FIRST
    same = f"<abbr title='{title}'>{'group' if t.lettered else 'as first'}</abbr>"
    heads = [
        "method",
        f"{t.metric} accuracy, % {axis}",
        "mean [interval]",
        same,
        f"against {BASELINE}",
        "sampled",
    ]
    heads += [f"pass@{k}", f"vote of {k}"] if k else []
    rows = []
    for s in t.ranking:
        dots = [float(row.mean()) for row in t.table(s.label, s.seeds)]
        tip = f"{s.label}: {interval(s.accuracy)} %; seeds {', '.join(map(percent, dots))}"
        item = Interval(colours[s.label], s.accuracy.value, s.accuracy.low, s.accuracy.high, dots, tip)
        row = [method(s.label, colours) + sub(text(t.searches[s.label].choice))]
        row += [charts.strip(item, scale, 38, starts), number(interval(s.accuracy))]
        row += [f"<span class='letters'>{s.letters}</span>", _against(t, s)]
        row += [number(percent(s.numbers.get("sampled")))]
        row += [number(percent(s.numbers.get(f"{n}@{k}"))) for n in ("pass", "majority")] if k else []
        rows.append(row)
    words = (
        f"{len(t.problems)} held-out problems, the same for every run. Lines: {100 * t.level:g} % intervals "
        f"for other seeds <i>and</i> other problems; dots: single seeds. {title} (At this budget; all pairs, "
        f"adjusted by Holm.)"
    )
    return note(words) + table(heads, rows, "ranking") + _lost(t, colours)


def _against(t: TaskResults, s: Standing) -> str:
    if s.against is None:
        return "<span class='sub'>the baseline</span>" if s.label == BASELINE else ""
    pair, d = t.pair(BASELINE, s.label), s.against
    told = pair is not None and pair.told
    verdict, kind = ("better", "up") if d.value > 0 else ("worse", "down")
    verdict, kind = (verdict, kind) if told else ("not told apart", "")
    return number(difference(d.value, d.low, d.high)) + sub(
        f"{verdict}; P(better) {100 * d.better:.0f} %", f"keep {kind}"
    )


def _lost(t: TaskResults, colours: Colours) -> str:
    lines = []
    for label, seeds in t.absent.items():
        why = _reasons(seeds) or sub("its runs are still to be done")
        lines.append(f"{method(label, colours)} has no result. {why}")
    for s in t.ranking:
        if s.missing:
            n = len(s.missing) + len(s.seeds)
            lines.append(
                f"{method(s.label, colours)} lacks {len(s.missing)} of {n} seeds. {_reasons(s.missing)}"
            )
    return f"<ul class='lost'>{''.join(f'<li>{line}</li>' for line in lines)}</ul>" if lines else ""


def _reasons(seeds: Mapping[int, str]) -> str:
    return "".join(sub(f"seed {seed}: {text(reason)}") for seed, reason in seeds.items())


def pairs(t: TaskResults, colours: Colours) -> str:
    """Every two methods: the probability that one is better, and what would tell them apart."""
    order = [s.label for s in t.ranking]
    if len(order) < 2:
        return ""
    rows = [[method(a, colours), *(_cell(t, a, b) for b in order)] for a in order]
    words = (
        "Probability, in %, that the method of the row is truly better than that of the column, given these "
        "runs alone. Framed: told apart after adjusting for all pairs."
    )
    heads = ["", *(method(label, colours) for label in order)]
    matrix = note(words) + f"<div class='narrow'>{table(heads, rows, 'matrix')}</div>"
    needed = []
    for p in t.pairs:
        if not p.told and p.difference.components is not None:
            names = f"{method(p.first, colours)} over {method(p.second, colours)}"
            seeds = "over 1000" if p.needed.seeds is None else str(p.needed.seeds)
            problems = "over a million" if p.needed.problems is None else str(p.needed.problems)
            shown = [difference(*turned(p, p.first)), seeds, problems, f"{100 * (1 - p.wins):.0f} %"]
            needed.append([names, *map(number, shown)])
    if not needed:
        return matrix
    words = (
        "If the true difference is as measured: how many seeds on these problems, or how many problems with "
        "these seeds, would tell it four times out of five. Wins: how often a run of the first beats one of "
        "the second."
    )
    heads = [
        "not told apart",
        "difference, points",
        "seeds that would tell",
        "problems that would tell",
        "wins",
    ]
    return matrix + folded("What would tell the others apart", note(words) + table(heads, needed))


def _cell(t: TaskResults, row: str, column: str) -> str:
    pair = t.pair(row, column)
    if row == column or pair is None:
        return "<span class='none'>·</span>"
    better = pair.difference.better if pair.second == row else 1 - pair.difference.better
    kind = ("pos" if better > 0.5 else "neg") + (" told" if pair.told else "")
    tip = f"{row} over {column}: {difference(*turned(pair, row))} points, adjusted p {pair.p:.3f}"
    style = f"--s:{abs(better - 0.5) * 2:.2f}"
    return f"<span class='cell {kind}' style='{style}' data-tip='{text(tip)}'>{100 * better:.0f}</span>"


def stages(t: TaskResults, colours: Colours) -> str:
    """Accuracy of the start model, of a shared start, after every stage, and at the end."""
    base = numbers_of(t.base.get("measured", {}))
    rows, places = [], ["start model", "shared SFT start"]
    found: dict[str, dict[str, float]] = {}
    for s in t.ranking:
        runs = t.of(s.label)
        of = {"start model": [base] if base else [], "shared SFT start": [numbers_of(r.start) for r in runs]}
        for at in runs[0].measured:
            of[at] = [numbers_of(r.measured[at]) for r in runs if at in r.measured]
        known = {at: [n[t.metric] for n in numbers if t.metric in n] for at, numbers in of.items()}
        found[s.label] = {at: sum(values) / len(values) for at, values in known.items() if values}
        places += [at for at in of if at not in places and at != "final"]
    places = [p for p in [*places, "final"] if any(p in of for of in found.values())]
    if len(places) < 3:
        return ""
    for label, of_label in found.items():
        rows.append([method(label, colours), *(number(percent(of_label.get(p))) for p in places)])
    words = f"Mean {t.metric} accuracy on the test problems, in %."
    return note(words) + table(["method", *places], rows)


KINDS = (
    ("start", "shared SFT start", "cost/charged"),
    ("generate", "sampling", "cost/generate"),
    ("score", "scoring without gradient", "cost/score"),
    ("train", "training", "cost/train"),
)


def costs(t: TaskResults, colours: Colours) -> str:
    """Where the operations went, and tokens and time beside them."""
    shown = [s for s in t.ranking if s.numbers.get("cost/flops")]
    if not shown:
        return ""
    whole = max(s.numbers["cost/flops"] for s in shown)
    rows = []
    for s in shown:
        n = s.numbers
        parts = [(f"{name}: {short(n[key])}", kind, n[key]) for kind, name, key in KINDS]
        search = t.searches[s.label].cost
        live = n.get("live groups")
        rows.append(
            [
                method(s.label, colours),
                charts.stacked(parts, whole, 190) + sub(short(n["cost/flops"])),
                short_count(n["cost/generated tokens"]),
                short_count(n["cost/trained tokens"]),
                f"{n['steps']:.0f}",
                short_count(n["demonstrations"]),
                short_count(n["rollouts"]),
                "–" if live is None else f"{100 * live:.0f}",
                percent(n.get("invalid")),
                _time(n["cost/seconds"]),
                short(search) if search else "–",
            ]
        )
    heads = [
        "method",
        "operations",
        "tokens sampled",
        "tokens trained",
        "steps",
        "demonstrations",
        "rollouts",
    ]
    heads += ["live groups, %", "invalid, %", "time", "search, besides"]
    keys = "".join(
        f"<span class='key'><i class='part-key {kind}'></i>{name}</span>" for kind, name, _ in KINDS
    )
    words = (
        "Operations of the forward and backward passes of every model, means over seeds; counts are of the "
        f"run after its shared start. {keys}"
    )
    return note(words) + table(heads, rows, "costs")


def _time(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"


def search(t: TaskResults, colours: Colours) -> str:
    """What was tried for whom, and what it scored on validation problems."""
    rows = []
    for label in t.labels:
        found = t.searches[label]
        if len(found.scores) < 2:
            rows.append([method(label, colours), text(found.choice) or "as declared", "–", "–"])
            continue
        tried = []
        for name, score in found.scores.items():
            chosen = " chosen" if name == found.choice else ""
            shown = "no result" if score is None else percent(score)
            tried.append(f"<span class='tried{chosen}'>{text(name)}: {shown}</span>")
        rows.append([method(label, colours), "".join(tried), str(found.runs), short(found.cost)])
    words = (
        "Settings were chosen on validation problems, with seeds that are not in the ranking; what that cost "
        "comes on top. Numbers: validation accuracy in %. Framed: chosen."
    )
    return note(words) + table(["method", "tried", "runs", "cost"], rows)


def samples(t: TaskResults, colours: Colours) -> str:
    """Answers of every method to the problems on which they differ most."""
    records = {}
    for s in t.ranking:
        test = t.of(s.label)[0].measured["final"].get("test") or {"problems": []}
        records[s.label] = {p["id"]: p for p in test["problems"]}
    shared = sorted(set.intersection(*map(set, records.values())))

    def agreement(problem: str) -> float:
        right = [bool(found[problem].get("greedy")) for found in records.values()]
        return abs(sum(right) / len(right) - 0.5)

    rows = []
    for problem in sorted(shared, key=agreement)[:SAMPLE_PROBLEMS]:
        name = f"<code>{text(problem.partition(':')[2] or problem)}</code>"
        rows.append([name, *(_answer(found[problem]) for found in records.values())])
    words = "Greedy answers of the first seed to the test problems on which the methods disagree most."
    heads = ["problem", *(method(label, colours) for label in records)]
    return note(words) + table(heads, rows, "samples") if rows else ""


def _answer(p: Mapping[str, object]) -> str:
    sign = "<b class='up' title='right'>✓</b>" if p.get("greedy") else "<b class='down' title='wrong'>✗</b>"
    shown = str(p.get("text", ""))
    shown = shown if len(shown) <= TEXT_AT_MOST else shown[:TEXT_AT_MOST] + " …"
    cut = "<span class='sub'> cut</span>" if p.get("greedy_truncated") else ""
    return f"{sign} <code class='answer'>{text(shown)}</code>{cut}"


def overall(results: Results, colours: Colours) -> str:
    """Interquartile means over all tasks."""
    if not results.overall:
        return ""
    values = [v for o in results.overall.values() for v in (o["low"], o["high"])]
    low, high = charts.covering(values, zero=True, least=0.05)
    scale = Scale(max(low, 0.0), min(high, 1.0), 16, 344)
    rows = []
    for label, o in results.overall.items():
        shown = f"{percent(o['value'])} [{percent(o['low'])}, {percent(o['high'])}]"
        item = Interval(colours[label], o["value"], o["low"], o["high"], (), f"{label}: {shown}")
        d = results.overall_difference(BASELINE, label) if label != BASELINE else None
        against = "" if d is None else number(difference(d.value, d.low, d.high))
        rows.append([method(label, colours), charts.strip(item, scale, 34), number(shown), against])
    words = (
        "Mean of the middle half of all runs on all tasks (arXiv 2108.13264), with intervals from drawing "
        "runs anew within each task; beside it the mean difference over tasks, for other seeds and problems."
    )
    axis = charts.axis_strip(scale, points)
    heads = ["method", f"interquartile mean, % {axis}", "", f"mean against {BASELINE}"]
    return note(words) + table(heads, rows, "ranking")


def advised(lines: Sequence[Advice]) -> str:
    """What to try next."""
    if not lines:
        return note("Nothing in these numbers suggests a next step.")
    items = "".join(f"<li><b>{text(a.what)}</b>{sub(text(a.why))}</li>" for a in lines)
    return f"<ol class='advice'>{items}</ol>"


def configuration(results: Results) -> str:
    """What was compared, in full, and on which machine."""
    c = dict(results.comparison)
    contenders = c.pop("contenders", [])
    parts = [folded("The comparison", _yaml(c), "")]
    parts += [folded(x["label"], _yaml(x), "") for x in contenders]
    environment = "".join(f"<pre>{text(json.dumps(e, indent=1))}</pre>" for e in results.environments)
    return "".join(parts) + (folded("Environment", environment, "") if environment else "")


def _yaml(value: object) -> str:
    return f"<pre>{text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))}</pre>"
