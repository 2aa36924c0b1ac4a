"""What a stage is trained on: routed, deduplicated, paired, remembered."""

import math
from dataclasses import replace

import pytest

from interlace.rules.harvest import (
    AnswerBank,
    ExpertRound,
    FormPairs,
    FromShelf,
    KeepCorrect,
    PassRateSplit,
    SelfMixture,
    SolvedSplit,
    accuracy,
    canonical,
    is_empty,
)
from interlace.types import Finish, Problem, Sampling, Source, Trajectory, Verdict


class Bench:
    """Answers from a list; a text ending in `!` is right, one ending in `?` cannot be scored."""

    step, steps, seed = 0, 10, 0
    group_size, demos_per_step, max_new_tokens = 4, 4, 20

    def __init__(self, texts, *, base=(), demos=(), validation=()):
        self.texts = {"policy": dict(texts), "base": dict(base)}
        self.prompts = [Problem(name, "?", demonstration="demo" if name in demos else None) for name in texts]
        self.demonstrated = [p for p in self.prompts if p.demonstration]
        self.validation = [Problem(f"v{i}", "?") for i in range(len(validation))]
        self.greedy = dict(zip((p.id for p in self.validation), validation))
        self.shelf, self.rows, self.asked, self.drawn, self.made = {}, (), [], 0, 0

    def sample(self, problems, n, *, temperature=None, policy="policy"):
        self.asked.append((len(problems), n, temperature, policy))
        rows = []
        for p in problems:
            texts = [self.greedy[p.id]] if temperature == 0 else self.texts[policy].get(p.id, [])
            rows += [self.row(p, texts[i % len(texts)] if texts else "no", i) for i in range(n)]
        return rows

    def row(self, problem, text, i=0):
        verdict = {"!": Verdict.PASS, "?": Verdict.UNSCORABLE}.get(text[-1:], Verdict.FAIL)
        ids = [0, *map(ord, text), 1]
        source = [Source.PROMPT] + [Source.ROLLOUT] * (len(text) + 1)
        self.made += 1
        return Trajectory(
            self.made, ids, source, f"{problem.id}#{i}", problem, [math.nan] + [-0.5] * (len(ids) - 1),
            reward=None if verdict is Verdict.UNSCORABLE else float(verdict is Verdict.PASS), verdict=verdict,
            finish=Finish.STOP, temperature=0.7, sampling=Sampling(0.7),
        )  # fmt: skip

    def demonstration_row(self, problem):
        if problem.demonstration is None:
            return None
        ids = [0, *map(ord, problem.demonstration), 1]
        return Trajectory(0, ids, [Source.PROMPT] + [Source.DEMO] * (len(ids) - 1), problem.id, problem)

    def demonstrations(self, n):
        found = [self.demonstrated[(self.drawn + i) % len(self.demonstrated)] for i in range(n)]
        self.drawn += n
        return found

    def text(self, row):
        return "".join(chr(i) for i in row.response_ids if i != 1)

    def log_probs(self, rows):
        return [[-float(i) for i, s in enumerate(row.source) if s == Source.DEMO] for row in rows]


def texts(made):
    return ["".join(chr(i) for i in row.response_ids[:-1]) for row in made.rows]


def assert_imitable(made):
    """Sampled ids as demonstration tokens at temperature 1, each in a group of its own."""
    for row in made.rows:
        assert row.sampling is None and row.temperature == 1
        assert Source.ROLLOUT not in row.source
    assert len({row.group for row in made.rows}) == len(made.rows)


def test_prompts_are_routed_by_their_pass_rate() -> None:
    """Metis-RISE, Check (a): pass counts 0, 3 and 8 of 8 are expert, own answers, nothing."""
    bench = Bench(
        {"none": ["a"] * 8, "some": ["a!", "b!", "c!", *["d"] * 5], "all": ["a!"] * 8},
        demos={"none", "some", "all"},
    )
    made = PassRateSplit(samples=8, per_prompt=8)(bench)
    assert texts(made) == ["demo", "a!", "b!", "c!"]
    assert_imitable(made)
    wanted = {
        "prompts_unsolved": 1,
        "prompts_unstable": 1,
        "prompts_solved": 1,
        "rows_own": 3,
        "rows_expert": 1,
    }
    assert {k: made.notes[k] for k in wanted} == wanted
    assert made.skip is None


