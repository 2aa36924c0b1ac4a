"""One optimizer step, in the order of the formula.

    prepare      masks, denominators, coefficients            (known before any forward pass)
    plan         micro-batches by token budget
    first pass   leaves of terms that must see more than a micro-batch
    score        statistics S of the policy's decisions
    evaluate     d(sum of terms) / d(leaf copies of S)        one number per decision
    backward     that number as the cotangent of S
    optimizer    clip, step

No mean is taken anywhere in this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from interlace.methods._method import Method
from interlace.parts.terms import TermReport
from interlace.rules.updates import UpdateRule
from interlace.training.collect import row_tokens
from interlace.training.distributed import Ranks
from interlace.training.microbatches import plan
from interlace.training.objective import Prepared, evaluate, prepare, total
from interlace.types import Batch, Policy, Statistics


class Trainable(Policy, Protocol):
    """A policy with an optimizer's parameters (full-precision masters where it computes in bf16)."""

    def trainable(self) -> list[torch.nn.Parameter]: ...

    def publish(self) -> None: ...


@dataclass
class StepResult:
    """What one optimizer step did.

    Attributes:
        terms: One report per term.
        grad_norm: By policy, before clipping.
        logp: float64 [N], the policy's log-probability of every scored decision at this step's weights,
            NaN elsewhere; the old log-probability of later steps of the same rollouts.
        scored_rows, rows: How many rows were scored, of how many.
        tokens: Input slots that went forward and backward.
        finite: False if the gradient was not, and nothing was updated.
        metrics: Numbers for the log.
    """

    terms: list[TermReport]
    grad_norm: dict[str, float]
    logp: Tensor
    scored_rows: int
    rows: int
    tokens: int
    finite: bool = True
    metrics: dict[str, float] = field(default_factory=dict)


def rows_to_score(prepared: Prepared) -> Tensor:
    """int64: rows with a decision on which some term can have a gradient; the others are not scored."""
    live = torch.zeros(prepared.batch.n_decisions, dtype=torch.bool)
    for p in prepared.terms:
        if p.term.silent_without_advantage:
            live |= p.live & (prepared.batch.arrays["advantage"] != 0)
        else:
            live |= p.live
    return torch.unique(prepared.batch.row[live])


def needs_of(prepared: Prepared, terms: Sequence[int]) -> dict[str, tuple[str, ...]]:
    """By policy, the statistics that these terms read."""
    needs: dict[str, list[str]] = {}
    for i in terms:
        term = prepared.terms[i].term
        logged = ("logp",) if term.policy == "policy" else ()
        needs.setdefault(term.policy, []).extend([*logged, *term.reads(prepared.batch).values()])
    return {policy: tuple(dict.fromkeys(names)) for policy, names in needs.items()}


