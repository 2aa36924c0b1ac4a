"""What surrounds a method's rule in training: the objects it may bring, and the bench they work at.

    sampler      problems -> requests -> scored rows                      (`samplers.py`)
    alternation  which of the method's stages takes the next step         (`alternation.py`)
    controllers  numbers that coefficients read, moved by feedback        (`controllers.py`)
    update rule  how gradients become an update                           (`updates.py`)
    harvest      rows that a stage is trained on, made at its start       (`harvest.py`)

Each mechanism is one small object. What it must remember it returns from `state_dict` (tensors, numbers,
texts, lists and dicts of them), which is saved in every checkpoint and given back to `load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from interlace.types import Batch, Policy, Problem, Source, Trajectory


@runtime_checkable
class Stateful(Protocol):
    """An object whose memory is saved with the run."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Bench(Protocol):
    """What rules may use while a stage trains.

    Attributes:
        step: Rollout steps done in this stage.
        steps: Rollout steps that this stage has.
        seed: The run's seed; draw with a generator made from (seed, step, a constant of your own).
        policies: `policy`, and where the method has them `reference`, `critic` and others.
        optimizers: By name; `policy` is the main one.
        group_size, prompts_per_step, demos_per_step, max_new_tokens: The stage's settings.
        lr: The learning rate of this step.
        clip_grad: The largest gradient norm of a step; `None` is any.
        shelf: Rows kept for later stages, by name.
        validation: Problems that are never trained on.
        prompts: All training problems.
        demonstrated: Those of them whose demonstration is used.
        rows: The rows of the last step.
    """

    step: int
    steps: int
    seed: int
    policies: Mapping[str, Policy]
    optimizers: Mapping[str, torch.optim.Optimizer]
    group_size: int
    prompts_per_step: int
    demos_per_step: int
    max_new_tokens: int
    lr: float
    clip_grad: float | None
    shelf: dict[str, list[Trajectory]]
    validation: Sequence[Problem]
    prompts: Sequence[Problem]
    demonstrated: Sequence[Problem]
    rows: Sequence[Trajectory]

    def sample(
        self,
        problems: Sequence[Problem],
        n: int,
        *,
        temperature: float | None = None,
        policy: str = "policy",
    ) -> list[Trajectory]:
        """n scored rollouts of each problem, n in a row, at a policy's present weights.

        Args:
            temperature: `None` takes the stage's.
            policy: Which of `policies` answers.
        """
        ...

    def text(self, row: Trajectory) -> str:
        """What a row answers."""
        ...

    def log_probs(self, rows: Sequence[Trajectory]) -> list[list[float]]:
        """The policy's log-probability of every decision of each row, at present weights."""
        ...

    def demonstrations(self, n: int) -> list[Problem]:
        """The next n problems of the demonstration feed."""
        ...

    def demonstration_row(self, problem: Problem) -> Trajectory | None:
        """The teacher-forced row of a problem's demonstration, `None` where it has none."""
        ...

    def packed(self, rows: Sequence[Trajectory]) -> Batch:
        """Rows packed as they are, for a model of a rule's own."""
        ...

    def batch(self, rows: Sequence[Trajectory], method: Any) -> Batch:
        """Rows packed, annotated and assigned as the method needs them."""
        ...

    def assign(self, batch: Batch, method: Any) -> Batch:
        """A packed and annotated batch with the advantages and the selection of a method."""
        ...

    def gradient(
        self, method: Any, batch: Batch, terms: Sequence[str] | None = None, policy: str = "policy"
    ) -> list[Tensor]:
        """Gradient of some terms of a method's loss on an assigned batch at present weights, summed over
        ranks, one tensor per trainable parameter of `policy`. Nothing is updated, no `.grad` is changed.
        """
        ...

    def trainable(self, policy: str = "policy") -> list[torch.nn.Parameter]:
        """What the optimizer holds (float32 masters)."""
        ...

    def renew_reference(self) -> None:
        """Let the reference, where there is one, be the policy as it is now."""
        ...

    def publish(self) -> None:
        """Call after changing trainable parameters by hand."""
        ...


def as_demonstration(row: Trajectory) -> Trajectory:
    """A rollout as a row to imitate: sampled tokens become demonstration tokens, ids stay as they are."""
    source = [int(Source.DEMO) if s in (Source.ROLLOUT, Source.PREFIX) else int(s) for s in row.source]
    return replace(row, source=source, sampling=None, temperature=1.0)


@dataclass(frozen=True)
class Turn:
    """What the next step does.

    Attributes:
        stage: Name of one of the method's stages.
        demonstrations: Problems or rows to train on instead of the demonstration feed; `None` is the feed.
        optimizer: Name of the optimizer that steps (`policy`, or one that the alternation declares).
        sample: Whether rollouts are sampled in this step, where the stage has a sampler.
        numbers: What goes into the state that coefficients read.
        notes: Numbers to log with the step.
    """

    stage: str
    demonstrations: Sequence[Problem | Trajectory] | None = None
    optimizer: str = "policy"
    sample: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)


class Alternation(Stateful, Protocol):
    """Chooses the stage of every step.

    Attributes:
        optimizers: Peak learning rates of further optimizers on the policy's parameters, each with its own
            state; `None` is that of the stage.
    """

    optimizers: Mapping[str, float | None]

    def turn(self, bench: Bench) -> Turn:
        """What the next step does; asked once a step, the same on every rank."""
        ...

    def observe(
        self, bench: Bench, turn: Turn, rows: Sequence[Trajectory], batch: Batch, results: Any
    ) -> None:
        """Called after the step with its rows, its assigned batch and one result per optimizer step."""
        ...


class Controller(Stateful, Protocol):
    """Moves numbers that coefficients read as `Context.state`."""

    def before(self, bench: Bench, batch: Batch) -> Mapping[str, float]:
        """This step's numbers, given its collected batch before advantages."""
        ...

    def after(self, bench: Bench, rows: Sequence[Trajectory], batch: Batch, results: Any) -> None:
        """Called after the step's updates."""
        ...


class RowScorer(Protocol):
    """Changes the rows of a step before they are packed: a learned token reward, a corrupted twin.

    Numbers to log may stand in an attribute `notes`; what it remembers, as in `Stateful`.
    """

    def score_rows(self, bench: Bench, rows: Sequence[Trajectory]) -> Sequence[Trajectory]: ...


@dataclass(frozen=True)
class Harvested:
    """What a stage is trained on.

    Attributes:
        rows: Demonstration rows in the place of the feed; rows of one group are drawn together.
        prompts: Ids of the problems that the stage samples; `None` is all of them.
        notes: Counts of how the rows came about, for the log and the result.
        skip: Why the stage is left out; the run goes on with the weights that it has.
        ends: Whether later stages are left out with it.
    """

    rows: list[Trajectory]
    prompts: list[str] | None = None
    notes: Mapping[str, float] = field(default_factory=dict)
    skip: str | None = None
    ends: bool = False


class Harvest(Protocol):
    """Makes what a stage is trained on, once, before its first step; it is kept in the run folder.

    The bench's `policy` has the weights that the stage before left, also where the stage itself starts from
    the base; there `base` is a policy too.
    """

    def __call__(self, bench: Bench) -> Harvested: ...
