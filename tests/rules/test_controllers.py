"""The meta-gradient against finite differences and hand calculation; rules that end a stage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from interlace.methods import REGISTER
from interlace.methods.rloo import rloo
from interlace.rules.bench import Stateful
from interlace.rules.controllers import (
    META_GRADIENTS,
    MetaGradient,
    PassRate,
    Plateau,
    cosine_meta_gradient,
    literal_meta_gradient,
    parse_until,
    rollout_entropy,
    validation_sample,
)
from interlace.training.collect import pack
from interlace.training.distributed import Ranks
from interlace.training.objective import assign, prepare
from interlace.training.step import accumulate
from interlace.types import Problem, Sampling, Source, Trajectory, Verdict


def v(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(values, dtype=torch.float64)]


def controller(**options) -> MetaGradient:
    return MetaGradient(**{"mu": 0.5, "rl": None, "sft": None, "utility": None, "eta_entropy": 0.0} | options)


def test_meta_gradient_of_the_worked_example() -> None:
    """a = 0.1, g_sft = (1, 0), g_rl = (0, 1), grad U = (0.5, -0.2): G = -0.1 (0.5 + 0.2) = -0.07."""
    given = (v(0.5, -0.2), v(1, 0), v(0, 1), 0.1)
    assert literal_meta_gradient(*given) == pytest.approx(-0.07)
    assert cosine_meta_gradient(*given) == pytest.approx(-0.7 / math.sqrt(2 * 0.29))
    assert controller(eta_mu=1.0).move(-0.07, None)["mu"] == pytest.approx(0.43)  # the wrong sign gives 0.57


def test_meta_gradient_is_the_slope_of_the_utility_of_the_looked_ahead_weights() -> None:
    """Central differences of U(theta - a [(1 - mu) g_rl + mu g_sft]) in mu, for a linear U."""
    u, sft, rl, a = *(x[0] for x in (v(0.5, -0.2), v(1, 0), v(0, 1))), 0.1

    def utility(mu: float) -> float:
        return float(u @ -(a * ((1 - mu) * rl + mu * sft)))

    slope = (utility(0.51) - utility(0.49)) / 0.02
    assert literal_meta_gradient([u], [sft], [rl], a) == pytest.approx(slope)


def test_the_entropy_controller() -> None:
    """H* = 0.8, H = 0.3, eta_entropy = 0.1, G = 0: 0.5 becomes 0.55."""
    rule = controller(eta_entropy=0.1, target=0.8)
    assert rule.move(0.0, 0.3)["mu"] == pytest.approx(0.55)
    assert controller(eta_entropy=0.1, target=0.8, entropy_sign=-1).move(0.0, 0.3)["mu"] == pytest.approx(
        0.45
    )


def test_the_first_step_sets_the_target_entropy() -> None:
    rule = controller(eta_entropy=0.1)
    assert rule.move(0.0, 0.7) == {"mu": 0.5, "meta_gradient": 0.0, "entropy": 0.7, "entropy_target": 0.7}
    assert rule.move(0.0, 0.9)["mu"] == pytest.approx(0.48)
    again = controller(eta_entropy=0.1)
    again.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    assert isinstance(again, Stateful)
    assert (again.mu, again.target) == (rule.mu, 0.7)


def test_equal_bounds_hold_mu_constant() -> None:
    rule = controller(mu_min=0.3, mu_max=0.3, eta_mu=1.0)
    assert [rule.move(g, None)["mu"] for g in (0.5, -0.5)] == [0.3, 0.3]


def test_a_meta_gradient_that_is_not_finite_moves_nothing() -> None:
    rule = controller(every=1)
    rule.gradient = lambda bench, batch: math.nan
    assert rule.before(SimpleNamespace(step=0), batch_of([]))["mu"] == 0.5


def test_the_meta_gradient_is_measured_every_so_many_steps() -> None:
    rule = controller(every=3)
    rule.gradient = lambda bench, batch: 1.0
    found = [rule.before(SimpleNamespace(step=s), batch_of([]))["meta_gradient"] for s in range(7)]
    assert found == [1, 0, 0, 1, 0, 0, 1]


class Softmax:
    """One decision between three tokens; its logits are the parameters."""

    def __init__(self, logits: list[float]) -> None:
        self.logits = torch.nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    def score(self, batch, needs=("logp",), *, grad=True):
        with torch.set_grad_enabled(grad):
            logp = torch.log_softmax(self.logits, 0)[batch.slots.target]
            entropy = -(self.logits.softmax(0) * self.logits.log_softmax(0)).sum().expand(logp.numel())
            return {n: {"logp": logp, "logp_t1": logp, "entropy": entropy}[n] for n in needs}

    def backward(self, statistics, cotangents):
        statistics["logp"].backward(cotangents["logp"])


def row(i: int, token: int, reward: float | None, source: Source, group: str = "g") -> Trajectory:
    sampling = Sampling() if source == Source.ROLLOUT else None
    return Trajectory(
        i, [0, token], [Source.PROMPT, source], group, PROBLEM, reward=reward, sampling=sampling
    )


PROBLEM = Problem("p", "p")
REWARD = [0.0, 1.0, 0.2]


def batch_of(rows):
    return pack(rows, completion_limit=1)


class Bench:
    """A bench over the softmax whose samples hold every token exactly as often as it is likely."""

    step, seed, group_size, prompts_per_step, lr = 0, 0, 4, 1, 0.05
    validation = (PROBLEM,)

    def __init__(self) -> None:
        self.policy = Softmax([math.log(2), 0.0, 0.0])  # p = (1/2, 1/4, 1/4)

    def sample(self, problems, n):
        return [row(i, token, REWARD[token], Source.ROLLOUT) for i, token in enumerate((0, 0, 1, 2))]

    def batch(self, rows, method):
        return self.assign(batch_of(rows), method)

    def assign(self, batch, method):
        return replace(assign(batch, method), on_policy=True)

    def gradient(self, method, batch, terms=None, policy="policy"):
        self.policy.logits.grad = None
        accumulate(prepare(batch, method), {"policy": self.policy}, micro_batch_tokens=100, ranks=Ranks())
        return [
            torch.zeros(3, dtype=torch.float64)
            if self.policy.logits.grad is None
            else self.policy.logits.grad
        ]


@pytest.mark.parametrize("demonstrated", [0, 1, 2])
@pytest.mark.parametrize("meta", ["raw", "cosine"])
def test_sign_and_size_against_finite_differences_of_the_validation_reward(
    demonstrated: int, meta: str
) -> None:
    """A whole measurement on a policy: rows, terms, advantages, gradients and signs.

    Demonstrations of token 1 (reward 1) raise U against the RL step, those of token 0 (reward 0) lower it.
    The leave-one-out estimate from 4 rows in exact proportion is 4/3 of grad U.
    """
    method = REGISTER["amft"](advantage="group", std=False, eta_entropy=0.0)
    rule = method.stages["mix"].controllers[0]
    rule.meta = meta
    bench = Bench()
    rows = [row(i, token, REWARD[token], Source.ROLLOUT) for i, token in enumerate((0, 0, 1, 2))]
    batch = batch_of([*rows, row(9, demonstrated, None, Source.DEMO, "d")])
    found = rule.gradient(bench, batch)

    parts = [bench.gradient(m, bench.assign(batch, m))[0].clone() for m in (rule.rl, rule.sft)]
    start = bench.policy.logits.detach()

    def utility(mu: float, a: float) -> float:
        ahead = start - a * ((1 - mu) * parts[0] + mu * parts[1])
        return float(ahead.softmax(0) @ torch.tensor(REWARD, dtype=torch.float64))

    a = 1e-5  # first order in the learning rate
    slope = (utility(0.6, a) - utility(0.4, a)) / 0.2 / a
    assert found * slope > 0
    assert (found > 0) == (demonstrated == 1)
    if meta == "raw":
        assert found == pytest.approx(4 / 3 * bench.lr * slope, rel=1e-3)
    else:
        assert -1 <= found <= 1


def test_without_validation_problems_the_meta_gradient_is_zero() -> None:
    bench = Bench()
    bench.validation = ()
    assert controller(rl=rloo(), sft=rloo(), utility=rloo()).gradient(bench, batch_of([])) == 0.0


def test_validation_problems_change_with_the_step_and_not_with_the_rank() -> None:
    problems = [Problem(str(i), "") for i in range(100)]
    at = [SimpleNamespace(seed=0, step=s, validation=problems, prompts_per_step=5) for s in (0, 0, 1)]
    drawn = [validation_sample(b) for b in at]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({p.id for p in drawn[0]}) == 5


def test_entropy_is_the_mean_over_rollout_tokens() -> None:
    rows = [row(0, 0, 1.0, Source.ROLLOUT), row(1, 0, 1.0, Source.ROLLOUT), row(2, 0, None, Source.DEMO, "d")]
    batch = batch_of(rows)
    assert rollout_entropy(batch) is None
    assert rollout_entropy(batch.with_arrays(entropy=torch.tensor([0.2, 0.4, 9.0]))) == pytest.approx(0.3)


def test_every_form_of_meta_gradient_is_named_in_the_method() -> None:
    for meta in META_GRADIENTS:
        assert REGISTER["amft"](meta=meta).stages["mix"].controllers[0].meta == meta


def looking(step: int, verdicts: list[Verdict] = (), logp: list[list[float]] = ()) -> SimpleNamespace:
    return SimpleNamespace(
        step=step,
        validation=[Problem(str(i), "", demonstration="x") for i in range(max(len(verdicts), len(logp)))],
        sample=lambda problems, n: [SimpleNamespace(verdict=x) for x in verdicts],
        demonstration_row=lambda p: p,
        log_probs=lambda rows: logp,
    )


def test_a_stage_ends_at_its_pass_rate() -> None:
    done = PassRate(0.5, every=2)
    half = [Verdict.PASS, Verdict.FAIL]
    assert [done(looking(s, half)) for s in (1, 2)] == [False, True]
    assert not done(looking(2, [Verdict.PASS, Verdict.FAIL, Verdict.UNSCORABLE]))
    assert not done(looking(2))


def test_a_stage_ends_when_the_validation_loss_no_longer_falls() -> None:
    """Losses 2, 1, 1.5, 1.2, 0.9, 1, 1 with patience 2: two looks after 1, and again after 0.9."""
    done = Plateau(2, every=1)
    found = [done(looking(1, logp=[[-x]])) for x in (2, 1, 1.5, 1.2)]
    assert found == [False, False, False, True]
    saved = json.loads(json.dumps(done.state_dict()))
    again = Plateau(2, every=1)
    again.load_state_dict(saved)
    assert isinstance(again, Stateful)
    assert [again(looking(1, logp=[[-x]])) for x in (0.9, 1, 1)] == [False, False, True]


def test_the_validation_loss_is_a_mean_over_tokens() -> None:
    done = Plateau(1, every=1)
    done(looking(1, logp=[[-4.0], [-1.0, -1.0, -1.0]]))
    assert done.lowest == pytest.approx(1.75)
    with pytest.raises(ValueError, match="until=pass"):
        done(looking(1))


def test_rules_that_end_a_stage_by_name() -> None:
    assert parse_until("pass:0.3") == PassRate(0.3, 10)
    assert parse_until("pass:0.3,25") == PassRate(0.3, 25)
    assert parse_until("loss:3") == Plateau(3, 10)
    for wrong in ("pass:2", "loss:0", "loss:0.5", "pass", "pass:0.3,0", "pass:0.3,1,2", "loss:x"):
        with pytest.raises(ValueError, match="accepted are pass:RATE"):
            parse_until(wrong)
    with pytest.raises(ValueError, match=r"did you mean 'pass:0\.3'"):
        parse_until("pas:0.3")
