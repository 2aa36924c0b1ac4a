"""BRIDGE: a bilevel mixture of SFT and RL; this is the student step, a convex combination of both.

    loss = (1 - mu) (PG(A) + kl k(delta)) + mu NLL;   the paper's lambda is 1 - mu

In training a LoRA teacher w (policy = student + w) is updated too, by mu SFT + (1 - mu) [RL(student) -
RL(auxiliary copy that follows RL alone)], on the same rollouts; all three with AdamW, w without weight decay
at the constant rate teacher_lr. The model holds student + w merged, so w is in the result.

Evidence: detailed summaries read (problem, penalty form, three updates, tables), no code. Deviations: none
known; LoRA rank and teacher_lr are our values. Reference: arXiv 2509.06948.
"""

from pydantic import Field

from interlace.methods._method import Method, register
from interlace.methods._mixture import balance
from interlace.methods._parameters import (
    Count,
    DenominatorName,
    GroupPolicyGradient,
    Positive,
    ScheduledFraction,
)
from interlace.methods._policy_gradient import group_advantage, likelihood_term, policy_gradient_term
from interlace.parts.stated import stated
from interlace.rules.updates import BilevelTeacher


class BRIDGE(GroupPolicyGradient):
    mu: ScheduledFraction = Field(0.5, validate_default=True)
    denominator: DenominatorName = "sequence_means"
    sft_denominator: DenominatorName = "tokens"
    lora_rank: Count = 16
    teacher_lr: Positive = 1e-5
    resync: Count | None = None


@register("bridge", BRIDGE, paper="032", title="BRIDGE (2025)", arxiv="2509.06948", family="mixed",
          evidence="paper", data=("prompts", "demonstrations"),
          cost=("a second copy of the model", "LoRA teacher", "four more backward passes", "reference if kl"),
          reductions=("mu=0 is grpo",))  # fmt: skip
def bridge(h: BRIDGE) -> Method:
    rl, sft = balance(stated(str(h.mu))(lambda context: h.mu(context.step)))
    alone = Method(terms=(policy_gradient_term(h),))
    return Method(
        terms=(policy_gradient_term(h, coefficient=rl), likelihood_term(h, coefficient=sft)),
        advantage=group_advantage(h),
        needs=frozenset({"ref_logp"} if h.kl else ()),
        demonstrations="feed",
        update=BilevelTeacher(alone, sft, h.lora_rank, h.teacher_lr, h.resync),
    )
