"""The form of an answer: whether it is kept, when it is learnt, and how to break it by a rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from interlace.rules.bench import Bench
from interlace.types import Trajectory, Verdict

_TAG = re.compile(r"(</?[A-Za-z][\w-]*>)")


def format_kept(row: Trajectory) -> bool | None:
    """Whether a row got something for the part `format` of its reward; `None` if there is no such part."""
    parts = [value for name, value in row.parts.items() if name.rpartition(".")[2] == "format"]
    return all(value > 0 for value in parts) if parts else None


def format_accuracy(rows: Sequence[Trajectory]) -> float:
    """Share of scored rollouts that keep the format, or are correct where the reward has no such part."""
    scored = [row for row in rows if row.sampling is not None and row.verdict is not Verdict.UNSCORABLE]
    kept = [row.verdict is Verdict.PASS if format_kept(row) is None else format_kept(row) for row in scored]
    return sum(map(bool, kept)) / max(len(kept), 1)


@dataclass(frozen=True)
class FormatReached:
    """Ends a stage once the rollouts of a step keep the format in this share."""

    share: float

    def __call__(self, bench: Bench) -> bool:
        return format_accuracy(bench.rows) >= self.share


def corruptions(text: str) -> list[str]:
    """Versions of an answer with its content whole and its form broken, each different from the text.

    With tags: all removed; closing ones removed; moved behind the content; opening and closing ones
    exchanged; in reverse order. Without tags the parts between the separators (lines, else commas, else
    words, else characters) stand for them: separators removed; the last one removed; moved behind the
    content; the first part moved to the end; parts in reverse order.

    Reference:
        SPECS (arXiv 2510.25801): five kinds of rule-based corruption of tags.
    """
    made = _of_tags(text) if _TAG.search(text) else _of_parts(text)
    return [one for one in dict.fromkeys(made) if one.strip() and one != text]


def _of_tags(text: str) -> list[str]:
    pieces = _TAG.split(text)
    content, tags = pieces[::2], pieces[1::2]
    closing = [tag.startswith("</") for tag in tags]
    exchanged = [tag.replace("</", "<") if end else tag.replace("<", "</") for tag, end in zip(tags, closing)]
    return [
        "".join(content),
        _woven(content, ["" if end else tag for tag, end in zip(tags, closing)]),
        "".join([*content, *tags]),
        _woven(content, exchanged),
        _woven(content, tags[::-1]),
    ]


def _of_parts(text: str) -> list[str]:
    between = next((mark for mark in ("\n", ",", " ") if mark in text.strip()), "")
    parts = text.strip().split(between) if between else list(text.strip())
    return [
        "".join(parts),
        between.join(parts[:-1]) + parts[-1] if parts else "",
        "".join(parts) + between * (len(parts) - 1),
        between.join([*parts[1:], *parts[:1]]),
        between.join(parts[::-1]),
    ]


def _woven(content: Sequence[str], marks: Sequence[str]) -> str:
    """content[0] marks[0] content[1] marks[1] ... content[-1]"""
    return "".join(a + b for a, b in zip(content, [*marks, ""], strict=True))
