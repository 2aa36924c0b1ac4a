"""Verifiers that need no library: exact text, numbers, format tags. All return at once on any text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import ClassVar

from interlace.rewards.base import unscorable
from interlace.tasks.answers import final_answer, last_match
from interlace.types import Problem, Score, Verdict


def _judged(name: str, correct: bool, extracted: str | None) -> Score:
    value = float(correct)
    return Score(value, Verdict.PASS if correct else Verdict.FAIL, {name: value}, "", extracted)


@dataclass(frozen=True)
class Exact:
    """The final answer, or the whole text, equals the reference up to white space.

    The reference may be a text, a number, or a list of which any is right.
    """

    bounded: ClassVar[bool] = True

    def gold(self, problem: Problem) -> str | None:
        accepted = _accepted(problem.answer)
        return accepted[0] if accepted else None

    def __call__(self, completion: str, problem: Problem) -> Score:
        accepted = _accepted(problem.answer)
        if not accepted:
            return unscorable("gold", "the problem has no answer")
        whole = " ".join(completion.split())
        said = final_answer(completion)
        read = whole if said is None else " ".join(said.split())
        candidates = {whole, read, read.removesuffix(".")}
        return _judged("exact", any(a in candidates for a in accepted), read[:200])


def _accepted(answer: object) -> list[str]:
    several = answer if isinstance(answer, list | tuple) else [answer]
    texts = [" ".join(str(a).split()) for a in several if a is not None and not isinstance(a, dict)]
    return [t for t in texts if t]


NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?"
    r"(?:\s?/\s?[0-9]+(?:\.[0-9]+)?)?|(?<![\w.])[-+]?\.[0-9]+"
)
MAX_NUMBER_LENGTH = 64


@dataclass(frozen=True)
class Numeric:
    """The last number of the final answer (or of the text) equals the reference.

    Thousands separators, fractions and exponents are understood; `tolerance` is relative, and absolute
    below 1.
    """

    tolerance: float = 1e-6
    bounded: ClassVar[bool] = True

    def gold(self, problem: Problem) -> str | None:
        return None if problem.answer is None else str(problem.answer)

    def __call__(self, completion: str, problem: Problem) -> Score:
        if problem.answer is None:
            return unscorable("gold", "the problem has no answer")
        gold = last_number(str(problem.answer))
        if gold is None:
            return unscorable("gold", f"no number in the answer {str(problem.answer)[:80]!r}")
        said = last_number(completion)
        if said is None:
            return _judged("numeric", False, None)
        margin = Fraction(self.tolerance) * max(abs(gold), Fraction(1))
        return _judged("numeric", abs(said - gold) <= margin, _shown(said))


def last_number(text: str) -> Fraction | None:
    """The last number of the final answer of a text, or else of the whole text; exact."""
    said = final_answer(text)
    for part in (said, text):
        last = last_match(NUMBER, part or "")
        if last is not None:
            return _exact(last.group())
    return None


def _exact(number: str) -> Fraction | None:
    if len(number) > MAX_NUMBER_LENGTH:
        return None
    above, _, below = number.replace(",", "").replace(" ", "").partition("/")
    try:
        return Fraction(Decimal(above)) / Fraction(Decimal(below or "1"))
    except (InvalidOperation, ZeroDivisionError, ValueError):
        return None


def _shown(number: Fraction) -> str:
    return str(number)[:200]


@dataclass(frozen=True)
class FormatTags:
    """1 if the text consists of the tags in order, each opened and closed once, nothing outside them.

    Only after the last tag is other text accepted, and only if that tag is not `answer`; so
    `format:think` fits `<think>...</think> the answer`. A tag's content must not be blank.
    """

    tags: Sequence[str]
    bounded: ClassVar[bool] = True
    is_format: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for tag in self.tags:
            if not re.fullmatch(r"[A-Za-z][\w-]*", tag):
                raise ValueError(f"format: {tag!r} is not a tag; accepted: names such as think,answer")
        if not self.tags or len(set(self.tags)) != len(self.tags):
            raise ValueError(f"format: {list(self.tags)}; accepted: at least one tag, each once")

    def __call__(self, completion: str, problem: Problem) -> Score:
        return _judged("format", self._fits(completion), None)

    def _fits(self, text: str) -> bool:
        if any(text.count(f"<{t}>") != 1 or text.count(f"</{t}>") != 1 for t in self.tags):
            return False
        rest = text
        for tag in self.tags:
            before, _, rest = rest.partition(f"<{tag}>")
            content, closed, rest = rest.partition(f"</{tag}>")
            if before.strip() or not closed or not content.strip():
                return False
        return not rest.strip() or self.tags[-1] != "answer"
