"""Re-distillation: compress a trained RL policy into a few of its correct samples, and restart from the base.

    sft:     a small SFT of the base, mean of row means        rl: GRPO, token mean, no KL
    distill: SFT of the base again on `samples` correct rollouts, one a prompt, of the last `last_steps` steps

Evidence: official code read (on1262/deep-reasoning, verl based). Deviations: none.
Reference: arXiv 2505.17988.
"""

from interlace.methods._method import Method, register
from interlace.methods._parameters import Clip, Count, DenominatorName, GroupBaseline, Length, ReferenceKL
from interlace.methods._policy_gradient import group_advantage, policy_gradient_term, supervised
from interlace.rules.harvest import FromShelf, KeepCorrect


class ReDistillation(GroupBaseline, Clip, ReferenceKL, Length):
    denominator: DenominatorName = "tokens"
    sft_denominator: DenominatorName = "sequence_means"
    samples: Count = 1000
    last_steps: Count = 10


@register("re_distillation", ReDistillation, paper="030", title="Re-distillation (2025)", arxiv="2505.17988",
          family="pipeline", evidence="official code", data=("demonstrations", "prompts"),
          cost=("three runs, two from the base", "reference if kl"),
          reductions=("stages sft and distill are sft denominator=sequence_means",
                      "stage rl is grpo denominator=tokens"))  # fmt: skip
def re_distillation(h: ReDistillation) -> Method:
    reinforced = Method(
        terms=(policy_gradient_term(h),),
        advantage=group_advantage(h),
        needs=frozenset({"ref_logp"} if h.kl else ()),
        controllers=(KeepCorrect(h.last_steps),),
    )
    distilled = supervised(h, harvest=FromShelf(h.samples), start="base")
    return Method(
        stages={"sft": supervised(h), "rl": reinforced, "distill": distilled}, explain_stage="distill"
    )
