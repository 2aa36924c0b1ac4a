import itertools

import pytest

from interlace.tasks.countdown import Countdown, CountdownReward, reachable, solve
from interlace.types import Problem, Verdict

PROBLEM = Problem("p", "7 9 4 = 20:", answer={"numbers": [7, 9, 4], "target": 20, "ops": "+-*/"})


def reached_by_every_order(numbers, ops):
    """Independent of the solver: all orders, both shapes of three-number trees, no cleverness."""
    found = set()
    for a, b, c in itertools.permutations(numbers):
        for x in results(a, b, ops):
            found |= results(x, c, ops) | results(c, x, ops)
    return found


def results(a, b, ops):
    out = set()
    if "+" in ops:
        out.add(a + b)
    if "*" in ops:
        out.add(a * b)
    if "-" in ops and a >= b:
        out.add(a - b)
    if "/" in ops and b and a % b == 0:
        out.add(a // b)
    return out


@pytest.mark.parametrize("ops", ["+-*", "+-*/", "+-"])
def test_reachable_targets_are_those_of_brute_force(ops):
    for numbers in itertools.combinations_with_replacement(range(1, 8), 3):
        assert reachable(numbers, ops) == reached_by_every_order(numbers, ops)


@pytest.mark.parametrize(("high", "target", "known_about"), [(12, 50, 3060), (9, 30, 1250), (20, 99, 13_000)])
def test_number_of_distinct_problems_is_that_of_the_settings_known_to_learn(high, target, known_about):
    # The table of what learns in minutes counts what random generation met, a little under all.
    keys = Countdown(high=high, target_high=target).space()
    brute_force = sum(
        len([t for t in reached_by_every_order(numbers, "+-*") if 1 <= t <= target])
        for numbers in itertools.combinations_with_replacement(range(1, high + 1), 3)
    )
    assert len(keys) == len(set(keys)) == brute_force
    assert known_about <= len(keys) <= 1.03 * known_about


@pytest.mark.parametrize(
    ("numbers", "target", "steps"),
    [
        ([4, 7, 9], 20, [(4, "+", 7, 11), (11, "+", 9, 20)]),
        ([7, 4, 9], 20, [(4, "+", 7, 11), (11, "+", 9, 20)]),
        ([2, 6, 9], 24, [(2, "*", 9, 18), (18, "+", 6, 24)]),
        ([2, 3, 5], 4, [(2, "+", 5, 7), (7, "-", 3, 4)]),
        ([1, 1, 1], 9, None),
    ],
)
def test_the_solution_is_the_first_in_the_fixed_order_whatever_the_order_of_numbers(numbers, target, steps):
    assert solve(numbers, target, "+-*") == steps


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("4+7=11,11+9=20", "pass"),
        (" 4+7=11,11+9=20\n", "pass"),
        ("9+11=20,4+7=11", "fail"),  # 11 is not there yet
        ("4+7=12,12+9=21", "fail"),
        ("4+7=11,11+9=21", "fail"),
        ("4+4=8,8+9=17", "fail"),
        ("4+9=13,13+7=20", "pass"),
        ("4+7=11", "fail"),
        ("11+9=20", "fail"),
        ("4+7=11,11+9=20,20+0=20", "fail"),
        ("4+7=11,11+9=20,", "fail"),
        ("4+7=11 ,11+9=20", "fail"),
        ("4-7=-3,9--3=12", "fail"),
        ("20", "fail"),
        ("", "fail"),
    ],
)
def test_steps_are_checked_one_by_one(completion, verdict):
    assert CountdownReward()(completion, PROBLEM).verdict == verdict


def test_division_must_be_exact_and_only_the_listed_operations_count():
    answer = {"numbers": [8, 4, 3], "target": 5}
    reward = CountdownReward()
    assert reward("8/4=2,2+3=5", Problem("p", "", answer)).verdict == "pass"
    assert reward("8/4=2,2+3=5", Problem("p", "", {**answer, "ops": "+-*"})).verdict == "fail"
    assert reward("8/3=2,2+4=6", Problem("p", "", {**answer, "target": 6})).verdict == "fail"
    assert reward("3-3=0,8/0=0", Problem("p", "", {"numbers": [3, 3, 8], "target": 0})).verdict == "fail"


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("4 + 7 = 11\n11 + 9 = 20\nAnswer: (4 + 7) + 9", "pass"),
        ("Answer: 4 + 7 + 9 = 20", "pass"),
        ("<answer>(9 + 7) + 4</answer>", "pass"),
        (r"$\boxed{4+7+9}$", "pass"),
        ("9 + (4 + 7)", "pass"),
        ("Answer: 9 - (0 - 4) + 7", "fail"),
        ("Answer: 20", "fail"),
        ("Answer: 4 + 16", "fail"),
        ("Answer: 4 + 7 + 9 + 9 - 9", "fail"),
        ("Answer: (4 + 7 + 9", "fail"),
    ],
)
def test_text_style_judges_the_final_expression(completion, verdict):
    assert CountdownReward("text")(completion, PROBLEM).verdict == verdict


def test_text_style_wants_whole_numbers_at_every_step():
    problem = Problem("p", "", {"numbers": [3, 2, 4], "target": 6})
    assert CountdownReward("text")("Answer: 3 / 2 * 4", problem).verdict == "fail"
    assert CountdownReward("text")("Answer: 4 / 2 * 3", problem).verdict == "pass"


def test_a_problem_without_numbers_is_unscorable():
    assert CountdownReward()("4+7=11,11+9=20", Problem("p", "", "20")).verdict is Verdict.UNSCORABLE


def test_surface_order_differs_by_seed_and_the_key_does_not():
    first, second = (Countdown().problems("train", seed=s) for s in (0, 1))
    keys = [{p.meta["key"]: p.prompt for p in problems} for problems in (first, second)]
    assert keys[0].keys() == keys[1].keys()
    assert sum(keys[0][k] != keys[1][k] for k in keys[0]) > len(first) / 2


def test_out_of_distribution_splits_leave_the_training_ranges():
    task = Countdown()
    assert {len(p.answer["numbers"]) for p in task.problems("ood_numbers", 50)} == {4}
    assert {p.answer["target"] > 50 for p in task.problems("ood_large", 50)} == {True}
    assert task.problems("ood", 5) == task.problems("ood_numbers", 5)


def test_six_numbers_are_drawn_at_random_and_solved():
    task = Countdown(numbers=5, high=9, target_high=30)
    for problem in task.problems("test", 5):
        assert task.reward(problem.demonstration, problem).verdict == "pass"
