"""Numbers that follow the run: the balance of SFT and RL, and the end of a stage.

    MetaGradient   mu climbs the validation reward, and holds the entropy        (AMFT)
    PassRate       a stage ends once enough validation problems are solved
    Plateau        a stage ends once the validation loss falls no more

Schedules are in `schedules.py`, reward-driven balances in `methods/_mixture.py`: they need no memory. The
gradient-norm switch (SASR) and the buffers choose whole steps: `alternation.py`.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from interlace.rules.bench import Bench
from interlace.rules.updates import cosine, dot
from interlace.types import Batch, Problem, Trajectory, Verdict


def literal_meta_gradient(utility: list[Tensor], sft: list[Tensor], rl: list[Tensor], lr: float) -> float:
    """dU/dmu of one plain gradient step: -lr <grad U, g_sft - g_rl>."""
    return -lr * dot(utility, difference(sft, rl))


def cosine_meta_gradient(utility: list[Tensor], sft: list[Tensor], rl: list[Tensor], lr: float) -> float:
    """The same without its scale: -cos(grad U, g_sft - g_rl)."""
    return -cosine(utility, difference(sft, rl))


def difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
    return [x - y for x, y in zip(a, b, strict=True)]


META_GRADIENTS: Mapping[str, Callable[[list[Tensor], list[Tensor], list[Tensor], float], float]] = {
    "cosine": cosine_meta_gradient,
    "raw": literal_meta_gradient,
}
"""How much the utility U gains by mu, from grad U and the loss gradients g of the two parts."""


@dataclass
class MetaGradient:
    """mu <- clip(mu + eta_mu G + eta_entropy (H* - H), mu_min, mu_max), before every step.

    G = -cos(grad U, g_sft - g_rl) on every `every`-th step, else 0. U is the expected reward on validation
    problems: its gradient is a policy gradient on fresh rollouts of as many of them as a step has prompts.
    g_sft and g_rl are the gradients of the two losses on this step's rows, each by itself. H is the mean
    entropy of the step's rollout tokens, H* that of the first step (right after the warm-up).

    Attributes:
        mu: The balance, at first that of the start.
        rl, sft: The two losses as methods, with coefficient 1.
        utility: A method whose loss is minus the expected reward.
        meta: `cosine`, or `raw` for the literal product with the learning rate.
        entropy_sign: -1 lets an entropy above H* raise mu.
        target: H*.

    Without validation problems G is 0, a G that is not finite counts as 0.

    Reference:
        AMFT (arXiv 2508.06944, withdrawn).
    """

    mu: float
    rl: Any
    sft: Any
    utility: Any
    eta_mu: float = 0.05
    eta_entropy: float = 0.0005
    mu_min: float = 0.05
    mu_max: float = 0.95
    every: int = 20
    entropy_sign: int = 1
    meta: Literal["cosine", "raw"] = "cosine"
    target: float | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"mu": self.mu, "target": self.target}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mu, self.target = state["mu"], state["target"]

    def before(self, bench: Bench, batch: Batch) -> Mapping[str, float]:
        gradient = self.gradient(bench, batch) if bench.step % self.every == 0 else 0.0
        return self.move(gradient if math.isfinite(gradient) else 0.0, rollout_entropy(batch))

    def after(self, bench: Bench, rows: Sequence[Trajectory], batch: Batch, results: Any) -> None:
        """The update changes nothing here."""

    def move(self, gradient: float, entropy: float | None) -> dict[str, float]:
        """mu after one update, with what moved it."""
        change = self.eta_mu * gradient
        numbers = {"meta_gradient": gradient}
        if entropy is not None:
            self.target = entropy if self.target is None else self.target
            change += self.entropy_sign * self.eta_entropy * (self.target - entropy)
            numbers |= {"entropy": entropy, "entropy_target": self.target}
        self.mu = min(self.mu_max, max(self.mu_min, self.mu + change))
        return {"mu": self.mu, **numbers}

    def gradient(self, bench: Bench, batch: Batch) -> float:
        """G at present weights; 0 without validation problems."""
        problems = validation_sample(bench)
        if not problems:
            return 0.0
        rows = bench.sample(problems, bench.group_size)
        descent = bench.gradient(self.utility, bench.batch(rows, self.utility))
        rl, sft = (bench.gradient(part, bench.assign(batch, part)) for part in (self.rl, self.sft))
        return META_GRADIENTS[self.meta]([-g for g in descent], sft, rl, bench.lr)


def validation_sample(bench: Bench) -> list[Problem]:
    """As many validation problems as a step has prompts, others in every step."""
    rng = random.Random(f"{bench.seed} {bench.step} validation sample")
    return rng.sample(list(bench.validation), min(bench.prompts_per_step, len(bench.validation)))


def rollout_entropy(batch: Batch) -> float | None:
    """Mean entropy of the rollout tokens in nats; `None` where it was not measured or there are none."""
    if "entropy" not in batch.arrays:
        return None
    values = batch.arrays["entropy"][batch.is_source("rollout") & batch.active[batch.row]]
    return float(values.mean()) if values.numel() else None


@dataclass
class PassRate:
    """True once the share of validation problems solved by one rollout each reaches `rate`.

    Attributes:
        rate: From 0 to 1.
        every: Steps between measurements.
    """

    rate: float
    every: int = 10

    def __call__(self, bench: Bench) -> bool:
        if bench.step % self.every or not bench.validation:
            return False
        rows = bench.sample(bench.validation, 1)
        return sum(row.verdict is Verdict.PASS for row in rows) >= self.rate * len(rows)


@dataclass
class Plateau:
    """True once the loss of validation demonstrations has not fallen for `patience` measurements.

    The loss is the mean of -log p over their tokens at temperature 1.

    Attributes:
        patience: Measurements without a new lowest loss.
        every: Steps between measurements.
        lowest: The lowest loss so far.
        waited: Measurements since then.
    """

    patience: int
    every: int = 10
    lowest: float = math.inf
    waited: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {"lowest": self.lowest, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lowest, self.waited = state["lowest"], state["waited"]

    def __call__(self, bench: Bench) -> bool:
        if bench.step % self.every:
            return False
        rows = [row for p in bench.validation if (row := bench.demonstration_row(p)) is not None]
        logp = [x for row in bench.log_probs(rows) for x in row] if rows else []
        if not logp:
            raise ValueError(
                "until=loss: there is no validation problem with a demonstration; accepted here is until=pass"
            )
        loss = -math.fsum(logp) / len(logp)
        self.waited = 0 if loss < self.lowest else self.waited + 1
        self.lowest = min(self.lowest, loss)
        return self.waited >= self.patience


ACCEPTED = "pass:RATE or pass:RATE,EVERY (validation pass rate), loss:PATIENCE or loss:PATIENCE,EVERY"


def parse_until(text: str) -> PassRate | Plateau:
    """A rule that ends a stage: `pass:0.3` or `loss:3`, with steps between measurements as `pass:0.3,20`.

    Raises:
        ValueError: none of the accepted forms.
    """
    name, _, given = text.strip().partition(":")
    numbers = given.split(",")
    try:
        every = int(numbers[1]) if len(numbers) == 2 else 10
        if name == "pass" and len(numbers) <= 2 and 0 <= float(numbers[0]) <= 1 and every > 0:
            return PassRate(float(numbers[0]), every)
        if name == "loss" and len(numbers) <= 2 and int(numbers[0]) > 0 and every > 0:
            return Plateau(int(numbers[0]), every)
    except ValueError:
        pass
    near = difflib.get_close_matches(name, ("pass", "loss"), 1)
    hint = f"; did you mean '{near[0]}:{given}'?" if near and near[0] != name else ""
    raise ValueError(f"until={text!r}: accepted are {ACCEPTED}{hint}")