def accumulate(
    prepared: Prepared, policies: Mapping[str, Policy], *, micro_batch_tokens: int, ranks: Ranks
) -> tuple[list[TermReport], Tensor, int, int]:
    """Add the gradient of the whole objective to every policy's parameters (summed over ranks).

    Returns:
        Reports of the terms, logp of every scored decision [N], rows scored, tokens scored.
    """
    batch = prepared.batch
    rows = rows_to_score(prepared)
    lengths = row_tokens(batch)[rows].tolist()
    micro_batches = plan(lengths, micro_batch_tokens, ranks.size)
    live = [i for i, p in enumerate(prepared.terms) if bool(p.live.any())]
    whole = len(micro_batches) == 1
    local = [i for i in live if whole or prepared.terms[i].term.pool == "row"]
    wide = [i for i in live if i not in local]
    reports = {i: evaluate_empty(prepared, i) for i in range(len(prepared.terms)) if i not in live}
    wide_gradients: dict[int, dict[str, Tensor]] = {}
    if wide:
        needs = needs_of(prepared, wide)
        statistics = first_pass(batch, rows, micro_batches, needs, policies, ranks)
        for i, (report, gradient) in zip(wide, evaluate(prepared, statistics, wide), strict=True):
            reports[i], wide_gradients[i] = report, gradient
    logp = torch.full((batch.n_decisions,), math.nan, dtype=torch.float64)
    partial: list[tuple[Tensor, Tensor]] = []
    local_reports: list[dict[int, TermReport]] = []
    for micro in ranks.mine(micro_batches):
        if not micro:
            continue
        chosen = rows[torch.tensor(micro, dtype=torch.int64)]
        part = prepared.rows(chosen)
        index = batch.decisions_of(chosen)
        needs = needs_of(prepared, live)
        scored = {name: policies[name].score(part.batch, names, grad=True) for name, names in needs.items()}
        results = dict(zip(local, evaluate(part, scored, local), strict=True))
        local_reports.append({i: report for i, (report, _) in results.items()})
        for name in needs:
            gradients = [g for i, (_, g) in results.items() if part.terms[i].term.policy == name]
            gradients += [
                {s: g[index] for s, g in wide_gradients[i].items()}
                for i in wide
                if part.terms[i].term.policy == name
            ]
            send_back(policies[name], scored[name], total(gradients, part.batch.n_decisions))
        if "policy" in scored:
            partial.append((index, scored["policy"]["logp"].detach().double().cpu()))
    for pieces in ranks.gather(partial):
        for index, values in pieces:
            logp[index] = values
    everyone = [r for rank in ranks.gather(local_reports) for r in rank]
    for i in local:
        reports[i] = merge_reports([r[i] for r in everyone], evaluate_empty(prepared, i))
    return [reports[i] for i in range(len(prepared.terms))], logp, rows.numel(), sum(lengths)


def first_pass(
    batch: Batch,
    rows: Tensor,
    micro_batches: Sequence[Sequence[int]],
    needs: Mapping[str, tuple[str, ...]],
    policies: Mapping[str, Policy],
    ranks: Ranks,
) -> dict[str, dict[str, Tensor]]:
    """Statistics of the whole optimizer step without a graph, gathered over ranks; NaN on unscored rows."""
    out = {
        policy: {s: torch.full((batch.n_decisions,), math.nan, dtype=torch.float64) for s in names}
        for policy, names in needs.items()
    }
    pieces = []
    for micro in ranks.mine(micro_batches):
        if micro:
            chosen = rows[torch.tensor(micro, dtype=torch.int64)]
            found = {
                p: policies[p].score(batch.subset(chosen), names, grad=False) for p, names in needs.items()
            }
            values = {p: {s: v.detach().double().cpu() for s, v in f.items()} for p, f in found.items()}
            pieces.append((batch.decisions_of(chosen), values))
    for piece in ranks.gather(pieces):
        for index, values in piece:
            for policy, named in values.items():
                for s in out[policy]:
                    out[policy][s][index] = named[s]
    return out


def send_back(policy: Policy, statistics: Statistics, cotangents: Mapping[str, Tensor]) -> None:
    """The numbers per decision become the gradient of the parameters."""
    if cotangents:
        policy.backward(statistics, {s: g.to(statistics[s]) for s, g in cotangents.items()})


def evaluate_empty(prepared: Prepared, i: int) -> TermReport:
    p = prepared.terms[i]
    return TermReport(p.term.name, 0.0, p.coefficient, p.denominator, p.n, int(p.covered.sum()))


def merge_reports(reports: Sequence[TermReport], whole: TermReport) -> TermReport:
    """Sum of the micro-batches' losses; everything else is the step's."""
    return TermReport(
        whole.name,
        math.fsum(r.loss for r in reports),
        whole.coefficient,
        whole.denominator,
        whole.n,
        whole.decisions,
    )


