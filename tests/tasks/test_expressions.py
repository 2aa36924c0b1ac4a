from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.tasks.expressions import evaluate


@pytest.mark.parametrize(
    ("text", "value", "whole"),
    [
        ("1+2*3", 7, True),
        ("(1+2)*3", 9, True),
        ("8/(3-8/3)", 24, False),
        ("10 - 4 - 3", 3, True),
        ("12/4/3", 1, True),
        ("2*(3-5)", -4, True),
        ("7", 7, True),
    ],
)
def test_value_is_exact_with_the_usual_precedence(text, value, whole):
    result = evaluate(text)
    assert result is not None
    assert (result.value, result.whole) == (Fraction(value), whole)


def test_numbers_and_operations_are_listed_as_written():
    result = evaluate("(10+4)*10-1")
    assert result is not None
    assert (result.numbers, result.operations) == ((10, 4, 10, 1), "+*-")


@pytest.mark.parametrize(
    "text",
    ["", "()", "1+", "*2", "-3", "1//2", "2**3", "1/0", "1/(2-2)", "(1", "1)", "04", "1 a", "2(3)", "(1)(2)",
     "1" * 10, "1+" * 300 + "1", "٣+1", "1.5"],
)  # fmt: skip
def test_what_is_no_expression_has_no_value(text):
    assert evaluate(text) is None


@given(st.text(alphabet="0123456789+-*/() ", max_size=40))
def test_value_agrees_with_python_wherever_both_accept(text):
    result = evaluate(text)
    if result is not None:
        # Every number as an exact fraction, then Python's own parser and arithmetic.
        exact = "".join(f"F({t})" if t.isdigit() else t for t in _tokens(text))
        assert result.value == eval(exact, {"F": Fraction})


def _tokens(text):
    import re

    return re.findall(r"\d+|\S", text.replace(" ", ""))
