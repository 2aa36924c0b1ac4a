"""Collecting one rollout step: sample, score, pack, annotate.

    problems -> sampler (yields requests) -> engine -> scorer -> trajectories -> Batch -> annotated Batch

The one shift from a token to the slot that predicts it is in `pack`, for rollouts and demonstrations alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from interlace.rollout.fills import fill
from interlace.rules.samplers import Collector, MaskedText, Sampler, plain
from interlace.training.distributed import Ranks
from interlace.training.microbatches import plan
from interlace.types import (
    SPANS,
    Batch,
    Completion,
    Engine,
    Finish,
    Policy,
    Problem,
    SampleRequest,
    Sampling,
    Score,
    Slots,
    Source,
    Trajectory,
    Verdict,
)

VERDICT_CODES = {Verdict.PASS: 1, Verdict.FAIL: 0, Verdict.UNSCORABLE: -1, None: 2}


ROW_EXTRAS = ("class_weight", "class_reward", "role", "mix_lambda", "token_reward")
"""Columns of the data that methods read from `Trajectory.extra`."""


class Renderer(Protocol):
    """Turns problems into ids and ids into text (`policies/render.py`)."""

    def prompt_ids(self, problem: Problem) -> list[int]: ...

    def demonstration_ids(self, problem: Problem) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    @property
    def mask_id(self) -> int: ...

    @property
    def special_ids(self) -> frozenset[int]: ...


class Scorer(Protocol):
    """Scores texts against their problems (`rewards/workers.py`)."""

    def score(self, items: list[tuple[str, Problem]]) -> list[Score]: ...


@dataclass
class Feed:
    """An endless stream of problems whose order is a function of (seed, epoch) alone.

    Attributes:
        problems: What is drawn, without replacement within an epoch.
        seed: Seed of the order.
        drawn: How many were drawn so far: the whole state of the feed.
    """

    problems: Sequence[Any]
    seed: int
    drawn: int = 0
    _epoch: int = field(default=-1, repr=False)
    _order: list[int] = field(default_factory=list, repr=False)

    def take(self, n: int) -> list[Any]:
        """The next n problems."""
        return [self._next() for _ in range(n)]

    def _next(self) -> Any:
        epoch, place = divmod(self.drawn, len(self.problems))
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
            self._order = torch.randperm(len(self.problems), generator=generator).tolist()
            self._epoch = epoch
        self.drawn += 1
        return self.problems[self._order[place]]


def draw(feed: Feed, n: int) -> list[Any]:
    """The next n items of a feed, none from an empty one.

    An item may be rows that belong together (a tuple); they get a group of their own in every draw.
    """
    items: list[Any] = []
    for i, item in enumerate(feed.take(n) if feed.problems else ()):
        together = isinstance(item, tuple)
        items += [replace(row, group=f"{row.group}#{i}") for row in item] if together else [item]
    return items


@dataclass
class Rollouts:
    """Fulfils the requests of a sampler: prompts rendered once, ids as sampled, every row scored.

    Attributes:
        version: Version of the weights, counted in optimizer steps.
        policy: The policy whose weights the engine samples from, where masked texts are filled.
        generated: Tokens sampled so far.
    """

    engine: Engine
    renderer: Renderer
    scorer: Scorer
    sampling: Sampling
    seed: int
    version: int = 0
    policy: Any = None
    ranks: Ranks = field(default_factory=Ranks)
    generated: int = 0
    _rendered: dict[str, tuple[Problem, list[int], list[int]]] = field(default_factory=dict, repr=False)

    def rendered(self, problem: Problem) -> tuple[list[int], list[int]]:
        """Prompt and demonstration ids of a problem, from the one renderer, once."""
        known = self._rendered.get(problem.id)
        if known is None or known[0] is not problem:
            prompt = self.renderer.prompt_ids(problem)
            answer = [] if problem.demonstration is None else self.renderer.demonstration_ids(problem)
            known = self._rendered[problem.id] = (problem, prompt, answer)
        return known[1], known[2]

    def demonstration(self, problem: Problem, row: int, group: str | int) -> Trajectory:
        """The teacher-forced row of a problem's demonstration, its end-of-sequence token included."""
        prompt, ids = self.rendered(problem)
        source = [Source.PROMPT] * len(prompt) + [Source.DEMO] * len(ids)
        given = problem.meta.get("behaviour_logp")
        behaviour = None
        if given is not None:
            if len(given) != len(ids):
                raise ValueError(
                    f"problem {problem.id}: behaviour_logp has {len(given)} numbers, its demonstration has "
                    f"{len(ids)} tokens (end-of-sequence included); they must agree"
                )
            behaviour = [math.nan] * len(prompt) + list(given)
        extra = {key: problem.meta[key] for key in ROW_EXTRAS if key in problem.meta}
        return Trajectory(
            row, prompt + ids, source, group, problem, behaviour, finish=Finish.STOP, extra=extra
        )

    def score(self, rows: Sequence[Trajectory]) -> None:
        """Fill in reward, verdict and parts from the decoded answers, hints and prefixes included."""
        found = self.scorer.score([(self.text(r), r.problem) for r in rows]) if self.ranks.first else []
        scores = self.ranks.broadcast([(s.reward, s.verdict, s.parts) for s in found])
        for row, (reward, verdict, parts) in zip(rows, scores, strict=True):
            row.reward, row.verdict, row.parts = reward, verdict, parts

    def text(self, row: Trajectory) -> str:
        """What a row answers: everything that is not prompt, a hint too."""
        pairs = zip(row.ids, row.source, strict=True)
        return self.renderer.decode([token for token, source in pairs if source != Source.PROMPT])

    def fulfil(
        self, requests: Sequence[SampleRequest], step: int, first_row: int, engine: Engine | None = None
    ) -> list[list[Trajectory]]:
        """Sample and score, with another engine if one is given; rows are numbered from `first_row` in
        request order.
        """
        numbered, row = [], first_row
        for request in requests:
            prompt = request.prompt_ids or tuple(self.rendered(request.problem)[0])
            rows = tuple(range(row, row + request.n))
            row += request.n
            sampling = request.sampling or self.sampling
            numbered.append(replace(request, prompt_ids=prompt, rows=rows, sampling=sampling))
        mine = (engine or self.engine).generate(self.ranks.mine(numbered), seed=self.seed, step=step)
        by_rank = self.ranks.gather(mine)
        completions = [by_rank[i % self.ranks.size][i // self.ranks.size] for i in range(len(numbered))]
        groups = [
            [self._trajectory(request, c, r) for c, r in zip(found, request.rows, strict=True)]
            for request, found in zip(numbered, completions, strict=True)
        ]
        self.generated += sum(len(c.ids) for found in completions for c in found)
        self.score([row for group in groups for row in group])
        return groups

    def fill(self, texts: Sequence[MaskedText], step: int, first_row: int) -> list[list[Trajectory]]:
        """Draw and score the fills of masked texts; rows are numbered from `first_row` in request order.

        A fill is a rollout whose decisions are the masked positions. A position at which any fill of its text
        drew a special token is no decision of any of them.
        """
        first = first_row + torch.tensor([0, *(text.n for text in texts)]).cumsum(0)
        mine = self.ranks.mine(list(zip(texts, first.tolist(), strict=False)))
        drawn = fill(self.policy, mine, self.sampling.temperature, seed=self.seed, step=step)
        by_rank = self.ranks.gather(drawn)
        ordered = [by_rank[i % self.ranks.size][i // self.ranks.size] for i in range(len(texts))]
        groups = [
            [self._filled(text, ids, row + k, found) for k, ids in enumerate(found)]
            for text, row, found in zip(texts, first.tolist(), ordered, strict=False)
        ]
        self.generated += sum(text.n * len(text.masked) for text in texts)
        self.score([row for group in groups for row in group])
        return groups

    def _filled(self, text: MaskedText, ids: list[int], row: int, group: list[list[int]]) -> Trajectory:
        special = self.renderer.special_ids
        free = {t for t in text.masked if not any(other[t] in special for other in group)}
        rest = len(text.ids) - text.prompt
        source = [Source.PROMPT] * text.prompt + [Source.OBSERVATION] * rest
        for t in free:
            source[t] = Source.ROLLOUT
        return Trajectory(
            row=row,
            ids=ids,
            source=source,
            group=text.group,
            problem=text.problem,
            finish=Finish.STOP,
            temperature=self.sampling.temperature,
            policy_version=self.version,
            sampling=self.sampling,
            inputs=text.inputs,
        )

    def _trajectory(self, request: SampleRequest, completion: Completion, row: int) -> Trajectory:
        given = [*request.prompt_ids, *request.hint_ids, *request.prefix_ids]
        source = [
            *[Source.PROMPT] * len(request.prompt_ids),
            *[Source.HINT] * len(request.hint_ids),
            *[Source.PREFIX] * len(request.prefix_ids),
            *[Source.ROLLOUT] * len(completion.ids),
        ]
        assert request.sampling is not None
        return Trajectory(
            row=row,
            ids=[*given, *completion.ids],
            source=source,
            group=request.problem.id if request.group is None else request.group,
            problem=request.problem,
            behaviour_logp=[math.nan] * len(given) + list(completion.logp),
            finish=completion.finish,
            temperature=request.sampling.temperature,
            policy_version=self.version,
            sampling=request.sampling,
        )


@dataclass(frozen=True)
class Collected:
    """The rows of one rollout step and what the sampler noted about them."""

    rows: list[Trajectory]
    notes: Mapping[str, float]


def collect(
    rollouts: Rollouts,
    sampler: Sampler | None,
    problems: Sequence[Problem],
    *,
    step: int,
    group_size: int,
    feed: Feed | None = None,
    demonstrations: Sequence[Problem | Trajectory] = (),
    demonstrated: Sequence[Problem] = (),
) -> Collected:
    """Run a method's sampler over the problems of one step, then append rows of the demonstration feed.

    Args:
        feed: Where a sampler draws further problems from, every problem at most once in a step.
        demonstrations: Problems whose demonstrations are trained beside the rollouts, each its own group, or
            rows made before (`as_demonstration`), whose groups are kept.
        demonstrated: All problems whose demonstration a sampler may use.
    """
    used = 0
    drawn = len(problems)

    def more(n: int) -> list[Problem]:
        nonlocal drawn
        if feed is None:
            return []
        n = min(n, len(feed.problems) - drawn)
        drawn += max(n, 0)
        return feed.take(max(n, 0))

    def demonstration(problem: Problem, group: str | int) -> Trajectory | None:
        nonlocal used
        if problem.demonstration is None:
            return None
        row = rollouts.demonstration(problem, used, group)
        used += 1
        return row

    collector = Collector(
        group_size=group_size,
        step=step,
        seed=rollouts.seed,
        sampling=rollouts.sampling,
        renderer=rollouts.renderer,
        demonstrated=demonstrated,
        more=more,
        solution=lambda problem: rollouts.rendered(problem)[1],
        demonstration=demonstration,
        score=rollouts.score,
    )
    rows: list[Trajectory] = []
    if problems:
        generator = (sampler or plain)(problems, collector)
        try:
            requests = next(generator)
            while True:
                # One problem drawn twice in a step is two groups, unless the sampler joins them by name.
                sampled = [
                    replace(r, group=f"{r.problem.id}#{used + i}") if r.group is None else r
                    for i, r in enumerate(requests)
                    if isinstance(r, SampleRequest)
                ]
                masked = [r for r in requests if isinstance(r, MaskedText)]
                groups = rollouts.fill(masked, step, used) if masked else rollouts.fulfil(sampled, step, used)
                used += sum(map(len, groups))
                requests = generator.send(groups)
        except StopIteration as done:
            rows = done.value
    for i, item in enumerate(demonstrations):
        if isinstance(item, Trajectory):
            rows.append(replace(item, row=used + i))
        else:
            rows.append(rollouts.demonstration(item, used + i, f"demonstration#{i}"))
    return Collected(rows, dict(collector.notes))


def pack(rows: Iterable[Trajectory], completion_limit: int | None = None) -> Batch:
    """All rows in one flat batch: a slot for every token that predicts another, a decision for every token
    that the policy had to choose (rollout, demonstration, prefix and hint tokens, end-of-sequence included).
    """
    rows = list(rows)
    inputs: list[int] = []
    positions: list[int] = []
    slot_rows: list[int] = []
    slots: list[int] = []
    targets: list[int] = []
    decision_rows: list[int] = []
    sources: list[int] = []
    behaviour: list[float] = []
    temperatures: list[float] = []
    spans: list[int] = []
    for r, row in enumerate(rows):
        start = len(inputs)
        length = len(row.ids)
        inputs.extend((row.ids if row.inputs is None else row.inputs)[: length - 1])
        positions.extend(range(length - 1))
        slot_rows.extend([r] * (length - 1))
        span_of = {t: SPANS.index(name) for a, b, name in row.span for t in range(a, b)}
        for t, source in enumerate(row.source):
            if source in (Source.PROMPT, Source.OBSERVATION) or t == 0:
                continue
            slots.append(start + t - 1)
            targets.append(row.ids[t])
            decision_rows.append(r)
            sources.append(source)
            behaviour.append(math.nan if row.behaviour_logp is None else row.behaviour_logp[t])
            temperatures.append(row.temperature if source == Source.ROLLOUT else 1.0)
            spans.append(span_of.get(t, -1))
    groups: dict[Any, int] = {}
    episodes: dict[Any, int] = {}
    group = [groups.setdefault(row.group, len(groups)) for row in rows]
    episode = [
        episodes.setdefault(("own", i) if row.episode is None else (row.group, row.episode), len(episodes))
        for i, row in enumerate(rows)
    ]
    given = {"behaviour_logp": behaviour, "ref_logp": carried(rows, decision_rows)}
    arrays = {name: torch.tensor(values, dtype=torch.float64) for name, values in given.items()}
    return Batch(
        row_id=torch.tensor([row.row for row in rows], dtype=torch.int64),
        group=torch.tensor(group, dtype=torch.int64),
        episode=torch.tensor(episode, dtype=torch.int64),
        reward=torch.tensor([math.nan if r.reward is None else r.reward for r in rows], dtype=torch.float64),
        verdict=torch.tensor([VERDICT_CODES[r.verdict] for r in rows], dtype=torch.int8),
        finish=torch.tensor([r.finish for r in rows], dtype=torch.int8),
        is_rollout=torch.tensor([r.sampling is not None for r in rows], dtype=torch.bool),
        active=torch.ones(len(rows), dtype=torch.bool),
        extra=tuple(r.extra for r in rows),
        row=torch.tensor(decision_rows, dtype=torch.int64),
        source=torch.tensor(sources, dtype=torch.int8),
        span=torch.tensor(spans, dtype=torch.int8),
        arrays={name: values for name, values in arrays.items() if not bool(values.isnan().all())},
        slots=Slots(
            input=torch.tensor(inputs, dtype=torch.int64),
            position=torch.tensor(positions, dtype=torch.int64),
            row=torch.tensor(slot_rows, dtype=torch.int64),
            slot=torch.tensor(slots, dtype=torch.int64),
            target=torch.tensor(targets, dtype=torch.int64),
            temperature=torch.tensor(temperatures, dtype=torch.float32),
        ),
        completion_limit=completion_limit,
        group_names=tuple(groups),
    )


def carried(rows: Sequence[Trajectory], row: Sequence[int]) -> list[float]:
    """The reference's log-probability of every decision of rows that bring it (`extra["ref_logp"]`, one
    number per decision), NaN elsewhere; `row` is the row of each decision.
    """
    given = {r: iter(one.extra["ref_logp"]) for r, one in enumerate(rows) if "ref_logp" in one.extra}
    return [next(given[r]) if r in given else math.nan for r in row]


ANNOTATIONS: Mapping[str, tuple[str, str]] = {
    "old_logp": ("policy", "logp"),
    "entropy": ("policy", "entropy"),
    "topk_mass": ("policy", "topk_mass"),
    "ref_logp": ("reference", "logp"),
    "values": ("critic", "value"),
}
"""For each array that a method may need: which policy gives it and by which statistic."""


def annotate(
    batch: Batch,
    needs: Iterable[str],
    policies: Mapping[str, Policy],
    *,
    micro_batch_tokens: int,
    rows: torch.Tensor | None = None,
    ranks: Ranks | None = None,
) -> Batch:
    """One no-grad pass per policy that fills the detached arrays a method needs.

    Args:
        needs: Names of `ANNOTATIONS`; an array that is already there is left as it is.
        rows: int64, only these rows (default all); others keep NaN.
    """
    ranks = ranks or Ranks()
    wanted: dict[str, dict[str, str]] = {}
    for name in needs:
        if name in ANNOTATIONS and (name not in batch.arrays or rows is not None):
            policy, statistic = ANNOTATIONS[name]
            wanted.setdefault(policy, {})[statistic] = name
    rows = torch.arange(batch.n_rows) if rows is None else rows
    lengths = row_tokens(batch)[rows].tolist()
    found = {
        name: batch.arrays.get(name, torch.full((batch.n_decisions,), math.nan, dtype=torch.float64)).clone()
        for names in wanted.values()
        for name in names.values()
    }
    for policy, names in wanted.items():
        pieces = []
        for micro in ranks.mine(plan(lengths, micro_batch_tokens, ranks.size)):
            chosen = rows[torch.tensor(micro, dtype=torch.int64)]
            statistics = policies[policy].score(batch.subset(chosen), tuple(names), grad=False)
            pieces.append(
                (
                    batch.decisions_of(chosen),
                    {n: statistics[s].detach().double().cpu() for s, n in names.items()},
                )
            )
        for piece in ranks.gather(pieces):
            for index, values in piece:
                for name, value in values.items():
                    found[name][index] = value
    return batch.with_arrays(**found)


def mix_inputs(batch: Batch, policy: Policy, share: float, micro_batch_tokens: int) -> Batch:
    """Mix into the input embedding of every demonstration token the model's own likeliest token there.

    Where a slot's input is itself a demonstration token (it was predicted one slot earlier), its second
    input is the greedy prediction from the unmixed prefix, with weight `share`.

    Reference:
        IFT (arXiv 2405.11870): temporal residual connection.
    """
    if share == 0 or batch.slots is None:
        return batch
    s = batch.slots
    predicted = torch.zeros(batch.n_decisions, dtype=torch.int64)
    for micro in plan(row_tokens(batch).tolist(), micro_batch_tokens):
        chosen = torch.tensor(micro, dtype=torch.int64)
        found = policy.score(batch.subset(chosen), ("argmax",), grad=False)["argmax"]
        predicted[batch.decisions_of(chosen)] = found.long().cpu()
    demo = batch.is_source("demo")
    after = s.slot[demo] + 1
    inside = after < s.input.numel()
    inside &= s.row[after.clamp(max=s.input.numel() - 1)] == s.row[s.slot[demo]]
    second, weight = s.input.clone(), torch.zeros(s.input.numel())
    second[after[inside]] = predicted[demo][inside]
    weight[after[inside]] = share
    return replace(batch, slots=replace(s, second_input=second, second_weight=weight))


def row_tokens(batch: Batch) -> torch.Tensor:
    """int64 [R]: input slots of each row, what a micro-batch's budget counts."""
    assert batch.slots is not None
    return torch.bincount(batch.slots.row, minlength=batch.n_rows)
