"""Mathematical equivalence of a final answer and a reference, by math-verify."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from interlace.rewards.base import unscorable
from interlace.tasks.answers import final_answer
from interlace.types import Problem, Score, Verdict

_TEXT = re.compile(r"(?:\\text\{)?([A-Za-z][A-Za-z' -]{2,})\}?")
_SENTENCE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}[ ,:]")
_FUNCTION = re.compile(r"\b(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|inf|infty|infinity|i)\b")
_DELIMITED = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(((?:[^\\]|\\(?![()]))+)\\\)")
_MIXED = re.compile(r"([-+]?)\s*([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)")
_SCIENTIFIC = re.compile(r"([-+]?[0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]+)")


BARE_ANSWER = 80
"""A line without a marked answer is tried as an answer by itself up to this many characters."""


class Math:
    """The final answer means the same as the reference: `0.5`, `1/2`, `\\frac{1}{2}`.

    The reference is normalised once: what it marks as its final answer (boxed, after `####`, ...) if it
    marks one, read as LaTeX. A reference that does not parse, or does not equal itself, makes the row
    unscorable. A text that marks no answer is read whole if it is one short line, or else by its last
    formula or number. References that are
    plain words (`no solution`) are compared as words, since a computer algebra system reads them as
    products of letters, whose order does not matter.

    There is no time limit in here: math-verify's own uses signals, which fail outside the main thread.
    Whatever calls this bounds the time (see `Scorer`).
    """

    bounded = False

    def prepare(self) -> None:
        """Import the library, which takes about a second."""
        _library()

    def gold(self, problem: Problem) -> str | None:
        """The reference in canonical form, as a text that must pass."""
        return None if problem.answer is None else f"\\boxed{{{canonical(problem.answer)}}}"

    def __call__(self, completion: str, problem: Problem) -> Score:
        if problem.answer is None:
            return unscorable("gold", "the problem has no answer")
        gold = canonical(problem.answer)
        parsed_gold = _parsed_gold(gold)
        if isinstance(parsed_gold, str):
            return unscorable("gold", parsed_gold)
        said = final_answer(completion)
        said = None if said is None else _one_line(said)
        if (word := _words(gold)) is not None:
            read = completion.strip() if said is None else said
            return _judged(_words(read.rstrip(".")) == word, read[:200])
        if said is not None:
            return _judged(_verify(parsed_gold, _parse_marked(said)), said[:200])
        text = completion.rpartition("</think>")[2].strip()
        if len(text) <= BARE_ANSWER and "\n" not in text and _verify(parsed_gold, _parse_marked(text)):
            return _judged(True, text)
        parsed = _parse(text)
        return _judged(_verify(parsed_gold, parsed), str(parsed[-1])[:200] if parsed else None)


def canonical(answer: Any) -> str:
    """The reference as LaTeX without decoration: its own final answer if it marks one."""
    text = str(answer)
    marked = final_answer(text)
    return _latex(text.strip() if marked is None else _one_line(marked))


def _one_line(answer: str) -> str:
    """The first line of an answer that goes on, unless it is one formula over several lines."""
    return answer if "\\begin" in answer else answer.partition("\n")[0].strip()


def _latex(text: str) -> str:
    if match := _DELIMITED.fullmatch(text):
        text = next(inner for inner in match.groups() if inner is not None).strip()
    text = text.replace("\N{MINUS SIGN}", "-").strip(" *`").removesuffix(".")
    if match := _MIXED.fullmatch(text):
        sign, whole, above, below = match.groups()
        return f"{sign}{whole}\\frac{{{above}}}{{{below}}}"
    if match := _SCIENTIFIC.fullmatch(text):
        return f"{match[1]} \\cdot 10^{{{match[2]}}}"
    return text


def _words(text: str) -> str | None:
    match = _TEXT.fullmatch(text.strip())
    if match is None or _FUNCTION.search(match[1]):
        return None
    return " ".join(match[1].lower().split())


@lru_cache(maxsize=1)
def _library() -> Any:
    import math_verify

    # It warns that time limits are off, once per process; they are kept elsewhere.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify


def _parse(text: str) -> list:
    library = _library()
    configs = (library.LatexExtractionConfig(), library.ExprExtractionConfig())
    parsed = library.parse(text, extraction_config=configs, parsing_timeout=None)
    # What the parser could not read comes back as text alone; texts are no mathematics.
    return parsed if any(not isinstance(p, str) for p in parsed) else []


def _parse_marked(answer: str) -> list:
    """A marked answer is one formula; if it is a sentence ("it is 5"), its last formula counts too."""
    parsed = _parse(f"\\boxed{{{_latex(answer)}}}")
    return parsed + _parse(answer) if _SENTENCE.search(answer) else parsed


def _verify(gold: list, said: list) -> bool:
    return bool(_library().verify(gold, said, timeout_seconds=None))


@lru_cache(maxsize=65_536)
def _parsed_gold(gold: str) -> list | str:
    """The parsed reference, or what is wrong with it."""
    if _words(gold) is not None:
        return []
    parsed = _parse(f"\\boxed{{{gold}}}")
    if not parsed:
        return f"the answer {gold[:80]!r} does not parse"
    if not _verify(parsed, parsed):
        return f"the answer {gold[:80]!r} does not equal itself"
    return parsed


def _judged(correct: bool, extracted: str | None) -> Score:
    value = float(correct)
    return Score(value, Verdict.PASS if correct else Verdict.FAIL, {"math": value}, "", extracted)