def test_of_an_unstable_prompt_the_first_distinct_answers_are_kept() -> None:
    bench = Bench({"some": ["1+1=2!", "1 + 1 = 2!", "c!", "d!", "x", "y?"]})
    assert texts(PassRateSplit(6, 2)(bench)) == ["1+1=2!", "c!"]


def test_what_cannot_be_scored_is_no_failure() -> None:
    """One right answer and one without verdict: P is 1; none with a verdict: no P."""
    bench = Bench({"solved": ["a!", "b?"], "unknown": ["a?", "b?"]}, demos={"solved", "unknown"})
    made = PassRateSplit(2, 2)(bench)
    assert made.rows == [] and made.notes["prompts_solved"] == 1 and made.notes["prompts_unscorable"] == 1


@pytest.mark.parametrize(("answers", "demos"), [(["a!"], {"p"}), (["a"], set())])
def test_a_split_that_leaves_nothing_says_so(answers, demos) -> None:
    made = PassRateSplit(2, 2)(Bench({"p": answers}, demos=demos))
    assert made.rows == [] and "no prompt is unstable" in made.skip and not made.ends


def test_what_the_start_policy_always_solves_is_rehearsed() -> None:
    bench = Bench({"always": ["a!", "b!"], "once": ["a!", "b"], "never": ["a", "b"], "unknown": ["a!", "b?"]})
    made = SolvedSplit(samples=2)(bench)
    assert texts(made) == ["a!"]
    assert made.prompts == ["once", "never", "unknown"]
    assert_imitable(made)
    # One number per decision: "a", "!" and the end token stand at positions 1, 2 and 3.
    assert made.rows[0].extra["ref_logp"] == [-1, -2, -3]
    assert made.notes == {"prompts_rehearsed": 1, "prompts_explored": 3}


def test_nothing_is_left_to_explore_when_everything_is_solved() -> None:
    assert "solves every prompt" in SolvedSplit(2)(Bench({"p": ["a!"]})).skip
    made = SolvedSplit(2)(Bench({"p": ["a"]}))
    assert made.rows == [] and made.skip is None and made.prompts == ["p"]


def test_equations_make_a_solution_and_else_its_words() -> None:
    assert (
        canonical("4+7=11, 11 + 9 = 20") == canonical("First 4 + 7 = 11.\nThen 11+9=20") == "4+7=11;11+9=20"
    )
    assert canonical("4+7=11,11+9=20") != canonical("7+4=11,11+9=20")
    assert canonical("the  answer\nis 5") == canonical("the answer is 5") != canonical("the answer is 6")
    assert canonical("3 * ( 2+1 ) = 9") == "3*(2+1)=9"
    assert canonical("it is 11. 11 + 9 = 20") == "11+9=20"


def test_expert_rows_are_correct_distinct_and_beside_the_demonstrations() -> None:
    bench = Bench({"p": ["1+1=2!", "1+1=2 !", "2=2!", "no"], "q": ["no"]}, demos={"q"})
    made = ExpertRound(samples=4)(bench)
    assert texts(made) == ["1+1=2!", "2=2!", "demo"]
    assert_imitable(made)
    assert made.notes == {"prompts_solved": 1, "rows_correct": 3, "rows_own": 2, "rows_demonstration": 1}
    assert texts(ExpertRound(4, cap=1)(bench)) == ["1+1=2!", "demo"]
    assert texts(ExpertRound(4, use_demos=False)(bench)) == ["1+1=2!", "2=2!"]


def test_a_round_without_correct_answers_ends_the_run() -> None:
    made = ExpertRound(2)(Bench({"p": ["no"]}, demos={"p"}))
    assert made.rows == [] and made.ends and "no sampled answer is correct" in made.skip


def test_rounds_end_when_accuracy_on_validation_does_not_rise() -> None:
    bench = Bench({"p": ["a!"]}, validation=["a!", "b", "c", "d?"])
    once = ExpertRound(1, saturates=True)
    assert once(bench).skip is None  # the start weights have 1 of 3
    bench.greedy["v1"] = "b!"
    second = once(bench)
    assert second.skip is None and second.notes["accuracy"] == pytest.approx(2 / 3)
    third = once(bench)
    assert third.ends and "66.7% -> 66.7%" in third.skip
    assert [asked for asked in bench.asked if asked[2] == 0] == [(4, 1, 0.0, "policy")] * 3
    assert accuracy(bench.shelf["validation"]) == pytest.approx(2 / 3)


