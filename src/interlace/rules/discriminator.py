"""A reward for every token, learned online: does it come from an expert or from the policy?"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from interlace.rules.bench import Bench
from interlace.rules.corrupted import OPERATORS, corruptions
from interlace.rules.samplers import rewritten
from interlace.types import Source, Trajectory

TOKENS_AT_ONCE = 8192
"""Tokens of one forward pass; the gradient does not depend on it."""


@dataclass
class TokenDiscriminator:
    """A copy of the policy's start weights with one logit f per response token, trained once in every step.

    Experts are the demonstrations of the step's problems, each once; the others are the step's rollouts and
    corrupted demonstrations. The loss is the binary cross-entropy of f, a mean over the tokens of a row, over
    the rows of a class, and of both classes. All tokens of a row share its label, smoothed to 1 - smoothing/2
    and smoothing/2. After its update every row of the step gets `extra.token_reward`, f of each of its tokens
    (which is log D - log(1 - D)). A step without demonstration leaves it as it is.

    Attributes:
        lr: Learning rate (AdamW, no weight decay).
        smoothing: Label smoothing.
        corrupted: Corrupted versions of each demonstration.
        clip_grad: Largest gradient norm.
        notes: Numbers of the last step, to log.

    Every rank trains the same copy on all rows. It is not needed to answer.

    Reference:
        R-AIRL (arXiv 2510.01857).
    """

    lr: float = 1e-5
    smoothing: float = 0.1
    corrupted: int = 2
    clip_grad: float = 1.0
    notes: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._model: Any = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._state: Mapping[str, Any] | None = None

    def score_rows(self, bench: Bench, rows: Sequence[Trajectory]) -> list[Trajectory]:
        """Train on the step's rows, then give each its token rewards."""
        self._prepare(bench)
        experts, others = self.classes(bench, rows)
        self.notes = self.update(bench, experts, others) if experts and others else {}
        rewards = [values.tolist() for values in self.logits(bench, rows)]
        return [
            replace(row, extra={**row.extra, "token_reward": reward})
            for row, reward in zip(rows, rewards, strict=True)
        ]

    def classes(self, bench: Bench, rows: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
        """Expert rows, and those of the policy with corrupted demonstrations."""
        rng = random.Random(f"corrupted/{bench.seed}/{bench.step}")
        problems = list({row.problem.id: row.problem for row in rows}.values())
        shown = "".join(p.demonstration or "" for p in problems)
        operators = "".join(c for c in OPERATORS if c in shown)
        experts, others = [], [row for row in rows if row.sampling is not None]
        for problem in problems:
            expert = bench.demonstration_row(problem)
            if expert is None:
                continue
            experts.append(expert)
            for text in corruptions(problem.demonstration or "", self.corrupted, rng, operators):
                try:
                    twin = bench.demonstration_row(rewritten(problem, text))
                except ValueError:  # the tokenizer cannot write it
                    continue
                if twin is not None:
                    others.append(twin)
        return experts, [row for row in others if has_answer(row)]

    def update(
        self, bench: Bench, experts: Sequence[Trajectory], others: Sequence[Trajectory]
    ) -> dict[str, float]:
        """One step of the discriminator; what it gave before."""
        assert self._optimizer is not None
        rows = [*experts, *others]
        expert = torch.arange(len(rows)) < len(experts)
        target = torch.where(expert, 1 - self.smoothing / 2, self.smoothing / 2).double()
        share = torch.where(expert, 0.5 / len(experts), 0.5 / len(others)).double()
        loss, means = 0.0, torch.zeros(len(rows), dtype=torch.float64)
        for index, batch, statistics in self._passes(bench, rows, grad=True):
            f = statistics["value"]
            logit, row = f.detach().double().cpu(), batch.row
            weight = (share[index] / batch.length)[row]
            y = target[index][row]
            bce = torch.nn.functional.binary_cross_entropy_with_logits(logit, y, reduction="none")
            loss += float((weight * bce).sum())
            means[index] = torch.zeros(len(index), dtype=torch.float64).index_add(0, row, logit)
            means[index] /= batch.length
            self._model.backward(statistics, {"value": weight * (torch.sigmoid(logit) - y)})
        torch.nn.utils.clip_grad_norm_(self._model.trainable(), self.clip_grad)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._model.publish()
        return {
            "discriminator/loss": loss,
            "discriminator/expert": float(means[expert].mean()),
            "discriminator/other": float(means[~expert].mean()),
        }

    def logits(self, bench: Bench, rows: Sequence[Trajectory]) -> list[Tensor]:
        """f of every response token of each row."""
        found: list[Tensor] = [torch.zeros(0)] * len(rows)
        for index, batch, statistics in self._passes(bench, rows, grad=False):
            parts = statistics["value"].double().cpu().split(batch.length.tolist())
            for i, values in zip(index.tolist(), parts, strict=True):
                found[i] = values
        return found

    def _passes(
        self, bench: Bench, rows: Sequence[Trajectory], *, grad: bool
    ) -> Iterator[tuple[Tensor, Any, Mapping[str, Tensor]]]:
        part: list[int] = []
        tokens = 0
        for i, row in enumerate([*rows, None]):
            if part and (row is None or tokens + len(row.ids) > TOKENS_AT_ONCE):
                batch = bench.packed([read_after(rows[j]) for j in part])
                yield torch.tensor(part), batch, self._model.score(batch, ("value",), grad=grad)
                part, tokens = [], 0
            if row is not None:
                part.append(i)
                tokens += len(row.ids)

    def _prepare(self, bench: Bench) -> None:
        if self._model is not None:
            return
        policy: Any = bench.policies["policy"]
        self._model = policy.copy()
        self._model.add_value_head()
        self._optimizer = torch.optim.AdamW(self._model.trainable(), lr=self.lr, weight_decay=0.0)
        if self._state is not None:
            with torch.no_grad():
                for name, parameter in self._model.named_trainable().items():
                    parameter.copy_(self._state["weights"][name])
            self._model.publish()
            self._optimizer.load_state_dict(self._state["optimizer"])

    def state_dict(self) -> dict[str, Any]:
        if self._model is None or self._optimizer is None:
            return dict(self._state or {})
        weights = {name: p.detach().cpu() for name, p in self._model.named_trainable().items()}
        return {"weights": weights, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._model, self._optimizer, self._state = None, None, state or None


def has_answer(row: Trajectory) -> bool:
    """Whether a row has a response token."""
    return any(source not in (Source.PROMPT, Source.OBSERVATION) for source in row.source)


def read_after(row: Trajectory) -> Trajectory:
    """The row shifted by one, so that what is read for a token is the state after it."""
    return Trajectory(
        row=row.row,
        ids=[*row.ids, row.ids[-1]],
        source=[Source.PROMPT, *row.source],
        group=row.group,
        problem=row.problem,
    )
