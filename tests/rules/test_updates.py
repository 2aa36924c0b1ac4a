"""Update rules on gradients and weights small enough to work by hand."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from interlace.rules.bench import Stateful
from interlace.rules.updates import (
    BilevelTeacher,
    ConflictRule,
    Frozen,
    UpdateRule,
    cosine,
    dot,
    largest_entries,
)
from interlace.training.collect import pack
from interlace.types import Batch, Problem, Sampling, Source, Trajectory


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def step(advantage: float) -> Batch:
    """A step of one rollout token with this advantage, and one demonstration token with any."""
    rows = [
        Trajectory(0, [0, 1], [Source.PROMPT, Source.ROLLOUT], "g", Problem("p", ""), sampling=Sampling()),
        Trajectory(1, [0, 1], [Source.PROMPT, Source.DEMO], "g", Problem("p", "")),
    ]
    return pack(rows).with_arrays(advantage=t(advantage, 1).double())


def test_the_plain_rule_adds_the_gradients_of_all_terms() -> None:
    combined, numbers = UpdateRule().combine({"a": [t(1, 2), t(3)], "b": [t(10, 20), t(30)]}, step(1))
    assert [g.tolist() for g in combined] == [[11, 22], [33]]
    assert numbers == {}


@pytest.mark.parametrize(
    ("yields", "rl", "update", "conflict"),
    [
        ("drop", (-1, 1), [-1, 1], 1),  # <g1, g2> = -1: the policy gradient alone
        ("drop", (0.5, 1), [1.5, 1], 0),  # <g1, g2> = 0.5: the sum
        ("project", (-1, 1), [-0.5, 1.5], 1),  # g1 + g2 / 2 = (0.5, 0.5), plus g2
        ("project", (0.5, 1), [1.5, 1], 0),
        ("drop", (0, 0), [1, 0], 0),  # nothing to oppose
    ],
)
def test_the_sft_gradient_gives_way_on_conflict(yields, rl, update, conflict) -> None:
    combined, numbers = ConflictRule(yields).combine({"policy": [t(*rl)], "sft": [t(1.0, 0.0)]}, step(1))
    assert combined[0].tolist() == pytest.approx(update)
    assert numbers["conflict"] == conflict


def test_one_sign_decides_for_all_parameters() -> None:
    """The first tensor alone conflicts (-1), the whole does not (-1 + 4)."""
    combined, numbers = ConflictRule().combine({"policy": [t(-1), t(2)], "sft": [t(1), t(2)]}, step(1))
    assert [g.item() for g in combined] == [0, 4]
    assert numbers == {"conflict": 0.0, "conflict/cosine": pytest.approx(3 / 5)}


def test_a_penalty_alone_drops_no_supervision() -> None:
    """With equal rewards the policy term is its KL; the update is the sum."""
    gradients = {"policy": [t(-1, 1)], "sft": [t(1, 0)]}
    combined, numbers = ConflictRule().combine(gradients, step(0))
    assert combined[0].tolist() == [0, 1]
    assert numbers["conflict"] == 0 and numbers["conflict/cosine"] < 0


def test_dots_are_taken_in_float64() -> None:
    """In float32 the 1 is lost beside 1e8."""
    assert dot([t(1e4, 1, -1e4)], [t(1e4, 1, 1e4)]) == 1.0
    assert cosine([t(0, 0)], [t(1, 0)]) == 0.0


def test_the_largest_entries_are_counted_over_all_tensors() -> None:
    """The three largest of seven are 9, 5 and 4."""
    masks = largest_entries([t(1, 9, 0.5), t(4, 5, 2, 3)], 3 / 7)
    assert [m.tolist() for m in masks] == [[False, True, False], [True, True, False, False]]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.77, 1.0])
def test_the_threshold_is_that_of_a_sort(share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.rand(7, 5, generator=generator) ** 8, torch.rand(300, generator=generator) * 1e-30]
    threshold = torch.cat([v.reshape(-1) for v in values]).sort(descending=True).values
    threshold = threshold[math.ceil(share * 335 - 1e-9) - 1]
    for mask, value in zip(largest_entries(values, share), values, strict=True):
        assert torch.equal(mask, value >= threshold)


def test_ties_are_in_and_what_never_changed_is_not() -> None:
    assert largest_entries([t(2, 1, 1, 0)], 0.5)[0].tolist() == [True, True, True, False]
    assert largest_entries([t(2, 0, 0, 0)], 1.0)[0].tolist() == [True, False, False, False]
    assert largest_entries([t(2, 1)], 0.0)[0].tolist() == [False, False]


def test_frozen_entries_survive_adamw_to_the_bit() -> None:
    """Importance (0.5, 0.1, 0.02, 0.3) with share 0.5 freezes entries 0 and 3, against momentum and decay."""
    p = torch.nn.Parameter(t(0.3, -0.2, 0.7, 0.1))
    optimizer = torch.optim.AdamW([p], lr=0.1, weight_decay=0.1)
    p.grad = t(1, -1, 1, 2)
    optimizer.step()
    rule = Frozen(largest_entries([t(0.5, 0.1, 0.02, 0.3)], 0.5))
    assert rule.masks[0].tolist() == [True, False, False, True]
    before = p.detach().clone()
    p.grad = t(0, 0, 0, 0)
    rule.step(optimizer, [p])
    assert torch.equal((p == before), t(1, 0, 0, 1).bool())


def test_without_masks_nothing_is_frozen_and_masks_are_remembered() -> None:
    p = torch.nn.Parameter(t(1, 1))
    p.grad = t(1, 1)
    rule = Frozen()
    rule.step(torch.optim.SGD([p], lr=1.0), [p])
    assert p.tolist() == [0, 0]
    assert isinstance(rule, Stateful)
    assert not isinstance(ConflictRule(), Stateful)
    again = Frozen()
    again.load_state_dict(Frozen([t(1, 0).bool()]).state_dict())
    assert again.masks[0].tolist() == [True, False]


class Scalar:
    """A policy of one weight."""

    def __init__(self, value: float) -> None:
        self.weight = torch.nn.Parameter(torch.tensor([[value]], dtype=torch.float64))

    def linear_weights(self) -> list[torch.nn.Parameter]:
        return [self.weight]


class Toy:
    """A bench whose objectives are -(x - 1)^2 / 2 for SFT and -(x - 2)^2 / 2 for RL, x = student + w."""

    seed, step, clip_grad = 0, 0, None

    def __init__(self, lr: float, mu: float) -> None:
        self.lr, self.mu = lr, mu
        self.policies = {"policy": Scalar(0.0), "auxiliary": Scalar(0.0)}
        self.optimizers = {
            name: torch.optim.SGD([policy.weight], lr=lr) for name, policy in self.policies.items()
        }

    def trainable(self, policy: str = "policy") -> list[torch.nn.Parameter]:
        return self.policies[policy].linear_weights()

    def gradient(self, method, batch, terms=None, policy="policy") -> list[torch.Tensor]:
        x = self.policies[policy].weight.detach()
        sft, rl = x - 1, x - 2
        if method == "rl":
            return [rl]
        return [self.mu * sft] if terms == ["sft"] else [self.mu * sft + (1 - self.mu) * rl]

    def publish(self) -> None:
        pass

    def student_step(self) -> None:
        self.policies["policy"].weight.grad = self.gradient("student", None)[0]
        self.optimizers["policy"].step()


def teacher(mu: float, lr: float, **options) -> BilevelTeacher:
    """A rule whose w is one number: down is 1, up is w."""
    rule = BilevelTeacher("rl", lambda c: mu, lr=lr, optimizer=torch.optim.SGD, **options)
    one = torch.ones(1, 1, dtype=torch.float64)
    rule.load_state_dict({"up": [0 * one], "down": [one], "optimizer": None, "updates": 0})
    return rule


def test_the_three_updates_of_the_scalar_toy() -> None:
    """theta = 0.15, theta^ = 0.20, grad w = 0.5 (1 - 0.15) + 0.5 [(2 - 0.15) - (2 - 0.20)] = 0.45."""
    bench, rule = Toy(0.1, 0.5), teacher(0.5, 0.1)
    bench.student_step()
    assert bench.policies["policy"].weight.item() == pytest.approx(0.15)
    numbers = rule.after(bench, SimpleNamespace(), "student")
    w = rule.up[0].item()
    assert w == pytest.approx(0.045)
    assert bench.policies["policy"].weight.item() == pytest.approx(0.15 + 0.045)
    assert bench.policies["auxiliary"].weight.item() == pytest.approx(0.20 + 0.045)
    assert numbers == {"teacher/norm": pytest.approx(0.045), "teacher/gain_grad_norm": pytest.approx(0.05)}


def test_without_sft_the_teacher_stays_and_both_copies_are_equal_to_the_bit() -> None:
    """mu = 0, the paper's lambda = 1, with AdamW for all three."""
    bench = Toy(0.1, 0.0)
    rule = BilevelTeacher("rl", lambda c: 0.0, rank=1, lr=0.1)
    for name, policy in bench.policies.items():
        bench.optimizers[name] = torch.optim.AdamW([policy.weight], lr=0.1, weight_decay=0.1)
    for _ in range(5):
        bench.student_step()
        rule.after(bench, SimpleNamespace(), "student")
        assert torch.equal(*(p.weight for p in bench.policies.values()))
        assert rule.up[0].item() == 0.0


