import pytest

from interlace.rules.form import FormatReached, corruptions, format_accuracy, format_kept
from interlace.types import Problem, Sampling, Trajectory, Verdict


def row(verdict=Verdict.FAIL, sampled=True, **parts):
    return Trajectory(
        0,
        [1],
        [1],
        "g",
        Problem("p", "?"),
        verdict=verdict,
        parts=parts,
        sampling=Sampling() if sampled else None,
    )


def test_tags_are_removed_unclosed_moved_exchanged_and_reversed() -> None:
    assert corruptions("<think>a</think><answer>b</answer>") == [
        "ab",
        "<think>a<answer>b",
        "ab<think></think><answer></answer>",
        "</think>a<think></answer>b<answer>",
        "</answer>a<answer></think>b<think>",
    ]


def test_without_tags_the_parts_between_separators_stand_for_them() -> None:
    assert corruptions("4+7=11,11+9=20,20-1=19") == [
        "4+7=1111+9=2020-1=19",
        "4+7=11,11+9=2020-1=19",
        "4+7=1111+9=2020-1=19,,",
        "11+9=20,20-1=19,4+7=11",
        "20-1=19,11+9=20,4+7=11",
    ]
    assert corruptions("a b\nc d")[-1] == "c d\na b"
    assert corruptions("one two") == ["onetwo", "onetwo ", "two one"]


def test_a_text_without_any_separator_is_turned_around() -> None:
    assert corruptions("123") == ["231", "321"]


@pytest.mark.parametrize("text", ["", " ", "7", "<think></think>"])
def test_no_corruption_is_empty_or_the_text_itself(text) -> None:
    assert all(one.strip() and one != text for one in corruptions(text))


@pytest.mark.parametrize("text", ["<a>x</a>", "4+7=11,11+9=20", "a\nb", "12"])
def test_content_is_whole_and_no_character_is_new(text) -> None:
    for one in corruptions(text):
        assert not set(one) - set(text) - {"/"}
        assert sorted(c for c in one if c.isdigit()) == sorted(c for c in text if c.isdigit())


def test_format_is_the_part_of_the_reward_and_else_correctness() -> None:
    assert format_kept(row(format=1.0, math=0.0)) is True
    assert format_kept(row(**{"mine.format": 0.0, "math": 1.0})) is False
    assert format_kept(row(math=1.0)) is None
    assert format_accuracy([row(format=1.0), row(Verdict.PASS, format=0.0)]) == 0.5
    assert format_accuracy([row(Verdict.PASS), row(), row(), row()]) == 0.25
    ignored = [row(Verdict.UNSCORABLE), row(Verdict.PASS, sampled=False)]
    assert format_accuracy([*ignored, row(Verdict.PASS)]) == 1
    assert format_accuracy(ignored) == 0


def test_a_stage_ends_when_the_share_is_reached() -> None:
    class Bench:
        rows = [row(format=1.0)] * 19 + [row(format=0.0)]

    assert FormatReached(0.95)(Bench) is True
    assert FormatReached(0.96)(Bench) is False
