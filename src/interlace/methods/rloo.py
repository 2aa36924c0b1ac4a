"""RLOO: REINFORCE with the mean of the group's other rewards as baseline.

    A = R' - mean of the group's other R',  R' = R - kl * sum_t k1_t
    ratio=none: -A logp    token: PG(A)    sequence: PG with one ratio exp(sum(logp - old_logp)) a row

Evidence: official code read (TRL `RLOOTrainer` is `ratio=sequence`, verl `rloo` the advantage).
Deviations: none. Reference: Ahmadian et al., arXiv 2402.14740.
"""

from typing import Literal

import torch

from interlace.methods._method import Method, register
from interlace.methods._parameters import Clip, DenominatorName, Length, NonNegative
from interlace.methods._policy_gradient import policy_gradient, policy_gradient_formula, reward_kl
from interlace.parts.advantages import leave_one_out
from interlace.parts.masks import counted_rollouts
from interlace.parts.segments import row_sum
from interlace.parts.stated import stated
from interlace.parts.surrogates import clipped_surrogate, score_function, sequence_ratio
from interlace.parts.terms import Losses, Term, View
from interlace.types import Batch


class RLOO(Clip, Length):
    ratio: Literal["token", "sequence"] | None = None
    kl: NonNegative = 0.0
    denominator: DenominatorName = "sequences"


def whole_row(h: RLOO, v: View) -> Losses:
    ratio = sequence_ratio(v.logp, v.old_logp, v.row, v.n_rows)
    a = torch.zeros(v.n_rows, dtype=v.logp.dtype).index_put((v.row,), v.advantage)
    return v.row_losses(clipped_surrogate(ratio, a, h.clip_low, h.clip_high, h.dual_clip))


LOSSES = {
    None: lambda h: lambda v: score_function(v.logp, v.advantage),
    "token": lambda h: lambda v: policy_gradient(h.model_copy(update={"kl": 0.0}))(v),
    "sequence": lambda h: lambda v: whole_row(h, v),
}


@register(
    "rloo", RLOO, title="RLOO (2024)", arxiv="2402.14740", evidence="official code", cost=("reference if kl",)
)
def rloo(h: RLOO) -> Method:
    reward = f"R - {h.kl:g}*sum of (old_logp - ref_logp) over the row" if h.kl else "R"

    @stated("A = R' - mean of the group's other R'", f"R' = {reward}")
    def advantage(batch: Batch) -> Batch:
        reward = batch.reward + row_sum(reward_kl(h.kl, batch), batch.row, batch.n_rows)
        a = leave_one_out(reward, batch.group, counted_rollouts(batch))
        return batch.with_arrays(advantage=a[batch.row])

    clipped = policy_gradient_formula(h.model_copy(update={"kl": 0.0}))
    whole = f"{clipped}, rho = exp(sum(logp - old_logp)) of the row"
    formula = {None: "-A*logp", "token": clipped, "sequence": whole}[h.ratio]
    term = Term(
        "policy", {"rollout": LOSSES[h.ratio](h)}, "sequences" if h.ratio == "sequence" else h.denominator,
        max_length=h.max_length, silent_without_advantage=True, formula=formula,
    )  # fmt: skip
    needs = frozenset({"old_logp", "ref_logp"} if h.kl else ())
    return Method(terms=(term,), advantage=advantage, needs=needs)
