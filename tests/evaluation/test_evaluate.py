import importlib
import io
import json
import math

import pytest

from interlace.evaluation import Evaluation, evaluate, paired
from interlace.evaluation.metrics import majority_at_k, wilson_interval
from interlace.types import Completion, Finish, Problem, Sampling, Score, Verdict

room = importlib.import_module("interlace.evaluation.evaluate")


class Scripted:
    """An engine that answers with given texts, one character per token, `$` for the end token.

    `greedy` and `sampled` map a problem id to its text, and to the texts that its samples take in turn.
    """

    def __init__(self, greedy, sampled=None):
        self.greedy, self.sampled, self.calls = greedy, sampled or {}, []

    def generate(self, requests, *, seed, step):
        self.calls.append((list(requests), seed, step))
        return [[self._answer(r, row) for row in r.rows] for r in requests]

    def refresh(self):
        pass

    def _answer(self, request, row):
        name = request.problem.id
        texts = self.sampled.get(name, [])
        text = (
            self.greedy[name]
            if request.sampling.temperature == 0
            else texts[row % room.SAMPLES_AT_MOST % len(texts)]
        )
        ids = tuple(map(ord, text))
        return Completion(ids, (0.0,) * len(ids), Finish.STOP if text.endswith("$") else Finish.LENGTH)


class Letters:
    def prompt_ids(self, problem):
        return list(map(ord, problem.prompt))

    def decode(self, ids):
        return "".join(map(chr, ids)).rstrip("$")


class Exact:
    """Right if the text is the answer; `?` is unscorable; what stands before `/` is the extracted answer."""

    def score(self, items):
        return [self._one(text, problem) for text, problem in items]

    def _one(self, text, problem):
        if text.startswith("?"):
            return Score(None, Verdict.UNSCORABLE, reason="timeout: after 1 s")
        right = text.split("/")[0] == problem.answer
        return Score(
            float(right), Verdict.PASS if right else Verdict.FAIL, extracted=text.split("/")[0] or None
        )


def problem(name, answer="a", prompt="2+2=", **meta):
    return Problem(name, prompt, answer, task=meta.pop("task", "sums"), meta=meta)


def test_greedy_accuracy_lengths_and_truncation_are_counted_by_hand():
    problems = [problem("p"), problem("q"), problem("r"), problem("s")]
    result = evaluate(
        Scripted({"p": "a$", "q": "a/why$", "r": "b$", "s": "aaaa"}), Letters(), problems, Exact()
    )
    assert result.greedy.value == 0.5
    assert (result.greedy.low, result.greedy.high) == pytest.approx(wilson_interval(0.5, 4))
    assert result.mean_length == pytest.approx((2 + 6 + 2 + 4) / 4)
    assert result.truncated == pytest.approx(1 / 4)
    assert result.reward == pytest.approx(0.5)
    assert result.sampled is None and result.pass_at_k == {} and result.majority_at_k == {}
    assert [p.greedy for p in result.problems] == [True, True, False, False]


def test_sampled_numbers_are_counted_by_hand():
    engine = Scripted({}, {"p": ["a$", "b$", "b$", "a"], "q": ["b$", "c$", "d$", "e$"]})
    result = evaluate(engine, Letters(), [problem("p"), problem("q")], Exact(), samples=4, greedy=False)
    assert result.greedy is None
    assert result.sampled.value == pytest.approx((2 / 4 + 0) / 2)
    # pass@2 of 2 right in 4: 1 - C(2,2)/C(4,2) = 5/6.
    assert {k: e.value for k, e in result.pass_at_k.items()} == pytest.approx({1: 1 / 4, 2: 5 / 12, 4: 1 / 2})
    # a a b b: every pair is a tie, or right, or wrong; all four are a tie.
    assert result.majority_at_k[4].value == pytest.approx(1 / 4)
    assert result.majority_at_k[2].value == pytest.approx(
        majority_at_k("abba", [True, False, False, True], 2) / 2
    )
    assert (result.mean_length, result.truncated) == (pytest.approx(15 / 8), pytest.approx(1 / 8))
    assert [(p.samples, p.correct) for p in result.problems] == [(4, 2), (4, 0)]


def test_the_greedy_answer_drops_every_filter_but_keeps_limit_and_stops():
    engine = Scripted({"p": "a$"}, {"p": ["a$"]})
    how = Sampling(0.7, top_p=0.9, top_k=5, min_p=0.1, max_tokens=9, stop=(";",))
    evaluate(engine, Letters(), [problem("p")], Exact(), samples=2, sampling=how, seed=3, step=8)
    (greedy, *at), (sampled, *_) = engine.calls
    assert greedy[0].sampling == Sampling(0.0, max_tokens=9, stop=(";",)) and greedy[0].n == 1
    assert sampled[0].sampling == how and sampled[0].n == 2
    assert greedy[0].prompt_ids == tuple(map(ord, "2+2=")) and at == [3, 8]


