"""`side_by_side` in a terminal: a summary, then every row's tokens, method under method.

Blue makes a token more likely, orange less likely, on one scale for all methods; the colours are those of the
page and are told apart without red and green. Without colours the numbers themselves are written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from interlace.analysis.side_by_side import Lane, SideBySide, Token

BLUE, ORANGE = (10, 95, 165), (196, 80, 10)
FAINTEST = 0.25
"""Share of the full colour that the smallest coefficient gets, so that white text reads on it."""
MARKS = {
    "left out": "×",
    "mask": "·",
    "factor 0": "0",
    "dead group": "=",
    "zero advantage": "o",
    "clip": "|",
    "weight 0": "w",
}
"""What stands for a silent token where there is no text to show."""


def show(compared: SideBySide, console: Console | None = None) -> None:
    """Print the comparison."""
    console = console or Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:  # piped output keeps whole lines, so that it can be searched
        console.width = max(console.width, 200)
    facts = [f"{name} {value}" for name, value in compared.about.items()]
    console.print(
        Text(" · ".join([*facts, f"step {compared.step}", f"{len(compared.rows)} rows"])), style="dim"
    )
    console.print(summary(compared))
    shown = [lane for lane in compared.lanes if lane.problem is None]
    for lane in compared.lanes:
        for message in filter(None, (lane.problem, *lane.notes)):
            console.print(Text(f"{lane.name}: {message}", style="yellow"))
    width = max((len(lane.name) for lane in shown), default=0)
    largest = max((abs(t.coefficient) for lane in shown for row in lane.rows for t in row), default=0.0)
    coloured = console.color_system is not None
    for r, row in enumerate(compared.rows):
        console.print()
        console.print(Text(_heading(r, row), style="dim"))
        if compared.prompts is not None and (r == 0 or compared.prompts[r] != compared.prompts[r - 1]):
            console.print(Text(f"  {compared.prompts[r]}", style="dim"))
        texts = None if compared.tokens is None else compared.tokens[r]
        for lane in shown:
            line = Text(f"  {lane.name:<{width}}  ", style="bold" if coloured else "")
            console.print(line + tokens(lane.rows[r], texts, largest, coloured))
    console.print()
    console.print(legend(compared, largest))


def summary(compared: SideBySide) -> Table:
    """One line per method: loss, its sums by source, SFT : RL, and what is silent."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    sources = [
        s for s in ("demo", "prefix", "hint", "rollout") if any(s in lane.sums for lane in compared.lanes)
    ]
    for name in ("method", "loss", *(f"Σ|c| {s}" for s in sources), "SFT : RL", "trained", "silent"):
        table.add_column(name, style="cyan" if name == "method" else "", no_wrap=name != "silent")
    for lane in compared.lanes:
        if lane.problem is not None:
            table.add_row(Text(lane.name), "not shown")
            continue
        n = sum(s.tokens for s in lane.sums.values())
        trained = sum(s.trained for s in lane.sums.values())
        sums = [f"{lane.sums[s].absolute:.4g}" if s in lane.sums else "" for s in sources]
        silent = ", ".join(f"{k} {reason}" for reason, k in lane.silent.items())
        table.add_row(Text(lane.name), f"{lane.loss:.4g}", *sums, ratio(lane), f"{trained} of {n}", silent)
    return table


def ratio(lane: Lane) -> str:
    """The effective SFT : RL ratio as people write it."""
    if lane.sft_share is None:
        return "nothing"
    if lane.rl == 0 or lane.sft == 0:
        return "SFT only" if lane.rl == 0 else "RL only"
    if lane.sft >= lane.rl:
        return f"{lane.sft / lane.rl:.2g} : 1"
    return f"1 : {lane.rl / lane.sft:.2g}"


def tokens(row: Sequence[Token], texts: Sequence[str] | None, largest: float, coloured: bool) -> Text:
    """One row under one method; a row that is silent for one reason is that reason."""
    reasons = {token.silent for token in row}
    if not row:
        return Text("(empty)", style="dim")
    if len(reasons) == 1 and row[0].silent is not None:
        details = {token.detail for token in row}
        said = f"({row[0].silent}: {row[0].detail})" if len(details) == 1 and row[0].detail else row[0].silent
        return Text(said, style="dim")
    line = Text()
    looks = [style(t.coefficient, largest) if t.silent is None else _silent(t.silent) for t in row]
    said_of = [f"{t.coefficient:+.2g}" if t.silent is None else MARKS[t.silent] for t in row]
    if texts is None:
        for said, look in zip(said_of, looks, strict=True):
            line.append(f" {said} ", look)
        return line
    shown = [text.replace("\n", "⏎").replace("\r", "␍") for text in texts]
    if coloured:
        for text, look in zip(shown, looks, strict=True):
            line.append(text, look)
        return line
    for said, run in itertools.groupby(range(len(row)), key=said_of.__getitem__):
        line.append("".join(shown[i] for i in run) + f"({said}) ")
    return line


def style(coefficient: float, largest: float) -> Style:
    """Background from faint to full with the square root of |coefficient| / largest; none at 0."""
    if coefficient == 0 or largest == 0:
        return Style(dim=True)
    share = math.sqrt(min(1.0, abs(coefficient) / largest))
    level = FAINTEST + (1 - FAINTEST) * share
    r, g, b = (round(level * part) for part in (BLUE if coefficient > 0 else ORANGE))
    return Style(color="white", bgcolor=f"rgb({r},{g},{b})")


def _silent(reason: str) -> Style:
    return Style(
        dim=True, strike=reason == "left out", underline=reason == "clip", italic=reason == "dead group"
    )


def _heading(r: int, row: Mapping[str, Any]) -> str:
    parts = [f"row {r}", row["kind"]]
    if row["group"] is not None:
        parts.append(f"group {row['group']}")
    if row["reward"] is not None:
        parts.append(f"reward {row['reward']:g}")
    return " · ".join([*parts, *(row[key] for key in ("verdict", "finish") if row[key])])


def legend(compared: SideBySide, largest: float) -> Text:
    """What the colours and marks mean."""
    text = Text()
    text.append(" more likely ", style(1.0, 1.0))
    text.append(" ")
    text.append(" less likely ", style(-1.0, 1.0))
    text.append(f"  full colour is |coefficient| {largest:.4g}, square-root scale")
    reasons = list(dict.fromkeys(reason for lane in compared.lanes for reason in lane.silent))
    text.append("; silent:" if reasons else "")
    for reason in reasons:
        text.append("  ")
        text.append(reason, _silent(reason))
        text.append(f" {MARKS[reason]}")
    return text
