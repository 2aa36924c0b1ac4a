"""The laws of the house over every registered method and stage."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from interlace.analysis import laws
from interlace.analysis.laws import gradient
from interlace.analysis.toy import ToyPolicy, batch_of, trajectories
from interlace.methods import REGISTER, Method
from interlace.training.objective import assign
from interlace.training.step import update

SETTINGS = {"dapo": {"overlong_buffer": 3}}
OPTIONS = [
    ("grpo", {"kl": 0.1, "mask_truncated": True}),
    ("rloo", {"kl": 0.1, "ratio": "sequence"}),
    ("reinforce_pp", {"kl": 0.1, "gamma": 0.9, "baseline": "mean"}),
    ("ppo", {"kl": 0.1}),
    ("grpo", {"std_scope": "step", "denominator": "longest"}),
    ("dr_grpo", {"denominator": "length_sum", "dual_clip": 3}),
    ("srft", {"rollout_loss": "advantage", "entropy_level": "step"}),
    ("srft", {"variant": "code"}),
    ("srft", {"variant": "reimplementation"}),
    ("hpt", {"gate_off": 0.5}),
    ("prefix_rft", {"advantage": "prefix"}),
    ("prefix_rft", {"top_entropy": "linear:0.5,0.1,10"}),
    ("luffy", {"shape": "teacher"}),
    ("luffy", {"shape": "log"}),
    ("trapo", {"alpha": 0}),
    ("cat", {"operator": "majority"}),
    ("cat", {"operator": "best_of"}),
    ("fest", {"form": "dpo"}),
    *(("chord", {"phi": phi}) for phi in ("1", "p", "entropy_top", "entropy_norm", "is_clip", "focal")),
    ("chord", {"mu": "reward:0.9"}),
    ("egspo", {"gate_temperature": 0.5}),
]


def cases() -> list[tuple[str, str | None, dict]]:
    found = []
    for name, entry in sorted(REGISTER.items()):
        settings = SETTINGS.get(name, {})
        found += [(name, stage, settings) for stage in entry(**settings).stages or [None]]
    for name, settings in OPTIONS:
        found += [(name, stage, settings) for stage in REGISTER[name](**settings).stages or [None]]
    return found


CASES = cases()
IDS = ["-".join(filter(None, [n, s, *(f"{k}={v}" for k, v in p.items())])) for n, s, p in CASES]
METHODS = [REGISTER[name](**settings).stage(stage)[1] for name, stage, settings in CASES]
every_method = pytest.mark.parametrize("method", METHODS, ids=IDS)


@every_method
def test_gradient_does_not_depend_on_micro_batch_split_or_row_order(method: Method) -> None:
    laws.split_invariance(method)


@every_method
def test_first_optimizer_step_has_ratio_one(method: Method) -> None:
    laws.first_step_ratio(method)


@every_method
def test_numbers_nothing_uses_may_be_anything(method: Method) -> None:
    laws.unused_numbers(method)


@every_method
def test_arrays_that_are_read_are_named_in_needs(method: Method) -> None:
    laws.declared_needs(method)


@every_method
@pytest.mark.parametrize("what", laws.DEGENERATE)
def test_degenerate_steps_are_defined(method: Method, what: str) -> None:
    laws.degenerate_step(method, what)


@every_method
def test_leaf_gradient_is_the_finite_difference_of_the_loss(method: Method) -> None:
    laws.leaf_gradient(method)


@every_method
def test_only_leaves_can_be_differentiated(method: Method) -> None:
    laws.detached_inputs(method)


@every_method
def test_loss_and_coefficient_are_those_of_one_objective(method: Method) -> None:
    laws.one_objective(method)


def test_rows_without_any_gradient_are_not_scored() -> None:
    method = REGISTER["grpo"]()
    batch = assign(batch_of(trajectories(8)), method)
    silent = int(((batch.arrays["advantage"] == 0) & batch.active[batch.row]).sum())
    assert silent > 0
    policy = ToyPolicy()
    optimizer = torch.optim.SGD(policy.trainable(), lr=0.0)
    result = update(batch, method, {"policy": policy}, {"policy": optimizer}, micro_batch_tokens=20)
    assert result.scored_rows == policy.rows_scored < result.rows
    assert result.logp.isnan().sum() > 0


def test_each_row_is_differentiated_once() -> None:
    """Several row terms share one forward pass."""
    policy = ToyPolicy()
    method = REGISTER["grpo"](kl=0.1)
    batch = assign(batch_of(trajectories(9)), method)
    optimizer = torch.optim.SGD(policy.trainable(), lr=0.0)
    update(batch, method, {"policy": policy}, {"policy": optimizer}, micro_batch_tokens=10**6)
    assert policy.calls == 1


def test_likelihood_terms_read_temperature_one_and_ratio_terms_the_sampling_temperature() -> None:
    """At temperature 2 the SFT-like term on rollouts has the gradient of plain log-probabilities."""
    rows = trajectories(10, temperature=2.0)
    batch = batch_of(rows)
    plain = replace(batch, slots=replace(batch.slots, temperature=torch.ones_like(batch.slots.temperature)))
    same, _ = gradient(REGISTER["sft"](), batch, 10**6)
    cold, _ = gradient(REGISTER["sft"](), plain, 10**6)
    torch.testing.assert_close(same, cold, rtol=0, atol=0)
    a, _ = gradient(REGISTER["reinforce"](), batch, 10**6)
    b, _ = gradient(REGISTER["reinforce"](), plain, 10**6)
    assert (a - b).abs().max() > 1e-3


def test_a_gradient_that_is_not_finite_updates_nothing() -> None:
    policy = ToyPolicy()
    method = REGISTER["reinforce"]()
    batch = batch_of(trajectories(11))
    reward = batch.reward.clone()
    reward[0] = 1e308
    batch = assign(replace(batch, reward=reward * 10), method)
    before = [p.detach().clone() for p in policy.trainable()]
    optimizer = torch.optim.AdamW(policy.trainable(), lr=0.1)
    result = update(batch, method, {"policy": policy}, {"policy": optimizer}, micro_batch_tokens=30)
    assert not result.finite
    assert all(torch.equal(a, b) for a, b in zip(before, policy.trainable(), strict=True))
