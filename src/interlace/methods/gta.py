"""GTA: guess, think, answer; the label teaches the guess and rewards the answer.

    demonstration tokens in the span guess:      sft_coef NLL of the gold label
    rollout tokens outside the guess (tags too): rl_coef (PG(A) + kl k3(logp - ref_logp))

The two losses are on disjoint spans, so RL never pulls at the guess. In training `conflict=drop` leaves the
SFT gradient out of a step in which its dot product with the RL gradient is negative; `project` takes away
only the opposing part; where no reward differs, the RL gradient is its KL alone and nothing gives way to it.
An answer is <guess> .. </guess> <think> .. </think> <answer> .. </answer> (`tags`:
words, or symbols of one character); its reward is 1 for that form plus the task's for the content of answer
(`judged=text` leaves all to the task's reward, which then sees the whole text).

Evidence: paper, through two detailed summaries that agree; paper text and code not read. Deviations: the
guess is taught on a teacher-forced row of its own (ours). Reference: arXiv 2509.12108.
"""

from dataclasses import replace
from typing import Literal

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import (
    Clip,
    DenominatorName,
    GroupBaseline,
    Length,
    NonNegative,
    ReferenceKL,
)
from interlace.methods._policy_gradient import group_advantage, likelihood_term, policy_gradient_term
from interlace.parts.stated import stated
from interlace.rules.blocks import STYLES, GuessFirst
from interlace.rules.updates import ConflictRule
from interlace.types import SPANS, Batch


class GTA(GroupBaseline, Clip, ReferenceKL, Length):
    sft_coef: NonNegative = 1.0
    rl_coef: NonNegative = 1.0
    kl: NonNegative = 0.01
    denominator: DenominatorName = "sequence_means"
    sft_denominator: DenominatorName = "sequence_means"
    conflict: Literal["drop", "project"] | None = "drop"
    tags: Literal["words", "symbols"] = "words"
    judged: Literal["answer", "text"] = "answer"


@stated("in the span guess")
def guessed(batch: Batch) -> Tensor:
    """bool [N]: decisions in the span guess."""
    return batch.span == SPANS.index("guess")


@register("gta", GTA, paper="022", title="GTA (2025)", arxiv="2509.12108", family="mixed",
          evidence="paper", data=("prompts", "demonstrations"),
          cost=("two backward passes and gradients unless conflict=none", "reference if kl"),
          reductions=("sft_coef=0 without spans is grpo kl=0.01",))  # fmt: skip
def gta(h: GTA) -> Method:
    blocks = replace(STYLES[h.tags], judged=h.judged)
    outside = stated("outside the span guess")(lambda b: ~guessed(b))
    return Method(
        terms=(
            policy_gradient_term(h, coefficient=h.rl_coef, where=outside),
            likelihood_term(h, coefficient=h.sft_coef, where=guessed),
        ),
        advantage=group_advantage(h),
        needs=frozenset({"ref_logp"} if h.kl else ()),
        demonstrations="group",
        sample=GuessFirst(blocks),
        blocks=blocks,
        update=None if h.conflict is None else ConflictRule(h.conflict),
    )
