"""Fills of masked texts: exact draws from one forward pass."""

import torch

from interlace.rollout import fills
from interlace.rollout.fills import fill
from interlace.rollout.sampling import draw, uniforms
from interlace.rules.samplers import MaskedText
from interlace.types import Problem
from tests.policies.build import tiny_policy

MASK = 0
TEXT = MaskedText(Problem("a", ""), "a", (5, 6, 7, 8, 9, 10, 1), 2, (2, 4, 5), MASK, 4)
OTHER = MaskedText(Problem("b", ""), "b", (9, 3, 4, 1), 1, (2,), MASK, 3)


def test_a_fill_changes_the_masked_positions_only():
    policy = tiny_policy()
    first, second = fill(policy, [(TEXT, 0), (OTHER, 4)], 1.0, seed=0, step=0)
    assert len(first) == 4 and len(second) == 3
    for ids in first:
        assert [ids[t] for t in (0, 1, 3, 6)] == [5, 6, 8, 1]
    assert len({tuple(ids) for ids in first}) > 1


def test_every_token_is_the_quantile_of_the_softmax_after_the_masked_text():
    """Against the sampler of rollouts on the logits of the model's own forward pass."""
    policy = tiny_policy(precision="fp64")
    inputs = torch.tensor([[5, 6, MASK, 8, MASK, MASK, 1]])
    logits = policy.model(input_ids=inputs).logits[0]
    (found,) = fill(policy, [(TEXT, 10)], 0.7, seed=3, step=5)
    rows = torch.arange(10, 14)
    for t in TEXT.masked:
        expected, _ = draw(
            logits[t - 1].repeat(4, 1), uniforms(3, 5, rows, torch.tensor(t - 2)), temperature=0.7
        )
        assert [ids[t] for ids in found] == expected.tolist()


def test_one_forward_pass_for_any_number_of_fills(monkeypatch):
    policy = tiny_policy()
    passes = []
    hidden = policy.hidden
    monkeypatch.setattr(policy, "hidden", lambda slots: passes.append(slots.input.numel()) or hidden(slots))
    many = MaskedText(TEXT.problem, "a", TEXT.ids, 2, TEXT.masked, MASK, 100)
    fill(policy, [(many, 0), (OTHER, 100)], 1.0, seed=0, step=0)
    assert passes == [11]


def test_fills_do_not_depend_on_what_else_is_filled(monkeypatch):
    policy = tiny_policy(precision="fp64")
    both = fill(policy, [(TEXT, 0), (OTHER, 4)], 1.0, seed=0, step=0)
    assert fill(policy, [(OTHER, 4)], 1.0, seed=0, step=0) == both[1:]
    monkeypatch.setattr(fills, "TOKENS_AT_ONCE", 1)
    assert fill(policy, [(TEXT, 0), (OTHER, 4)], 1.0, seed=0, step=0) == both
    assert fill(policy, [], 1.0, seed=0, step=0) == []


def test_fills_are_drawn_from_the_softmax():
    """20 000 fills of one position: shares within five standard errors of the probabilities."""
    policy = tiny_policy(precision="fp64")
    text = MaskedText(OTHER.problem, "b", OTHER.ids, 1, (2,), MASK, 20_000)
    (found,) = fill(policy, [(text, 0)], 1.0, seed=1, step=0)
    p = policy.model(input_ids=torch.tensor([[9, 3, MASK, 1]])).logits[0, 1].softmax(-1).detach()
    counts = torch.bincount(torch.tensor([ids[2] for ids in found]), minlength=p.numel())
    error = (counts - 20_000 * p).abs() / (20_000 * p * (1 - p)).sqrt()
    assert float(error[p > 1e-3].max()) < 5
