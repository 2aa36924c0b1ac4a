from interlace.rewards import Exact, Math
from interlace.tasks import check_problems, drop_failures, load_task
from interlace.types import Problem, Score, Verdict


def test_a_demonstration_is_checked_before_anything_is_cut():
    # A demonstration whose answer stands at its very end passes whole, and only whole.
    steps = "so " * 1000
    problems = [
        Problem("whole", "q", "7", demonstration=f"{steps}#### 7"),
        Problem("cut", "q", "7", demonstration=steps),
    ]
    report = check_problems(problems, Exact())
    assert [(f.id, f.what, f.verdict) for f in report.failures] == [("cut", "demonstration", Verdict.FAIL)]
    assert [p.id for p in drop_failures(problems, report)] == ["whole"]


def test_gold_completions_and_demonstrations_are_counted_and_failures_listed():
    problems = [
        Problem("a", "q", "1", completion="1", demonstration="it is #### 1"),
        Problem("b", "q", "2", completion="3"),
        Problem("c", "q", None),
    ]
    report = check_problems(problems, Exact())
    assert report.checked == {"gold": 2, "completion": 2, "demonstration": 1, "nonsense": 2}
    assert report.unchecked == 1
    assert [(f.index, f.what) for f in report.failures] == [(1, "completion")]
    assert "completion 1/2" in report.summary() and "row 1 (b)" in report.summary()
    assert not report.ok


def test_rows_without_an_answer_are_only_to_imitate_and_no_failure():
    problems = [Problem(str(i), "q", None, demonstration="anything") for i in range(3)]
    report = check_problems(problems, Exact())
    assert report.ok and report.unchecked == 3
    assert drop_failures(problems, report) == problems


def test_a_gold_answer_that_does_not_parse_is_listed_as_unscorable():
    report = check_problems([Problem("a", "q", "\\frac{"), Problem("b", "q", "1/2")], Math())
    assert [(f.id, f.what, f.verdict) for f in report.failures] == [("a", "gold", Verdict.UNSCORABLE)]


def test_a_verifier_that_accepts_nonsense_is_reported_and_no_row_is_dropped_for_it():
    def generous(completion, problem):
        return Score(1.0, Verdict.PASS)

    problems = [Problem(str(i), "q", "1", demonstration="1") for i in range(3)]
    report = check_problems(problems, generous)
    assert {f.what for f in report.failures} == {"nonsense"}
    assert drop_failures(problems, report) == problems


def test_every_built_in_demonstration_is_checked_and_passes():
    task = load_task("countdown")
    problems = task.problems("train", 200)
    report = check_problems(problems, task.reward)
    assert report.ok and report.checked["demonstration"] == 200
