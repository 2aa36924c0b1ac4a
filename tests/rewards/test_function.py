import pickle

import pytest

from interlace.rewards import Function, load_reward
from interlace.types import Problem

PROBLEM = Problem("p", "q", "7")


def module_level(completion, problem):
    return completion == problem.answer


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my+reward.py"
    path.write_text("def right(completion, problem):\n    return completion == problem.answer\n\nlimit = 3\n")
    return path


def test_a_function_in_a_file_is_called_with_completion_and_problem(file):
    reward = load_reward(f"{file}:right")
    assert [reward(t, PROBLEM).verdict for t in ("7", "8")] == ["pass", "fail"]
    assert reward("7", PROBLEM).parts == {"right": 1}


def test_it_takes_part_in_sums_and_survives_pickling(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    file.rename(file.parent / "mine.py")
    reward = load_reward("0.5*mine.py:right+exact")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(reward))("7", PROBLEM).reward == 1.5


def test_a_function_of_a_module_works_by_name_and_as_an_object():
    by_name = load_reward(f"{__name__}:module_level")
    assert by_name("7", PROBLEM).verdict == load_reward(module_level)("7", PROBLEM).verdict == "pass"
    assert not by_name.bounded


def test_a_module_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "rewards_of_mine.py").write_text("def always(c, p):\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p])
    assert load_reward("rewards_of_mine:always")("x", PROBLEM).reward == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rihgt", r"has no function 'rihgt' \(nearest: right\); it has: right"),
        ("limit", "has no function 'limit'"),
    ],
)
def test_an_unknown_function_names_the_nearest(file, name, message):
    with pytest.raises(ValueError, match=message):
        load_reward(f"{file}:{name}")


def test_an_unknown_module_or_file_is_an_error_at_load():
    with pytest.raises(ValueError, match="cannot import module 'no_such_module'"):
        load_reward("no_such_module:f")
    with pytest.raises(ValueError, match=r"no file .*nowhere\.py"):
        load_reward("nowhere.py:f")


def test_a_function_that_no_worker_can_import_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"file\.py:function"):
        Function(lambda completion, problem: 1.0)
