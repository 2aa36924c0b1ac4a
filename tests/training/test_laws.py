"""The laws of the house over every registered method and stage."""

from __future__ import annotations

import contextlib
import random
import warnings
from dataclasses import replace

import pytest
import torch
from tests.training.toy import ToyPolicy, batch_of, trajectories

from interlace.methods import REGISTER, Method
from interlace.parts.reducer import reduce
from interlace.parts.terms import View
from interlace.training.distributed import Ranks
from interlace.training.objective import assign, evaluate, prepare, total
from interlace.training.step import accumulate, update
from interlace.types import Batch, Finish

SETTINGS = {"dapo": {"overlong_buffer": 3}}
OPTIONS = [
    ("grpo", {"kl": 0.1, "mask_truncated": True}),
    ("rloo", {"kl": 0.1, "ratio": "sequence"}),
    ("reinforce_pp", {"kl": 0.1, "gamma": 0.9, "baseline": "mean"}),
    ("ppo", {"kl": 0.1}),
    ("grpo", {"std_scope": "step", "denominator": "longest"}),
    ("dr_grpo", {"denominator": "length_sum", "dual_clip": 3}),
]


def cases() -> list[tuple[str, str | None, dict]]:
    found = []
    for name, entry in sorted(REGISTER.items()):
        settings = SETTINGS.get(name, {})
        for stage in entry(**settings).stages or [None]:
            found.append((name, stage, settings))
    return found + [(name, None, settings) for name, settings in OPTIONS]


CASES = cases()
IDS = ["-".join(filter(None, [n, s, *(f"{k}={v}" for k, v in p.items())])) for n, s, p in CASES]
every_method = pytest.mark.parametrize(("name", "stage", "settings"), CASES, ids=IDS)


def rule(name: str, stage: str | None, settings: dict) -> Method:
    return REGISTER[name](**settings).stage(stage)[1]


