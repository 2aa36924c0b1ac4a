import pytest

from interlace.tasks.expressions import evaluate
from interlace.tasks.general_points import RULES, GeneralPoints, GeneralPointsReward, grade, solve
from interlace.types import Problem, Verdict

A234 = [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("formula", "reward"),
    [
        # The sheet of [042].
        ("1*2*3*4", 5),
        ("1+2+3*4", -1),
        ("2*3*4", -2),
        ("5*2*3*4", -4),
        ("1*2*3*4!", -3),
        # By the same rules, worked by hand.
        ("", -2),
        ("(1*2*(3*4", 1),  # closes to a solution
        ("(1+2+(3*4", -1),
        ("1*2*3*4*", -1),  # no value, and no solution begins so
        ("1*2*3*4)", -3),
        ("*1*2*3*4", -3),
        ("1**2*3*4", -3),
        ("(1*2)(3*4)", -3 - 3),  # the second ( is misplaced, so its ) closes nothing
        ("1*2*3*4*4", -2),
        ("5*6*7*8", -4),
        ("++5", -3 - 3 - 2 - 2),
        ("()1*2*3*4", -3 - 3),
        ("1 *2*3*4", -3),
        ("1*2*3*04", -1),
        ("4*3*2/1", 5),
    ],
)
def test_grades_are_those_of_the_sheet(formula, reward):
    assert grade(formula, A234, 24)[0] == reward


def test_an_illegal_character_stops_the_grading_and_other_faults_add_up():
    assert grade("5*6!", A234, 24)[0] == -3
    assert grade("5**6", A234, 24)[0] == -3 - 2 - 2


def test_division_by_zero_has_no_value():
    assert grade("8/(4-4)+1", [8, 4, 4, 1], 24)[0] == -1


def test_fractions_are_exact():
    assert grade("8/(3-8/3)", [3, 3, 8, 8], 24)[0] == 5


@pytest.mark.parametrize(
    ("rule", "numbers"), [("all_10", (10, 4, 10, 1)), ("order_11_12_13", (13, 4, 10, 1))]
)
def test_the_rule_says_what_a_king_counts(rule, numbers):
    assert GeneralPoints(rule=rule).numbers("K4TA") == numbers


@pytest.mark.parametrize(
    ("ranks", "rule", "solvable"), [("A23456789T", "all_10", 566), ("A23456789TJQK", "order_11_12_13", 1362)]
)
def test_the_number_of_solvable_hands_is_the_published_one(ranks, rule, solvable):
    # 566 of 715 hands of four from 1..10, 1362 of 1820 from 1..13: well-known counts of the 24 game.
    assert len(GeneralPoints(ranks=ranks, rule=rule).space()) == solvable


@pytest.mark.parametrize(
    ("numbers", "target"), [([3, 3, 8, 8], 24), ([1, 5, 5, 5], 24), ([10, 4, 10, 1], 24)]
)
def test_formulas_use_every_number_once_and_have_the_value(numbers, target):
    value = evaluate(solve(numbers, target))
    assert (value.value, sorted(value.numbers)) == (target, sorted(numbers))


def test_an_unsolvable_hand_has_no_formula():
    assert solve([1, 1, 1, 1], 24) is None


def test_the_ood_split_has_the_other_rule_at_least_one_face_card_and_no_training_cards():
    task = GeneralPoints(cards=3, target=12)
    training = {p.meta["key"] for p in task.problems("train")}
    ood = task.problems("ood_rule")
    assert ood
    assert {p.meta["rule"] for p in ood} == {"order_11_12_13"}
    assert all(set(p.prompt.split("|")[1]) & set("JQK") for p in ood)
    assert all(p.prompt.startswith("J=11 Q=12 K=13|") for p in ood)
    assert not training & {p.meta["key"] for p in ood}


def test_the_right_formula_under_the_training_rule_fails_under_the_other_one():
    cards = "K4TA"
    numbers = {rule: GeneralPoints(rule=rule).numbers(cards) for rule in ("all_10", "order_11_12_13")}
    formula = solve(numbers["all_10"], 24)
    assert grade(formula, numbers["all_10"], 24)[0] == 5
    assert grade(formula, numbers["order_11_12_13"], 24)[0] < 0


@pytest.mark.parametrize(
    ("completion", "grade_"),
    [
        ('{"cards": ["A", "2", "3", "4"], "number": [1, 2, 3, 4], "formula": "1*2*3*4=24"}', 5),
        ('I think "formula": "1+2+3+4", no: {"formula": "1*2*3*4"}', 5),
        ("Answer: 1*2*3*4", 5),
        ("I do not know", -3),
        ("", -3),
    ],
)
def test_the_text_style_finds_the_formula_in_json(completion, grade_):
    score = GeneralPointsReward("text")(completion, Problem("p", "", {"numbers": A234, "target": 24}))
    assert score.reward == score.parts["grade"] == grade_
    assert score.verdict == ("pass" if grade_ == 5 else "fail")


def test_binary_reward_is_one_only_for_the_full_grade():
    reward, problem = GeneralPointsReward(kind="binary"), Problem("p", "", {"numbers": A234, "target": 24})
    assert [reward(f"1 2 3 4|{f}", problem).reward for f in ("1*2*3*4", "(1*2*(3*4", "2*3*4")] == [1, 0, 0]


def test_a_problem_without_numbers_is_unscorable():
    assert GeneralPointsReward()("1*2*3*4", Problem("p", "", 24)).verdict is Verdict.UNSCORABLE


def test_an_unknown_rule_names_the_accepted_ones():
    with pytest.raises(ValueError, match=r"all_10.*nearest: order_11_12_13"):
        GeneralPoints(rule="order_11_12")
    assert len(RULES) == 7
