"""CAT: training weights for what will be measured, pass@n, majority vote or best-of-n, not one sample.

    B(p) = probability that at least k of n samples succeed; pass: k = 1, majority: k (none: n//2 + 1)
    sft: -log B(exp sum_t logp) per demonstration
    rl:  -z sg[w] sum_t logp per rollout, + kl k(delta) per token (not weighted)
         form=raw: w = dB/dp,  log: w = d log B / d log p;   best_of: w = n q^(n-1), q the row's smoothed rank
         p = exp sum_t logp, or success=group: (correct + 1)/(rollouts + 2) of the group;   w <= w_max

Evidence: the authors' repository documentation and configurations read, formulas derived again. Deviations:
k is one number (not chosen per prompt), no normalisation of w. Reference: arXiv 2604.24957.
"""

from typing import Literal, Self

from pydantic import model_validator
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, GroupBaseline, NonNegative, Positive, ReferenceKL, at_most
from interlace.methods._policy_gradient import (
    baseline_definitions,
    baseline_formula,
    group_advantage,
    reference_kl,
)
from interlace.parts.advantages import share_below, smoothed_share
from interlace.parts.masks import correct, counted_rollouts
from interlace.parts.operators import log_success, success_elasticity, success_slope
from interlace.parts.segments import row_constant, row_sum
from interlace.parts.stated import stated
from interlace.parts.surrogates import score_function
from interlace.parts.terms import Losses, Term, View
from interlace.types import Batch


class CAT(GroupBaseline, ReferenceKL):
    operator: Literal["pass", "majority", "best_of"] = "pass"
    n: Count = 16
    k: Count | None = None
    form: Literal["raw", "log"] = "raw"
    success: Literal["sequence", "group"] = "sequence"
    w_max: Positive = 50.0
    kl: NonNegative = 0.05

    _k = at_most("k", "n")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.operator, self.form) == ("best_of", "log"):
            raise ValueError("form='log': operator=best_of has only the form 'raw'")
        return self


THRESHOLDS = {"pass": lambda h: 1, "majority": lambda h: h.k or h.n // 2 + 1, "best_of": lambda h: 1}
SOLVED = {"sequence": "exp(sum of logp over the row)", "group": "(correct + 1)/(rollouts + 2) of the group"}
SLOPES = {"raw": "dB/dp", "log": "d log B/d log p"}
WEIGHTS = {"raw": success_slope, "log": success_elasticity}
LOG_P = {
    "sequence": lambda v: row_sum(v.logp.detach(), v.row, v.n_rows),
    "group": lambda v: row_constant(v.array("solved").log(), v.row, v.n_rows),
}
# n q^(n-1) is the weight of pass@n where a sample fails with probability q.
LOG_P_BY_RANK = {"best_of": lambda v: row_constant((-v.array("rank")).log1p(), v.row, v.n_rows)}


@register("cat", CAT, paper="113", title="Compute Aligned Training (2026)", arxiv="2604.24957",
          family="pipeline", evidence="paper", data=("demonstrations", "prompts"),
          cost=("reference if kl",), reductions=("n=1 stage sft is sft denominator=sequences",))  # fmt: skip
def cat(h: CAT) -> Method:
    k = THRESHOLDS[h.operator](h)
    log_p = LOG_P_BY_RANK.get(h.operator, LOG_P[h.success])

    @stated(f"A = {baseline_formula(h)}", *baseline_definitions(h))
    def advantage(batch: Batch) -> Batch:
        counted = counted_rollouts(batch)
        solved = smoothed_share(correct(batch), batch.group, counted)
        rank = share_below(batch.reward, batch.group, counted)
        return group_advantage(h)(batch).with_arrays(solved=solved[batch.row], rank=rank[batch.row])

    def policy(v: View) -> Tensor:
        w = WEIGHTS[h.form](log_p(v), h.n, k).clamp(max=h.w_max)
        return score_function(v.logp, v.advantage * w[v.row])

    def nll(v: View) -> Losses:
        return v.row_losses(-log_success(row_sum(v.logp, v.row, v.n_rows), h.n, k))

    b = f"B = probability of at least {k} successes in {h.n} samples"
    weight = f"{SLOPES[h.form]}, {b}, p = {SOLVED[h.success]}"
    if h.operator == "best_of":
        weight = f"{h.n}*q^{h.n - 1}, q = (rollouts of the group with less reward + 1)/(rollouts + 1)"
    weighted = Term("policy", {"rollout": policy}, "sequences", silent_without_advantage=True,
                    formula=f"-A*sg[w]*logp, w at most {h.w_max:g}, w = {weight}")  # fmt: skip
    divergence = Term("kl", {"rollout": reference_kl(h)}, "tokens", h.kl,
                      formula=f"{h.kl_estimator}(logp - ref_logp)")  # fmt: skip
    supervised = Term("sft", {"demo": nll}, "sequences", likelihood=True,
                      formula=f"-log B(p), {b}, p = {SOLVED['sequence']}")  # fmt: skip
    needs = frozenset({"ref_logp"} if h.kl else ())
    rl = Method((weighted, divergence) if h.kl else (weighted,), advantage, needs=needs)
    sft = Method((supervised,), demonstrations="feed", sample=False)
    return Method(stages={"sft": sft, "rl": rl}, explain_stage="rl")
