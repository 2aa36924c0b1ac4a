"""Pieces of markup that every section uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from interlace.compare.report.charts import swatch, text
from interlace.compare.results import TaskResults


class Colours:
    """The number of every method, for its colour and its mark."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._of = {label: i for i, label in enumerate(labels)}

    def __getitem__(self, label: str) -> int:
        return self._of[label]


def points(value: float) -> str:
    """A share as points of a hundred."""
    return f"{100 * value:g}"


def note(words: str) -> str:
    """What a section shows; `words` is markup."""
    return f"<p class='note'>{words}</p>"


def folded(title: str, content: str, class_: str = "numbers") -> str:
    """Something that is opened by a click."""
    return f"<details class='{class_}'><summary>{text(title)}</summary>{content}</details>"


def figure(drawing: str, title: str, words: str = "", numbers: str = "") -> str:
    """A drawing with its title, what it shows, and its numbers as a table."""
    said = note(words) if words else ""
    more = folded("Numbers", numbers) if numbers else ""
    plot = f"<div class='plot'>{drawing}</div>"
    return f"<figure><figcaption>{text(title)}</figcaption>{said}{plot}{more}</figure>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], class_: str = "") -> str:
    """A table of cells that are markup already; the first of a row names it."""
    head = "".join(f"<th scope='col'>{h}</th>" for h in heads)
    body = "".join(
        f"<tr><th scope='row'>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div class='scroll'><table class='{class_}'>{inner}</table></div>"


def method(label: str, colours: Colours) -> str:
    """A method's mark and name."""
    i = colours[label]
    return f"<span class='method m' data-m='{i}'>{swatch(i, 14)}<b>{text(label)}</b></span>"


def number(value: object) -> str:
    """A number that stays on one line."""
    return f"<span class='num'>{text(value)}</span>"


def sub(words: str, class_: str = "") -> str:
    """A small second line; `words` is markup."""
    return f"<div class='sub {class_}'>{words}</div>" if words else ""


def difference(value: float, low: float, high: float) -> str:
    """A difference of shares in points with its interval; no minus in front of zero."""
    shown = [f"{100 * v:+.1f}".replace("-0.0", "0.0").replace("+0.0", "0.0") for v in (value, low, high)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def turned(pair: Any, first: str) -> tuple[float, float, float]:
    """How much better `first` is than the other of a pair, with the interval."""
    d = pair.difference
    return (d.value, d.low, d.high) if pair.second == first else (-d.value, -d.high, -d.low)


def max_k(t: TaskResults) -> int:
    """The largest k of pass@k, 0 if nothing was sampled."""
    names = [n for s in t.ranking for n in s.numbers if n.startswith("pass@")]
    return max((int(n.removeprefix("pass@")) for n in names), default=0)


def short_count(v: float) -> str:
    """A count for an axis: `12 k`."""
    for name, unit in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(v) >= unit:
            return f"{v / unit:.3g} {name}"
    return f"{v:.3g}"
