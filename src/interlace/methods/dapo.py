"""DAPO: clip-higher, dynamic sampling, a token mean, and a soft punishment of overlong answers.

    loss = (1/tokens) sum PG(A),  clip [1 - 0.2, 1 + 0.28],  A = group-standardised reward
    dynamic sampling: groups without two distinct rewards leave everything (training samples others instead)
    overlong: reward += 0 up to max_length - buffer, then linear down to -overlong_penalty

Evidence: official code read (verl recipe, TRL). Deviations: overlong shaping is off unless
`overlong_buffer` is given, as its length belongs to the run. Reference: Yu et al., arXiv 2503.14476.
"""

from typing import Annotated

from pydantic import Field

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, NonNegative
from interlace.methods._policy_gradient import group_advantage, policy_gradient_term, shape_overlong
from interlace.methods.grpo import GRPO
from interlace.parts.masks import drop_equal_rewards, drop_truncated
from interlace.rules.samplers import DynamicSampling


class DAPO(GRPO):
    clip_high: NonNegative | None = 0.28
    dynamic_sampling: bool = True
    overlong_buffer: Count | None = None
    overlong_penalty: NonNegative = 1.0
    denominator: DenominatorName = "tokens"
    max_batches: Annotated[int, Field(ge=0)] = 0


@register("dapo", DAPO, title="DAPO (2025)", arxiv="2503.14476", evidence="official code",
          cost=("up to max_batches sampling rounds", "reference if kl"),
          reductions=("dynamic_sampling=false clip_high=0.2 is grpo denominator=tokens",))  # fmt: skip
def dapo(h: DAPO) -> Method:
    drop = (drop_equal_rewards,) if h.dynamic_sampling else ()
    shape = (shape_overlong(h),) if h.overlong_buffer else ()
    return Method(
        terms=(policy_gradient_term(h),),
        sample=DynamicSampling(h.max_batches) if h.dynamic_sampling else None,
        regroup=drop + shape,
        advantage=group_advantage(h),
        select=(drop_truncated,) if h.mask_truncated else (),
        needs=frozenset({"ref_logp"} if h.kl else ()),
    )
