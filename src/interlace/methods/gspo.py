"""GSPO: one importance ratio per row, the geometric mean of its tokens' ratios.

    s = exp(mean_t(logp - old_logp)),  loss(row) = -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)

Evidence: official code read (verl `gspo`, TRL `importance_sampling_level=sequence`; verl's token form has
the same value and gradient where A is constant on a row). Deviations: none.
Reference: Zheng et al., arXiv 2507.18071.
"""

import torch

from interlace.methods._method import Method, register
from interlace.methods._parameters import GroupBaseline, NonNegative
from interlace.methods._policy_gradient import group_advantage, policy_gradient_formula
from interlace.parts.surrogates import clipped_surrogate, geometric_ratio
from interlace.parts.terms import Losses, Term, View


class GSPO(GroupBaseline):
    clip_low: NonNegative | None = 0.0003
    clip_high: NonNegative | None = 0.0004


@register("gspo", GSPO, title="GSPO (2025)", arxiv="2507.18071", evidence="official code")
def gspo(h: GSPO) -> Method:
    def loss(v: View) -> Losses:
        ratio = geometric_ratio(v.logp, v.old_logp, v.row, v.n_rows)
        a = torch.zeros(v.n_rows, dtype=v.logp.dtype).index_put((v.row,), v.advantage)
        return v.row_losses(clipped_surrogate(ratio, a, h.clip_low, h.clip_high))

    clipped = policy_gradient_formula(h).replace("rho", "s")
    term = Term("policy", {"rollout": loss}, "sequences", silent_without_advantage=True,
                formula=f"{clipped}, s = exp(mean(logp - old_logp)) of the row")  # fmt: skip
    return Method(terms=(term,), advantage=group_advantage(h))
