import pickle
import random

import pytest

from interlace.tasks import dataset_names, load_task
from interlace.tasks.gym import GymReward, gym_knobs
from interlace.types import Problem, Verdict

QUICK = ["chain_sum", "spell_backward", "number_sorting", "leg_counting", "basic_arithmetic", "caesar_cipher",
         "knights_knaves", "gcd", "boxnet"]  # fmt: skip


def test_every_dataset_has_a_name_and_knobs():
    names = dataset_names()
    assert len(names) > 100 and {"chain_sum", "countdown", "zebra_puzzles"} <= set(names)
    assert all(gym_knobs(name) for name in names if name != "list_functions")


@pytest.mark.parametrize("name", QUICK)
def test_the_reference_answer_gets_the_full_score_bare_and_marked(name):
    task = load_task(f"gym:{name}")
    for problem in task.problems("train", 5):
        gold = task.reward.gold(problem)
        if gold is None:
            assert name == "boxnet"  # many right answers, none given
            continue
        for text in (gold, f" {gold}\n", f"I think.\n<answer>{gold}</answer>", f"So.\nAnswer: {gold}"):
            score = task.reward(text, problem)
            assert (score.verdict, score.reward, score.parts["correctness"]) == (Verdict.PASS, 1, 1)
        assert task.reward("zzz", problem).verdict is Verdict.FAIL


def test_partial_scores_are_reported_and_only_rewarded_on_request():
    problem = load_task("gym:chain_sum").problems("train", 1)[0]
    text = f"{problem.answer} or so"  # its scorer gives the share of the text that is the answer
    share = len(problem.answer) / len(text)
    for partial in (False, True):
        score = GymReward("chain_sum", partial)(text, problem)
        assert score.verdict is Verdict.FAIL
        assert score.parts == {"correctness": 0.0, "score": pytest.approx(share)}
        assert score.reward == pytest.approx(share if partial else 0)


def test_splits_share_no_question_even_where_few_exist():
    task = load_task("gym:gcd:min_numbers=2,max_numbers=2,min_value=1,max_value=12")
    questions = {s: {p.prompt for p in task.problems(s, 15, seed)} for s in task.splits for seed in (0, 1)}
    assert all(len(q) == 15 for q in questions.values())
    assert not questions["train"] & (questions["validation"] | questions["test"])
    assert not questions["validation"] & questions["test"]
    with pytest.raises(ValueError, match="distinct problems"):
        task.problems("test", 1000)


@pytest.mark.parametrize("name", ["chain_sum", "list_functions"])
def test_problems_are_a_function_of_split_and_seed_whatever_the_global_generator_does(name):
    random.seed(1)
    first = load_task(f"gym:{name}").problems("test", 4, seed=3)
    random.seed(2)
    state = random.getstate()
    assert load_task(f"gym:{name}").problems("test", 4, seed=3) == first
    assert random.getstate() == state
    assert load_task(f"gym:{name}").problems("test", 4, seed=4) != first


def test_problems_and_rewards_travel_to_other_processes():
    task = load_task("gym:knights_knaves")
    problem, reward = pickle.loads(pickle.dumps((task.problems("test", 1)[0], task.reward)))
    assert reward(problem.answer, problem).verdict is Verdict.PASS


def test_a_scorer_that_chokes_on_a_malformed_answer_calls_it_wrong():
    problem = load_task("gym:prime_factorization").problems("train", 1)[0]
    assert GymReward("prime_factorization")("I do not know", problem).verdict is Verdict.FAIL


def test_a_scorer_that_chokes_on_its_own_answer_raises_which_makes_the_row_unscorable():
    problem = load_task("gym:prime_factorization").problems("train", 1)[0]
    broken = Problem("p", problem.prompt, meta={"entry": {**problem.meta["entry"], "answer": "?"}})
    with pytest.raises(ValueError):
        GymReward("prime_factorization")("2 x 2", broken)


@pytest.mark.parametrize(
    ("name", "gold", "wrong"), [("coin_flip", "0.", "0"), ("game_of_life_halting", "False", "True")]
)
def test_scorers_known_to_accept_wrong_answers_are_held_to_the_right_one(name, gold, wrong):
    task = load_task(f"gym:{name}")
    problem = next(p for p in task.problems("train", 20) if p.answer.startswith(gold))
    assert task.reward(problem.answer, problem).verdict is Verdict.PASS
    assert task.reward(wrong, problem).verdict is Verdict.FAIL
    assert task.reward("zzz", problem).verdict is Verdict.FAIL


def test_a_built_in_name_wins_over_the_dataset_of_the_same_name():
    assert load_task("countdown").name == "countdown"
    assert load_task("gym:countdown").name == "gym:countdown"
    assert load_task("chain_sum:min_terms=2,max_terms=2").settings == {"min_terms": 2, "max_terms": 2}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gym:chain_sums", "nearest: gym:chain_sum"),
        ("gym:chain_sum:min_term=2", r"unknown knob 'min_term' \(nearest: min_terms\)"),
        ("gym:chain_sum:min_terms=-1", "impossible knobs"),
    ],
)
def test_errors_name_the_nearest_name(spec, message):
    with pytest.raises(ValueError, match=message):
        load_task(spec)


def test_a_row_without_its_item_is_unscorable():
    assert GymReward("chain_sum")("4", Problem("p", "2+2", "4")).verdict is Verdict.UNSCORABLE
