"""Numbers that change with the step: a constant, a cosine with warm-up, a line.

Without shell quoting they are written `cosine:peak,valley,warmup,decay` and `linear:start,end,steps`;
`cosine(0.9,0.05,0,200)` means the same.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


def spell(number: float) -> str:
    """A number as text that reads back as the same number."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


@dataclass(frozen=True)
class Constant:
    number: float

    def __call__(self, step: int) -> float:
        return self.number

    def __str__(self) -> str:
        return spell(self.number)


@dataclass(frozen=True)
class Cosine:
    """From 0 to `peak` over `warmup` steps, then half a cosine to `valley` over `decay` steps."""

    peak: float
    valley: float
    warmup: int
    decay: int

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * step / self.warmup
        progress = min(1.0, (step - self.warmup) / self.decay) if self.decay else 1.0
        return self.valley + (self.peak - self.valley) * (1 + math.cos(math.pi * progress)) / 2

    def __str__(self) -> str:
        return f"cosine:{spell(self.peak)},{spell(self.valley)},{self.warmup},{self.decay}"


@dataclass(frozen=True)
class Linear:
    """From `start` to `end` over `steps`, then constant."""

    start: float
    end: float
    steps: int

    def __call__(self, step: int) -> float:
        progress = min(1.0, step / self.steps) if self.steps else 1.0
        return self.start + (self.end - self.start) * progress

    def __str__(self) -> str:
        return f"linear:{spell(self.start)},{spell(self.end)},{self.steps}"


Schedule = Constant | Cosine | Linear

_FORM = re.compile(r"^\s*(cosine|linear)\s*[:(]\s*([^()]*?)\s*\)?\s*$")
ACCEPTED = "a number, cosine:peak,valley,warmup,decay or linear:start,end,steps"


def parse_schedule(value: object) -> Schedule:
    """A schedule from a number or its text.

    Raises:
        ValueError: the text is none of the accepted forms.
    """
    if isinstance(value, Constant | Cosine | Linear):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ValueError(f"{value!r}: accepted are {ACCEPTED}, all finite")
        return Constant(float(value))
    text = str(value)
    match = _FORM.match(text)
    try:
        if match is None:
            number = float(text)
            if not math.isfinite(number):
                raise ValueError
            return Constant(number)
        numbers = [float(x) for x in match.group(2).split(",")]
        if not all(map(math.isfinite, numbers)):
            raise ValueError
        if match.group(1) == "cosine":
            peak, valley, warmup, decay = numbers
            if min(warmup, decay) < 0:
                raise ValueError
            return Cosine(peak, valley, int(warmup), int(decay))
        start, end, steps = numbers
        if steps < 0:
            raise ValueError
        return Linear(start, end, int(steps))
    except ValueError:
        raise ValueError(f"{text!r}: accepted are {ACCEPTED}") from None
