"""Prefix-RFT: one rollout of the group starts from a demonstration prefix, and its outcome judges the prefix.

    A = R - mean of the group; prefix and continuation share it
    A = 0 on prefix tokens outside the `top_entropy` share of the uncertain ones
    loss = PG(A) on rollout and prefix tokens alike, at most dual_clip |A| where A < 0

pi_old of a prefix token is the policy's own, so at the first update the prefix is SFT weighted by A on its
uncertain tokens. `entropy_scope`: the share is of all prefix tokens of the step, or of each row.
`advantage=prefix`: prefix tokens R - mean of the rows without prefix; continuations are centred among the
rows with one (a lone one keeps R), the others among themselves. In training the prefix is a share
~ Uniform(low, high) of the demonstration, low falling by half a cosine to low_end in window_steps.

Evidence: official code read; its launch script takes its values from an unpublished variable. Deviations:
the code pools the entropy threshold over a micro-batch; its option `prefix` subtracts the mean of the rows
without prefix from a centred score. Reference: Huang et al., arXiv 2507.01679.
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from interlace.methods._method import BatchRule, Method, register
from interlace.methods._parameters import (
    Clip,
    Count,
    DenominatorName,
    Fraction,
    GroupBaseline,
    Length,
    NonNegative,
    ScheduledFraction,
    at_most,
)
from interlace.methods._policy_gradient import (
    entropy_bonus_terms,
    group_advantage,
    policy_gradient_term,
    rewarded,
)
from interlace.parts.advantages import prefix_aware
from interlace.parts.masks import TOP_SHARES, counted_rollouts, has_token
from interlace.parts.stated import definitions_of, stated, text_of
from interlace.parts.terms import annotated
from interlace.rules.samplers import PrefixedRollout
from interlace.rules.schedules import Constant
from interlace.types import Batch


class PrefixRFT(GroupBaseline, Clip, Length):
    top_entropy: ScheduledFraction = Constant(0.2)
    entropy_scope: Literal["step", "row"] = "step"
    advantage: Literal["joint", "prefix"] = "joint"
    std: bool = False
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    denominator: DenominatorName = "length"
    high: Fraction = 0.95
    low_end: Fraction = 0.05
    window_steps: Count = 500
    entropy_bonus: NonNegative = 0.001

    _window = at_most("low_end", "high")


@stated(
    "A = R - mean of the group's rows without prefix, on prefix tokens",
    "on rollout tokens A = R - mean of the group's rows with a prefix (a lone one keeps R), or without one",
)
def apart(batch: Batch) -> Batch:
    """Prefix tokens against the rows without prefix, continuations against each other."""
    prefixed = has_token(batch, "prefix")
    prefix, sampled = prefix_aware(batch.reward, batch.group, prefixed, counted_rollouts(batch))
    a = torch.where(batch.is_source("prefix"), prefix[batch.row], sampled[batch.row])
    return batch.with_arrays(advantage=a)


ADVANTAGES: dict[str, Any] = {"joint": group_advantage, "prefix": lambda h: apart}


def uncertain_prefix(h: PrefixRFT, joint: BatchRule, batch: Batch) -> Batch:
    """A = 0 on prefix tokens outside the top share by entropy."""
    batch = joint(batch)
    index = (batch.is_source("prefix") & rewarded(batch)).nonzero()[:, 0]
    entropy = annotated(batch, "entropy", index)
    share = h.top_entropy(batch.step)
    kept = TOP_SHARES[h.entropy_scope](entropy, batch.row[index], batch.n_rows, share)
    a = batch.arrays["advantage"].clone()
    a[index[~kept]] = 0.0
    return batch.with_arrays(advantage=a)


@register("prefix_rft", PrefixRFT, paper="064", title="Prefix-RFT (2025)", arxiv="2507.01679",
          family="mixed", evidence="official code", data=("prompts", "demonstrations"), cost=("entropy",),
          reductions=("without prefixes it is dr_grpo dual_clip=3",))  # fmt: skip
def prefix_rft(h: PrefixRFT) -> Method:
    joint = ADVANTAGES[h.advantage](h)
    top = f"A = 0 on prefix tokens outside the top {h.top_entropy} by entropy, counted by {h.entropy_scope}"
    return Method(
        terms=(
            policy_gradient_term(h, sources="rollout+prefix", where=rewarded),
            *entropy_bonus_terms(h, "rollout+prefix", rewarded),
        ),
        advantage=stated(text_of(joint), *definitions_of(joint), top)(
            lambda b: uncertain_prefix(h, joint, b)
        ),
        needs=frozenset({"entropy"}),
        demonstrations="group",
        sample=PrefixedRollout(h.high, h.low_end, h.window_steps),
    )
