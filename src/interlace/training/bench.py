"""The bench that a method's rules work at, and the memory of those rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interlace.methods._method import Method
from interlace.rollout import LocalEngine
from interlace.rules.bench import Stateful
from interlace.training.collect import annotate, draw, pack
from interlace.training.objective import assign, prepare
from interlace.training.step import accumulate, take_gradient
from interlace.types import Batch, Engine, Policy, Problem, SampleRequest, Trajectory

if TYPE_CHECKING:
    from interlace.training.loop import StageRun


class TrainingBench:
    """`rules.bench.Bench` over a stage at work."""

    def __init__(self, stage: StageRun) -> None:
        self._stage = stage
        s = stage.stage.settings
        self.seed = stage.run.seed
        self.policies: Mapping[str, Policy] = stage.policies
        self.optimizers = stage.optimizers
        self.group_size, self.prompts_per_step = s.group_size, s.prompts_per_step
        self.demos_per_step = s.demos_per_step or 0
        self.max_new_tokens = s.max_new_tokens or 64
        self.lr = s.lr or 0.0
        self.clip_grad = s.clip_grad
        self.shelf = stage.shelf
        self.validation: Sequence[Problem] = stage.validation
        self.prompts: Sequence[Problem] = stage.feeds["rl"].problems
        self.demonstrated = stage.demonstrated
        self.rows: Sequence[Trajectory] = ()
        self._engines: dict[str, Engine] = {"policy": stage.rollouts.engine}
        self.begin_step()

    @property
    def step(self) -> int:
        return self._stage.progress.step

    @property
    def steps(self) -> int:
        return self._stage.expected_steps

    def sample(
        self,
        problems: Sequence[Problem],
        n: int,
        *,
        temperature: float | None = None,
        policy: str = "policy",
    ) -> list[Trajectory]:
        """n scored rollouts of each problem; their randomness is apart from that of the step's own rows."""
        if policy not in self._engines:
            self._engines[policy] = LocalEngine.for_policy(self.policies[policy])
        rollouts, engine = self._stage.rollouts, self._engines[policy]
        sampling = rollouts.sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        requests = [
            SampleRequest(p, n, sampling, group=f"{p.id}#bench{self._next_row + i * n}")
            for i, p in enumerate(problems)
        ]
        engine.refresh()
        groups = rollouts.fulfil(requests, self.step, self._next_row, engine)
        self._next_row += len(requests) * n
        return [row for group in groups for row in group]

    def text(self, row: Trajectory) -> str:
        return self._stage.rollouts.text(row)

    def log_probs(self, rows: Sequence[Trajectory]) -> list[list[float]]:
        batch = annotate(
            pack(rows),
            ["old_logp"],
            self.policies,
            micro_batch_tokens=self._stage.stage.settings.micro_batch_tokens,
            ranks=self._stage.ranks,
        )
        return [part.tolist() for part in batch.arrays["old_logp"].split(batch.length.tolist())]

    def begin_step(self) -> None:
        """Row ids of bench samples start anew in every step, so that a resumed run draws the same; those of
        different stages differ.
        """
        self._next_row = (self._stage.progress.stage + 1) << 40

    def demonstrations(self, n: int) -> list[Problem]:
        return draw(self._stage.feeds["sft"], n)

    def demonstration_row(self, problem: Problem) -> Trajectory | None:
        if problem.demonstration is None:
            return None
        return self._stage.rollouts.demonstration(problem, 0, problem.id)

    def packed(self, rows: Sequence[Trajectory]) -> Batch:
        return pack([replace(row, row=i) for i, row in enumerate(rows)])

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
        return self.assign(batch, method)

    def assign(self, batch: Batch, method: Method) -> Batch:
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

    def renew_reference(self) -> None:
        self._stage.renew_reference()

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
        rules = (part.sample, part.alternation, *part.controllers, part.update, part.row_scorer)
        for item in (*rules, part.finished):
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
