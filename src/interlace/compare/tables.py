"""The results as text: `table.md` (without anything that a second run would change) and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from interlace.compare.budget import short
from interlace.compare.results import BASELINE, Results, Run, TaskResults
from interlace.compare.statistics import Difference
from interlace.training.checkpoint import write_text

SHARED = "Methods that share a letter are not told apart."
FIRST = "=: not told apart from the first."


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def interval(value: Any) -> str:
    return f"{percent(value.value)} [{percent(value.low)}, {percent(value.high)}]"


def signed(d: Difference | None) -> str:
    return "" if d is None else f"{100 * d.value:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"


def number(value: float | None, form: str = ".3g") -> str:
    return "–" if value is None else format(value, form)


def markdown(results: Results) -> str:
    """The ranking of every task as GitHub reads it."""
    parts = [part for t in results.tasks for part in _task(t, results)]
    if results.overall:
        rows = [
            [label, f"{percent(o['value'])} [{percent(o['low'])}, {percent(o['high'])}]"]
            for label, o in results.overall.items()
        ]
        parts += ["## All tasks", "", *_table(["method", "interquartile mean, %"], rows), ""]
    return "\n".join(parts)


def _task(t: TaskResults, results: Results) -> list[str]:
    seeds = len({r.seed for r in t.runs})
    cost = "equal steps, not equal cost" if t.budget is None else f"{short(t.budget)} each"
    level = f"{100 * t.level:g} %"
    lines = [
        f"## {t.task}",
        "",
        f"{results.comparison.get('common', {}).get('model', 'scratch:nano')}, {cost}, {seeds} seed(s), "
        f"{len(t.problems)} held-out problems, {t.metric} accuracy in % with {level} intervals over seeds "
        f"and problems. {SHARED if t.lettered else FIRST}",
        "",
    ]
    k = max(
        (int(n.removeprefix("pass@")) for s in t.ranking for n in s.numbers if n.startswith("pass@")),
        default=0,
    )
    heads = ["method", t.metric, "", f"against {BASELINE}", "greedy", "sampled"]
    heads += [f"pass@{k}", f"majority@{k}"] if k else []
    heads += ["setting", "cost"]
    rows = []
    for s in t.ranking:
        row = [s.label, interval(s.accuracy), s.letters, signed(s.against)]
        row += [percent(s.numbers.get(n)) for n in ("greedy", "sampled")]
        row += [percent(s.numbers.get(f"{n}@{k}")) for n in ("pass", "majority")] if k else []
        row += [t.searches[s.label].choice, short(s.numbers.get("cost/flops", 0.0))]
        rows.append(row)
    lines += [*_table(heads, rows), ""]
    for label, seeds_ in _missing(t):
        for seed, reason in seeds_.items():
            lines.append(f"- {label}, seed {seed}: {reason}")
    return [*lines, ""] if lines[-1] else lines


def _missing(t: TaskResults) -> Iterable[tuple[str, Mapping[int, str]]]:
    for s in t.ranking:
        if s.missing:
            yield s.label, s.missing
    yield from t.absent.items()


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line = "| " + " | ".join(heads) + " |"
    return [line, "|" + "---|" * len(heads), *("| " + " | ".join(row) + " |" for row in rows)]


def write_csv(results: Results, folder: Path) -> None:
    """`runs.csv` (a line per run), `curves.csv` (a line per look) and `scores.csv` (a line per problem)."""
    runs = [(t, r) for t in results.tasks for r in t.runs]
    names = list(dict.fromkeys(n for _, r in runs for n in (r.numbers if r.done else {})))
    head = ["task", "method", "seed", "state", "setting"]
    rows = [[*_who(t, r), r.state, r.job.choice, *(r.numbers.get(n, "") for n in names)] for t, r in runs]
    write_text(folder / "runs.csv", _csv([*head, *names], rows))
    facts = ("greedy", "sampled", "entropy", "length", "truncated")
    looks = [
        [*_who(t, r), e["at"], e["flops"] + r.outcome["charged"], *(e[f] for f in facts)]
        for t, r in runs
        for e in r.outcome.get("looks", [])
    ]
    write_text(folder / "curves.csv", _csv(["task", "method", "seed", "at", "flops", *facts], looks))
    scores = [
        [*_who(t, r), p, g, r.scores("sampled").get(p, "")]
        for t, r in runs
        if r.done
        for p, g in r.scores("greedy").items()
    ]
    write_text(
        folder / "scores.csv", _csv(["task", "method", "seed", "problem", "greedy", "sampled"], scores)
    )


def _who(t: TaskResults, r: Run) -> list[Any]:
    return [t.task, r.label, r.seed]


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return file.getvalue()
