"""The drawings of the report: curves, pass@k, variants, retention, what happened along the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from interlace.compare.budget import short
from interlace.compare.report import charts
from interlace.compare.report.charts import Axis, Cloud, Interval, Point, Scale, Series, text
from interlace.compare.report.markup import (
    Colours,
    figure,
    max_k,
    method,
    note,
    points,
    short_count,
    sub,
    table,
)
from interlace.compare.results import Run, TaskResults, numbers_of
from interlace.compare.tables import interval, percent

Looks = Callable[[Run, str], tuple[list[Point], list[Point]]]
"""From a run and the name of a number to (cost, number) of its looks, and of those of its start."""

TRAINING_POINTS = 40


def curves(t: TaskResults, colours: Colours, name: str) -> str:
    """Accuracy on validation problems against operations, and against tokens."""
    panes, switches = [], []
    for i, (what, read, form) in enumerate(
        (("operations", looks_by_flops, flops_form), ("tokens", looks_by_tokens, short_count))
    ):
        series = [s for label in labels(t) if (s := curve(t, label, colours[label], read, "greedy"))]
        if not series:
            return ""
        x_axis = Axis(f"{what} spent, shared start included", form, zero=True)
        y_axis = Axis("greedy accuracy on validation problems, %", points, zero=True, least=0.05)
        drawn = charts.lines(series, x_axis, y_axis, f"accuracy against {what}", 1060, 400)
        switch = f"{name}-{what}"
        checked = " checked" if i == 0 else ""
        switches.append(
            f"<input type='radio' name='{name}' id='{switch}'{checked}><label for='{switch}'>{what}</label>"
        )
        shown = figure(drawn, f"Accuracy against {what}", "", look_table(series, colours, form))
        panes.append(f"<div class='pane'>{shown}</div>")
    words = (
        "Mean over seeds; the band goes from the lowest to the highest seed. Dotted: the shared SFT start."
    )
    return note(words) + f"<div class='tabs'>{''.join(switches)}{''.join(panes)}</div>"


def look_table(series: Sequence[Series], colours: Colours, form: Callable[[float], str]) -> str:
    """The points of curves as numbers."""
    widest = max(len(s.points) for s in series)
    rows = []
    for s in series:
        cells = [f"{100 * y:.1f}<div class='sub'>{text(form(x))}</div>" for x, y in s.points]
        rows.append([method(s.label, colours), *cells, *[""] * (widest - len(cells))])
    return table(["method", *(f"look {i + 1}" for i in range(widest))], rows)


def labels(t: TaskResults) -> list[str]:
    """Methods with a result, the best first."""
    return [s.label for s in t.ranking]


def looks_by_flops(run: Run, what: str) -> tuple[list[Point], list[Point]]:
    charged = run.outcome["charged"]
    own = [(x["flops"] + charged, x[what]) for x in run.outcome["looks"] if x.get(what) is not None]
    before = [(x["flops"], x[what]) for x in run.before.get("looks", []) if x.get(what) is not None]
    return distinct(own), distinct(before)


def looks_by_tokens(run: Run, what: str) -> tuple[list[Point], list[Point]]:
    start = run.before.get("training", {}).get("tokens", [])
    charged = start[-1][1] if start else 0.0
    tokens = run.outcome["training"]["tokens"]
    looks = [x for x in run.outcome["looks"] if x.get(what) is not None]
    earlier = [x for x in run.before.get("looks", []) if x.get(what) is not None]
    own = [(tokens_at(tokens, x["flops"]) + charged, x[what]) for x in looks]
    return distinct(own), distinct([(tokens_at(start, x["flops"]), x[what]) for x in earlier])


def tokens_at(pairs: Sequence[Sequence[float]], flops: float) -> float:
    """Tokens read and written when so many operations were done."""
    xs, ys = [0.0, *(p[0] for p in pairs)], [0.0, *(p[1] for p in pairs)]
    return float(np.interp(flops, xs, ys))


def distinct(found: Sequence[Point]) -> list[Point]:
    """The last look at every place (a stage ends where the next one begins)."""
    return sorted(dict(found).items())


def curve(t: TaskResults, label: str, index: int, read: Looks, what: str) -> Series | None:
    """A method's mean over seeds, look by look; `None` where nothing was looked at."""
    found = [read(run, what) for run in t.of(label)]
    own = [points_ for points_, _ in found if points_]
    if not own:
        return None
    line, columns = mean_line(own)
    band = [(x, min(ys), max(ys)) for (x, _), ys in zip(line, columns, strict=True)] if len(own) > 1 else []
    starts = [before for _, before in found if before]
    before = [*mean_line(starts)[0], line[0]] if starts else []
    return Series(label, index, line, band, (), before)


