import pytest

from interlace.rewards import Exact, FormatTags, Numeric, WeightedSum, load_reward, per_row
from interlace.types import Problem, Score, Verdict

PROBLEM = Problem("p", "q", "7")
GOOD = "<think>a</think><answer>7</answer>"
WRONG = "<think>a</think><answer>8</answer>"
BARE = "7"


@pytest.mark.parametrize(
    ("text", "reward", "verdict"),
    [(GOOD, 1.1, "pass"), (WRONG, 0.1, "fail"), (BARE, 1.0, "pass"), ("", 0.0, "fail")],
)
def test_the_sum_is_weighted_and_only_correctness_gives_the_verdict(text, reward, verdict):
    score = load_reward("exact+0.1*format:think,answer")(text, PROBLEM)
    assert score.reward == pytest.approx(reward)
    assert score.verdict == verdict
    assert set(score.parts) == {"exact", "format"}


def test_order_and_weight_of_the_terms_do_not_change_the_verdict():
    reward = load_reward("0.1*format:think,answer+2*exact")
    assert reward(WRONG, PROBLEM).verdict is Verdict.FAIL
    score = reward(GOOD, PROBLEM)
    assert (score.reward, score.verdict) == (pytest.approx(2.1), Verdict.PASS)
    assert score.parts == {"format": 1, "exact": 1}


def test_format_rewards_alone_pass_when_all_are_satisfied():
    reward = WeightedSum([("a", 1, FormatTags(("think",))), ("b", 1, FormatTags(("answer",)))])
    assert reward("<think>x</think> y", PROBLEM).verdict is Verdict.FAIL
    assert load_reward("0.5*format:think")("<think>x</think> y", PROBLEM).verdict is Verdict.PASS


def test_an_unscorable_term_makes_the_sum_unscorable_and_is_named():
    score = load_reward("exact+numeric")("7", Problem("p", "q", "seven"))
    assert score.verdict is Verdict.UNSCORABLE
    assert score.reason == "gold: numeric: no number in the answer 'seven'"


def test_terms_of_one_name_are_kept_apart_and_several_parts_are_prefixed():
    def two(completion, problem):
        return Score(1.0, Verdict.PASS, {"x": 1.0, "y": 2.0})

    two.bounded = True
    score = WeightedSum([("exact", 1, Exact()), ("exact", 1, Exact()), ("two", 1, two)])("7", PROBLEM)
    assert score.parts == {"exact": 1, "exact_2": 1, "two.x": 1, "two.y": 2}


@pytest.mark.parametrize(
    ("spec", "bounded"), [("exact+0.1*format:think", True), ("math+0.1*format:think", False)]
)
def test_a_sum_is_bounded_if_every_term_is(spec, bounded):
    assert load_reward(spec).bounded is bounded


def test_the_gold_of_a_sum_is_that_of_its_correctness():
    assert load_reward("0.1*format:think+exact").gold(PROBLEM) == "7"


def test_a_row_is_judged_by_its_own_reward_then_its_task_then_the_default():
    reward = per_row("exact", {"sums": Numeric()})
    assert reward("7.0", Problem("p", "q", "7", task="sums")).verdict == "pass"
    assert reward("7.0", Problem("p", "q", "7")).verdict == "fail"
    assert reward("7.0", Problem("p", "q", "7", meta={"reward": "numeric"})).verdict == "pass"
    assert (
        load_reward("row:exact")("7.0", Problem("p", "q", "7", meta={"reward": "numeric"})).verdict == "pass"
    )
    assert per_row()("7", PROBLEM).verdict == "unscorable"
    assert reward.gold(PROBLEM) == "7"


def test_a_numeric_reward_column_is_not_taken_for_a_verifier():
    assert per_row("exact")("7", Problem("p", "q", "7", meta={"reward": 0.5})).verdict == "pass"