def test_row_ids_are_distinct_and_do_not_depend_on_how_many_samples_are_drawn():
    def rows(samples, names="pq"):
        engine = Scripted({}, {n: ["a$"] for n in names})
        evaluate(engine, Letters(), [problem(n) for n in names], Exact(), samples=samples, greedy=False)
        return {r.problem.id: r.rows for call, *_ in engine.calls for r in call}

    few, many = rows(2), rows(5, "pqr")
    assert len({i for ids in many.values() for i in ids}) == 15
    assert all(many[name][:2] == few[name] for name in few)


def test_no_number_depends_on_how_many_answers_are_asked_at_once(monkeypatch):
    engine = Scripted(
        dict.fromkeys("pqrs", "a$"), {"p": ["a$", "b$", "c$"], "q": ["a"], "r": ["?$", "a$"], "s": ["b$"]}
    )
    problems = [problem(c) for c in "pqrs"]
    whole = evaluate(engine, Letters(), problems, Exact(), samples=7)
    for size in (1, 2, 3, 11):
        monkeypatch.setattr(room, "ROWS_PER_CALL", size)
        engine.calls.clear()
        assert evaluate(engine, Letters(), problems, Exact(), samples=7) == whole
        assert max(sum(r.n for r in call) for call, *_ in engine.calls) <= size


def test_progress_counts_every_answer(monkeypatch):
    monkeypatch.setattr(room, "ROWS_PER_CALL", 4)
    told = []
    engine = Scripted(dict.fromkeys("pqr", "a$"), {c: ["a$"] for c in "pqr"})
    problems = [problem(c) for c in "pqr"]
    evaluate(engine, Letters(), problems, Exact(), samples=2, progress=lambda *at: told.append(at))
    assert told == [(3, 9), (7, 9), (9, 9)]


def test_unscorable_answers_are_in_no_share_and_counted_by_reason():
    engine = Scripted({"p": "?", "q": "a$"}, {"p": ["a$", "?$"], "q": ["?$"]})
    result = evaluate(engine, Letters(), [problem("p"), problem("q")], Exact(), samples=2)
    assert (result.greedy.value, result.greedy.n) == (1.0, 1)
    assert (result.sampled.value, result.sampled.n) == (1.0, 1)
    # Only p has one scorable sample left, nobody has two.
    assert list(result.pass_at_k) == [1] and result.pass_at_k[1].n == 1
    assert result.unscorable == {"timeout": 4}
    assert [p.unscorable for p in result.problems] == [2, 2]
    assert "unscorable 4" in result.summary()


def test_prompts_over_the_limit_are_left_out_and_listed_never_cut():
    engine = Scripted({"p": "a$", "q": "b$"})
    problems = [problem("p"), problem("q", prompt="a much longer prompt")]
    result = evaluate(engine, Letters(), problems, Exact(), prompt_limit=4)
    assert (result.n, result.overlong, result.greedy.value) == (1, ("q",), 1.0)
    assert "overlong prompts 1" in result.summary()
    with pytest.raises(ValueError, match=r"prompt_limit=3 tokens \(the shortest has 4\)"):
        evaluate(engine, Letters(), problems, Exact(), prompt_limit=3)


def test_majority_is_not_reported_where_the_verifier_names_no_answers():
    class Silent(Exact):
        def _one(self, text, problem):
            right = text == problem.answer
            return Score(float(right), Verdict.PASS if right else Verdict.FAIL)

    engine = Scripted({}, {"p": ["a$", "b$"], "q": ["b$", "b$"]})
    result = evaluate(engine, Letters(), [problem("p"), problem("q")], Silent(), samples=2, greedy=False)
    assert result.majority_at_k == {} and result.pass_at_k[2].value == 0.5


def test_results_are_broken_down_by_difficulty_split_and_task():
    engine = Scripted({"p": "a$", "q": "b$", "r": "a$"})
    problems = [
        problem("p", difficulty=10, split="test"),
        problem("q", difficulty=9, split="test"),
        problem("r", difficulty=9, split="ood", task="products"),
    ]
    result = evaluate(engine, Letters(), problems, Exact())
    parts = result.by_group("difficulty")
    assert list(parts) == ["9", "10"]  # by number, not by text
    assert [parts[k].greedy.value for k in parts] == [0.5, 1.0]
    assert [(k, e.greedy.n) for k, e in result.by_group("task").items()] == [("products", 1), ("sums", 2)]
    with pytest.raises(ValueError, match="accepted are task, split, difficulty"):
        result.by_group("colour")


def test_an_evaluation_survives_json():
    engine = Scripted({"p": "a$", "q": "?$"}, {"p": ["a$", "b"], "q": ["b$", "?$"]})
    problems = [problem("p", difficulty=1), problem("q", difficulty=2)]
    result = evaluate(engine, Letters(), problems, Exact(), samples=2, settings={"model": "m"}, seed=5)
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert Evaluation.from_dict(data) == result
    assert data["settings"] == {"model": "m", "seed": 5}
    assert data["summary"]["sampled"]["value"] == result.sampled.value
    assert data["summary"]["groups"]["difficulty"]["1"]["n"] == 1