def mean_line(found: Sequence[Sequence[Point]]) -> tuple[list[Point], list[list[float]]]:
    """The mean of lines point by point, and the heights that it is the mean of."""
    n = min(map(len, found))
    columns = [[f[i] for f in found] for i in range(n)]
    line = [(float(np.mean([x for x, _ in c])), float(np.mean([y for _, y in c]))) for c in columns]
    return line, [[y for _, y in c] for c in columns]


def flops_form(v: float) -> str:
    """Operations for an axis: `1.5 T`."""
    return "0" if v == 0 else short(v).removesuffix("FLOP")


def passes(t: TaskResults, colours: Colours) -> str:
    """pass@k with bands; majority@k and the likeliest of k as numbers."""
    k = max_k(t)
    if k < 2:
        return ""
    series, rows = [], []
    for s in t.ranking:
        found = t.pass_curve(s.label)
        line = [(float(x), e.value) for x, e in found.items()]
        band = [(float(x), e.low, e.high) for x, e in found.items()]
        series.append(Series(s.label, colours[s.label], line, band))
        extra = [percent(s.numbers.get(f"{name}@{k}")) for name in ("majority", "best")]
        rows.append([method(s.label, colours), *map(interval, found.values()), *extra])
    ks = [x for x, _ in series[0].points]
    base = numbers_of(t.base.get("measured", {}))
    if f"pass@{k}" in base:
        rows.append(
            [
                "start model",
                *(percent(base.get(f"pass@{x:g}")) for x in ks),
                percent(base.get(f"majority@{k}")),
                percent(base.get(f"best@{k}")),
            ]
        )
    y_axis = Axis("pass@k, %", points, zero=True, least=0.05)
    drawn = charts.lines(
        series, Axis("k answers at temperature 1", log=True, at=ks), y_axis, "pass@k", 700, 380
    )
    likeliest = (
        f"<abbr title='the answer that the model itself finds likeliest per token'>likeliest of {k}</abbr>"
    )
    numbers = table(["method", *(f"pass@{x:g}" for x in ks), f"majority@{k}", likeliest], rows)
    words = "A method that only sharpens what was there gains at k = 1 and not at large k. Bands: intervals."
    return figure(drawn, "Right within k answers", words, numbers)


def variants(t: TaskResults, colours: Colours) -> str:
    """Accuracy on what nothing was trained on."""
    found = {label: t.ood(label) for label in labels(t)}
    splits = list(dict.fromkeys(split for of_label in found.values() for split in of_label))
    if not splits:
        return ""
    base = numbers_of(t.base.get("measured", {}))
    heads, scales = ["method"], {}
    for split in splits:
        values = [v for f in found.values() if split in f for v in (f[split].low, f[split].high)]
        low, high = charts.covering(values, zero=True, least=0.05)
        scales[split] = Scale(max(low, 0.0), min(high, 1.0), 12, 220)
        heads.append(f"{text(split)}, % {charts.axis_strip(scales[split], points, (), 4)}")
    rows = []
    for label, of_label in found.items():
        row = [method(label, colours)]
        for split in splits:
            if split not in of_label:
                row.append("–")
                continue
            e, start = of_label[split], base.get(f"ood/{split}")
            item = Interval(
                colours[label], e.value, e.low, e.high, (), f"{label} on {split}: {interval(e)} %"
            )
            drawn = charts.strip(item, scales[split], 26, [] if start is None else [start])
            row.append(drawn + sub(interval(e)))
        rows.append(row)
    words = (
        "Greedy accuracy on variants of the task that no run has seen; the dashed line is the start model."
    )
    return note(words) + table(heads, rows, "ranking")


