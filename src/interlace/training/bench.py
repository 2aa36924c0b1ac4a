"""The bench that a method's rules work at, and the memory of those rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interlace.methods._method import Method
from interlace.rules.bench import Stateful
from interlace.training.collect import Feed, annotate, pack
from interlace.training.objective import assign, prepare
from interlace.training.step import accumulate, take_gradient
from interlace.types import Batch, Policy, Problem, SampleRequest, Source, Trajectory

if TYPE_CHECKING:
    from interlace.training.loop import StageRun


class TrainingBench:
    """`rules.bench.Bench` over a stage at work."""

    def __init__(self, stage: StageRun) -> None:
        self._stage = stage
        s = stage.stage.settings
        self.steps = s.steps or 0
        self.seed = stage.run.seed
        self.policies: Mapping[str, Policy] = stage.policies
        self.optimizers = stage.optimizers
        self.group_size, self.prompts_per_step = s.group_size, s.prompts_per_step
        self.demos_per_step = s.demos_per_step or 0
        self.max_new_tokens = s.max_new_tokens or 64
        self.lr = s.lr or 0.0
        self.shelf = stage.shelf
        self.validation: Sequence[Problem] = stage.validation
        self.prompts: Sequence[Problem] = stage.feeds["rl"].problems
        self._asked = 0

    @property
    def step(self) -> int:
        return self._stage.progress.step

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float | None = None
    ) -> list[Trajectory]:
        """n scored rollouts of each problem; their randomness is apart from that of the step's own rows."""
        rollouts = self._stage.rollouts
        sampling = rollouts.sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        requests = [
            SampleRequest(p, n, sampling, group=f"{p.id}#bench{self._asked + i}")
            for i, p in enumerate(problems)
        ]
        rollouts.engine.refresh()
        groups = rollouts.fulfil(requests, self.step, (1 << 30) + self._asked * n)
        self._asked += len(requests)
        return [row for group in groups for row in group]

    def begin_step(self) -> None:
        """Row ids of bench samples start anew in every step, so that a resumed run draws the same."""
        self._asked = 0

    def demonstrations(self, n: int) -> list[Problem]:
        feed: Feed = self._stage.feeds["sft"]
        return feed.take(n) if feed.problems else []

    def demonstration_row(self, problem: Problem) -> Trajectory | None:
        if problem.demonstration is None:
            return None
        return self._stage.rollouts.demonstration(problem, 0, problem.id)

    def batch(self, rows: Sequence[Trajectory], method: Method) -> Batch:
        s = self._stage.stage.settings
        numbered = [replace(row, row=i) for i, row in enumerate(rows)]
        batch = pack(numbered, completion_limit=s.max_new_tokens)
        batch = annotate(
            batch,
            method.needs,
            self.policies,
            micro_batch_tokens=s.micro_batch_tokens,
            ranks=self._stage.ranks,
        )
        return replace(assign(batch, method, step=self.step), on_policy=True)

    def gradient(
        self, method: Method, batch: Batch, terms: Sequence[str] | None = None, policy: str = "policy"
    ) -> list[Tensor]:
        stage = self._stage
        prepared = prepare(batch, method, step=self.step, state=stage.progress.state)
        chosen = tuple(p for p in prepared.terms if terms is None or p.term.name in terms)
        parameters = self.trainable(policy)
        before = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        models = {**stage.policies, "policy": stage.policies[policy]}
        accumulate(
            replace(prepared, terms=chosen),
            models,
            micro_batch_tokens=stage.stage.settings.micro_batch_tokens,
            ranks=stage.ranks,
        )
        taken = take_gradient(parameters, stage.ranks)
        for p, grad in zip(parameters, before, strict=True):
            p.grad = grad
        return taken

    def trainable(self, policy: str = "policy") -> list[torch.nn.Parameter]:
        return self._stage.policies[policy].trainable()

    def publish(self) -> None:
        for policy in self._stage.policies.values():
            if hasattr(policy, "publish"):
                policy.publish()
        self._stage.rollouts.engine.refresh()


def stateful(method: Method) -> Iterator[Stateful]:
    """The objects of a method, and of the stages it alternates between, that have a memory."""
    parts = [method, *(method.stages.values() if method.alternation is not None else ())]
    seen: list[Any] = []
    for part in parts:
        for item in (part.sample, part.alternation, *part.controllers, part.update, part.row_scorer):
            if isinstance(item, Stateful) and not any(item is other for other in seen):
                seen.append(item)
                yield item


def plain_rows(rows: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Rows as plain data, the problem by its id, for a file."""
    return [
        {
            **{
                k: v for k, v in row.__dict__.items() if k not in ("problem", "sampling", "verdict", "finish")
            },
            "ids": list(map(int, row.ids)),
            "source": list(map(int, row.source)),
            "behaviour_logp": None if row.behaviour_logp is None else list(map(float, row.behaviour_logp)),
            "problem": row.problem.id,
            "verdict": None if row.verdict is None else str(row.verdict),
            "finish": int(row.finish),
            "parts": dict(row.parts),
            "extra": dict(row.extra),
            "span": [list(x) for x in row.span],
        }
        for row in rows
    ]


def rows_of(plain: Sequence[Mapping[str, Any]], problems: Mapping[str, Problem]) -> list[Trajectory]:
    """What `plain_rows` wrote; a row whose problem is unknown keeps an empty one of that id."""
    from interlace.types import Finish, Verdict

    return [
        Trajectory(
            **{
                **row,
                "problem": problems.get(row["problem"], Problem(row["problem"], "")),
                "verdict": None if row["verdict"] is None else Verdict(row["verdict"]),
                "finish": Finish(row["finish"]),
                "span": [tuple(x) for x in row["span"]],
            }
        )
        for row in plain
    ]


def as_demonstration(row: Trajectory) -> Trajectory:
    """A rollout as a row to imitate: sampled tokens become demonstration tokens, ids stay as they are."""
    source = [int(Source.DEMO) if s in (Source.ROLLOUT, Source.PREFIX) else int(s) for s in row.source]
    return replace(row, source=source, sampling=None, temperature=1.0)
