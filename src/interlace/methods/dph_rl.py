"""DPH-RL: GRPO on the prompts the start policy cannot solve, rehearsal of its own answers on those it can.

    rollout: PG(A), no KL
    demo (answers that the frozen start policy sampled): div_coef f(u), u = exp(logp - ref_logp)
    f = u - 1 - ln u (forward_kl),  u ln u - (u + 1) ln((u + 1)/2) (js),
        (u^(1-alpha) - (1-alpha) u - alpha) / (alpha (alpha - 1)) (alpha)

`ref_logp` is cached with the rehearsal set, so that no reference model is kept.

Evidence: official code read (seamoke/DPH-RL). Deviations: rows are routed one by one (the code looks at the
first row of a micro-batch), f is not clamped beyond the log-ratio. Reference: arXiv 2509.07430.
"""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, GroupClipped, NonNegative
from interlace.methods._policy_gradient import group_advantage, policy_gradient_term
from interlace.parts.divergences import alpha_divergence, forward_kl, jensen_shannon
from interlace.parts.terms import Term, View
from interlace.rules.harvest import SolvedSplit


class DPHRL(GroupClipped):
    divergence: Literal["forward_kl", "js", "alpha"] = "forward_kl"
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2
    div_coef: NonNegative = 0.05
    clip_high: NonNegative | None = 0.28
    denominator: DenominatorName = "tokens"
    div_denominator: DenominatorName = "tokens"
    samples: Count = 8


FORMULAS = {
    "forward_kl": "u - 1 - ln u",
    "js": "u*ln u - (u + 1)*ln((u + 1)/2)",
    "alpha": "(u^(1 - {a:g}) - (1 - {a:g})*u - {a:g})/({a:g}*({a:g} - 1))",
}
GENERATORS = {
    "forward_kl": lambda h, delta: forward_kl(delta),
    "js": lambda h, delta: jensen_shannon(delta),
    "alpha": lambda h, delta: alpha_divergence(delta, h.alpha),
}


@register("dph_rl", DPHRL, paper="043", title="DPH-RL (2025)", arxiv="2509.07430", family="rl",
          evidence="official code", data=("prompts", "rehearsal answers of the start policy"),
          cost=("one pass over the training prompts before the start",),
          reductions=("div_coef=0 is dapo dynamic_sampling=false",))  # fmt: skip
def dph_rl(h: DPHRL) -> Method:
    def loss(v: View) -> Tensor:
        return GENERATORS[h.divergence](h, v.logp - v.ref_logp)

    rehearsal = Term("divergence", {"demo": loss}, h.div_denominator, h.div_coef, max_length=h.max_length,
                     likelihood=True, formula=f"{FORMULAS[h.divergence].format(a=h.alpha)}, "
                     "u = exp(logp - ref_logp)")  # fmt: skip
    return Method(terms=(policy_gradient_term(h), rehearsal), advantage=group_advantage(h),
                  demonstrations="feed", harvest=SolvedSplit(h.samples))  # fmt: skip
