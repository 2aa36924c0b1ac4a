"""Schedules at the steps where their value is known by hand."""

from __future__ import annotations

import math

import pytest

from interlace.rules.schedules import Constant, Cosine, Linear, parse_schedule


@pytest.mark.parametrize(
    ("step", "value"),
    [
        (0, 0.9),
        (50, 0.05 + 0.85 * (1 + math.sqrt(0.5)) / 2),  # a quarter: cos(pi / 4)
        (100, 0.475),
        (200, 0.05),
        (1000, 0.05),
    ],
)
def test_half_a_cosine_from_peak_to_valley(step: int, value: float) -> None:
    assert Cosine(0.9, 0.05, 0, 200)(step) == pytest.approx(value)


@pytest.mark.parametrize(("step", "value"), [(0, 0.0), (5, 0.4), (10, 0.8), (15, 0.5), (20, 0.2)])
def test_warm_up_is_a_line_from_zero_to_the_peak(step: int, value: float) -> None:
    assert Cosine(0.8, 0.2, 10, 10)(step) == pytest.approx(value)


def test_a_cosine_without_decay_is_at_its_valley_after_the_warm_up() -> None:
    schedule = Cosine(1.0, 0.25, 2, 0)
    assert [schedule(s) for s in (0, 1, 2, 3)] == [0, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(("step", "value"), [(0, 0.95), (100, 0.5), (200, 0.05), (900, 0.05)])
def test_a_line_stays_at_its_end(step: int, value: float) -> None:
    assert Linear(0.95, 0.05, 200)(step) == pytest.approx(value)


def test_a_line_of_no_steps_is_at_its_end() -> None:
    assert Linear(1.0, 0.0, 0)(0) == 0


def test_a_constant_never_changes() -> None:
    assert [Constant(0.3)(s) for s in (0, 7, 10**6)] == [0.3] * 3


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        (0.1, Constant(0.1)),
        (1, Constant(1.0)),
        ("0.25", Constant(0.25)),
        ("cosine:0.9,0.05,0,200", Cosine(0.9, 0.05, 0, 200)),
        ("cosine(0.9, 0.05, 0, 200)", Cosine(0.9, 0.05, 0, 200)),
        (" linear:0.9,0.1,200 ", Linear(0.9, 0.1, 200)),
        ("linear(0.9,0.1,200)", Linear(0.9, 0.1, 200)),
        (Linear(1, 0, 3), Linear(1, 0, 3)),
    ],
)
def test_texts_of_the_command_line(text: object, schedule: object) -> None:
    assert parse_schedule(text) == schedule


@pytest.mark.parametrize("schedule", [Constant(0.1), Cosine(0.9, 0.05, 3, 200), Linear(0.9, 0.1, 200)])
def test_the_text_of_a_schedule_reads_back_as_itself(schedule: object) -> None:
    assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize(
    "text",
    ["much", "", "cosine:1,0,5", "linear:1,0", "cosine:1,0,-1,5", "linear:1,0,-5", "linear:1,x,5",
     "sine:1,0,5", "nan", "inf", "linear:nan,0,5", math.nan, math.inf, True, None],
)  # fmt: skip
def test_anything_else_is_refused_with_the_accepted_forms(text: object) -> None:
    with pytest.raises(ValueError, match=r"accepted are a number, cosine:peak,valley,warmup,decay or "):
        parse_schedule(text)
