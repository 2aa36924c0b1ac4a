import itertools

import pytest

from interlace.tasks.knights_knaves import KnightsKnaves, KnightsKnavesReward, canonical
from interlace.types import Problem, Verdict

# A: "B is a knave." B: "A and C are of one kind." C: "A is a knave."
PUZZLE = (("1", 1, 0, 0, 0), ("=", 0, 0, 2, 0), ("1", 0, 0, 0, 0))
# A knight: B and C (who calls A a knave) are knaves; then A and C differ, so B lies as a knave must. Fits.
# A knave: B is a knight, so A and C are of one kind, C a knave; but C's "A is a knave" is true. Refuted.
SOLUTION = "100"
PROBLEM = Problem("p", "", {"solution": SOLUTION, "puzzle": [list(s) for s in PUZZLE]})
TRACE = "111A,110A,101B,100"
# 111: A says that B is a knave, who is none: A. 110: the same. 101: B, a knave, speaks the truth: B.


def says(statement, world):
    kind, a, x, b, y = statement
    return {
        "1": world[a] == x,
        "&": world[a] == x and world[b] == y,
        "|": world[a] == x or world[b] == y,
        "=": world[a] == world[b],
        "#": world[a] != world[b],
    }[kind]


def worlds_that_fit(puzzle):
    """Independent of the task: every assignment, every statement."""
    worlds = itertools.product((0, 1), repeat=len(puzzle))
    return [w for w in worlds if all(says(s, w) == bool(w[i]) for i, s in enumerate(puzzle))]


@pytest.mark.parametrize("people", [2, 3, 4])
def test_every_puzzle_has_exactly_the_solution_given(people):
    for problem in KnightsKnaves(people=people).problems("test", 9):
        (world,) = worlds_that_fit([tuple(s) for s in problem.answer["puzzle"]])
        assert "".join(map(str, world)) == problem.answer["solution"]


def test_the_worked_example_is_what_hand_reasoning_gives():
    assert worlds_that_fit(PUZZLE) == [(1, 0, 0)]
    task = KnightsKnaves()
    key = canonical(PUZZLE)
    assert key in task.space()
    assert KnightsKnavesReward(check="trace")(TRACE, PROBLEM).verdict == "pass"


def test_puzzles_that_differ_only_by_names_have_one_key():
    swapped = (("=", 1, 0, 2, 0), ("1", 0, 0, 0, 0), ("1", 1, 0, 0, 0))  # A and B change names in PUZZLE
    assert canonical(swapped) == canonical(PUZZLE) != canonical((*PUZZLE[:2], ("1", 0, 1, 0, 0)))


@pytest.mark.parametrize(
    ("completion", "answer", "trace"),
    [
        (TRACE, "pass", "pass"),
        ("100", "pass", "fail"),  # right, and refutes nothing
        ("111A,110A,101C,100", "pass", "pass"),  # C, a knight, calls the knight A a knave
        ("111A,110A,101A,100", "pass", "fail"),  # what A says fits 101
        ("111A,110A,100", "pass", "fail"),
        ("111A,110A,101", "fail", "fail"),
        ("111A,110A,101B,", "fail", "fail"),
        ("", "fail", "fail"),
    ],
)
def test_answer_looks_at_the_last_assignment_and_trace_at_every_refutation(completion, answer, trace):
    assert KnightsKnavesReward()(completion, PROBLEM).verdict == answer
    assert KnightsKnavesReward(check="trace")(completion, PROBLEM).verdict == trace


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("Answer: A is a knight, B is a knave, C is a knave", "pass"),
        ("Answer: B is a knave, C is a knave and A is a knight.", "pass"),
        ("Answer: A is a knight, B is a knave", "fail"),
        ("Answer: A is a knight, A is a knave, B is a knave, C is a knave", "fail"),
        ("Answer: A is a knave, B is a knight, C is a knave", "fail"),
        ("no idea", "fail"),
    ],
)
def test_text_style_wants_everybody_called_what_they_are(completion, verdict):
    assert KnightsKnavesReward("text")(completion, PROBLEM).verdict == verdict


def test_claims_about_single_people_alone_are_refused():
    # Turning everybody into the opposite keeps all of them consistent, so no puzzle has one solution.
    with pytest.raises(ValueError, match="kinds"):
        KnightsKnaves(kinds="1")


def test_a_problem_without_solution_is_unscorable():
    assert KnightsKnavesReward()("111", Problem("p", "", "111")).verdict is Verdict.UNSCORABLE
