"""The page of `side_by_side`: one HTML file with its data, style and script inside, and no network.

Every text that comes from outside (tokens, prompts, names, messages) travels as JSON and reaches the page as
text, never as markup; the content security policy allows the page's own script and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import math
from collections.abc import Sequence
from typing import Any

from interlace.analysis.side_by_side import SILENT, Lane, SideBySide, Token

DIGITS = 6
"""Significant digits of the numbers in the page."""


def page(compared: SideBySide) -> str:
    """The whole HTML document."""
    files = importlib.resources.files("interlace.analysis") / "page_files"
    style, script, body = (
        (files / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")
    )
    data = json.dumps(payload(compared), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    parts = {
        "title": html.escape(" · ".join(["side by side", *(lane.name for lane in compared.lanes)])),
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_digest(script)}'",
        "style": style,
        "script": script,
        # In a script element only "<" can end the element or open a comment.
        "data": data.replace("<", "\\u003c"),
    }
    for name, text in parts.items():
        before, marker, after = body.partition("{{" + name + "}}")
        assert marker, f"page.html lacks {name}"
        body = before + text + after
    return body


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def payload(compared: SideBySide) -> dict[str, Any]:
    """What the script draws, with numbers shortened and repeated texts listed once."""
    rows = []
    for i, row in enumerate(compared.rows):
        shown = {k: _short(v) if isinstance(v, list) else v for k, v in row.items()}
        text = None if compared.tokens is None else list(compared.tokens[i])
        prompt = None if compared.prompts is None else compared.prompts[i]
        rows.append({**shown, "text": text, "prompt": prompt})
    return {
        "about": {str(k): str(v) for k, v in compared.about.items()},
        "step": compared.step,
        "silent": dict(SILENT),
        "rows": rows,
        "lanes": [_lane(lane) for lane in compared.lanes],
    }


def _lane(lane: Lane) -> dict[str, Any]:
    names = [term["name"] for term in lane.terms]
    details: dict[str, int] = {}
    reasons = list(SILENT)

    def row(tokens: Sequence[Token]) -> dict[str, Any]:
        return {
            "c": _short([t.coefficient for t in tokens]),
            "a": _short([t.advantage for t in tokens]),
            "parts": [
                [_short([names.index(p.term), p.coefficient, p.advantage, p.n, p.weight]) for p in t.parts]
                for t in tokens
            ],
            "silent": [-1 if t.silent is None else reasons.index(t.silent) for t in tokens],
            "detail": [details.setdefault(t.detail, len(details)) for t in tokens],
        }

    drawn = [row(tokens) for tokens in lane.rows]
    return {
        "name": lane.name,
        "title": lane.title,
        "stage": lane.stage,
        "problem": lane.problem,
        "notes": list(lane.notes),
        "loss": _short([lane.loss])[0],
        "terms": [dict(term) for term in lane.terms],
        "advantage": lane.advantage,
        "sums": {source: _short(list(vars(s).values())) for source, s in lane.sums.items()},
        "sft": _short([lane.sft])[0],
        "rl": _short([lane.rl])[0],
        "rows": drawn,
        "details": list(details),
    }


def _short(values: Sequence[Any]) -> list[Any]:
    return [_digits(v) if isinstance(v, float) else v for v in values]


def _digits(x: float) -> float | int | None:
    if not math.isfinite(x):
        return None
    short = float(f"{x:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
