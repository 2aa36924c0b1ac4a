"""UFT: a shrinking hint from the solution stands in the prompt and is itself learned, very gently.

    loss = PG(A) + kl k3(logp - ref_logp) on the continuation + hint_coef NLL on the hint tokens

All rollouts of a group share one hint, so A = (R - mean) / (std + std_eps) is fair within it. In training the
hint length is binomial over `buckets` parts of the solution, with a mean share that falls by half a cosine
from p_high to p_low in `hint_steps` steps and is 0 afterwards. The hint never gets a policy gradient; where
all rewards are equal the hint term is what is left.

Evidence: official code read. Deviations: the paper sums over a row's tokens (`sequences`), the code takes
token means (`variant=code`), counted over the step here, over a micro-batch there; hint logits are not
clamped. Reference: Liu et al., arXiv 2505.16984.
"""

from typing import Annotated

from pydantic import Field

from interlace.methods._method import Method, register
from interlace.methods._parameters import (
    Clip,
    Count,
    DenominatorName,
    Fraction,
    GroupBaseline,
    Length,
    NonNegative,
    ReferenceKL,
    at_most,
)
from interlace.methods._policy_gradient import (
    entropy_bonus_terms,
    group_advantage,
    likelihood_term,
    policy_gradient_term,
)
from interlace.rules.samplers import HintedPrompt


class UFT(GroupBaseline, Clip, ReferenceKL, Length):
    kl: NonNegative = 0.001
    hint_coef: NonNegative = 0.001
    denominator: DenominatorName = "sequences"
    hint_denominator: DenominatorName = "sequences"
    hint_steps: Annotated[int, Field(ge=0)] = 300
    p_low: Fraction = 0.05
    p_high: Fraction = 0.95
    buckets: Count = 5
    entropy_bonus: NonNegative = 0.001

    _falling = at_most("p_low", "p_high")


@register("uft", UFT, paper="x03", title="UFT (2025)", arxiv="2505.16984", family="mixed",
          evidence="official code", data=("prompts", "demonstrations"), cost=("reference if kl",),
          variants={"code": {"denominator": "tokens", "hint_denominator": "tokens"}},
          reductions=("without hints it is grpo denominator=sequences with the same kl",))  # fmt: skip
def uft(h: UFT) -> Method:
    hint = likelihood_term(
        h, denominator="hint_denominator", coefficient=h.hint_coef, name="hint", sources="hint"
    )
    return Method(
        terms=(policy_gradient_term(h), hint, *entropy_bonus_terms(h)),
        advantage=group_advantage(h),
        needs=frozenset({"ref_logp"} if h.kl else ()),
        demonstrations="group",
        sample=HintedPrompt(h.hint_steps, h.p_low, h.p_high, h.buckets),
    )
