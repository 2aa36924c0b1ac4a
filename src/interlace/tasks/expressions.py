"""Exact value of an arithmetic expression written by a model: no `eval`, no recursion."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

TOKEN = re.compile(r"[0-9]+|[-+*/()]")
DIGITS = "0123456789"
MAX_DIGITS = 9
MAX_LENGTH = 400
_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class Value:
    """An expression that was evaluated.

    Attributes:
        value: The exact value.
        numbers: The numbers written, in order.
        operations: The operations written, in order.
        whole: Whether every intermediate result was a whole number.
    """

    value: Fraction
    numbers: tuple[int, ...]
    operations: str
    whole: bool


def evaluate(text: str) -> Value | None:
    """The value of numbers joined by + - * / and parentheses; `None` if it has none.

    Spaces are ignored; signs, leading zeros, numbers over nine digits, division by zero and texts over
    400 characters have no value.
    """
    if len(text) > MAX_LENGTH:
        return None
    compact = "".join(text.split(" "))
    tokens = TOKEN.findall(compact)
    if "".join(tokens) != compact:
        return None
    values: list[Fraction] = []
    waiting: list[str] = []
    whole, after_operand = True, False

    def apply() -> bool:
        nonlocal whole
        b, a, op = values.pop(), values.pop(), waiting.pop()
        if op == "/" and b == 0:
            return False
        values.append(a + b if op == "+" else a - b if op == "-" else a * b if op == "*" else a / b)
        whole &= values[-1].denominator == 1
        return True

    for token in tokens:
        if token[0] in DIGITS:
            if after_operand or len(token) > MAX_DIGITS or (token[0] == "0" and len(token) > 1):
                return None
            values.append(Fraction(int(token)))
            after_operand = True
        elif token == "(":
            if after_operand:
                return None
            waiting.append(token)
        elif not after_operand:
            return None
        elif token == ")":
            while waiting and waiting[-1] != "(":
                if not apply():
                    return None
            if not waiting:
                return None
            waiting.pop()
        else:
            while waiting and waiting[-1] != "(" and _RANK[waiting[-1]] >= _RANK[token]:
                if not apply():
                    return None
            waiting.append(token)
            after_operand = False
    if not after_operand:
        return None
    while waiting:
        if waiting[-1] == "(" or not apply():
            return None
    numbers = tuple(int(t) for t in tokens if t[0] in DIGITS)
    return Value(values[0], numbers, "".join(t for t in tokens if t in _RANK), whole)
