"""Which of a method's stages takes the next step.

    FailureBuffer       RL, and an SFT step once enough hard prompts wait     (ReLIFT)
    FreezingBuffer      the same, with what RL changed most frozen in SFT     (MIFO)
    GradientNormSwitch  SFT or RL, drawn by how large the SFT gradient is     (SASR)

A turn is one step of the run: it counts in `steps`, has a line in the metrics, and moves the learning-rate
schedule.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from interlace.rules.bench import Bench, Turn
from interlace.rules.updates import Frozen, largest_entries, norm
from interlace.types import Batch, Problem, Trajectory


@dataclass
class FailureBuffer:
    """RL steps; hard prompts wait in a buffer, and `size` of them make an SFT step of their demonstrations.

    At most one SFT step follows an RL step, on the newest prompts, with an optimizer of its own. Entries are
    not renewed and do not age; a prompt that fails twice is in it twice; one without a usable demonstration
    is not taken in. What is left at the end of the run is never trained on.

    Attributes:
        hard: bool [R] of an assigned batch: rows of groups whose prompt is taken in.
        size: How many prompts make an SFT step.
        lr: Peak learning rate of the SFT optimizer; `None` is that of RL.
        rl, sft: Names of the two stages.
        waiting: Ids of the waiting prompts, the next to be trained on first.
        imitated: Demonstrations trained on so far.
        last: The stage of the last turn.

    Reference:
        ReLIFT (arXiv 2506.07527).
    """

    hard: Callable[[Batch], Tensor]
    size: int
    lr: float | None = None
    rl: str = "rl"
    sft: str = "sft"
    waiting: list[str] = field(default_factory=list)
    imitated: int = 0
    last: str = ""

    @property
    def optimizers(self) -> Mapping[str, float | None]:
        return {self.sft: self.lr}

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": list(self.waiting), "imitated": self.imitated, "last": self.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.waiting, self.imitated, self.last = list(state["waiting"]), state["imitated"], state["last"]

    def turn(self, bench: Bench) -> Turn:
        if len(self.waiting) < self.size or not self.may_follow(self.last):
            self.last = self.rl
            return Turn(self.rl, numbers=self.numbers)
        self.last = self.sft
        return self.imitate(bench)

    @property
    def numbers(self) -> dict[str, float]:
        """For the log: how many prompts wait, and how many demonstrations were trained on."""
        return {"waiting": len(self.waiting), "imitated": self.imitated}

    def may_follow(self, last: str) -> bool:
        """Whether an SFT step may follow that stage."""
        return last == self.rl

    def imitate(self, bench: Bench) -> Turn:
        """An SFT step on the first `size` prompts of the buffer."""
        known = {problem.id: problem for problem in bench.demonstrated}
        chosen, self.waiting = self.waiting[: self.size], self.waiting[self.size :]
        self.imitated += len(chosen)
        return Turn(self.sft, [known[i] for i in chosen], self.sft, sample=False, numbers=self.numbers)

    def observe(
        self, bench: Bench, turn: Turn, rows: Sequence[Trajectory], batch: Batch, results: Any
    ) -> None:
        if turn.stage == self.rl:
            usable = {problem.id for problem in bench.demonstrated}
            self.take_in([p.id for p in prompts_of(self.hard(batch), rows, batch) if p.id in usable])

    def take_in(self, failed: list[str]) -> None:
        """Newest first: later failures are those of the present policy."""
        self.waiting = failed + self.waiting


def prompts_of(chosen: Tensor, rows: Sequence[Trajectory], batch: Batch) -> list[Problem]:
    """The problem of every group with a chosen rollout row (bool [R]), in the order of the batch."""
    found: dict[int, Problem] = {}
    for i in (chosen & batch.is_rollout).nonzero()[:, 0].tolist():
        found.setdefault(int(batch.group[i]), rows[i].problem)
    return list(found.values())


@dataclass
class FreezingBuffer(FailureBuffer):
    """Cycles of an RL phase that fills the buffer and an SFT phase that uses it, with RL's changes protected.

    The SFT phase takes `size` prompts a step, the oldest first, until fewer are left. A prompt is in the
    buffer once. Importance is C = alpha C + (1 - alpha) |weights now - weights at the start of the RL phase|,
    and the `share` largest entries over all weights together are frozen through the SFT phase.

    Attributes:
        frozen: The update rule of the SFT stage, which holds the masks.
        share: Share of the weights that are frozen.
        alpha: How much of the importance of earlier cycles is kept.
        start: Weights at the start of the RL phase.
        importance: C after the last RL phase.

    Reference:
        MIFO (arXiv 2510.04454).
    """

    frozen: Frozen = field(default_factory=Frozen)
    share: float = 0.5
    alpha: float = 0.0
    start: list[Tensor] = field(default_factory=list)
    importance: list[Tensor] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "start": list(self.start), "importance": list(self.importance)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.start, self.importance = list(state["start"]), list(state["importance"])

    def turn(self, bench: Bench) -> Turn:
        before = self.last
        turn = super().turn(bench)
        if self.share > 0 and turn.stage != before:
            if turn.stage == self.rl:
                self.start = [p.detach().clone() for p in bench.trainable()]
            else:
                self.remember([(p.detach() - s).abs() for p, s in zip(bench.trainable(), self.start)])
                self.start = []
                self.frozen.masks = largest_entries(self.importance, self.share)
        return turn

    def may_follow(self, last: str) -> bool:
        return last in (self.rl, self.sft)

    def remember(self, change: list[Tensor]) -> None:
        """Add one RL phase to the importance map."""
        if not self.importance or self.alpha == 0:
            self.importance = [(1 - self.alpha) * d for d in change]
        else:
            self.importance = [
                self.alpha * c + (1 - self.alpha) * d for c, d in zip(self.importance, change, strict=True)
            ]

    def take_in(self, failed: list[str]) -> None:
        """A prompt that is there already moves to the end."""
        self.waiting = [i for i in self.waiting if i not in failed] + list(dict.fromkeys(failed))


@dataclass
class GradientNormSwitch:
    """SFT steps first; then each step is drawn: SFT with a probability that follows the SFT gradient norm.

    The numbers g_last, g_warmup (norms before clipping, over all trainable parameters) and u ~ U(0, 1), the
    same on all ranks, are put in the state, and `choose` reads them. The reference becomes the policy after
    the warm-up.

    Attributes:
        choose: From the state to a stage's name.
        warmup_steps: SFT steps at the start; the last one measures g_warmup.
        refresh_every: RL steps in a row after which g_last is measured anew on a batch of demonstrations,
            without a step; `None` is never.
        supervised: The SFT stage's method.
        rl, sft: Names of the two stages.

    Reference:
        SASR (arXiv 2505.13026).
    """

    choose: Callable[[Mapping[str, float]], str]
    warmup_steps: int
    refresh_every: int | None = None
    supervised: Any = None
    rl: str = "rl"
    sft: str = "sft"
    g_last: float = 0.0
    g_warmup: float = 0.0
    since: int = 0
    optimizers: Mapping[str, float] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return {"g_last": self.g_last, "g_warmup": self.g_warmup, "since": self.since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.g_last, self.g_warmup, self.since = state["g_last"], state["g_warmup"], state["since"]

    def turn(self, bench: Bench) -> Turn:
        if bench.step < self.warmup_steps:
            if bench.step == 0 and bench.steps <= self.warmup_steps:
                warnings.warn(
                    f"all {bench.steps} steps are warm-up (warmup_steps={self.warmup_steps}), so there is no "
                    f"RL step; give more steps or a shorter warm-up",
                    stacklevel=2,
                )
            return Turn(self.sft)
        if bench.step == self.warmup_steps:
            bench.renew_reference()
        if self.refresh_every is not None and self.since >= self.refresh_every:
            rows = [bench.demonstration_row(p) for p in bench.demonstrations(bench.demos_per_step)]
            batch = bench.batch([row for row in rows if row is not None], self.supervised)
            self.g_last, self.since = norm(bench.gradient(self.supervised, batch)), 0
        u = random.Random(f"{bench.seed} {bench.step} gradient norm switch").random()
        numbers = {"g_last": self.g_last, "g_warmup": self.g_warmup, "u": u}
        return Turn(self.choose(numbers), numbers=numbers)

    def observe(
        self, bench: Bench, turn: Turn, rows: Sequence[Trajectory], batch: Batch, results: Any
    ) -> None:
        if turn.stage != self.sft:
            self.since += 1
            return
        self.since = 0
        measured = results[-1].grad_norm["policy"]
        if math.isfinite(measured):
            self.g_last = measured
        if bench.step == self.warmup_steps - 1:
            self.g_warmup = self.g_last
