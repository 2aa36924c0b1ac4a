import json

import pytest

from interlace.evaluation import Evaluation

WORDS = ["evaluate", "scratch:nano", "task=countdown:numbers=2", "problems=4", "max_new_tokens=6"]


def test_json_is_one_object_that_is_an_evaluation(run):
    status, out, err = run(*WORDS, "samples=2", "temperature=0.7", "ks=1,2", "--json")
    assert (status, err, out.count("\n")) == (0, "", 1)
    data = json.loads(out)
    result = Evaluation.from_dict(data)
    assert (result.n, result.samples, result.ks, result.sampling.temperature) == (4, 2, (1, 2), 0.7)
    assert data["settings"]["model"] == "scratch:nano" and data["settings"]["split"] == "test"
    assert all(len(p.lengths) == 2 and max(p.lengths) <= 6 for p in result.problems)


def test_the_same_words_give_the_same_numbers_and_another_seed_other_problems(run):
    once, again, other = (run(*WORDS, "samples=2", s, "--json")[1] for s in ("seed=1", "seed=1", "seed=2"))
    assert once == again
    ids = [{p["id"] for p in json.loads(out)["problems"]} for out in (once, other)]
    assert ids[0] != ids[1]


def test_the_table_and_the_answers_are_shown(run):
    status, out, err = run(*WORDS, "--show", "1")
    assert (status, err) == (0, "")
    assert "scratch:nano on countdown:numbers=2 test" in out and "greedy accuracy" in out
    assert out.startswith("countdown:") and "wrong" in out.splitlines()[0]
    assert "4 problems: greedy" in out.splitlines()[-1]


def test_an_evaluation_can_be_kept_and_compared_with(run, tmp_path):
    kept = tmp_path / "new folder" / "a.json"
    assert run(*WORDS, "--out", str(kept))[0] == 0
    status, out, _ = run(*WORDS, "--against", str(kept))
    assert status == 0
    assert "greedy, compared with --against: +0.0 points [" in out and "0 won, 0 lost of 4" in out
    _, out, _ = run(*WORDS, "--against", str(kept), "--json")
    assert json.loads(out)["against"]["greedy"]["n"] == 4
    status, out, err = run(*WORDS, "seed=5", "--against", str(kept))
    assert (status, out) == (2, "") and "not the same problems" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=countdown"], "one model, not 0"),
        (["scratch:nano", "b", "task=countdown"], "one model, not 2"),
        (["scratch:nano"], "task: name what to evaluate on"),
        (["scratch:nano", "task=countdwn"], "unknown task 'countdwn' (nearest: countdown)"),
        (["scratch:nano", "task=countdown", "split=tets"], "unknown split 'tets' (nearest: test)"),
        (
            ["scratch:nano", "task=countdown", "smaples=2"],
            "unknown setting 'smaples'; did you mean 'samples'?",
        ),
        (["scratch:nano", "task=countdown", "samples=x"], "samples='x'"),
        (["scratch:nano", "task=countdown", "samples=2", "ks=4"], "k=4: accepted are 1 to samples=2"),
        (["scratch:nano", "task=countdown", "samples=2", "temperature=0"], "temperature"),
        (["scratch:nanno", "task=countdown"], "'nanno'"),
        (["scratch:nano", "task=countdown", "--against", "no.json"], "no.json: No such file"),
    ],
)
def test_a_mistake_is_one_line(run, words, message):
    status, out, err = run("evaluate", *words)
    assert (status, out) == (2, "")
    assert message in err and err.count("\n") == 1


def test_a_file_that_is_no_evaluation_is_refused_before_anything_is_sampled(run, tmp_path):
    (tmp_path / "a.json").write_text('{"n": 3}')
    status, out, err = run(*WORDS, "--against", str(tmp_path / "a.json"))
    assert (status, out) == (2, "") and "not an evaluation written by interlace evaluate --out" in err
