"""Reading the final answer out of a completion; linear in the length of the text."""

from __future__ import annotations

import re

_ANSWER_WORD = re.compile(r"\banswer(?:\s{1,3}is(?:\s{0,3}:)?|\s{0,3}:)[ \t*]*", re.IGNORECASE)
_BRACES = re.compile(r"\\boxed\s{0,3}\{|\\[{}\\]|[{}]")


def final_answer(text: str) -> str | None:
    """The answer that a text marks as its own, or `None` if it marks none.

    Looked for in what follows the last `</think>` (the whole text without one): the last
    `<answer>...</answer>`; in it, or else in the text, the last `\\boxed{...}`; else what follows the
    last `####` on its line; else what follows the last "Answer:" or "answer is", to the end.
    """
    text = text.rpartition("</think>")[2]
    tagged = _in_tag(text)
    if tagged is not None:
        boxed = last_boxed(tagged)
        return (tagged if boxed is None else boxed).strip()
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    _, mark, after = text.rpartition("####")
    if mark:
        return after.strip().partition("\n")[0].strip()
    last = last_match(_ANSWER_WORD, text)
    return None if last is None else text[last.end() :].strip()


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last of a pattern's matches."""
    *_, last = [None, *pattern.finditer(text)]
    return last


def last_boxed(text: str) -> str | None:
    """The content of the last closed `\\boxed{...}` that holds no other one."""
    stack: list[int] = []  # content start of an open \boxed, -1 for a plain brace
    found: tuple[int, int] | None = None
    for match in _BRACES.finditer(text):
        token = match.group()
        if token.startswith("\\boxed"):
            stack.append(match.end())
        elif token == "{":
            stack.append(-1)
        elif token == "}" and stack:
            start = stack.pop()
            holds_another = found is not None and found[0] > start
            if start >= 0 and not holds_another:
                found = (start, match.start())
    return None if found is None else text[found[0] : found[1]]


def _in_tag(text: str) -> str | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end] if start >= 0 else None
