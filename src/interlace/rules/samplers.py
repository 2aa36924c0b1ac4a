"""How the problems of one rollout step become scored rows.

A sampler is a generator: it yields a list of requests, receives their scored trajectories (one list per
request), may yield again, and returns the rows of the step. Engines only fulfil requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from interlace.rules.schedules import Cosine
from interlace.types import Problem, SampleRequest, Sampling, Trajectory


@dataclass(frozen=True)
class MaskedText:
    """A request for several fills of one text, drawn at its masked positions from a single forward pass.

    Attributes:
        problem: What the text answers.
        group: Group id of the fills.
        ids: Token ids, prompt included.
        prompt: How many of them are prompt.
        masked: Positions in `ids` that the policy fills; it reads `mask_id` there.
        mask_id: Token id of a mask.
        n: How many fills.
    """

    problem: Problem
    group: str | int
    ids: tuple[int, ...]
    prompt: int
    masked: tuple[int, ...]
    mask_id: int
    n: int

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the policy reads, as long as `ids`."""
        masked = set(self.masked)
        return tuple(self.mask_id if t in masked else token for t, token in enumerate(self.ids))


Requests = Sequence[SampleRequest] | Sequence[MaskedText]
Collecting = Generator[Requests, list[list[Trajectory]], list[Trajectory]]


class Renderer(Protocol):
    """What a sampler asks of the tokenizer."""

    @property
    def mask_id(self) -> int: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass
class Collector:
    """What a sampler may use.

    Attributes:
        group_size: Rollouts per problem.
        step, seed: The rollout step and the run's seed.
        sampling: How the run draws tokens.
        renderer: From ids to text, and the special ids.
        demonstrated: All problems whose demonstration is used.
        more: Draws that many further problems from the feed; fewer when every problem has been drawn once
            in this step.
        solution: Token ids of a problem's demonstration with its end token, empty where it has none.
        demonstration: The teacher-forced row of a problem's demonstration in a group, not scored yet, or
            `None` where it has none.
        score: Scores rows like rollouts.
        notes: Numbers to log with the step.
    """

    group_size: int
    step: int
    seed: int
    sampling: Sampling
    renderer: Renderer
    demonstrated: Sequence[Problem]
    more: Callable[[int], list[Problem]]
    solution: Callable[[Problem], list[int]]
    demonstration: Callable[[Problem, str | int], Trajectory | None]
    score: Callable[[Sequence[Trajectory]], None]
    notes: dict[str, float] = field(default_factory=dict)

    def random(self, purpose: str) -> random.Random:
        """Random numbers of this step, the same on every rank and after a resume."""
        return random.Random(f"{purpose}/{self.seed}/{self.step}")

    def room(self, given: int) -> Sampling:
        """The run's sampling for a continuation of `given` tokens that count towards the limit."""
        return replace(self.sampling, max_tokens=max(1, self.sampling.max_tokens - given))

    def note_rewards(self, name: str, rows: Sequence[Trajectory]) -> None:
        """Log the mean reward of some rows, if one has a reward."""
        rewards = [row.reward for row in rows if row.reward is not None]
        if rewards:
            self.notes[f"reward/{name}"] = sum(rewards) / len(rewards)


class Sampler(Protocol):
    """Makes the rows of a step. A `group_size` attribute takes the place of the stage's."""

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting: ...


def plain(problems: Sequence[Problem], collector: Collector) -> Collecting:
    """One request per problem."""
    groups = yield [SampleRequest(p, collector.group_size) for p in problems]
    return [row for group in groups for row in group]


@dataclass(frozen=True)
class Groups:
    """One request per problem, with a group size that is the method's own."""

    group_size: int

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting:
        groups = yield [SampleRequest(p, self.group_size) for p in problems]
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

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting:
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


def rewritten(problem: Problem, text: str) -> Problem:
    """The problem with another text as its demonstration, which nobody has log-probabilities of."""
    meta: Mapping[str, Any] = {k: v for k, v in problem.meta.items() if k != "behaviour_logp"}
    return replace(problem, demonstration=text, meta=meta)


def short_answer(problem: Problem) -> str | None:
    """A problem's answer as text, if it is a text or a number."""
    answer = problem.answer
    return str(answer) if isinstance(answer, str | int | float) else None