def test_resync_brings_the_copy_back_to_the_student() -> None:
    bench, rule = Toy(0.1, 0.5), teacher(0.5, 0.1, resync=2)
    gaps = []
    for _ in range(4):
        bench.student_step()
        rule.after(bench, SimpleNamespace(), "student")
        gaps.append(bool((bench.policies["policy"].weight == bench.policies["auxiliary"].weight).all()))
    assert gaps == [False, True, False, True]


def test_the_teacher_continues_where_it_was_saved() -> None:
    """Steps 3 to 5 after a saved and reloaded step 2 are those of an uninterrupted rule, AdamW included."""
    ends = []
    for interrupted in (False, True):
        bench, rule = Toy(0.1, 0.5), BilevelTeacher("rl", lambda c: 0.5, rank=1, lr=0.1)
        for step in range(5):
            if interrupted and step == 2:
                saved, rule = (
                    copy.deepcopy(rule.state_dict()),
                    BilevelTeacher("rl", lambda c: 0.5, rank=1, lr=0.1),
                )
                rule.load_state_dict(saved)
                assert rule.state_dict()["optimizer"] == saved["optimizer"]
            bench.student_step()
            rule.after(bench, SimpleNamespace(), "student")
        ends.append((rule.up[0].item(), rule.down[0].item(), bench.policies["policy"].weight.item()))
    assert ends[0] == ends[1]
    assert ends[0][0] != 0


