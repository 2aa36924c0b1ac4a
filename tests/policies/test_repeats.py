"""Rows that read the same are read once."""

import pytest
import torch

from interlace.policies.packing import without_repeats
from interlace.types import Slots
from tests.policies.build import batch_of, gradients, random_rows, relative_gap, tiny_policy

ROWS = [([5, 6], [7, 8, 9]), ([3], [4]), ([5, 6], [7, 8, 2]), ([5, 6], [7, 3, 9]), ([3], [9])]
"""The first and third read 5 6 7 8; the second and last read 3."""


def test_rows_that_read_the_same_are_kept_once():
    slots = batch_of(ROWS).slots
    kept = without_repeats(slots)
    assert kept.input.tolist() == [5, 6, 7, 8, 3, 5, 6, 7, 3]
    assert kept.position.tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 3]
    assert kept.row.tolist() == [0, 0, 0, 0, 1, 2, 2, 2, 2]
    assert kept.slot.tolist() == [1, 2, 3, 4, 1, 2, 3, 6, 7, 8, 4]
    assert kept.target.tolist() == slots.target.tolist()


def test_rows_that_differ_stay_as_they_are():
    slots = batch_of(random_rows([(3, 4), (2, 5), (1, 1)])).slots
    assert without_repeats(slots) is slots
    empty = torch.zeros(0, dtype=torch.int64)
    nothing = Slots(empty, empty, empty, empty, empty, empty.float())
    assert without_repeats(nothing) is nothing


@pytest.mark.parametrize("arch", ["llama", "gemma2", "gpt2"])
def test_statistics_and_gradients_are_those_of_the_rows_one_by_one(arch):
    policy = tiny_policy(arch, precision="fp64")
    batch = batch_of(ROWS)
    weight = torch.linspace(-1, 1, batch.n_decisions, dtype=torch.float64)
    found = policy.score(batch, ("logp", "entropy"))
    policy.backward(found, {"logp": weight, "entropy": weight.flip(0)})
    together = gradients(policy.model)
    policy.model.zero_grad()
    for r in range(batch.n_rows):
        rows = torch.tensor([r])
        index = batch.decisions_of(rows)
        one = policy.score(batch.subset(rows), ("logp", "entropy"))
        torch.testing.assert_close(one["logp"], found["logp"][index], rtol=1e-12, atol=1e-12)
        policy.backward(one, {"logp": weight[index], "entropy": weight.flip(0)[index]})
    assert relative_gap(together, gradients(policy.model)) < 1e-10


def test_many_fills_of_one_text_cost_one_pass(monkeypatch):
    policy = tiny_policy()
    passes = []
    hidden = policy.hidden
    monkeypatch.setattr(policy, "hidden", lambda slots: passes.append(slots.input.numel()) or hidden(slots))
    policy.score(batch_of([([5, 6], [7, i]) for i in range(2, 18)]))
    assert passes == [3]