def retention(t: TaskResults, colours: Colours) -> str:
    """What was gained on the task against what became of other texts."""
    base = t.base.get("measured", {})
    start = numbers_of(base)
    drawn = [r for name in base.get("retention", {}) if (r := _retained(t, colours, name, start))]
    if not drawn:
        return ""
    words = "Below the line: text of other tasks, never trained on, is less likely than to the start model."
    return note(words) + f"<div class='grid'>{''.join(drawn)}</div>"


def _retained(t: TaskResults, colours: Colours, name: str, start: dict[str, float]) -> str:
    key, right = f"retention/{name}/logp", f"retention/{name}/accuracy"
    shown = [s for s in t.ranking if key in s.numbers and t.metric in start]
    if not shown:
        return ""

    def change(numbers: dict[str, float]) -> Point:
        return numbers[t.metric] - start[t.metric], numbers[key] - start[key]

    clouds, rows = [], []
    for s in shown:
        seeds = [change(r.numbers) for r in t.of(s.label) if key in r.numbers]
        gain, moved = change(dict(s.numbers))
        clouds.append(Cloud(s.label, colours[s.label], (gain, moved), seeds))
        numbers = [
            f"{100 * gain:+.1f}",
            f"{s.numbers[key]:.3f}",
            f"{moved:+.3f}",
            percent(s.numbers.get(right)),
        ]
        rows.append([method(s.label, colours), *numbers])
    rows.append(["start model", "", f"{start[key]:.3f}", "", percent(start.get(right))])
    x_axis = Axis("gain on the task, points", points, least=0.02)
    y_axis = Axis("change of log-probability, nats a token", least=0.05)
    drawing = charts.scatter(clouds, x_axis, y_axis, f"gain against retention on {name}", 500, 330)
    heads = ["method", "gain, points", "log-probability", "change", "accuracy, %"]
    return figure(drawing, name, "", table(heads, rows))


PANELS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("entropy", "Entropy of sampled tokens", "nats a token", lambda v: f"{v:g}"),
    ("length", "Length of sampled answers", "tokens", lambda v: f"{v:g}"),
    ("truncated", "Sampled answers cut at the limit", "%", points),
)
TRAINING_PANELS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("reward/pass", "Training rollouts that pass", "%", points),
    ("groups/live", "Groups whose rewards differ", "%", points),
    ("grad_norm", "Gradient norm before clipping", "", lambda v: f"{v:g}"),
)


def over_time(t: TaskResults, colours: Colours) -> str:
    """Entropy, length and what training looked like, against operations."""
    drawn = []
    for panels, read in ((PANELS, _looked), (TRAINING_PANELS, _trained)):
        for what, title, unit, form in panels:
            series = [s for label in labels(t) if (s := read(t, label, colours[label], what))]
            if series and any(y for s in series for _, y in s.points):
                axes = Axis("operations", flops_form, zero=True), Axis(unit, form, zero=True)
                chart = charts.lines(series, *axes, title, 520, 260, marks=False)
                drawn.append(figure(chart, title))
    words = "On validation problems along the way (first three), and of the training steps themselves."
    return note(words) + f"<div class='grid'>{''.join(drawn)}</div>" if drawn else ""


def _looked(t: TaskResults, label: str, index: int, what: str) -> Series | None:
    return curve(t, label, index, looks_by_flops, what)


def _trained(t: TaskResults, label: str, index: int, what: str) -> Series | None:
    """A number of the training steps: the mean over seeds on a common grid."""
    found = []
    for run in t.of(label):
        series = run.outcome["training"]["series"].get(what) or []
        if len(series) > 1:
            found.append([(x + run.outcome["charged"], y) for x, y in series])
    if not found:
        return None
    low, high = max(f[0][0] for f in found), min(f[-1][0] for f in found)
    grid = np.linspace(low, high, min(*map(len, found), TRAINING_POINTS, TRAINING_POINTS))
    ys = np.array([np.interp(grid, [x for x, _ in f], [y for _, y in f]) for f in found])
    return Series(label, index, list(zip(grid.tolist(), ys.mean(0).tolist(), strict=True)))