def test_a_fixed_number_of_rounds_asks_nothing_of_validation() -> None:
    bench = Bench({"p": ["a!"]}, validation=["a"])
    assert ExpertRound(1)(bench).skip is None and bench.shelf == {}


def test_many_answers_are_asked_in_pieces() -> None:
    bench = Bench({f"p{i}": ["a!"] for i in range(10)})
    made = ExpertRound(samples=1000)(bench)
    assert len(made.rows) == 10
    assert sum(n for n, *_ in bench.asked) == 10 and max(n * k for n, k, *_ in bench.asked) <= 4096


def pairs_of(made):
    pairs = {}
    for row, text in zip(made.rows, texts(made), strict=True):
        pairs.setdefault(row.group, {})[row.extra["role"]] = text
    return pairs


def test_pairs_are_two_right_answers_that_differ_in_form() -> None:
    bench = Bench({"p": ["no", "x,y!"], "q": ["no"]}, base={"p": ["no", "u,v!"]})
    made = FormPairs()(bench)
    (pair,) = pairs_of(made).values()
    assert pair["chosen"] == "x,y!"
    assert pair["rejected"] in ["uv!", "uv!,", "v!,u"]
    assert made.notes == {"prompts_unsolved": 1, "pairs": 1, "pairs_from_base": 1, "pairs_dropped": 0}
    assert all(row.sampling is None for row in made.rows)
    assert made.rows[0].ids == bench.row(bench.prompts[0], "x,y!").ids
    assert {asked[3] for asked in bench.asked} == {"policy", "base"}


def test_where_the_base_never_solves_the_chosen_text_is_broken() -> None:
    made = FormPairs()(Bench({"p": ["x,y!"]}))
    (pair,) = pairs_of(made).values()
    assert pair["chosen"] == "x,y!" and pair["rejected"] in ["xy!", "xy!,", "y!,x"]
    assert made.notes["pairs_from_base"] == 0


def test_a_chosen_answer_keeps_the_format_where_the_reward_knows_one() -> None:
    bench = Bench({"p": ["a,a!", "b,b!"]})
    plain = bench.row

    def marked(problem, text, i=0):
        return replace(plain(problem, text, i), parts={"format": float(text[0] == "b"), "math": 1.0})

    bench.row = marked
    assert pairs_of(FormPairs()(bench))["p/pair"]["chosen"] == "b,b!"


def test_pairs_that_cannot_be_made_are_counted() -> None:
    bench = Bench({"p": ["!"], "q": ["abcdefghijklmnopqrst!"]})
    made = FormPairs()(bench)
    assert made.notes["pairs_dropped"] == 2 and "no prompt has" in made.skip


def test_the_last_steps_give_the_first_correct_rollout_of_each_prompt() -> None:
    bench = Bench({"p": [], "q": []})
    p, q = bench.prompts
    keep = KeepCorrect(last_steps=2)
    for step, rows in enumerate(
        [
            [(p, "early!")],
            [(p, "late"), (p, "first!"), (p, "second!")],
            [(p, "third!"), (q, "only!")],
        ]
    ):
        bench.step, bench.steps = step, 3
        keep.after(
            bench,
            [bench.row(*one) for one in rows] + [bench.demonstration_row(replace(q, demonstration="d"))],
            None,
            [],
        )
    assert [bench.text(row) for row in bench.shelf["correct"]] == ["first!", "only!"]


def test_rows_of_the_shelf_are_shuffled_by_the_seed_and_limited() -> None:
    bench = Bench({f"p{i}": [] for i in range(20)})
    bench.shelf["correct"] = [bench.row(p, f"{p.id}!") for p in bench.prompts for _ in range(2)]
    made = FromShelf(samples=5)(bench)
    assert len(set(texts(made))) == 5
    assert_imitable(made)
    assert texts(made) == texts(FromShelf(5)(bench))
    whole = texts(FromShelf(100)(bench))
    assert sorted(whole) == sorted(f"{p.id}!" for p in bench.prompts) and whole[:5] == texts(made)
    bench.seed = 1
    assert texts(FromShelf(100)(bench)) != whole


