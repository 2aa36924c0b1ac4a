import json
import warnings

import pytest

from interlace.tasks import load_task
from interlace.tasks.files import FileTask, canonical_text

USER = {"role": "user", "content": "u"}


def written(tmp_path, rows, name="data.jsonl", newline="\n", encoding="utf-8"):
    path = tmp_path / name
    lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in rows]
    path.write_bytes(newline.join(lines).encode(encoding))
    return str(path)


def every_row(task):
    return sorted((p for s in task.splits for p in task.problems(s)), key=lambda p: p.id)


def test_question_and_answer_become_prompt_and_answer_and_the_rest_is_kept(tmp_path):
    path = written(tmp_path, [{"question": "1+1?", "answer": "2", "level": 3, "tags": ["sum"]}])
    (problem,) = every_row(load_task(path))
    assert (problem.prompt, problem.answer, problem.demonstration) == ("1+1?", "2", None)
    assert (problem.id, problem.task) == ("data:0", "data")
    assert (problem.meta["level"], problem.meta["tags"]) == (3, ["sum"])


@pytest.mark.parametrize(
    ("row", "prompt", "answer", "demonstration", "completion"),
    [
        ({"prompt": "p", "completion": "c"}, "p", None, "c", None),
        ({"problem": "p", "solution": "s", "final_answer": 7}, "p", 7, "s", None),
        ({"query": "p", "response": "r", "gold": "g", "reference": "x"}, "p", "g", "r", "x"),
        ({"instruction": "add", "input": "1 2", "output": "3"}, "add\n\n1 2", None, "3", None),
        ({"instruction": "add", "input": "", "output": "3"}, "add", None, "3", None),
        (
            {"prompt": [USER], "completion": [{"role": "assistant", "content": "a"}]},
            [USER], None, "a", None,
        ),
    ],
)  # fmt: skip
def test_the_names_that_data_sets_use_are_understood(
    tmp_path, row, prompt, answer, demonstration, completion
):
    (problem,) = every_row(load_task(written(tmp_path, [row])))
    got = (problem.prompt, problem.answer, problem.demonstration, problem.completion)
    assert got == (prompt, answer, demonstration, completion)