def gradient(method: Method, batch: Batch, budget: int, ranks: Ranks | None = None) -> tuple[torch.Tensor, list]:
    """Gradient of the whole objective and the term reports, on fresh copies of the same policies."""
    policies = {name: ToyPolicy(seed) for seed, name in enumerate(["policy", "critic"])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(assign(batch, method), method, step=3)
        reports, *_ = accumulate(prepared, policies, micro_batch_tokens=budget, ranks=ranks or Ranks())
    return torch.cat([p.gradient() for p in policies.values()]), reports


@every_method
def test_gradient_does_not_depend_on_micro_batch_split_or_row_order(name, stage, settings) -> None:
    method, rows = rule(name, stage, settings), trajectories(1)
    whole, reports = gradient(method, batch_of(rows), 10**6)
    assert torch.isfinite(whole).all()
    assert whole.abs().max() > 0 or all(r.decisions == 0 for r in reports), "the case trains nothing"
    for budget in (60, 25, 1):
        split, split_reports = gradient(method, batch_of(rows), budget)
        torch.testing.assert_close(split, whole, rtol=0, atol=1e-10)
        for a, b in zip(split_reports, reports, strict=True):
            assert a.loss == pytest.approx(b.loss, abs=1e-10)
            assert a.n == b.n
    for seed in range(3):
        shuffled = random.Random(seed).sample(rows, len(rows))
        split, _ = gradient(method, batch_of(shuffled), 40)
        torch.testing.assert_close(split, whole, rtol=0, atol=1e-10)


@every_method
def test_first_optimizer_step_has_ratio_one(name, stage, settings) -> None:
    """Whatever old log-probabilities the batch carries, at the start of the update they are the leaf."""
    method, rows = rule(name, stage, settings), trajectories(2)
    batch = batch_of(rows)
    poisoned = batch.with_arrays(old_logp=torch.full_like(batch.arrays["old_logp"], -1.0))
    if "old_logp" in method.needs:
        pytest.skip("reads old_logp before the update: it is annotated, and equal to the leaf")
    a, _ = gradient(method, replace(batch, on_policy=True), 10**6)
    b, _ = gradient(method, replace(poisoned, on_policy=True), 10**6)
    torch.testing.assert_close(a, b, rtol=0, atol=0)


@every_method
def test_numbers_nothing_uses_may_be_anything(name, stage, settings) -> None:
    """NaN in every array on rows that are left out changes nothing."""
    method, rows = rule(name, stage, settings), trajectories(3)
    batch = batch_of(rows)
    unscorable = (batch.verdict == -1)[batch.row]
    assert unscorable.any()
    arrays = {k: torch.where(unscorable, torch.nan, v) for k, v in batch.arrays.items()}
    a, _ = gradient(method, batch, 10**6)
    b, _ = gradient(method, replace(batch, arrays=arrays), 10**6)
    torch.testing.assert_close(a, b, rtol=0, atol=0)


DEGENERATE = {
    "no rollouts": lambda rows: [r for r in rows if r.sampling is None],
    "no demonstrations": lambda rows: [r for r in rows if r.sampling is not None],
    "all rewards equal": lambda rows: [replace(r, reward=1.0, verdict=None) for r in rows],
    "all truncated": lambda rows: [replace(r, finish=Finish.LENGTH) for r in rows],
    "all unscorable": lambda rows: [replace(r, reward=None, verdict="unscorable") for r in rows],
    "one row": lambda rows: rows[4:5],
    "one token": lambda rows: [
        replace(rows[0], ids=rows[0].ids[:2], source=[0, 1], behaviour_logp=[float("nan"), -1.0], span=[],
                extra={**rows[0].extra, "token_reward": [0.5]})
    ],
    "nothing": lambda rows: [],
}  # fmt: skip


@every_method
@pytest.mark.parametrize("what", DEGENERATE)
def test_degenerate_steps_are_defined(name, stage, settings, what) -> None:
    rows = DEGENERATE[what](trajectories(4))
    found, reports = gradient(rule(name, stage, settings), batch_of(rows), 40)
    assert torch.isfinite(found).all()
    for report in reports:
        assert report.loss == report.loss
        if report.decisions == 0:
            assert report.loss == 0.0
    if what in ("all unscorable", "nothing"):
        assert (found == 0).all()


class Replay(contextlib.AbstractContextManager):
    """Holds every detached value at what it was when first computed, for finite differences."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.at = 0
        self.recording = True

    def __enter__(self) -> Replay:
        self.at, self.original, self.p = 0, torch.Tensor.detach, View.__init__
        replay = self

        def detach(tensor: torch.Tensor) -> torch.Tensor:
            if replay.recording:
                replay.values.append(replay.original(tensor).clone())
            else:
                replay.at += 1
            return replay.values[replay.at - 1 if not replay.recording else -1]

        torch.Tensor.detach = detach
        return self

    def __exit__(self, *exc: object) -> None:
        torch.Tensor.detach = self.original
        self.recording = False


@every_method
def test_leaf_gradient_is_the_finite_difference_of_the_loss(name, stage, settings) -> None:
    """d loss / d leaf for every statistic a term reads, with what is under stop-gradient held fixed."""
    method = rule(name, stage, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = assign(batch_of(trajectories(5)), method)
    prepared = prepare(batch, method, step=3)
    generator = torch.Generator().manual_seed(0)
    for p in prepared.terms:
        if not bool(p.live.any()):
            continue
        leaves = {
            s: -torch.rand(batch.n_decisions, generator=generator, dtype=torch.float64) - 0.05
            for s in ("logp", *p.term.statistics)
        }
        replay = Replay()

        def loss(values: dict[str, torch.Tensor], p=p, replay=replay) -> torch.Tensor:
            with replay:
                losses = p.term.evaluate(prepared.batch, p.covered, values)
            return reduce(losses.value, losses.row, p.scale, p.n)

        cut = {s: v.clone().requires_grad_() for s, v in leaves.items()}
        value = loss(cut)
        found = torch.autograd.grad(value, list(cut.values()), allow_unused=True)
        for statistic, g in zip(cut, found, strict=True):
            g = torch.zeros_like(leaves[statistic]) if g is None else g
            for i in p.covered.nonzero()[:, 0].tolist():
                ends = []
                for sign in (1, -1):
                    moved = {s: v.clone() for s, v in leaves.items()}
                    moved[statistic][i] += sign * 1e-6
                    ends.append(loss(moved))
                slope = float(ends[0] - ends[1]) / 2e-6
                assert slope == pytest.approx(float(g[i]), rel=1e-6, abs=1e-7), f"{p.term.name}: d/d {statistic}[{i}]"


@every_method
def test_only_leaves_can_be_differentiated(name, stage, settings) -> None:
    """Asking for the gradient of a detached input of a term raises."""
    method = rule(name, stage, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = assign(batch_of(trajectories(6)), method)
    leaf = torch.full((batch.n_decisions,), -0.5, dtype=torch.float64, requires_grad=True)
    view = View(batch, torch.arange(batch.n_decisions)[batch.active[batch.row]], {"logp": leaf})
    for array in (view.p, view.old_logp, *(view.array(k) for k in ("ref_logp", "entropy"))):
        with pytest.raises(RuntimeError):
            torch.autograd.grad(array.sum(), leaf)


@every_method
def test_loss_and_coefficient_are_those_of_one_objective(name, stage, settings) -> None:
    """Terms evaluated on leaves equal to the policy's statistics give the gradient that training accumulates."""
    method, rows = rule(name, stage, settings), trajectories(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = assign(batch_of(rows), method)
    prepared = prepare(batch, method, step=3)
    policies = {name: ToyPolicy(seed) for seed, name in enumerate(["policy", "critic"])}
    needs = ("logp", "logp_t1", "entropy", "mean_logp", "kl", "reverse_kl", "value")
    scored = {name: policy.score(batch, needs) for name, policy in policies.items()}
    results = evaluate(prepared, scored)
    for policy_name, policy in policies.items():
        mine = [g for p, (_, g) in zip(prepared.terms, results, strict=True) if p.term.policy == policy_name]
        policy.backward(scored[policy_name], total(mine, batch.n_decisions))
    direct = torch.cat([p.gradient() for p in policies.values()])
    trained, _ = gradient(method, batch_of(rows), 30)
    torch.testing.assert_close(trained, direct, rtol=0, atol=1e-10)


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
