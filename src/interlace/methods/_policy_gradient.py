"""The rule that most methods share, so that each file only says what differs: group advantages and PG(A)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from interlace.methods._method import BatchRule, Method
from interlace.parts.advantages import group_normalised
from interlace.parts.divergences import KL_ESTIMATORS
from interlace.parts.masks import counted_mixed, counted_rollouts, has_reward, overlong_penalty
from interlace.parts.stated import stated
from interlace.parts.surrogates import clipped_surrogate, importance_ratio, negative_log_likelihood
from interlace.parts.terms import Coefficient, LossFunction, Term, View
from interlace.types import Batch


def group_advantage(
    h: Any, counted: Callable[[Batch], Tensor] = counted_rollouts, over: str = "rollouts"
) -> BatchRule:
    """Sets z of the registry: reward minus group mean, over the deviation if `h.std`, on every decision.

    Args:
        h: Hyper-parameters with the set `GroupBaseline`.
        counted: `counted_rollouts` (demonstrations do not disturb the statistics) or `counted_mixed`.
        over: What these rows are called in the formula.
    """

    @stated(f"A = {baseline_formula(h)}", *baseline_definitions(h, over))
    def advantage(batch: Batch) -> Batch:
        z = group_normalised(
            batch.reward,
            batch.group,
            counted(batch),
            std=h.std,
            eps=h.std_eps,
            correction=h.std_correction,
            scope=h.std_scope,
        )
        return batch.with_arrays(advantage=z[batch.row])

    return advantage


def mixed_advantage(h: Any) -> BatchRule:
    """Sets z over rollouts and demonstrations of the group together."""
    return group_advantage(h, counted_mixed, "rollouts and demonstrations")


def baseline_formula(h: Any) -> str:
    """The advantage of `GroupBaseline` as text."""
    return f"(R - mean)/(std + {h.std_eps:g})" if h.std else "R - mean"


def baseline_definitions(h: Any, over: str = "rollouts") -> tuple[str, ...]:
    """What mean and std in it are."""
    n = "n - 1" if h.std_correction else "n"
    scope = {"group": "the same rewards", "step": "all these rewards of the step"}[h.std_scope]
    mean = f"mean = mean reward of the group's {over}; A = 0 if they are fewer than two, or all equal"
    return (mean, f"std = standard deviation of {scope}, over {n}") if h.std else (mean,)


@stated("of rows with a reward")
def rewarded(batch: Batch) -> Tensor:
    """bool [N]: decisions of rows that carry a reward (what a mixed term can cover)."""
    return has_reward(batch)[batch.row]


@stated("")
def warn_unrewarded(
    batch: Batch,
    among: Callable[[Batch], Tensor] | None = None,
    scored: Callable[[Batch], Tensor] = has_reward,
    key: str = "reward",
) -> Batch:
    """The batch as it is, with a warning if a demonstration misses the reward that its term needs.

    Args:
        among: bool [R] of the batch, the rows that need one (default all).
        scored: bool [R] of the batch, the rows that have one.
        key: What the reward is called in a row.
    """
    missing = batch.active & ~batch.is_rollout & ~scored(batch)
    if among is not None:
        missing &= among(batch)
    if bool(missing.any()):
        row = int(batch.row_id[missing].min())
        warnings.warn(
            f"row {row}: a demonstration without '{key}' has no part in a term that needs one; "
            f"score it like a rollout",
            stacklevel=2,
        )
    return batch


def reference_kl(h: Any) -> Callable[[View], Tensor]:
    """k(delta) of `h.kl_estimator`, without its coefficient."""
    return lambda v: KL_ESTIMATORS[h.kl_estimator](v.logp - v.ref_logp)


def policy_gradient(
    h: Any,
    *,
    weight: Callable[[View], Tensor] | None = None,
    old_logp: Callable[[View], Tensor] = lambda v: v.old_logp,
) -> LossFunction:
    """PG(A) with the bounds of `h`, plus `h.kl` k(delta) where `h` has the set ReferenceKL.

    Args:
        weight: Detached weight of PG(A) alone, [n]; the KL keeps weight 1.
        old_logp: What the ratio is taken against, [n].
    """
    kl, divergence = getattr(h, "kl", 0.0), reference_kl(h)

    def loss(v: View) -> Tensor:
        ratio = importance_ratio(v.logp, old_logp(v))
        pg = clipped_surrogate(ratio, v.advantage, h.clip_low, h.clip_high, h.dual_clip)
        pg = pg if weight is None else weight(v) * pg
        return pg + kl * divergence(v) if kl else pg

    return loss


def reward_kl(coefficient: float, batch: Batch) -> Tensor:
    """-kl k1 per decision, detached, for a KL penalty in the reward; 0 on what is not a rollout, [N].

    k1 is old_logp (logp where absent) minus ref_logp.
    """
    penalty = torch.zeros(batch.n_decisions, dtype=torch.float64)
    if coefficient == 0:
        return penalty
    index = (batch.is_source("rollout") & batch.active[batch.row]).nonzero()[:, 0]
    logp = batch.arrays.get("logp", batch.arrays.get("old_logp"))
    if logp is None:
        raise ValueError("a KL in the reward reads 'old_logp'; the method's 'needs' must name it")
    view = View(batch, index, {"logp": logp})
    penalty[index] = -coefficient * (view.old_logp - view.ref_logp)
    return penalty


def policy_gradient_term(
    h: Any,
    *,
    coefficient: Coefficient = 1.0,
    name: str = "policy",
    sources: str = "rollout",
    where: Callable[[Batch], Tensor] | None = None,
) -> Term:
    """The rollout term most methods share: PG(A) (+ kl k(delta)) on rollout tokens over `h.denominator`."""
    kl = getattr(h, "kl", 0.0)
    return Term(
        name,
        {sources: policy_gradient(h)},
        h.denominator,
        coefficient,
        where=where,
        max_length=getattr(h, "max_length", None),
        silent_without_advantage=kl == 0,
        formula=policy_gradient_formula(h),
    )


def policy_gradient_formula(h: Any) -> str:
    """PG(A) as text with the bounds of `h` filled in."""
    unbounded = h.clip_low is None and h.clip_high is None
    text = "-rho*A" if unbounded else f"-min(rho*A, {clip_formula(h)}*A)"
    dual_clip = getattr(h, "dual_clip", None)
    if dual_clip is not None:
        text += f", at most {dual_clip:g}*|A| where A < 0"
    kl = getattr(h, "kl", 0.0)
    return text + (f" + {kl:g}*{h.kl_estimator}(logp - ref_logp)" if kl else "")


def clip_formula(h: Any) -> str:
    """The clipped ratio as text."""
    low = "-inf" if h.clip_low is None else f"{1 - h.clip_low:g}"
    high = "inf" if h.clip_high is None else f"{1 + h.clip_high:g}"
    return f"clip(rho, {low}, {high})"


def likelihood_term(
    h: Any,
    *,
    denominator: str = "sft_denominator",
    coefficient: Coefficient = 1.0,
    name: str = "sft",
    sources: str = "demo",
    where: Callable[[Batch], Tensor] | None = None,
) -> Term:
    """The demonstration term most methods share: NLL on demonstration tokens over `h.<denominator>`."""
    return Term(
        name,
        {sources: lambda v: negative_log_likelihood(v.logp)},
        getattr(h, denominator),
        coefficient,
        where=where,
        max_length=getattr(h, "max_length", None),
        likelihood=True,
        formula="-logp",
    )


def supervised(h: Any, denominator: str = "sft_denominator", **given: Any) -> Method:
    """A stage of plain SFT on its own feed; `given` are further fields of `Method` (a harvest, ...)."""
    term = likelihood_term(h, denominator=denominator)
    return Method(terms=(term,), demonstrations="feed", sample=False, **given)


def entropy_bonus_terms(
    h: Any, sources: str = "rollout", where: Callable[[Batch], Tensor] | None = None
) -> tuple[Term, ...]:
    """-entropy on the rollout term's decisions, over its denominator; no term when the weight is 0."""
    if not h.entropy_bonus:
        return ()
    term = Term(
        "entropy",
        {sources: lambda v: -v.leaf("entropy")},
        h.denominator,
        h.entropy_bonus,
        where=where,
        max_length=getattr(h, "max_length", None),
        statistics=("entropy",),
        explained=False,
        formula="-entropy",
    )
    return (term,)


def shape_overlong(h: Any) -> BatchRule:
    """Adds the soft overlong punishment of DAPO to the reward of every rollout row.

    Raises:
        ValueError: neither `max_length` nor the run's completion limit is known.
    """

    limit_name = "the run's limit" if h.max_length is None else str(h.max_length)

    @stated(
        f"a rollout longer than {limit_name} - {h.overlong_buffer} tokens loses up to "
        f"{h.overlong_penalty:g} of its reward, linearly"
    )
    def rule(batch: Batch) -> Batch:
        limit = h.max_length or batch.completion_limit
        if limit is None:
            raise ValueError("overlong_buffer needs max_length: give max_length=TOKENS")
        penalty = overlong_penalty(batch.length, limit, h.overlong_buffer, h.overlong_penalty)
        return replace(batch, reward=torch.where(batch.is_rollout, batch.reward + penalty, batch.reward))

    return rule
