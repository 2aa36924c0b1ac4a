"""GRPO: group-standardised rewards in PPO's clipped surrogate, a mean of row means.

    A = (R - mean of the group) / (std of the group + std_eps)
    loss(token) = -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl k3(logp - ref_logp)

Evidence: official code read (verl, TRL). Deviations: kl=0 by default (paper 0.04); the std is
Bessel-corrected with 1e-6 added to it (TRL adds 1e-4). Reference: Shao et al., arXiv 2402.03300.
"""

from interlace.methods._method import Method, register
from interlace.methods._parameters import Clip, DenominatorName, GroupBaseline, Length, ReferenceKL
from interlace.methods._policy_gradient import group_advantage, policy_gradient_term
from interlace.parts.masks import drop_truncated


class GRPO(GroupBaseline, Clip, ReferenceKL, Length):
    mask_truncated: bool = False
    denominator: DenominatorName = "sequence_means"


@register("grpo", GRPO, title="GRPO, DeepSeekMath (2024)", arxiv="2402.03300", evidence="official code",
          cost=("reference if kl",), reductions=("std=false denominator=length is dr_grpo",))  # fmt: skip
def grpo(h: GRPO) -> Method:
    return Method(
        terms=(policy_gradient_term(h),),
        advantage=group_advantage(h),
        select=(drop_truncated,) if h.mask_truncated else (),
        needs=frozenset({"ref_logp"} if h.kl else ()),
    )
