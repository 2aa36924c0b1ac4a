"""How the gradients of one optimizer step become an update.

    UpdateRule       the sum of all terms' gradients
    ConflictRule     a supervised gradient gives way to an opposing policy gradient        (GTA)
    Frozen           some entries keep their value exactly                                 (MIFO)
    BilevelTeacher   a student, its RL-only copy, and a low-rank teacher between them      (BRIDGE)

Gradients are of the whole optimizer step: accumulated over micro-batches, summed over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from interlace.parts.terms import Context
from interlace.types import Batch

if TYPE_CHECKING:
    from interlace.rules.bench import Bench


class UpdateRule:
    """The sum of the terms' gradients, one optimizer step. Other rules change one of these points.

    Attributes:
        per_term: Whether `combine` wants each term's accumulated gradient apart (terms on disjoint rows cost
            no second backward pass, terms that share rows do).
        copies: Names of trained copies of the policy that the rule moves. Each starts with the stage, has an
            optimizer of its name, and is saved with the run.
    """

    per_term: bool = False
    copies: tuple[str, ...] = ()

    def combine(
        self, gradients: Mapping[str, list[Tensor]], batch: Batch
    ) -> tuple[list[Tensor], dict[str, float]]:
        """One gradient per parameter from those of the policy's terms by name, already summed over
        ranks (so dot products and norms are global), and numbers to log. The batch is assigned.
        """
        return add_up(list(gradients.values())), {}

    def accepts(self, norm: float) -> bool:
        """Whether a step with this gradient norm (before clipping) is taken."""
        return True

    def step(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Take the optimizer step."""
        optimizer.step()

    def after(self, bench: Bench, batch: Batch, method: Any) -> dict[str, float]:
        """Called after each optimizer step with its assigned batch; returns numbers to log.

        The batch's `old_logp` is the log-probability before the rollout step's first update.
        """
        return {}


@dataclass(frozen=True)
class SkipLargeGradients(UpdateRule):
    """Leaves out a step whose gradient norm, before clipping, is above a limit.

    Reference:
        HPT, official code (arXiv 2509.04419).
    """

    limit: float

    def accepts(self, norm: float) -> bool:
        return norm <= self.limit


def add_up(gradients: Sequence[list[Tensor]]) -> list[Tensor]:
    """Sum of several gradients, parameter by parameter."""
    return [sum(parts[1:], parts[0]) for parts in zip(*gradients, strict=True)]


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Inner product of two gradients over all parameters, in float64."""
    return math.fsum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))


def norm(a: Sequence[Tensor]) -> float:
    """Euclidean norm of a gradient over all parameters."""
    return math.sqrt(dot(a, a))


def cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Cosine between two gradients; 0 where one of them is 0."""
    size = norm(a) * norm(b)
    return dot(a, b) / size if size > 0 else 0.0


def dropped(gradient: list[Tensor], other: list[Tensor]) -> list[Tensor]:
    """Nothing of it."""
    return [torch.zeros_like(g) for g in gradient]


def projected(gradient: list[Tensor], other: list[Tensor]) -> list[Tensor]:
    """What of it is orthogonal to the other (PCGrad, arXiv 2001.06782)."""
    share = dot(gradient, other) / dot(other, other)
    return [g - share * o for g, o in zip(gradient, other, strict=True)]


YIELDS: Mapping[str, Callable[[list[Tensor], list[Tensor]], list[Tensor]]] = {
    "drop": dropped,
    "project": projected,
}
"""What is left of a gradient that opposes another."""


@dataclass(frozen=True)
class ConflictRule(UpdateRule):
    """The gradient of one term gives way where it opposes the sum of all others.

    Attributes:
        yields: `drop` leaves it out, `project` takes away only the opposing part.
        term: The name of the term that gives way.

    One sign decides for all parameters together. In a step without any advantage (equal rewards) the rest is
    no more than its penalties, and nothing gives way to them.

    Reference:
        GTA (arXiv 2509.12108).
    """

    yields: Literal["drop", "project"] = "drop"
    term: str = "sft"
    per_term = True

    def combine(
        self, gradients: Mapping[str, list[Tensor]], batch: Batch
    ) -> tuple[list[Tensor], dict[str, float]]:
        own = gradients[self.term]
        rest = add_up([g for name, g in gradients.items() if name != self.term])
        similarity = cosine(own, rest)
        conflict = similarity < 0 and has_advantage(batch)
        left = YIELDS[self.yields](own, rest) if conflict else own
        return add_up([left, rest]), {"conflict": float(conflict), "conflict/cosine": similarity}


