"""From a scored batch to one number per decision: what `explain` prints and what training feeds back.

prepare   regroup -> advantages -> select -> coefficients, masks and denominators of every term
evaluate  terms on leaf copies of the statistics -> reducer -> gradient with respect to the leaves
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interlace.methods._method import Method
from interlace.parts.masks import leave_out
from interlace.parts.reducer import STANDARD, Counts, Denominator, reduce, row_scale
from interlace.parts.terms import Context, Term, TermReport
from interlace.types import Batch, Statistics


@dataclass(frozen=True)
class PreparedTerm:
    """A term with everything that is known before any forward pass.

    Attributes:
        covered: bool [N].
        scale: float64 [R], each row's factor before the division.
        n: Value of the denominator over the whole optimizer step.
        coefficient: This step's factor.
    """

    term: Term
    covered: Tensor
    scale: Tensor
    n: float
    coefficient: float
    denominator: str

    @property
    def live(self) -> Tensor:
        """bool [N]: decisions that can have a gradient."""
        if self.coefficient == 0 or self.n == 0:
            return torch.zeros_like(self.covered)
        return self.covered


@dataclass(frozen=True)
class Prepared:
    """A scored batch after regroup, advantages and select, with its terms."""

    batch: Batch
    terms: tuple[PreparedTerm, ...]

    def rows(self, rows: Tensor) -> Prepared:
        """The same for a subset of the rows; denominators stay those of the whole optimizer step."""
        decisions = self.batch.decisions_of(rows)
        terms = tuple(replace(t, covered=t.covered[decisions], scale=t.scale[rows]) for t in self.terms)
        return Prepared(self.batch.subset(rows), terms)


def validity(batch: Batch, method: Method) -> Batch:
    """Leaves out unscorable rows and rollout rows without reward; a bare verdict counts as reward 1 or 0."""
    reward = torch.where(batch.reward.isnan() & (batch.verdict == 1), 1.0, batch.reward)
    reward = torch.where(reward.isnan() & (batch.verdict == 0), 0.0, reward)
    batch = leave_out(replace(batch, reward=reward), batch.verdict == -1)
    return leave_out(batch, batch.is_rollout & ~method.scored(batch))


def assign(batch: Batch, method: Method, *, step: int = 0) -> Batch:
    """Validity, regroup, advantages and select, over a whole rollout step; `step` places schedules."""
    batch = validity(replace(batch, step=step), method)
    for rule in method.regroup:
        batch = rule(batch)
    if method.advantage is not None:
        batch = method.advantage(batch)
    for rule in method.select:
        batch = rule(batch)
    return batch


def prepare(
    batch: Batch, method: Method, *, step: int = 0, state: Mapping[str, float] | None = None
) -> Prepared:
    """Masks, denominators and coefficients of every term for one optimizer step of an assigned batch."""
    context = Context(step, state or {}, batch)
    return Prepared(batch, tuple(_prepare_term(term, batch, context) for term in method.terms))


def _prepare_term(term: Term, batch: Batch, context: Context) -> PreparedTerm:
    covered = term.covers(batch)
    coefficient = term.coefficient(context) if callable(term.coefficient) else term.coefficient
    if isinstance(term.denominator, Denominator):
        name, n = term.denominator.name, term.denominator.count(batch, covered)
    else:
        name = term.denominator
        length = term.max_length or batch.completion_limit
        if length is None:
            length = int(batch.length.max()) if batch.n_rows else 0
        n = STANDARD[name](Counts.of(covered, batch), length)
    return PreparedTerm(term, covered, row_scale(name, covered, batch), float(n), coefficient, name)


def evaluate(
    prepared: Prepared, statistics: Mapping[str, Statistics], terms: Sequence[int] | None = None
) -> list[tuple[TermReport, dict[str, Tensor]]]:
    """Each term's loss and its gradient with respect to the leaves.

    Args:
        prepared: The rows at hand (a micro-batch or everything), with the step's denominators.
        statistics: By policy name, the statistics of every decision, [N] each; copied to float64 leaves
            here, cut from any graph.
        terms: Indices of the terms to evaluate (default all).

    Returns:
        For each evaluated term its report and {statistic: d(loss)/d(leaf), float64 [N]}.
    """
    leaves = {
        policy: {name: value.detach().double().cpu().requires_grad_() for name, value in values.items()}
        for policy, values in statistics.items()
    }
    results = []
    for i in range(len(prepared.terms)) if terms is None else terms:
        p = prepared.terms[i]
        loss = torch.zeros((), dtype=torch.float64)
        gradients: dict[str, Tensor] = {}
        if bool(p.live.any()):
            read = p.term.reads(prepared.batch)
            cut = {name: leaves[p.term.policy][source] for name, source in read.items()}
            losses = p.term.evaluate(prepared.batch, p.covered, cut)
            loss = p.coefficient * reduce(losses.value, losses.row, p.scale, p.n)
            if loss.requires_grad:
                found = torch.autograd.grad(loss, list(cut.values()), allow_unused=True)
                gradients = {s: g for s, g in zip(read.values(), found, strict=True) if g is not None}
        report = TermReport(
            p.term.name, float(loss.detach()), p.coefficient, p.denominator, p.n, int(p.covered.sum())
        )
        results.append((report, gradients))
    return results


def total(gradients: Sequence[Mapping[str, Tensor]], n_decisions: int) -> dict[str, Tensor]:
    """Sum of several terms' leaf gradients, {statistic: float64 [N]}."""
    out: dict[str, Tensor] = {}
    for one in gradients:
        for name, g in one.items():
            out[name] = out.get(name, torch.zeros(n_decisions, dtype=torch.float64)) + g
    return out