def test_an_empty_shelf_says_so() -> None:
    assert "no rollout" in FromShelf(5)(Bench({"p": []})).skip


def test_checkpoints_are_evenly_spaced() -> None:
    assert AnswerBank(5).places(10) == [2, 4, 6, 8, 10]
    assert AnswerBank(1).places(7) == [7]
    assert AnswerBank(4).places(2) == [1, 1, 2, 2]


def bank_after(bench, checkpoints):
    bank = AnswerBank(checkpoints)
    assert bank.before(bench, None) == {}
    for step in range(bench.steps):
        bench.step = step
        bank.after(bench, [], None, [])
    return bench.shelf["answers"]


def test_every_checkpoint_answers_every_demonstrated_prompt_once() -> None:
    bench = Bench({"p": ["x"], "q": ["y"], "r": ["z"]}, demos={"p", "q"})
    kept = bank_after(bench, 5)
    assert [bench.text(row) for row in kept] == ["x", "y"] * 5
    assert all(row.sampling is None and Source.ROLLOUT not in row.source for row in kept)
    assert bench.asked == [(2, 1, None, "policy")] * 5


def test_empty_answers_are_left_out() -> None:
    bench = Bench({"p": [""], "q": ["y"]}, demos={"p", "q"})
    assert [row.problem.id for row in bank_after(bench, 2)] == ["q", "q"]
    nothing = bench.row(bench.prompts[0], "")
    assert is_empty(nothing)
    assert not is_empty(replace(nothing, finish=Finish.LENGTH))  # one token, and not an end token


def draws(bench, alpha, steps=1000):
    mixture = SelfMixture(alpha, "student")
    found = []
    for step in range(steps):
        bench.step = step
        turn = mixture.turn(bench)
        assert turn.stage == "student"
        found += turn.demonstrations
    return found


def test_a_draw_is_the_label_with_probability_alpha() -> None:
    """TMS, Check (a): q = (1, 0), m = (0.4, 0.6), alpha = 0.25 give (0.55, 0.45)."""
    bench = Bench({"p": []}, demos={"p"})
    bench.shelf["answers"] = [bench.row(bench.prompts[0], text) for text in ["demo"] * 4 + ["other"] * 6]
    found = draws(bench, 0.25)
    texts = ["demo" if isinstance(item, Problem) else bench.text(item) for item in found]
    labels = sum(isinstance(item, Problem) for item in found)
    # Four standard deviations of 4000 draws.
    assert labels / 4000 == pytest.approx(0.25, abs=0.028)
    assert texts.count("demo") / 4000 == pytest.approx(0.55, abs=0.032)


def test_alpha_one_is_the_feed_and_alpha_zero_the_bank() -> None:
    bench = Bench({"p": [], "q": []}, demos={"p", "q"})
    bench.shelf["answers"] = [bench.row(p, "own") for p in bench.prompts]
    assert [item.id for item in draws(bench, 1, steps=2)] == ["p", "q", "p", "q"] * 2
    assert all(bench.text(item) == "own" for item in draws(bench, 0, steps=2))
    turn = SelfMixture(0, "student").turn(bench)
    assert len({item.group for item in turn.demonstrations}) == 4 and turn.notes == {"mixture/labels": 0}


def test_a_prompt_without_own_answers_takes_its_label() -> None:
    bench = Bench({"p": [], "q": []}, demos={"p", "q"})
    bench.shelf["answers"] = [bench.row(bench.prompts[0], "own")]
    assert {item.id for item in draws(bench, 0, steps=2) if isinstance(item, Problem)} == {"q"}
    assert all(isinstance(item, Problem) for item in draws(Bench({"p": []}, demos={"p"}), 0))


def test_draws_are_a_function_of_seed_and_step() -> None:
    def seen(step, seed=0):
        bench = Bench({"p": []}, demos={"p"})
        bench.shelf["answers"] = [bench.row(bench.prompts[0], str(i)) for i in range(50)]
        bench.step, bench.seed = step, seed
        return [
            "label" if isinstance(x, Problem) else bench.text(x)
            for x in SelfMixture(0.5, "s").turn(bench).demonstrations
        ]

    assert seen(3) == seen(3)
    assert len({tuple(seen(3)), tuple(seen(4)), tuple(seen(3, seed=1))}) == 3
