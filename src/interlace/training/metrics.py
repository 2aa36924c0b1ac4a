"""Numbers of one step for the log, the console and the watch that stops dead runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from interlace.parts.masks import counted_rollouts
from interlace.parts.segments import row_sum
from interlace.training.step import StepResult
from interlace.types import Batch, Finish


class DeadRun(RuntimeError):
    """A run that cannot learn; names the knob to turn."""


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Rewards, lengths, truncation, dead groups and counts of one collected batch (before updates)."""
    out: dict[str, float] = {}
    rollout = batch.is_rollout
    n = int(rollout.sum())
    out["rows/rollout"] = n
    out["rows/demo"] = int((~rollout).sum())
    if not n:
        return out
    out["rows/unscorable"] = int((rollout & (batch.verdict == -1)).sum())
    counted = rollout & ~batch.reward.isnan() & (batch.verdict != -1)
    if bool(counted.any()):
        out["reward/mean"] = float(batch.reward[counted].mean())
        out["reward/pass"] = float((batch.verdict[counted] == 1).double().mean())
    out["length/mean"] = float(batch.length[rollout].double().mean())
    out["length/truncated"] = float((batch.finish[rollout] == Finish.LENGTH).double().mean())
    alive = live_groups(batch)
    out["groups/live"] = float(alive.double().mean()) if alive.numel() else 0.0
    behaviour = batch.arrays.get("behaviour_logp")
    if behaviour is not None:
        known = behaviour[batch.is_source("rollout")]
        known = known[~known.isnan()]
        if known.numel():
            out["entropy/sampled"] = float(-known.mean())
    return out


def live_groups(batch: Batch) -> Tensor:
    """bool, one per group with rollouts: its counted rewards (learned ones, if it has them) differ."""
    counted = counted_rollouts(batch)
    groups = torch.unique(batch.group[batch.is_rollout])
    learned = [extra.get("token_reward") for extra in batch.extra]
    sums = torch.tensor([math.nan if r is None else math.fsum(r) for r in learned], dtype=torch.float64)
    reward = torch.where(sums.isnan(), batch.reward, sums)[counted]
    group = batch.group[counted]
    return torch.tensor([torch.unique(reward[group == g]).numel() > 1 for g in groups], dtype=torch.bool)


def update_metrics(batch: Batch, result: StepResult) -> dict[str, float]:
    """Losses, gradient norms and raw ratio statistics of one optimizer step."""
    out: dict[str, float] = {}
    for report in result.terms:
        out[f"loss/{report.name}"] = report.loss
        out[f"coefficient/{report.name}"] = report.coefficient
        out[f"n/{report.name}"] = report.n
        out[f"decisions/{report.name}"] = report.decisions
    for name, norm in result.grad_norm.items():
        out["grad_norm" if name == "policy" else f"grad_norm/{name}"] = norm
    out["rows/scored"] = result.scored_rows
    out["tokens/scored"] = result.tokens
    scored = ~result.logp.isnan()
    demo = scored & batch.is_source("demo")
    out["tokens/imitated"] = int((scored & batch.is_source("demo", "prefix", "hint")).sum())
    if bool(demo.any()):
        out["demo/nll"] = float(-result.logp[demo].mean())
    rollout = scored & batch.is_source("rollout")
    for array, prefix in (("old_logp", "ratio"), ("behaviour_logp", "mismatch"), ("ref_logp", "reference")):
        # On-policy the old log-probability is that of this very forward pass.
        values = result.logp if prefix == "ratio" and batch.on_policy else batch.arrays.get(array)
        if values is None:
            continue
        known = rollout & ~values.isnan()
        if not bool(known.any()):
            continue
        delta = result.logp[known] - values[known]
        if prefix == "reference":
            out["kl"] = float((torch.exp(-delta.clamp(-20, 20)) - 1 + delta).mean())
        else:
            out[f"{prefix}/max_abs_log"] = float(delta.abs().max())
            per_row = row_sum(delta, batch.row[known], batch.n_rows)
            out[f"{prefix}/max_abs_log_row"] = float(per_row.abs().max())
    advantage = batch.arrays.get("advantage")
    if advantage is not None and bool(batch.is_source("rollout").any()):
        out["advantage/abs_mean"] = float(advantage[batch.is_source("rollout")].abs().mean())
    return out


@dataclass
class Watch:
    """Counts steps in which a run could not learn, warns once, and stops it in the end.

    Attributes:
        stop_after: Steps without signal before it stops; 0 never stops.
        warn_after: Steps before it warns.
    """

    stop_after: int = 50
    warn_after: int = 5
    counts: dict[str, int] = field(default_factory=dict)

    KNOBS: ClassVar[Mapping[str, str]] = {
        "no rollout could be scored": "check reward= and the task's answers (interlace tasks NAME shows one)",
        "every completion was truncated": "raise max_new_tokens, or start with demonstrations (sft_then_rl)",
        "all rewards of every group were equal": (
            "easier problems, a larger group_size, a higher temperature, or start with demonstrations"
        ),
        "no token was trained": "check that the data has demonstrations and that limits do not drop them",
        "the gradient was not finite": "lower lr, or set clip_grad; precision=fp32 if it was bf16",
    }

    def observe(self, metrics: Mapping[str, float], result: Sequence[StepResult]) -> list[str]:
        """Warnings to show for this step.

        Raises:
            DeadRun: too many steps in a row without signal.
        """
        sampled = metrics.get("rows/rollout", 0) > 0
        filtered = metrics.get("sampling/live_groups", 1) == 0
        equal = filtered or (sampled and metrics.get("groups/live", 1) == 0)
        found = {
            "no rollout could be scored": sampled
            and metrics.get("rows/unscorable", 0) == metrics["rows/rollout"],
            "every completion was truncated": sampled and metrics.get("length/truncated", 0) == 1,
            "all rewards of every group were equal": equal and not metrics.get("tokens/imitated"),
            "no token was trained": not (sampled or filtered) and all(r.scored_rows == 0 for r in result),
            "the gradient was not finite": any(not r.finite for r in result),
        }
        warnings = []
        for what, happened in found.items():
            self.counts[what] = self.counts.get(what, 0) + 1 if happened else 0
            n = self.counts[what]
            patience = 1 if what == "the gradient was not finite" else self.warn_after
            if happened and n % max(patience, 1) == 0 and n in (patience, 4 * patience):
                warnings.append(f"{what} for {n} step(s): {self.KNOBS[what]}")
            if self.stop_after and n >= self.stop_after:
                raise DeadRun(
                    f"{what} for {n} steps in a row: {self.KNOBS[what]} (stop_dead_after=0 goes on)"
                )
        return warnings
