import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.training.microbatches import plan

lengths = st.lists(st.integers(0, 40), max_size=40)


@given(lengths, st.integers(1, 60), st.integers(1, 4))
def test_every_row_is_in_exactly_one_micro_batch_within_the_budget(rows, budget, ranks) -> None:
    micro = plan(rows, budget, ranks)
    assert sorted(i for m in micro for i in m) == list(range(len(rows)))
    assert len(micro) % ranks == 0
    for m in micro:
        assert sum(rows[i] for i in m) <= budget or len(m) == 1


def test_longest_rows_come_first_and_loads_are_balanced() -> None:
    assert plan([1, 9, 3, 5], 9) == [[1], [3, 2, 0]]


def test_one_long_row_does_not_pad_the_others() -> None:
    """Report B2: completions of 1, 1, 1, 64 tokens; the short ones share a micro-batch of 3 tokens."""
    micro = plan([1, 1, 1, 64], 64)
    assert sorted(sum([1, 1, 1, 64][i] for i in m) for m in micro) == [3, 64]


def test_budget_must_be_positive() -> None:
    with pytest.raises(ValueError, match="micro_batch_tokens=0"):
        plan([1], 0)
