"""SRFT: imitation and exploration in one loss, balanced by the policy's entropy H.

    demonstrations:   sft_weight e^(sft_sign H) NLL  -  A f(p),  A = (R - mean) / (std + std_eps), mixed group
    correct rollouts: -rl_weight e^H logp
    wrong rollouts:   +neg_weight logp
    coefficients: demo 0.5 e^-H + A p, correct +0.1 e^H, wrong -1

H is detached: of the token, its mean over the row, or over the term's tokens in the step (`entropy_level`),
and at most `entropy_cap`. Each of the three losses has its own count. Wrong rollouts have no zero-variance
cancellation, and +logp is unbounded below: without demonstrations it diverges.
`rollout_loss=advantage`: -rho A (rl_weight e^H if A > 0 else 1), unclipped, A of the mixed group.

Evidence: a re-implementation's code read (`variant=reimplementation`); paper and official code
(`variant=code`) through secondary readings that agree. The paper's sign of H in the SFT weight is the
opposite of the code's. Deviations: the paper does not say at which level H is taken.
Reference: Fu et al., arXiv 2506.19767.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName, GroupBaseline, Length, NonNegative, Positive
from interlace.methods._policy_gradient import (
    baseline_definitions,
    baseline_formula,
    entropy_bonus_terms,
    mixed_advantage,
    rewarded,
    warn_unrewarded,
)
from interlace.methods.luffy import shape_formula, shaped_demonstration
from interlace.parts.masks import correct
from interlace.parts.stated import stated
from interlace.parts.surrogates import importance_ratio, negative_log_likelihood, score_function
from interlace.parts.terms import Term, View, annotated
from interlace.parts.token_weights import ENTROPY_LEVELS, entropy_weight
from interlace.rules.samplers import WithDemonstration
from interlace.types import Batch


class SRFT(GroupBaseline, Length):
    sft_weight: NonNegative = 0.5
    sft_sign: Annotated[int, Field(ge=-1, le=1)] = -1
    rl_weight: NonNegative = 0.1
    neg_weight: NonNegative = 1.0
    entropy_level: Literal["token", "sequence", "step"] = "token"
    entropy_cap: NonNegative | None = None
    rollout_loss: Literal["split", "advantage"] = "split"
    shape: Literal["identity", "shaped"] = "identity"
    gamma: Positive = 0.1
    denominator: DenominatorName = "tokens"
    sft_denominator: DenominatorName = "tokens"
    entropy_bonus: NonNegative = 0.001


ROLLOUT_ADVANTAGES: dict[str, Callable[[Batch, Tensor], Tensor]] = {
    "split": lambda batch, z: torch.where(correct(batch), 1.0, -1.0).to(z)[batch.row],
    "advantage": lambda batch, z: z,
}
ROLLOUT_FORMULAS = {
    "split": "-{:g}*sg[exp(H)]*logp where correct, +{:g}*logp where wrong (A = 1 and -1)",
    "advantage": "-rho*A*({:g}*sg[exp(H)] if A > 0 else {:g})",
}
DRIVEN: dict[str, Callable[[View], Tensor]] = {
    "split": lambda v: v.logp,
    "advantage": lambda v: importance_ratio(v.logp, v.old_logp),
}


def definitions(h: SRFT) -> tuple[str, ...]:
    """The symbols of the formulas."""
    of = {"token": "the token", "sequence": "its row (mean)", "step": "the term's tokens in the step (mean)"}
    capped = "" if h.entropy_cap is None else f", at most {h.entropy_cap:g}"
    entropy = f"H = entropy of {of[h.entropy_level]}{capped}"
    return (*baseline_definitions(h, "rollouts and demonstrations"), entropy)


def annotate(h: SRFT, batch: Batch) -> Batch:
    """Sets `advantage` and `level_entropy`, H at the level asked for."""
    z = mixed_advantage(h)(batch).arrays["advantage"]
    a = torch.where(batch.is_source("rollout"), ROLLOUT_ADVANTAGES[h.rollout_loss](batch, z), z)
    level = torch.full_like(z, torch.nan)
    for source in ("rollout", "demo"):
        index = (batch.is_source(source) & batch.active[batch.row]).nonzero()[:, 0]
        entropy = annotated(batch, "entropy", index)
        level[index] = ENTROPY_LEVELS[h.entropy_level](entropy, batch.row[index], batch.n_rows)
    return batch.with_arrays(advantage=a, level_entropy=level)


@register("srft", SRFT, paper="058", title="SRFT (2025)", arxiv="2506.19767", family="mixed",
          evidence="third-party code", data=("prompts", "demonstrations"), cost=("entropy",),
          variants={"code": {"sft_sign": 1, "rollout_loss": "advantage", "shape": "shaped"},
                    "reimplementation": {"entropy_level": "sequence", "shape": "shaped", "std": False,
                                         "denominator": "length"}})  # fmt: skip
def srft(h: SRFT) -> Method:
    wrong = {"split": h.neg_weight, "advantage": 1.0}[h.rollout_loss]

    def weight(v: View, sign: int) -> Tensor:
        return entropy_weight(v.array("level_entropy"), sign, h.entropy_cap)

    def own(v: View) -> Tensor:
        w = torch.where(v.advantage > 0, h.rl_weight * weight(v, 1), wrong)
        return score_function(DRIVEN[h.rollout_loss](v), w * v.advantage)

    nll = Term("sft", {"demo": lambda v: weight(v, h.sft_sign) * negative_log_likelihood(v.logp)},
               h.sft_denominator, h.sft_weight, max_length=h.max_length, likelihood=True,
               formula=f"-sg[exp({h.sft_sign:+d}*H)]*logp")  # fmt: skip
    demo = Term("demo", {"demo": shaped_demonstration(h, h.shape)}, h.denominator, where=rewarded,
                max_length=h.max_length, silent_without_advantage=True,
                formula=shape_formula(h, h.shape))  # fmt: skip
    policy = Term("policy", {"rollout": own}, h.denominator, max_length=h.max_length,
                  silent_without_advantage=True, ratio=h.rollout_loss == "advantage",
                  formula=ROLLOUT_FORMULAS[h.rollout_loss].format(h.rl_weight, wrong))  # fmt: skip
    return Method(terms=(nll, demo, policy, *entropy_bonus_terms(h)), regroup=(warn_unrewarded,),
                  advantage=stated(f"A = {baseline_formula(h)}", *definitions(h))(lambda b: annotate(h, b)),
                  needs=frozenset({"entropy"}),
                  demonstrations="group", sample=WithDemonstration())  # fmt: skip
