import pytest

from interlace.compare.budget import Budget, parse_budget, sft_step_flops, short
from interlace.policies.meter import Size


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("2e12", Budget("flops", 2e12)),
        ("sft:600", Budget("sft", 600)),
        ("steps:40", Budget("steps", 40)),
        (1e9, Budget("flops", 1e9)),
    ],
)
def test_a_budget_is_operations_sft_steps_or_steps(text, budget):
    assert parse_budget(text) == budget
    assert parse_budget(str(budget)) == budget


@pytest.mark.parametrize("text", ["sft", "sft:", "x:3", "-1", "0", "steps:1.5", "inf", "nan"])
def test_any_other_budget_is_refused_with_what_is_accepted(text):
    with pytest.raises(ValueError, match="accepted are operations as 2e12, sft:N"):
        parse_budget(text)


def test_operations_follow_from_the_unit():
    assert Budget("sft", 10).flops(3.0) == 30
    assert Budget("flops", 10).flops(None) == 10
    assert Budget("steps", 10).flops(3.0) is None
    with pytest.raises(ValueError, match="no demonstrations"):
        Budget("sft", 10).flops(None)


def test_an_sft_step_costs_three_passes_over_an_average_demonstration():
    size = Size(matrices=100, trained=100, attention=10, head=7)
    # Prompt 2, demonstration 3: 4 tokens read, 1+2+3+4 attended to, 3 chosen. The other: 2 read, 3, 1.
    first = 3 * (2 * 100 * 4 + 4 * 10 * 10 + 2 * 7 * 3)
    second = 3 * (2 * 100 * 2 + 4 * 10 * 3 + 2 * 7 * 1)
    assert sft_step_flops(size, [(2, 3), (2, 1)], 8) == pytest.approx(8 * (first + second) / 2)


def test_operations_are_written_short():
    assert [short(x) for x in (12, 3.2e6, 1.234e9, 5e12, 7.7e16)] == [
        "12 FLOP", "3.2 MFLOP", "1.23 GFLOP", "5 TFLOP", "77 PFLOP",
    ]  # fmt: skip
