"""RL-PLUS: an external solution joins the group, with a bounded ratio and more weight where it surprises.

    A = (R - mean) / (std + std_eps) over the mixed group
    rollout token:  -rho A
    external token: -r A sg[(1 - p)^kappa],  r = 2p / (1.5 p_old + 0.5 uniform)

r is the multiple-importance ratio 2p / (w + p_old) with the unknown author's probability w taken as
(p_old + uniform) / 2. It is at most 4; the coefficient vanishes at p -> 1 (known already).

Evidence: official code read. Deviations: `uniform=1` is the code's; the paper's 1 / vocabulary makes the term
a focal SFT, 34 times stronger at p = 0.01. `variant=code` has no std. Prefix tokens count as external.
Reference: Dong et al., arXiv 2508.00222.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Clip, DenominatorName, GroupBaseline, Length, NonNegative
from interlace.methods._policy_gradient import (
    entropy_bonus_terms,
    mixed_advantage,
    policy_gradient,
    policy_gradient_formula,
    rewarded,
    warn_unrewarded,
)
from interlace.parts.surrogates import mixture_ratio
from interlace.parts.terms import Term, View
from interlace.parts.token_weights import focal
from interlace.rules.samplers import WithDemonstration


class RLPlus(GroupBaseline, Clip, Length):
    kappa: NonNegative = 0.5
    uniform: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_low: NonNegative | None = None
    clip_high: NonNegative | None = None
    denominator: DenominatorName = "length"
    entropy_bonus: NonNegative = 0.001


@register("rl_plus", RLPlus, paper="099", title="RL-PLUS (2025)", arxiv="2508.00222", family="mixed",
          evidence="official code", data=("prompts", "demonstrations"), variants={"code": {"std": False}},
          reductions=("variant=code without demonstrations is dr_grpo with no clip bounds",))  # fmt: skip
def rl_plus(h: RLPlus) -> Method:
    def external(v: View) -> Tensor:
        return -mixture_ratio(v.logp, v.old_logp, h.uniform) * v.advantage * focal(v.p, h.kappa)

    term = Term("policy", {"rollout": policy_gradient(h), "demo+prefix": external}, h.denominator,
                where=rewarded, max_length=h.max_length, silent_without_advantage=True,
                formula=f"rollout: {policy_gradient_formula(h)}; demo, prefix: -r*A*sg[(1 - p)^{h.kappa:g}], "
                f"r = 2*p/(1.5*exp(old_logp) + 0.5*{h.uniform:g})")  # fmt: skip
    return Method(
        terms=(term, *entropy_bonus_terms(h, "rollout+demo+prefix", rewarded)),
        regroup=(warn_unrewarded,),
        advantage=mixed_advantage(h),
        demonstrations="group",
        sample=WithDemonstration(replaces=1),
    )
