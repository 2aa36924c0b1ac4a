import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.rewards.base import as_score
from interlace.types import Score, Verdict


@pytest.mark.parametrize(
    ("value", "reward", "verdict"),
    [(1, 1, "pass"), (1.0, 1, "pass"), (True, 1, "pass"), (False, 0, "fail"), (0.5, 0.5, "fail"),
     (2, 2, "fail"), (-1.5, -1.5, "fail"), (Fraction(1), 1, "pass")],
)  # fmt: skip
def test_a_number_is_the_reward_and_passes_only_if_it_is_one(value, reward, verdict):
    score = as_score(value, "mine")
    assert (score.reward, score.verdict, score.parts) == (reward, verdict, {"mine": reward})


@pytest.mark.parametrize(
    ("value", "reward", "verdict", "parts"),
    [
        ({"correctness": 1, "style": 0.5}, 1.5, "pass", {"correctness": 1, "style": 0.5}),
        ({"correct": True, "length": -0.2}, 0.8, "pass", {"correct": 1, "length": -0.2}),
        ({"accuracy": 0, "style": 1}, 1.0, "fail", {"accuracy": 0, "style": 1}),
        ({"a": 0.5, "b": 0.5}, 1.0, "pass", {"a": 0.5, "b": 0.5}),
        ({"correctness": 1, "reward": 0.3}, 0.3, "pass", {"correctness": 1}),
        ({"reward": 1}, 1.0, "pass", {"reward": 1}),
    ],
)
def test_a_mapping_is_named_parts_whose_correctness_gives_the_verdict(value, reward, verdict, parts):
    score = as_score(value)
    assert score.reward == pytest.approx(reward)
    assert (score.verdict, score.parts) == (verdict, parts)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "none"), (math.nan, "not finite"), (math.inf, "not finite"), ("1", "type"), (b"1", "type"),
     ([1], "type"), ({}, "type"), ({"a": None}, "type"), ({"a": "1"}, "type"), (1j, "type"),
     ({"correctness": 1, "b": math.nan}, "not finite"), (Score(math.nan, Verdict.PASS), "not finite"),
     (Score(None, Verdict.PASS), "none"), (Score(1.0, Verdict.PASS, {"a": math.inf}), "not finite"),
     (Score(1.0, Verdict.UNSCORABLE, {}, "gold: x"), "gold")],
)  # fmt: skip
def test_what_is_no_number_is_unscorable_with_a_kind(value, kind):
    score = as_score(value)
    assert (score.reward, score.verdict) == (None, Verdict.UNSCORABLE)
    assert score.reason.split(":")[0] == kind


def test_a_score_is_taken_as_it_is():
    score = Score(5.0, Verdict.PASS, {"correctness": 1.0}, "", "1*2*3*4")
    assert as_score(score) == score


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=6,
)


@given(ANYTHING)
@settings(max_examples=60, deadline=None)
def test_anything_a_function_returns_becomes_a_score(value):
    score = as_score(value)
    assert (score.reward is None) == (score.verdict is Verdict.UNSCORABLE)
    assert score.reward is None or math.isfinite(score.reward)