def has_advantage(batch: Batch) -> bool:
    """Whether some rollout token of the step is rewarded or punished."""
    sampled = batch.is_source("rollout") & batch.active[batch.row]
    return bool((batch.arrays["advantage"][sampled] != 0).any())


@dataclass
class Frozen(UpdateRule):
    """Entries under the masks keep their value to the bit, whatever the optimizer does to them.

    An optimizer moves an entry without a gradient too (momentum, weight decay), so values are put back.

    Attributes:
        masks: One bool tensor per trainable parameter, or none at all. Set by the alternation.

    Reference:
        MIFO (arXiv 2510.04454).
    """

    masks: list[Tensor] = field(default_factory=list)

    def step(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
        before = [p.detach().clone() for p in parameters] if self.masks else []
        optimizer.step()
        with torch.no_grad():
            for p, value, mask in zip(parameters, before, self.masks, strict=False):
                p.copy_(torch.where(mask, value, p))

    def state_dict(self) -> dict[str, Any]:
        return {"masks": list(self.masks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.masks = list(state["masks"])


def largest_entries(importance: Sequence[Tensor], share: float) -> list[Tensor]:
    """Masks of the largest entries over all tensors together, without ever joining them.

    Args:
        importance: Non-negative float32 tensors.
        share: The ceil(share * number)-th largest entry is the threshold; ties with it are in, entries of
            exactly 0 never.

    Returns:
        One bool tensor each.
    """
    wanted = math.ceil(share * sum(t.numel() for t in importance) - 1e-9)
    if wanted <= 0:
        return [torch.zeros_like(t, dtype=torch.bool) for t in importance]
    bits = [t.detach().float().contiguous().view(torch.int32) for t in importance]
    # The bit patterns of non-negative floats are ordered as the floats: bisect on them. 0 stays outside.
    low, high = 1, int(torch.tensor(math.inf).view(torch.int32))
    while low < high:
        middle = (low + high + 1) // 2
        if sum(int((b >= middle).sum()) for b in bits) >= wanted:
            low = middle
        else:
            high = middle - 1
    return [b >= low for b in bits]


def take_step(bench: Bench, name: str, gradient: Sequence[Tensor]) -> None:
    """An optimizer step of a trained copy, with the policy's learning rate and clip."""
    parameters, optimizer = bench.trainable(name), bench.optimizers[name]
    for p, g in zip(parameters, gradient, strict=True):
        p.grad = g
    limit = math.inf if bench.clip_grad is None else bench.clip_grad
    torch.nn.utils.clip_grad_norm_(parameters, limit)
    for group in optimizer.param_groups:
        group["lr"] = bench.lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    bench.publish()


def linear_weights(bench: Bench, policy: str = "policy") -> list[torch.nn.Parameter]:
    """The matrices of a policy's linear layers."""
    model: Any = bench.policies[policy]
    return model.linear_weights()


def linear(bench: Bench, gradient: Sequence[Tensor], policy: str = "policy") -> list[Tensor]:
    """The part of a gradient that belongs to a policy's linear weights."""
    found = {id(p): g for p, g in zip(bench.trainable(policy), gradient, strict=True)}
    return [found[id(p)] for p in linear_weights(bench, policy)]


UNDECAYED = partial(torch.optim.AdamW, weight_decay=0.0)


@dataclass
class BilevelTeacher(UpdateRule):
    """The student is trained as usual; a copy follows RL alone; a low-rank teacher w pulls both.

    The policy is student + w on every linear weight, w = up @ down, and its model holds the sum. So the
    gradient of the dense weight, taken through the product, is that of w, and a teacher step adds the change
    of w to both models. After each student step, on the same rollouts:

        1. the copy takes an RL step with the student's learning rate and clip
        2. w climbs  mu SFT(student) + (1 - mu) [RL(student) - RL(copy)]  at the weights just reached

    With mu = 0 copy and student stay equal to the bit and w stays 0.

    Attributes:
        rl: The method's RL term alone, with coefficient 1.
        mu: The share of SFT in the student's objective.
        supervised: The name of the method's SFT term, whose coefficient is mu.
        rank: Rank of w.
        lr: Learning rate of the teacher.
        resync: Optimizer steps after which the copy takes the student's weights; `None` is never.
        optimizer: From the teacher's tensors to its optimizer.

    Reference:
        BRIDGE (arXiv 2509.06948).
    """

    rl: Any
    mu: Callable[[Context], float]
    rank: int = 16
    lr: float = 1e-5
    resync: int | None = None
    supervised: str = "sft"
    optimizer: Callable[..., torch.optim.Optimizer] = UNDECAYED
    copies = ("auxiliary",)

    def __post_init__(self) -> None:
        self.up: list[Tensor] = []
        self.down: list[Tensor] = []
        self.updates = 0
        self._state: Mapping[str, Any] | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def state_dict(self) -> dict[str, Any]:
        optimizer = self._state if self._optimizer is None else self._optimizer.state_dict()
        up, down = ([t.detach() for t in side] for side in (self.up, self.down))
        return {"up": up, "down": down, "optimizer": optimizer, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.up, self.down, self.updates = list(state["up"]), list(state["down"]), state["updates"]
        self._state, self._optimizer = state["optimizer"], None

    def after(self, bench: Bench, batch: Batch, method: Any) -> dict[str, float]:
        teacher = self._teacher(bench)
        mu = self.mu(Context(bench.step, {}, batch))
        take_step(bench, "auxiliary", bench.gradient(self.rl, batch, policy="auxiliary"))
        gain = [
            mine - theirs
            for mine, theirs in zip(
                linear(bench, bench.gradient(self.rl, batch)),
                linear(bench, bench.gradient(self.rl, batch, policy="auxiliary"), "auxiliary"),
                strict=True,
            )
        ]
        imitation = linear(bench, bench.gradient(method, batch, terms=[self.supervised]))
        before = [u.detach() @ d.detach() for u, d in zip(self.up, self.down, strict=True)]
        for u, d, s, g in zip(self.up, self.down, imitation, gain, strict=True):
            slope = s + (1 - mu) * g
            u.grad, d.grad = slope @ d.detach().T, u.detach().T @ slope
        teacher.step()
        self.updates += 1
        with torch.no_grad():
            now = [u @ d for u, d in zip(self.up, self.down, strict=True)]
            for name in ("policy", "auxiliary"):
                for p, new, old in zip(linear_weights(bench, name), now, before, strict=True):
                    p.add_(new - old)
            if self.resync is not None and self.updates % self.resync == 0:
                for p, target in zip(bench.trainable("auxiliary"), bench.trainable(), strict=True):
                    p.copy_(target)
        bench.publish()
        return {"teacher/norm": norm(now), "teacher/gain_grad_norm": norm(gain)}

    def _teacher(self, bench: Bench) -> torch.optim.Optimizer:
        """The teacher's optimizer; its tensors are made at the first step, w = 0."""
        if not self.up:
            generator = torch.Generator().manual_seed(bench.seed * 1_000_003 + 32)
            for p in linear_weights(bench):
                drawn = torch.empty(min(self.rank, *p.shape), p.shape[1])
                torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
                self.down.append(drawn.to(p))
                self.up.append(torch.zeros(p.shape[0], drawn.shape[0]).to(p))
        if self._optimizer is None:
            tensors = [t.detach().requires_grad_() for t in (*self.up, *self.down)]
            self.up, self.down = tensors[: len(self.up)], tensors[len(self.up) :]
            self._optimizer = self.optimizer(tensors, lr=self.lr)
            if self._state is not None:
                self._optimizer.load_state_dict(dict(self._state))
        return self._optimizer
