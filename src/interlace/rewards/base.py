"""From what a reward function returns to a `Score`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from interlace.tasks.base import Reward, unscorable
from interlace.types import Score, Verdict

CORRECTNESS_NAMES = ("correctness", "correct", "accuracy")

__all__ = ["Reward", "as_score", "unscorable"]


def as_score(value: Any, name: str = "reward") -> Score:
    """The score that a function's return value stands for.

    Args:
        value: A number or bool (correctness, and the reward); a mapping of named parts, whose total is
            `reward` if that is among them and otherwise their sum, and whose correctness is
            `correctness`, `correct` or `accuracy` if one is among them and otherwise the total; a `Score`;
            or `None`, for "cannot say".
        name: What the part is called when the value is a single number.

    Returns:
        The score; unscorable for `None`, numbers that are not finite, and anything else.
    """
    if value is None:
        return unscorable("none", "the reward returned None")
    if isinstance(value, Score):
        return _checked(value)
    if isinstance(value, Mapping):
        parts = {str(k): _number(v) for k, v in value.items()}
        if not parts:
            return unscorable("type", "the reward returned an empty mapping")
    else:
        parts = {name: _number(value)}
    for part, number in parts.items():
        if number is None:
            kind = type(value[part] if isinstance(value, Mapping) and part in value else value).__name__
            return unscorable("type", f"{part} is a {kind}; accepted: a number, bool, mapping, Score or None")
        if not math.isfinite(number):
            return unscorable("not finite", f"{part} is {number}")
    numbers = {k: v for k, v in parts.items() if v is not None}
    total = numbers.pop("reward", None) if isinstance(value, Mapping) else None
    if total is None:
        total = sum(numbers.values())
    correct = next((numbers[k] for k in CORRECTNESS_NAMES if k in numbers), total)
    return Score(total, Verdict.PASS if correct == 1 else Verdict.FAIL, numbers or {"reward": total})


def _number(value: Any) -> float | None:
    if isinstance(value, str | bytes) or value is None:
        return None
    try:
        return float(value)
    except Exception:
        return None


def _checked(score: Score) -> Score:
    verdict = Verdict(score.verdict)
    if verdict is Verdict.UNSCORABLE:
        return Score(None, verdict, {}, score.reason or "unscorable", score.extracted)
    reward = _number(score.reward)
    if reward is None:
        return unscorable("none", "a Score without a reward")
    parts = {str(k): _number(v) for k, v in score.parts.items()}
    if not math.isfinite(reward) or any(v is None or not math.isfinite(v) for v in parts.values()):
        return unscorable("not finite", f"reward {reward}, parts {dict(score.parts)}")
    extracted = None if score.extracted is None else str(score.extracted)
    return Score(reward, verdict, {k: v for k, v in parts.items() if v is not None}, "", extracted)
