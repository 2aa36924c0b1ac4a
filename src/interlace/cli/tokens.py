"""One method's tokens in the colours of their coefficients: blue is made more likely, orange less likely."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from interlace.analysis.terminal import style


def show(
    explained: Mapping[str, Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[Sequence[str]] | None = None,
    prompts: Sequence[str] | None = None,
    console: Console | None = None,
) -> None:
    """Print each method's terms and every token on one common colour scale.

    Args:
        explained: By method, what `interlace.explain` returned.
        rows: What it was asked about.
        texts: The text of every token; `None` shows its number instead.
        prompts: What stands before the tokens of each row.
        console: Where to; default standard output.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    largest = max(
        (abs(c) for e in explained.values() for r in e["rows"] for c in r["coefficient"]), default=0.0
    )
    coloured = console.color_system is not None
    for method, result in explained.items():
        console.print(Text(f"{method}: loss {result['loss']:.6g}", style="bold"))
        console.print(_terms(result["terms"]))
        if not any(c for found in result["rows"] for c in found["coefficient"]):
            console.print(Text("no token of these rows is trained", style="yellow"))
        for i, (row, found) in enumerate(zip(rows, result["rows"], strict=True)):
            console.print(Text(_heading(i, row, found["advantage"]), style="dim"))
            if prompts is not None:
                console.print(Text(f"  {prompts[i]}", style="dim"))
            written = None if texts is None else texts[i]
            console.print(tokens(found["coefficient"], written, largest, coloured))
        console.print()
    console.print(legend(largest))


def tokens(coefficient: Sequence[float], texts: Sequence[str] | None, largest: float, coloured: bool) -> Text:
    """One row of tokens. Without colours or texts the numbers themselves are written."""
    line = Text("  ")
    if not coefficient:
        line.append("(empty)", style="dim")
    elif texts is None:
        for c in coefficient:
            line.append(f" {c:+.4g} " if c else " 0 ", style=style(c, largest))
            line.append(" ")
    elif coloured:
        for c, shown in zip(coefficient, texts, strict=True):
            line.append(shown.replace("\n", "⏎"), style=style(c, largest))
    else:
        line.append(_runs(coefficient, texts))
    return line


def _runs(coefficient: Sequence[float], texts: Sequence[str]) -> str:
    """Neighbours with the same number as one text with that number behind it."""
    numbers = [f"({c:+.2g})" if c else "" for c in coefficient]
    runs = itertools.groupby(zip(numbers, texts, strict=True), key=lambda pair: pair[0])
    return " ".join("".join(t for _, t in run) + number for number, run in runs).replace("\n", "⏎")


def legend(largest: float) -> Text:
    """What the colours mean."""
    text = Text()
    text.append(" more likely ", style=style(1.0, 1.0))
    text.append(" ")
    text.append(" less likely ", style=style(-1.0, 1.0))
    text.append(" ")
    text.append(" not trained ", style=style(0.0, 1.0))
    text.append(
        f"  full colour is |coefficient| {largest:.4g}, square-root scale; coefficient = d(-loss)/d logp"
    )
    return text


def _terms(terms: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in ("term", "factor", "denominator", "n"):
        table.add_column(name, style="cyan" if name == "term" else "")
    for term in terms:
        table.add_row(term["name"], f"{term['coefficient']:g}", term["denominator"], f"{term['n']:g}")
    return table


def _heading(i: int, row: Mapping[str, Any], advantage: Sequence[float]) -> str:
    parts = [f"row {i}"]
    source = row.get("source")
    kinds = [source] if isinstance(source, str) else list(dict.fromkeys(source or ()))
    parts.append("+".join(map(str, kinds)))
    if row.get("group") is not None:
        parts.append(f"group {row['group']}")
    if row.get("reward") is not None:
        parts.append(f"reward {row['reward']:g}")
    parts += [str(row[key]) for key in ("verdict", "finish") if row.get(key)]
    acting = sorted({a for a in advantage if a})
    if len(acting) == 1:
        parts.append(f"advantage {acting[0]:+.4g}")
    elif acting:
        parts.append(f"advantages {acting[0]:+.4g} to {acting[-1]:+.4g}")
    return " · ".join(parts)
