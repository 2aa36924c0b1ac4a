"""FEST: a few expert solutions guide RL through pairs (demonstration, own rollout) whose weight decays.

    prompts without demonstration: PG(A), A = R - mean
    r = sum_t (logp - ref_logp) of a row;  a pair = demonstration (+) and rollout (-) of one prompt
    form=grpo: PG(A) on the rollouts beside a demonstration, and -omega logp(demonstration) per pair,
               omega = sg[beta sigmoid(beta (r- - r+))]
    form=dpo:  -log sigmoid(beta (r+ - r-)) per pair
    beta = beta1 if no rollout of the prompt is correct, beta2 if this one is wrong, beta3 if it is correct

Pair terms are multiplied by sft_coef; the three terms have a denominator each. In training every step sees
the same `shots` demonstrated prompts (none: as many as fresh ones) beside fresh prompts.

Evidence: abstract and two full-paper summaries read, no code; beta1-3 and sft_coef are our values.
Deviations: none known. Reference: arXiv 2605.15012.
"""

from typing import Literal

import torch
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, GroupClipped, NonNegative
from interlace.methods._policy_gradient import (
    baseline_definitions,
    baseline_formula,
    group_advantage,
    policy_gradient_term,
)
from interlace.parts.masks import correct, has_reward, has_token, in_group_with
from interlace.parts.pair_losses import logistic_preference, pairs_in_group, preference_weight
from interlace.parts.reducer import Denominator
from interlace.parts.segments import row_constant, row_sum
from interlace.parts.stated import stated
from interlace.parts.surrogates import score_function
from interlace.parts.terms import Losses, Term, View
from interlace.rules.samplers import FewShot
from interlace.types import Batch


class FEST(GroupClipped):
    form: Literal["grpo", "dpo"] = "grpo"
    sft_coef: NonNegative = 1.0
    beta1: NonNegative = 0.05
    beta2: NonNegative = 0.01
    beta3: NonNegative = 0.001
    std: bool = False
    clip_high: NonNegative | None = 0.28
    denominator: DenominatorName = "length"
    shots: Count | None = None


def guides(batch: Batch) -> Tensor:
    return has_token(batch, "demo") & ~batch.is_rollout


@stated("of groups with a demonstration")
def guided(batch: Batch) -> Tensor:
    return in_group_with(batch.group, guides(batch))[batch.row]


def pairs(batch: Batch) -> tuple[Tensor, Tensor]:
    return pairs_in_group(batch.group, guides(batch), has_reward(batch) & has_token(batch, "rollout"))


@stated("of pairs (demonstration, rollout of the same group)")
def paired(batch: Batch) -> Tensor:
    own = batch.is_source("rollout") | ~batch.is_rollout[batch.row]
    return own & torch.isin(batch.row, torch.cat(pairs(batch)))


def fading_likelihood(logp: Tensor, margin: Tensor, beta: Tensor) -> Tensor:
    return score_function(logp, (beta * preference_weight(margin)).detach())


PAIRS = Denominator("pairs", lambda batch, covered: pairs(batch)[0].numel())
FORMS = {
    "grpo": (fading_likelihood, "-sg[beta*sigmoid(beta*(r- - r+))]*sum(logp+)", (guided,)),
    "dpo": (lambda logp, margin, beta: logistic_preference(margin), "-log sigmoid(beta*(r+ - r-))", ()),
}


@register("fest", FEST, paper="033", title="FEST (2026)", arxiv="2605.15012", family="mixed",
          evidence="paper", data=("prompts", "demonstrations"), cost=("reference beside demonstrations",),
          reductions=("without demonstrations dr_grpo clip_high=0.28",))  # fmt: skip
def fest(h: FEST) -> Method:
    pair_loss, formula, reinforced = FORMS[h.form]

    def loss(v: View) -> Losses:
        plus, minus = pairs(v.batch)
        logp = row_sum(v.logp, v.row, v.n_rows)
        r = row_sum(v.logp - v.ref_logp, v.row, v.n_rows)
        beta = row_constant(v.array("beta"), v.row, v.n_rows)[minus]
        return Losses(pair_loss(logp[plus], beta * (r[plus] - r[minus]), beta), plus)

    @stated(
        f"A = {baseline_formula(h)}",
        *baseline_definitions(h),
        "r+, r- = sum of (logp - ref_logp) over the demonstration and over the rollout of a pair",
        f"beta = {h.beta1:g} if no rollout of the group is correct, {h.beta2:g} if this one is wrong, "
        f"{h.beta3:g} if it is correct",
    )
    def advantage(batch: Batch) -> Batch:
        right = batch.is_rollout & has_reward(batch) & correct(batch)
        beta = torch.full_like(batch.reward, h.beta1)
        beta[in_group_with(batch.group, right)] = h.beta2
        beta[right] = h.beta3
        return group_advantage(h)(batch).with_arrays(beta=beta[batch.row])

    pair = Term("pairs", {"demo+rollout": loss}, PAIRS, h.sft_coef, where=paired, pool="group",
                likelihood=True, formula=formula)  # fmt: skip
    plain = policy_gradient_term(h, where=stated("of groups without a demonstration")(lambda b: ~guided(b)))
    beside = [policy_gradient_term(h, name="policy_guided", where=where) for where in reinforced]
    return Method((plain, *beside, pair), advantage, needs=frozenset({"ref_logp"}),
                  demonstrations="group", sample=FewShot(h.shots))  # fmt: skip
