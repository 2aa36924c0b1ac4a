import random

import pytest

from interlace.tasks.arithmetic import Arithmetic, ArithmeticReward
from interlace.types import Problem, Verdict


@pytest.mark.parametrize("ops", ["+", "+-", "+-*"])
def test_answers_are_those_of_python_and_every_step_is_true(ops):
    for problem in Arithmetic(ops=ops, operands=4).problems("train", 100):
        assert problem.answer == eval(problem.prompt[:-1])
        steps = problem.demonstration.split(",")
        assert len(steps) == 3
        assert all(eval(s.replace("=", "==")) for s in steps)
        assert int(steps[-1].split("=")[1]) == problem.answer


def test_products_come_first_then_left_to_right():
    key = ((1, (2,)), (1, (3, 4)))
    written = (Arithmetic(digits=1, ops="+*").write(key, random.Random(seed)) for seed in range(50))
    problem = next(p for p in written if p.prompt == "2+3*4:")
    assert problem.demonstration == "3*4=12,2+12=14"


def test_order_of_terms_and_factors_does_not_make_another_problem():
    # Sums of two digits from 1 to 9, order aside: 9 * 10 / 2.
    task = Arithmetic(operands=2, digits=1, ops="+")
    assert sum(task.count(s) for s in ("train", "validation", "test")) == 45


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [("12+45=57,57-7=50", "pass"), ("50", "pass"), ("=50", "pass"), ("12+45=57", "fail"), ("5 0", "fail"),
     ("50,", "fail"), ("", "fail"), ("٥٠", "fail"), ("9" * 5000, "fail")],
)  # fmt: skip
def test_the_last_number_decides(completion, verdict):
    assert ArithmeticReward()(completion, Problem("p", "12+45-7:", 50)).verdict == verdict


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [("Answer: -1,250.", "pass"), ("so\nAnswer: 3 - 1253 = -1250", "pass"), ("Answer: 1250", "fail")],
)
def test_text_style_reads_the_marked_answer(completion, verdict):
    assert ArithmeticReward("text")(completion, Problem("p", "", -1250)).verdict == verdict


def test_out_of_distribution_chains_are_longer_or_have_more_digits():
    task = Arithmetic(operands=3, digits=2, ops="+")
    assert {p.prompt.count("+") for p in task.problems("ood", 20)} == {3}
    assert {len(p.prompt) for p in task.problems("ood_digits", 20)} == {len("100+200+300:")}


def test_an_answer_that_is_no_number_is_unscorable():
    assert ArithmeticReward()("50", Problem("p", "", "50")).verdict is Verdict.UNSCORABLE
