"""TMS: SFT on a mixture of the labels and the answers of the model's own earlier checkpoints.

    harvest: SFT from the start weights, saving `checkpoints` checkpoints; each answers every prompt
    student: SFT from the start weights; with probability `alpha` on the label, else on one of the answers
    loss = -logp in both; no reward, no filter

Evidence: abstract and detailed notes of the paper; no official code. Deviations: none known.
Reference: arXiv 2602.03073.
"""

from dataclasses import replace

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, Fraction, Length
from interlace.methods._policy_gradient import supervised
from interlace.rules.harvest import AnswerBank, SelfMixture


class TMS(Length):
    denominator: DenominatorName = "tokens"
    alpha: Fraction = 0.25
    checkpoints: Count = 10


@register("tms", TMS, paper="063", title="TMS (2026)", arxiv="2602.03073", family="pipeline",
          evidence="paper", data=("demonstrations",),
          cost=("a second training run", "checkpoints x answers to every prompt"),
          reductions=("each stage is sft; alpha=1 is sft twice",))  # fmt: skip
def tms(h: TMS) -> Method:
    plain = supervised(h, "denominator")
    harvest = replace(plain, controllers=(AnswerBank(h.checkpoints),))
    mixed = replace(
        plain, stages={"student": plain}, alternation=SelfMixture(h.alpha, "student"), start="base"
    )
    return Method(
        stages={"harvest": plain, "student": plain},
        explain_stage="student",
        pipeline={"harvest": harvest, "student": mixed},
    )