@dataclass(frozen=True)
class WithDemonstration:
    """Puts each problem's demonstration into its group, scored like a rollout.

    Attributes:
        replaces: Rollouts that are left out for it (at least one stays); 0 puts it beside them.
        label: A text around `{answer}` that stands in the place of the demonstration wherever the answer is
            a text or a number; `None` is the demonstration itself.

    A problem without demonstration gets all of its rollouts.

    Reference:
        LUFFY (arXiv 2504.14945) replaces one rollout; HPT (arXiv 2509.04419) and ViSurf (arXiv 2510.10606)
        add to them.
    """

    replaces: int = 0
    label: str | None = None

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting:
        problems = [self.shown(p) for p in problems]
        fewer = max(1, collector.group_size - self.replaces)
        groups = yield [
            SampleRequest(p, collector.group_size if p.demonstration is None else fewer) for p in problems
        ]
        rows, added = [], []
        for problem, group in zip(problems, groups, strict=True):
            rows += group
            row = collector.demonstration(problem, group[0].group)
            if row is not None:
                added.append(row)
                rows.append(row)
        collector.score(added)
        collector.note_rewards("demonstration", added)
        return rows

    def shown(self, problem: Problem) -> Problem:
        """The problem with what joins its group as its demonstration."""
        answer = None if self.label is None else short_answer(problem)
        if self.label is None or answer is None:
            return problem
        return rewritten(problem, self.label.replace("{answer}", answer))


@dataclass(frozen=True)
class FewShot:
    """The same few demonstrated problems in every step, beside fresh ones that are sampled only.

    Attributes:
        shots: How many demonstrated problems; `None` is as many as there are fresh ones.

    The demonstration stands in its group unscored, beside a whole group of rollouts.

    Reference:
        FEST (arXiv 2605.15012).
    """

    shots: int | None = None

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting:
        few = list(collector.demonstrated[: len(problems) if self.shots is None else self.shots])
        groups = yield [SampleRequest(p, collector.group_size) for p in (*few, *problems)]
        rows = [row for group in groups for row in group]
        guides = [collector.demonstration(p, g[0].group) for p, g in zip(few, groups, strict=False)]
        collector.note_rewards("guided", [row for group in groups[: len(few)] for row in group])
        return [*rows, *(row for row in guides if row is not None)]


@dataclass(frozen=True)
class PrefixedRollout:
    """One rollout of each group starts from the beginning of the demonstration.

    Attributes:
        high: Largest share of the demonstration.
        low_end: Where the smallest share ends.
        window_steps: Steps in which the smallest share falls from `high` to `low_end`, by half a cosine.

    The share is uniform between the two; a prefix never holds the last token, and where it is empty, or
    there is no demonstration, the rollout is an ordinary one. Prefix and continuation together keep the
    limit of new tokens.

    Reference:
        Prefix-RFT (arXiv 2507.01679).
    """

    high: float
    low_end: float
    window_steps: int

    def low(self, step: int) -> float:
        """The smallest share at a step."""
        return Cosine(self.high, self.low_end, 0, self.window_steps)(step)

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting:
        low, rng = self.low(collector.step), collector.random("prefix")
        requests = []
        for i, problem in enumerate(problems):
            share = low + (self.high - low) * rng.random()
            start, group = beginning(collector, problem, share), f"{problem.id}#{i}"
            whole = collector.group_size - bool(start)
            if whole:
                requests.append(SampleRequest(problem, whole, group=group))
            if start:
                sampling = collector.room(len(start))
                requests.append(SampleRequest(problem, 1, sampling, prefix_ids=start, group=group))
        groups = yield requests
        prefixed = [row for r, group in zip(requests, groups, strict=True) for row in group if r.prefix_ids]
        collector.note_rewards("prefixed", prefixed)
        collector.notes["prefix/low"] = low
        return [row for group in groups for row in group]


def beginning(collector: Collector, problem: Problem, share: float) -> tuple[int, ...]:
    """The first share of a demonstration, without its last token and with room for one more."""
    solution = collector.solution(problem)
    length = min(int(share * len(solution) + 1e-9), len(solution) - 1, collector.sampling.max_tokens - 1)
    return tuple(solution[: max(length, 0)])


