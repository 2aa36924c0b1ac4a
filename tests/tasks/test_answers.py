import time

import pytest

from interlace.tasks.answers import final_answer, last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer> 7 </answer> indeed", "7"),
        ("<answer>3</answer> no, <answer>4</answer>", "4"),
        (r"<answer>it is \boxed{5}</answer> \boxed{6}", "5"),
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{8} #### 9", "8"),
        ("48 + 24 = 72\n#### 72\nthanks", "72"),
        ("The answer is 12", "12"),
        ("Answer: 5\nno, Answer: 6", "6"),
        ("**Answer:** A is a knight", "A is a knight"),
        ("<think>Answer: 1</think>Answer: 2", "2"),
        ("Answer:\n1 2\n3 4", "1 2\n3 4"),
    ],
)
def test_the_last_marked_answer_is_read(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    ["", "7", "answers vary", "<answer>open", r"\boxed{open", r"<think>\boxed{3}</think>I do not know"],
)
def test_a_text_that_marks_no_answer_has_none(text):
    assert final_answer(text) is None


def test_the_innermost_box_is_read_and_escaped_braces_do_not_close_it():
    assert last_boxed(r"\boxed{\boxed{3}}") == "3"
    assert last_boxed(r"\boxed{\{1, 2\}}") == r"\{1, 2\}"


@pytest.mark.parametrize(
    "text", [r"\boxed{" * 30_000, "<answer>" * 30_000, "answer is " * 30_000, "}" * 99_999]
)
def test_reading_is_linear_in_the_length_of_a_hostile_text(text):
    start = time.process_time()
    final_answer(text)
    assert time.process_time() - start < 2
