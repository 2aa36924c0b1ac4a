"""The faults that `benchmarks/faults.py` injects have the fingerprints of the real ones."""

from pathlib import Path

import pytest

import interlace
from interlace.methods import get

FAULTS = Path(__file__).parents[2] / "benchmarks" / "faults.py"


def coefficients(name, lengths, **settings):
    """d(-loss)/d logp of each token of demonstrations of these lengths, one row a micro-batch."""
    rows = [{"source": "demo", "logp": [-1.0] * n} for n in lengths]
    spec = f"{FAULTS}:{name}"
    found = interlace.explain(spec, rows, stage="sft", micro_batches=len(lengths), **settings)
    return [row["coefficient"] for row in found["rows"]]


def flat(rows):
    return [x for row in rows for x in row]


def test_dropping_keeps_the_first_and_the_last_of_four_micro_batches():
    # One token each: (1/4, 0, 0, 1/4) instead of 1/4 everywhere.
    assert flat(coefficients("dropped", [1, 1, 1, 1])) == pytest.approx([0.25, 0, 0, 0.25])


def test_dropping_cannot_be_seen_with_two_micro_batches():
    assert flat(coefficients("dropped", [1, 1])) == pytest.approx([0.5, 0.5])


def test_a_mean_of_means_weighs_a_token_by_the_length_of_its_micro_batch():
    one, three = coefficients("mean_of_means", [1, 3])
    assert one == pytest.approx([1 / 2]) and three == pytest.approx([1 / 6] * 3)


def test_a_mean_of_means_is_harmless_where_micro_batches_are_equally_long():
    assert flat(coefficients("mean_of_means", [2, 2, 2])) == pytest.approx([1 / 6] * 6)


def test_both_faults_multiply():
    first, middle, last = coefficients("both", [1, 5, 2])
    assert first == pytest.approx([1 / 3]) and middle == [0.0] * 5 and last == pytest.approx([1 / 6] * 2)


def test_without_a_fault_it_is_the_corrected_baseline():
    rows = [{"source": "demo", "logp": [-1.0, -0.5]}, {"source": "demo", "logp": [-2.0]}]
    correct = interlace.explain("sft_then_rl", rows, stage="sft")
    built = get(f"{FAULTS}:dropped")
    assert built.name == "dropped_then_rl"
    assert interlace.explain(built, rows, stage="sft", micro_batches=2)["rows"] == correct["rows"]
