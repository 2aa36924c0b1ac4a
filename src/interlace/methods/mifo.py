"""MIFO: RL, then SFT only on hard prompts and uncertain tokens, with RL's most changed weights frozen.

    rl:  loss(token) = PG(A) (+ kl k(delta))
    sft: -sum of logp / their number, over the demonstration tokens in the `top_entropy` share (of each row,
         or of the step) of prompts with a pass rate up to `threshold`

A prompt whose rollouts are all left out has no pass rate and is not trained on; one without rollout rows
comes from the buffer and is. In training RL goes on until `buffer_size` hard prompts wait; SFT steps with an
optimizer of their own (`sft_lr`, none: RL's rate) use them up, and the `freeze` share of all weights that RL
moved most keeps its values. `alpha` keeps a share of earlier cycles in that measure.

Evidence: abstract, reviews and summaries read, no code; the importance map and all defaults are our
definition. Deviations: none known. Reference: arXiv 2510.04454.
"""

from typing import Literal

import torch
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, Fraction, GroupPolicyGradient, Positive
from interlace.methods._policy_gradient import group_advantage, likelihood_term, policy_gradient_term
from interlace.parts.masks import TIE_TOLERANCE, TOP_SHARES, in_group_with, leave_out, pass_rate
from interlace.parts.stated import stated
from interlace.parts.terms import annotated
from interlace.rules.alternation import FreezingBuffer
from interlace.rules.updates import Frozen
from interlace.types import Batch


class MIFO(GroupPolicyGradient):
    top_entropy: Fraction = 0.2
    entropy_scope: Literal["step", "row"] = "row"
    threshold: Fraction = 0.125
    denominator: DenominatorName = "sequence_means"
    sft_denominator: DenominatorName = "tokens"
    freeze: Fraction = 0.5
    alpha: Fraction = 0.0
    buffer_size: Count = 64
    sft_lr: Positive | None = None


@register("mifo", MIFO, paper="018", title="MIFO (2025)", arxiv="2510.04454", family="mixed",
          evidence="derived", data=("prompts", "demonstrations"),
          cost=("entropy of demonstrations", "a copy of the weights in the RL phase", "reference if kl"),
          reductions=("stage rl is grpo", "stage sft with top_entropy=1 threshold=1 is sft"))  # fmt: skip
def mifo(h: MIFO) -> Method:
    def hard(batch: Batch) -> Tensor:
        return (pass_rate(batch) <= h.threshold + TIE_TOLERANCE)[batch.group]

    @stated(f"groups whose pass rate is above {h.threshold:g} are left out")
    def hard_prompts(batch: Batch) -> Batch:
        return leave_out(batch, in_group_with(batch.group, batch.is_rollout) & ~hard(batch))

    @stated("")
    def uncertain_tokens(batch: Batch) -> Batch:
        index = (batch.is_source("demo") & batch.active[batch.row]).nonzero()[:, 0]
        entropy = annotated(batch, "entropy", index)
        kept = torch.zeros(batch.n_decisions, dtype=torch.float64)
        mask = TOP_SHARES[h.entropy_scope](entropy, batch.row[index], batch.n_rows, h.top_entropy)
        kept[index] = mask.double()
        return batch.with_arrays(entropy_mask=kept)

    uncertain = stated(f"in the top {h.top_entropy:g} of the {h.entropy_scope} by entropy")(
        lambda b: b.arrays["entropy_mask"] > 0
    )
    frozen = Frozen()
    rl = Method(
        terms=(policy_gradient_term(h),),
        advantage=group_advantage(h),
        needs=frozenset({"ref_logp"} if h.kl else ()),
    )
    sft = Method(
        terms=(likelihood_term(h, where=uncertain),),
        regroup=(hard_prompts, uncertain_tokens),
        needs=frozenset({"entropy"}),
        demonstrations="group",
        sample=False,
        update=frozen,
    )
    cycle = FreezingBuffer(hard, h.buffer_size, h.sft_lr, frozen=frozen, share=h.freeze, alpha=h.alpha)
    return Method(stages={"rl": rl, "sft": sft}, explain_stage="rl", alternation=cycle)
