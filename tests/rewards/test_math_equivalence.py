import threading

import pytest

from interlace.rewards import Math
from interlace.rewards.math_equivalence import canonical
from interlace.types import Problem, Verdict

MATH = Math()


def verdict(answer, text):
    return MATH(text, Problem("p", "q", answer)).verdict


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("6", "6"),
        ("6", r"so \boxed{6.0}"),
        ("6", "The answer is 6."),
        ("6", "3 + 3 = 6, so 6 apples"),
        ("1/2", r"\boxed{\frac{1}{2}}"),
        ("0.50", r"$\frac12$"),
        (0.5, "1/2"),
        ("1,234", "1234"),
        ("(1,2]", r"\boxed{(1,2]}"),
        ("x^2+1", r"\boxed{1+x^2}"),
        ("1 1/2", "1.5"),
        ("3.5e4", "35000"),
        (r"\{1,2\}", r"\boxed{\{2,1\}}"),
        ("$x$", r"\boxed{x}"),
        ("-3", "\N{MINUS SIGN}3"),
        ("Altogether 24 + 48 = 72.\n#### 72", "#### 72"),
        ("no solution", r"\boxed{\text{No solution}}"),
        ("yes", "Answer: Yes."),
        ("5", "Answer: the result is 5"),
        ("2", "Answer: 2\nBecause 1 + 1 = 2 and not 3."),
    ],
)
def test_equal_answers_pass(answer, text):
    assert verdict(answer, text) is Verdict.PASS


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("6", "7"),
        ("6", ""),
        ("6", "I give up"),
        ("6", r"\boxed{7} and not 6"),
        ("(1,2]", r"\boxed{[1,2]}"),
        ("2", r"\boxed{(1,2]}"),
        ("1 1/2", "1"),
        ("evil", "live"),
        ("evil", r"\boxed{live}"),
        ("-3", "3"),
        ("1234567890123456789012345", "1234567890123456789012346"),
    ],
)
def test_other_answers_fail(answer, text):
    assert verdict(answer, text) is Verdict.FAIL


@pytest.mark.parametrize("answer", [None, "", r"\frac{", "???", "#### "])
def test_a_gold_answer_that_cannot_be_parsed_is_unscorable_and_never_right(answer):
    for text in ("1", "", str(answer)):
        score = MATH(text, Problem("p", "q", answer))
        assert (score.verdict, score.reward, score.reason[:4]) == (Verdict.UNSCORABLE, None, "gold")


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        (r"x=8 or x=-6, sum is \boxed{2}", "2"),  # one canonical form, not two candidates
        ("1,234", "1,234"),
        ("0.50", "0.50"),
        ("so\n#### 7\n", "7"),
        ("$\\frac12$", r"\frac12"),
        ("2 3/4", r"2\frac{3}{4}"),
        (12, "12"),
    ],
)
def test_gold_has_one_canonical_form_that_passes_its_own_verifier(answer, form):
    problem = Problem("p", "q", answer)
    assert canonical(answer) == form
    assert MATH(MATH.gold(problem), problem).verdict is Verdict.PASS


def test_the_sum_of_roots_is_not_satisfied_by_a_root():
    assert verdict(r"x=8 or x=-6, sum is \boxed{2}", "8") is Verdict.FAIL


def test_the_extracted_answer_is_shown():
    assert MATH(r"I get \boxed{\frac{3}{6}}", Problem("p", "q", "1/2")).extracted == r"\frac{3}{6}"


def test_it_works_outside_the_main_thread():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(verdict("1/2", "0.5")))
    thread.start()
    thread.join()
    assert verdicts == [Verdict.PASS]
