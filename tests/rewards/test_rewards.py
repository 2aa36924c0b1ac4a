import pytest

from interlace.rewards import Exact, Math, Numeric, load_reward
from interlace.tasks import load_task
from interlace.types import Problem


@pytest.mark.parametrize(("spec", "kind"), [("math", Math), ("exact", Exact), ("numeric", Numeric)])
def test_names_give_their_verifiers(spec, kind):
    assert isinstance(load_reward(spec), kind)


def test_a_reward_is_returned_as_it_is():
    reward = Exact()
    assert load_reward(reward) is reward


def test_the_name_of_a_task_gives_its_verifier():
    assert load_reward("countdown") == load_task("countdown").reward
    assert load_reward("countdown:style=text").style == "text"
    problem = load_task("gym:chain_sum").problems("train", 1)[0]
    assert load_reward("gym:chain_sum+0.1*format:think")(problem.answer, problem).reward == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("maths", r"unknown name 'maths' \(nearest: math\); accepted: math, exact, numeric, format"),
        ("math+", "unknown name ''"),
        ("", "unknown name ''"),
        ("a*math", "'a' is not a weight"),
        ("format:", "is not a tag"),
        ("format:think,think", "each once"),
    ],
)
def test_errors_name_what_is_accepted(spec, message):
    with pytest.raises(ValueError, match=message):
        load_reward(spec)


def test_negative_and_plain_weights_are_read():
    reward = load_reward("2*exact+-0.5*format:think,answer")
    assert reward("<think>x</think><answer>7</answer>", Problem("p", "q", "7")).reward == 1.5