def test_the_last_assistant_message_is_the_demonstration(tmp_path):
    turns = [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b")]
    messages = [{"role": r, "content": c} for r, c in turns]
    (problem,) = every_row(load_task(written(tmp_path, [{"messages": messages, "answer": "b"}])))
    assert problem.prompt == messages[:-1]
    assert (problem.demonstration, problem.answer) == ("b", "b")


def test_messages_that_end_with_the_user_have_no_demonstration(tmp_path):
    messages = [{"role": "user", "content": "u"}]
    (problem,) = every_row(load_task(written(tmp_path, [{"messages": messages}])))
    assert (problem.prompt, problem.demonstration) == (messages, None)


@pytest.mark.parametrize(
    ("newline", "encoding"),
    [("\n", "utf-8"), ("\r\n", "utf-8"), ("\n", "utf-8-sig"), ("\r\n\r\n", "utf-8-sig")],
)
def test_byte_order_marks_windows_line_ends_and_blank_lines_are_tolerated(tmp_path, newline, encoding):
    rows = [{"prompt": "größer  als", "answer": str(i), "id": i} for i in range(3)]
    task = load_task(written(tmp_path, [*rows, ""], newline=newline, encoding=encoding))
    assert [p.answer for p in every_row(task)] == ["0", "1", "2"]
    assert {p.prompt for p in every_row(task)} == {"größer  als"}


def test_a_json_list_is_read_like_lines(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"q": "x", "prompt": "p", "answer": 1}]))
    assert every_row(load_task(str(path)))[0].answer == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "a"}, {"text": "b"}], r"row 1 \(line 2\): no prompt; accepted columns: .*it has 'text'"),
        ([{"prompt": "a"}, "", "{'prompt': 1}"], "line 3: not JSON"),
        ([{"prompt": "a"}, "[1]"], r"row 1 \(line 2\): a row must be a JSON object, not list"),
        ([{"prompt": 7}], r"'prompt' must be text or chat messages, not int"),
        ([{"prompt": "a", "solution": 5}], "'solution' must be text, not int"),
        ([{"messages": []}], "at least one message"),
        ([{"messages": [{"role": "human", "content": "x"}]}], "role 'human'; accepted: system, user"),
        ([{"messages": [{"role": "user", "content": None}]}], "message 0 must be an object with texts"),
        ([{"messages": [{"role": "assistant", "content": "x"}]}], "must end with a user's turn"),
        ([{"prompt": [{"role": "assistant", "content": "x"}]}], "must end with the user's message"),
        ([{"prompt": "a", "split": 3}], "split must be a name"),
        ([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}], "several rows, first 'x'"),
        ([""], "no rows"),
    ],
)  # fmt: skip
def test_errors_name_the_row_the_key_and_what_is_accepted(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        load_task(written(tmp_path, rows))


def test_a_file_that_is_not_utf8_or_does_not_exist_says_so(tmp_path):
    with pytest.raises(ValueError, match="not UTF-8 at byte 12"):
        load_task(written(tmp_path, ['{"prompt": "ä"}'], encoding="latin-1"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_task(str(tmp_path / "nowhere.jsonl"))


def test_a_chosen_column_wins_and_a_missing_one_is_named_with_the_nearest(tmp_path):
    path = written(tmp_path, [{"prompt": "p", "text": "t", "result": "r", "answer": "a"}])
    (problem,) = every_row(load_task(f"{path}:prompt_key=text,answer_key=result"))
    assert (problem.prompt, problem.answer, problem.meta["prompt"]) == ("t", "r", "p")
    with pytest.raises(ValueError, match=r"no column 'results' \(nearest: result\)"):
        load_task(path, answer_key="results")


def test_splits_follow_the_prompt_not_its_wording_of_case_and_space(tmp_path):
    rows = [{"prompt": f"Question {i}?"} for i in range(400)] + [
        {"prompt": f" question  {i}? "} for i in range(400)
    ]
    task = load_task(written(tmp_path, rows), validation=0.2, test=0.2)
    sizes = [task.count(s) for s in ("train", "validation", "test")]
    assert sum(sizes) == 800
    # 400 prompts, shares 0.6, 0.2, 0.2: six standard deviations of a binomial count, doubled.
    assert abs(sizes[0] - 480) < 120 and abs(sizes[1] - 160) < 100 and abs(sizes[2] - 160) < 100
    keys = [{canonical_text(p.prompt) for p in task.problems(s)} for s in ("train", "validation", "test")]
    assert not (keys[0] & keys[1] or keys[0] & keys[2] or keys[1] & keys[2])


def test_a_split_column_is_followed_and_training_rows_that_leak_are_dropped_with_a_count(tmp_path):
    rows = [
        {"id": "a", "prompt": "one", "split": "train"},
        {"id": "b", "prompt": "Two ", "split": "training"},
        {"id": "c", "prompt": "two", "split": "val"},
        {"id": "d", "prompt": "three", "split": "hard"},
    ]
    with pytest.warns(UserWarning, match=r"dropped 1 training rows .*'b'"):
        task = load_task(written(tmp_path, rows))
    assert task.splits == ("train", "validation", "test", "hard")
    got = {s: [p.id for p in task.problems(s)] for s in task.splits}
    assert got == {"train": ["a"], "validation": ["c"], "test": [], "hard": ["d"]}


def test_the_order_is_a_function_of_the_seed(tmp_path):
    path = written(tmp_path, [{"prompt": str(i), "split": "train"} for i in range(50)])
    ids = [[p.id for p in load_task(path).problems("train", 50, seed)] for seed in (0, 0, 1)]
    assert ids[0] == ids[1] != ids[2]
    assert sorted(ids[0]) == sorted(ids[2])


def test_asking_for_too_many_rows_says_how_many_every_split_has(tmp_path):
    path = written(tmp_path, [{"prompt": str(i), "split": "train"} for i in range(3)])
    with pytest.raises(
        ValueError, match="n=4, but 'train' has 3 rows; by split: train 3, validation 0, test 0"
    ):
        load_task(path).problems("train", 4)


def test_a_rows_own_verifier_is_kept_and_asked_for(tmp_path):
    plain = load_task(written(tmp_path, [{"prompt": "a", "answer": "1"}], "a.jsonl"), reward="exact")
    own = load_task(written(tmp_path, [{"prompt": "a", "reward": "numeric"}, {"prompt": "b"}], "b.jsonl"))
    assert (plain.reward, own.reward) == ("exact", "row:math")
    # A column of numbers, as in recorded rollouts, is no verifier.
    assert load_task(written(tmp_path, [{"prompt": "a", "reward": 0.5}], "c.jsonl")).reward == "math"


def test_held_out_shares_must_leave_something_to_train_on(tmp_path):
    path = written(tmp_path, [{"prompt": "a"}])
    with pytest.raises(ValueError, match="shares below 1"):
        FileTask(path, validation=0.5, test=0.5)


def test_reading_does_not_warn_without_leaks(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_task(written(tmp_path, [{"prompt": "a"}, {"prompt": "a"}]))
