"""SFT, then RL from its checkpoint: the corrected baseline that every mixed method is compared with.

    sft: -(1/N) sum logp of demonstration tokens, N over the whole optimizer step
    rl:  plain on-policy Dr.GRPO, no demonstration in the loss; rl_steps=50 is the truncated form

Evidence: official code read (both faulty baselines and LUFFY's scripts). Deviations: none.
Reference: "SFT-then-RL Outperforms Mixed-Policy Methods", arXiv 2604.23747.
"""

from interlace.methods._method import Method, register
from interlace.methods._parameters import Clip, Count, DenominatorName, GroupBaseline, Length, ReferenceKL
from interlace.methods._policy_gradient import group_advantage, likelihood_term, policy_gradient_term


class SFTThenRL(GroupBaseline, Clip, ReferenceKL, Length):
    std: bool = False
    denominator: DenominatorName = "length"
    sft_denominator: DenominatorName = "tokens"
    rl_steps: Count | None = None


@register("sft_then_rl", SFTThenRL, paper="044", title="SFT-then-RL, corrected (2026)", arxiv="2604.23747",
          family="pipeline", evidence="official code", data=("demonstrations", "prompts"),
          cost=("reference if kl",), reductions=("stage rl is dr_grpo", "stage sft is sft"))  # fmt: skip
def sft_then_rl(h: SFTThenRL) -> Method:
    supervised = Method(terms=(likelihood_term(h),), demonstrations="feed", sample=False)
    reinforced = Method(
        terms=(policy_gradient_term(h),),
        advantage=group_advantage(h),
        needs=frozenset({"ref_logp"} if h.kl else ()),
    )
    return Method(
        stages={"sft": supervised, "rl": reinforced}, explain_stage="rl", stage_steps={"rl": h.rl_steps}
    )