def test_two_evaluations_are_paired_by_problem_whatever_their_order():
    names = "pqrs"
    weak = evaluate(
        Scripted(dict(zip(names, ["a", "b", "b", "?"]))), Letters(), [problem(c) for c in names], Exact()
    )
    strong_engine = Scripted(dict(zip(names, ["b", "a", "a", "a"])))
    strong = evaluate(strong_engine, Letters(), [problem(c) for c in reversed(names)], Exact())
    d = paired(weak, strong)
    # p lost, q and r won, s has nothing scorable in the first.
    assert (d.value, d.n, d.wins, d.losses) == (pytest.approx(1 / 3), 3, 2, 1)
    with pytest.raises(ValueError, match="scorable sampled answer"):
        paired(weak, strong, of="sampled")
    other = evaluate(Scripted({"t": "a"}), Letters(), [problem("t")], Exact())
    with pytest.raises(ValueError, match=r"not the same problems: 5 .* 'p'"):
        paired(weak, other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"greedy": False}, "nothing to do"),
        ({"samples": -1}, "samples=-1"),
        ({"samples": 4, "sampling": Sampling(0.0)}, "temperature=0"),
        ({"samples": 4, "ks": (1, 8)}, "k=8: accepted are 1 to samples=4"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_sampled(settings, message):
    engine = Scripted({"p": "a"}, {"p": ["a"]})
    with pytest.raises(ValueError, match=message):
        evaluate(engine, Letters(), [problem("p")], Exact(), **settings)
    assert engine.calls == []


def test_problems_must_exist_and_have_distinct_ids():
    with pytest.raises(ValueError, match="no problems"):
        evaluate(Scripted({}), Letters(), [], Exact())
    with pytest.raises(ValueError, match="'p' appears more than once"):
        evaluate(Scripted({"p": "a"}), Letters(), [problem("p"), problem("p")], Exact())


def test_the_k_of_pass_at_k_double_up_to_the_number_of_samples():
    engine = Scripted({}, {"p": ["a$"]})
    result = evaluate(engine, Letters(), [problem("p")], Exact(), samples=6, greedy=False)
    assert result.ks == (1, 2, 4, 6)


def test_summary_and_table_show_the_numbers():
    from rich.console import Console

    engine = Scripted(dict.fromkeys("pq", "a$"), {"p": ["a$", "b$"], "q": ["a$", "a$"]})
    result = evaluate(engine, Letters(), [problem("p"), problem("q")], Exact(), samples=2)
    assert result.summary().startswith("2 problems: greedy 100.0% [")
    assert "sampled 75.0% [" in result.summary() and "pass@2 100.0%" in result.summary()
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(result.table("title"))
    text = console.export_text()
    assert "greedy accuracy" in text and "pass@2" in text and "majority@2" in text and "75.0%" in text


def test_mean_length_is_zero_not_nan_for_an_engine_that_says_nothing():
    result = evaluate(Scripted({"p": ""}), Letters(), [problem("p")], Exact())
    assert result.mean_length == 0.0 and not math.isnan(result.truncated)


class Surprised(Scripted):
    """Gives every token of a text the log-probability of its first letter: `a` -1, `b` -2, ..."""

    def _answer(self, request, row):
        found = super()._answer(request, row)
        return Completion(found.ids, (96.0 - found.ids[0],) * len(found.ids), found.finish)


def test_entropy_is_minus_log_probability_over_the_sampled_tokens() -> None:
    engine = Surprised({}, {"p": ["a$", "b$"], "q": ["cc$", "a$"]})
    result = evaluate(engine, Letters(), [problem("p"), problem("q")], Exact(), samples=2, greedy=False)
    assert result.entropy == pytest.approx((2 * 1 + 2 * 2 + 3 * 3 + 2 * 1) / (2 + 2 + 3 + 2))
    assert Evaluation.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_best_of_k_takes_the_likeliest_answer_per_token() -> None:
    # Right is "a" for p and "b" for q; the likeliest is always "a".
    engine = Surprised({}, {"p": ["a$", "b$"], "q": ["a$", "b$"]})
    problems = [problem("p", "a"), problem("q", "b")]
    result = evaluate(engine, Letters(), problems, Exact(), samples=2, greedy=False)
    assert [result.problems[i].best for i in (0, 1)] == [{1: 0.5, 2: 1.0}, {1: 0.5, 2: 0.0}]
    assert result.best_of_k[2].value == 0.5


def test_an_answer_is_invalid_if_it_was_cut_or_nothing_was_read_in_it() -> None:
    engine = Scripted({"p": "a$", "q": "/$", "r": "b", "s": "c$"})
    result = evaluate(engine, Letters(), [problem(i) for i in "pqrs"], Exact())
    assert [p.invalid for p in result.problems] == [0, 1, 1, 0]
    assert result.invalid == 0.5
