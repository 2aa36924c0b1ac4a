"""How the problems of one rollout step become scored rows.

A sampler is a generator: it yields a list of `SampleRequest`s, receives their scored trajectories (one list
per request), may yield again, and returns the rows of the step. Engines only fulfil requests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from interlace.types import Problem, SampleRequest, Trajectory

Sampling = Generator[list[SampleRequest], list[list[Trajectory]], list[Trajectory]]


@dataclass
class Collector:
    """What a sampler may use.

    Attributes:
        group_size: Rollouts per problem.
        more: Draws that many further problems from the feed; fewer when every problem has been drawn once
            in this step.
        demonstration: The teacher-forced row of a problem's demonstration in a group, or `None` where it
            has none or it is over the limit.
        step: The rollout step.
        notes: Numbers to log with the step.
    """

    group_size: int
    more: Callable[[int], list[Problem]]
    demonstration: Callable[[Problem, str | int], Trajectory | None]
    step: int
    notes: dict[str, float] = field(default_factory=dict)


class Sampler(Protocol):
    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Sampling: ...


def plain(problems: Sequence[Problem], collector: Collector) -> Sampling:
    """One request per problem."""
    groups = yield [SampleRequest(p, collector.group_size) for p in problems]
    return [row for group in groups for row in group]


def has_signal(group: Sequence[Trajectory]) -> bool:
    """Whether a group has two distinct rewards."""
    return len({row.reward for row in group if row.reward is not None}) > 1


@dataclass(frozen=True)
class DynamicSampling:
    """Keeps sampling until as many groups with two distinct rewards are there as problems were asked for.

    Attributes:
        max_batches: Rounds of sampling at most; 0 is until every problem of the feed was tried once.

    The surplus is dropped, and where the rounds end first the step trains on the groups there are.

    Reference:
        DAPO (arXiv 2503.14476).
    """

    max_batches: int = 0

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Sampling:
        wanted, kept, sampled, rounds = len(problems), [], 0, 0
        batch = list(problems)
        while batch:
            groups = yield [SampleRequest(p, collector.group_size) for p in batch]
            rounds += 1
            sampled += len(groups)
            kept += [group for group in groups if has_signal(group)]
            if len(kept) >= wanted or rounds == self.max_batches:
                break
            batch = collector.more(wanted)
        collector.notes["sampling/rounds"] = rounds
        collector.notes["sampling/live_groups"] = len(kept) / max(sampled, 1)
        return [row for group in kept[:wanted] for row in group]