def update(
    batch: Batch,
    method: Method,
    policies: Mapping[str, Trainable],
    optimizers: Mapping[str, torch.optim.Optimizer],
    *,
    micro_batch_tokens: int,
    clip_grad: float | None = 1.0,
    step: int = 0,
    state: Mapping[str, float] | None = None,
    ranks: Ranks | None = None,
) -> StepResult:
    """One optimizer step on an assigned batch (`objective.assign`).

    With an update rule that wants gradients apart, each term's is accumulated by itself (only its own rows
    are scored), then combined.

    Args:
        policies: The trained policies by the names that terms use.
        optimizers: One for each of them.
        micro_batch_tokens: Tokens scored at once; it changes time and memory, never the gradient.
        clip_grad: Largest gradient norm of each policy; `None` is off.
        step: Places schedules.
        state: Numbers that controllers hold.

    Returns:
        What happened. With a gradient that is not finite nothing is updated.
    """
    ranks = ranks or Ranks()
    prepared = prepare(batch, method, step=step, state=state)
    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    rule = method.update or UpdateRule()
    numbers: dict[str, float] = {}
    if rule.per_term:
        reports, logp, scored, tokens, numbers = accumulate_apart(
            prepared, policies, rule, micro_batch_tokens=micro_batch_tokens, ranks=ranks
        )
    else:
        reports, logp, scored, tokens = accumulate(
            prepared, policies, micro_batch_tokens=micro_batch_tokens, ranks=ranks
        )
    norms: dict[str, float] = {}
    for name in optimizers:
        parameters = [p for p in policies[name].trainable() if p.requires_grad]
        if not (rule.per_term and name == "policy"):
            sum_over_ranks(parameters, ranks)
        limit = math.inf if clip_grad is None else clip_grad
        norms[name] = float(torch.nn.utils.clip_grad_norm_(parameters, limit)) if parameters else 0.0
    result = StepResult(reports, norms, logp, scored, batch.n_rows, tokens, metrics=numbers)
    if not all(map(math.isfinite, norms.values())):
        for optimizer in optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        result.finite = False
        return result
    if not rule.accepts(norms.get("policy", 0.0)):
        result.metrics["update/skipped"] = 1.0
    elif scored:
        for name, optimizer in optimizers.items():
            if name == "policy":
                rule.step(optimizer, policies[name].trainable())
            else:
                optimizer.step()
            policies[name].publish()
    return result


def sum_over_ranks(parameters: Sequence[torch.nn.Parameter], ranks: Ranks) -> None:
    """Sum `.grad` over ranks; a rank without rows adds zeros."""
    if ranks.size == 1:
        return
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    ranks.sum_(p.grad for p in parameters if p.grad is not None)


def take_gradient(parameters: Sequence[torch.nn.Parameter], ranks: Ranks) -> list[Tensor]:
    """The accumulated gradients, summed over ranks, taken out of `.grad`."""
    sum_over_ranks(parameters, ranks)
    taken = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    return taken


def accumulate_apart(
    prepared: Prepared,
    policies: Mapping[str, Trainable],
    rule: UpdateRule,
    *,
    micro_batch_tokens: int,
    ranks: Ranks,
) -> tuple[list[TermReport], Tensor, int, int, dict[str, float]]:
    """As `accumulate`, with each term of the policy by itself and the gradients combined by the rule."""
    parameters = policies["policy"].trainable()
    gradients: dict[str, list[Tensor]] = {}
    reports, scored, tokens = [], 0, 0
    logp = torch.full((prepared.batch.n_decisions,), math.nan, dtype=torch.float64)
    for p in prepared.terms:
        one, found, rows, slots = accumulate(
            Prepared(prepared.batch, (p,)), policies, micro_batch_tokens=micro_batch_tokens, ranks=ranks
        )
        reports += one
        logp = torch.where(found.isnan(), logp, found)
        scored, tokens = scored + rows, tokens + slots
        if p.term.policy == "policy":
            gradients[p.term.name] = take_gradient(parameters, ranks)
    combined, numbers = rule.combine(gradients, prepared.batch)
    for parameter, gradient in zip(parameters, combined, strict=True):
        parameter.grad = gradient
    return reports, logp, scored, tokens, numbers
