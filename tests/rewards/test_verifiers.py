import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.rewards import load_reward
from interlace.rewards.verifiers import Exact, FormatTags, Numeric, last_number
from interlace.types import Problem, Score, Verdict


def problem(answer):
    return Problem("p", "q", answer)


@pytest.mark.parametrize(
    ("answer", "text", "verdict"),
    [
        ("Paris", "Paris", "pass"),
        ("Paris", "  Paris \n", "pass"),
        ("Paris", "I think so.\nAnswer: Paris.", "pass"),
        ("Paris", "<answer>Paris</answer>", "pass"),
        ("a b", "a \n b", "pass"),
        ("Paris", "paris", "fail"),
        ("Paris", "It is Paris", "fail"),
        ("Paris", "", "fail"),
        (7, "#### 7", "pass"),
        (["NYC", "New York"], "Answer: New York", "pass"),
        (None, "x", "unscorable"),
        ("", "", "unscorable"),
        ([], "x", "unscorable"),
        ({"a": 1}, "x", "unscorable"),
    ],
)
def test_exact_compares_the_whole_text_or_its_final_answer(answer, text, verdict):
    assert Exact()(text, problem(answer)).verdict == verdict


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("so 3 + 4 = 7.", 7),
        ("-2.50", Fraction(-5, 2)),
        ("5-3", 3),
        ("1,234,567 people", 1_234_567),
        ("1,23", 23),  # no thousands separator
        ("$12", 12),
        ("3/4", Fraction(3, 4)),
        ("1e-3", Fraction(1, 1000)),
        (".5", Fraction(1, 2)),
        ("Answer: 8 (not 9)", 9),
        ("#### 8\nchecked in 2 ways", 8),
        ("Answer: eight, from 2 and 4", 4),
        ("x2", None),
        ("none", None),
        ("1/0", None),
        ("9" * 65, None),
    ],
)
def test_the_last_number_is_read_exactly(text, value):
    assert last_number(text) == value


@pytest.mark.parametrize(
    ("answer", "text", "verdict"),
    [
        ("0.5", "1/2", "pass"),
        (100, "100.00001", "pass"),  # 1e-7 of it
        (100, "100.001", "fail"),
        (0, "1e-7", "pass"),
        ("1,234", "Answer: 1234", "pass"),
        ("72 clips", "#### 72", "pass"),
        ("5", "about five", "fail"),
        ("five", "5", "unscorable"),
        (None, "5", "unscorable"),
    ],
)
def test_numeric_compares_numbers_within_the_tolerance(answer, text, verdict):
    assert Numeric()(text, problem(answer)).verdict == verdict


@pytest.mark.parametrize(
    ("tags", "text", "fits"),
    [
        ("think,answer", "<think>a</think><answer>b</answer>", True),
        ("<think>,<answer>", " <think>\na</think>\n<answer>b</answer>\n", True),
        ("think,answer", "<think>a</think><answer>b</answer> more", False),
        ("think,answer", "well <think>a</think><answer>b</answer>", False),
        ("think,answer", "<think>a</think> so <answer>b</answer>", False),
        ("think,answer", "<answer>b</answer><think>a</think>", False),
        ("think,answer", "<think>a<answer>b</answer></think>", False),
        ("think,answer", "<think>a</think><answer>b</answer><answer>c</answer>", False),
        ("think,answer", "<think> </think><answer>b</answer>", False),
        ("think,answer", "<think>a</think><answer>b", False),
        ("think", "<think>a</think> b", True),
        ("think", "b", False),
        ("think", "<think>a</think><think>b</think>", False),
    ],
)
def test_format_wants_the_tags_in_order_once_and_nothing_outside(tags, text, fits):
    score = load_reward(f"format:{tags}")(text, problem(None))
    assert (score.reward, score.parts) == (float(fits), {"format": float(fits)})


@pytest.mark.parametrize("tags", [(), ("a", "a"), ("a b",), ("",)])
def test_impossible_tags_are_refused(tags):
    with pytest.raises(ValueError, match="accepted"):
        FormatTags(tags)


HOSTILE = [
    ("1" * 50_000),
    "1," * 40_000,
    "1e" * 40_000,
    "<think>" * 20_000,
    "1/" * 40_000,
    "\\boxed{1" * 10_000,
    "- " * 40_000,
]


@pytest.mark.parametrize("reward", [Exact(), Numeric(), FormatTags(("think", "answer"))])
def test_what_is_called_without_a_time_limit_is_fast_on_hostile_texts(reward):
    start = time.process_time()
    for text in HOSTILE:
        assert isinstance(reward(text, problem("1")), Score)
    assert time.process_time() - start < 3


@pytest.mark.parametrize("reward", [Exact(), Numeric(), FormatTags(("think", "answer"))])
@given(
    text=st.text() | st.text(alphabet="0123456789+-.,eE/<>think answer\\boxed{}#:\n"),
    answer=st.text(max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_no_text_makes_them_raise(reward, text, answer):
    score = reward(text, problem(answer))
    assert (score.verdict is Verdict.PASS) == (score.reward == 1)
