"""TMS: SFT on a mixture of the labels and the answers of the model's own earlier checkpoints.

    harvest: SFT from the start weights, saving `checkpoints` checkpoints; each answers every prompt
    student: SFT from the start weights; with probability `alpha` on the label, else on one of the answers
    loss = -logp in both; no reward, no filter

Evidence: abstract and detailed notes of the paper; no official code. Deviations: none known.
Reference: arXiv 2602.03073.
"""

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, Fraction, Length
from interlace.methods._policy_gradient import likelihood_term


class TMS(Length):
    denominator: DenominatorName = "tokens"
    alpha: Fraction = 0.25
    checkpoints: Count = 10


@register("tms", TMS, paper="063", title="TMS (2026)", arxiv="2602.03073", family="pipeline",
          evidence="paper", data=("demonstrations",),
          cost=("a second training run", "checkpoints x answers to every prompt"),
          reductions=("each stage is sft; alpha=1 is sft twice",))  # fmt: skip
def tms(h: TMS) -> Method:
    supervised = Method(
        terms=(likelihood_term(h, denominator="denominator"),), demonstrations="feed", sample=False
    )
    return Method(stages={"harvest": supervised, "student": supervised}, explain_stage="student")