@dataclass(frozen=True)
class HintedPrompt:
    """A shrinking part of the demonstration stands in the prompt of all rollouts of a problem.

    Attributes:
        steps: Steps with hints; 0 is none.
        low, high: The mean share of the demonstration falls from `high` to `low` by half a cosine.
        buckets: Equal parts of the demonstration; how many are shown is binomial with that mean share.

    Hint and continuation together keep the limit of new tokens.

    Reference:
        UFT (arXiv 2505.16984), which cuts at sentences; here the parts are of equal numbers of tokens.
    """

    steps: int
    low: float
    high: float
    buckets: int

    def share(self, step: int) -> float:
        """The mean share at a step."""
        if step > self.steps or not self.steps:
            return 0.0
        return Cosine(self.high, self.low, 0, self.steps)(step)

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting:
        share, rng = self.share(collector.step), collector.random("hint")
        requests, shown = [], 0
        for problem in problems:
            solution = collector.solution(problem)[:-1]
            buckets = min(self.buckets, len(solution))
            draws = [rng.random() < share for _ in range(self.buckets)]
            length = len(solution) * sum(draws[:buckets]) // max(buckets, 1)
            hint = tuple(solution[: min(length, collector.sampling.max_tokens - 1)])
            shown += len(hint)
            requests.append(
                SampleRequest(problem, collector.group_size, collector.room(len(hint)), hint_ids=hint)
            )
        groups = yield requests
        collector.notes["hint/share"] = share
        collector.notes["hint/tokens"] = shown / max(len(requests), 1)
        return [row for group in groups for row in group]


@dataclass(frozen=True)
class MicroGroups:
    """Builds each group in turns, and shows more of the demonstration wherever the rows so far did badly.

    Attributes:
        sizes: Rows of each turn.
        ratios: Share of the demonstration that a guided turn starts from; 1 is the whole of it, end token
            included, with nothing generated.
        thresholds: A turn is guided if the mean reward of the group so far is below its threshold.

    `extra.prefix_id` of a guided row is the number of demonstration tokens that it starts with, so that
    rows with the same prefix carry the same name.

    Reference:
        TRAPO (arXiv 2512.17636).
    """

    sizes: tuple[int, ...]
    ratios: tuple[float, ...]
    thresholds: tuple[float, ...]

    @property
    def group_size(self) -> int:
        return sum(self.sizes)

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting:
        done: list[list[Trajectory]] = [[] for _ in problems]
        for turn, (size, ratio, threshold) in enumerate(
            zip(self.sizes, self.ratios, self.thresholds, strict=True)
        ):
            requests: list[SampleRequest] = []
            places: list[int] = []
            shown: list[Trajectory] = []
            guided = 0
            for i, problem in enumerate(problems):
                group = f"{problem.id}#{i}"
                start: tuple[int, ...] = ()
                if ratio and mean_reward(done[i]) < threshold:
                    start = beginning(collector, problem, min(ratio, 1.0))
                guided += bool(start)
                if start and ratio >= 1:
                    length = len(collector.solution(problem))
                    copies = [collector.demonstration(problem, group) for _ in range(size)]
                    whole = [with_extra(row, prefix_id=length) for row in copies if row is not None]
                    done[i] += whole
                    shown += whole
                    continue
                sampling = collector.room(len(start))
                requests.append(SampleRequest(problem, size, sampling, prefix_ids=start, group=group))
                places.append(i)
            collector.score(shown)
            if requests:
                groups = yield requests
                for i, request, group_rows in zip(places, requests, groups, strict=True):
                    named = {"prefix_id": len(request.prefix_ids)} if request.prefix_ids else {}
                    done[i] += [with_extra(row, **named) for row in group_rows]
            collector.notes[f"guided/turn_{turn}"] = guided / max(len(problems), 1)
        return [row for group in done for row in group]


def mean_reward(rows: Sequence[Trajectory]) -> float:
    """Mean of the rewards there are; 0 where there is none."""
    rewards = [row.reward for row in rows if row.reward is not None]
    return sum(rewards) / len(rewards) if rewards else 0.0


def with_extra(row: Trajectory, **extra: Any) -> Trajectory:
    """The row with more in its `extra`."""
    return replace(row, extra={**row.extra, **extra}) if extra else row