def test_the_gradient_of_the_teacher_follows_from_the_dense_one() -> None:
    """up and down get what autograd gives through loss(W + up @ down)."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    target = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    up = torch.randn(3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    down = torch.randn(2, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    (((w + up @ down - target) ** 3).sum()).backward()
    bench = SimpleNamespace(
        seed=0, step=0, lr=0.0, clip_grad=None, publish=lambda: None,
        policies={n: SimpleNamespace(linear_weights=lambda p=p: [p]) for n, p in merged(w, up, down).items()},
    )  # fmt: skip
    weights = {n: p.linear_weights() for n, p in bench.policies.items()}
    bench.trainable = lambda policy="policy": weights[policy]
    bench.optimizers = {n: torch.optim.SGD(p, lr=0.0) for n, p in weights.items()}
    bench.gradient = lambda method, batch, terms=None, policy="policy": (
        [torch.zeros_like(w)] if method == "rl" else [3 * (weights[policy][0].detach() - target) ** 2]
    )
    rule = BilevelTeacher("rl", lambda c: 1.0, lr=1.0, optimizer=torch.optim.SGD)
    start = {"up": [up.detach().clone()], "down": [down.detach().clone()], "optimizer": None, "updates": 0}
    rule.load_state_dict(start)
    rule.after(bench, SimpleNamespace(), "student")
    torch.testing.assert_close(rule.up[0], up - up.grad)
    torch.testing.assert_close(rule.down[0], down - down.grad)
    expected = w + rule.up[0] @ rule.down[0]
    torch.testing.assert_close(weights["policy"][0], expected, rtol=0, atol=1e-12)


def merged(w, up, down) -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter((w + up @ down).detach().clone()) for name in ("policy", "auxiliary")}
