"""SASR: each step is an SFT step or a GRPO step, drawn by how large the SFT gradient still is.

    p = g_last / (g_last + gamma g_warmup);  u ~ U(0, 1):  u < p an SFT step, else a GRPO step
    sft: -logp of demonstrations      rl: PG(A) + kl k3(logp - ref_logp), A group-standardised

g_warmup is the norm of the SFT gradient at the last of `warmup_steps` SFT steps (before clipping, all
trainable parameters), g_last that of the last SFT step; a GRPO step leaves it. Right after the warm-up
p = 1 / (1 + gamma) whatever the task. `refresh_every` measures it on a demonstration batch without stepping.
The state holds g_last, g_warmup and u, the same on all ranks.

Evidence: an independent implementation of the paper's algorithm read; hyper-parameter values not read.
Deviations: defaults are ours. Reference: arXiv 2505.13026.
"""

from collections.abc import Mapping

from interlace.methods._method import Method, MethodError, register
from interlace.methods._parameters import (
    Clip,
    Count,
    DenominatorName,
    GroupBaseline,
    Length,
    NonNegative,
    ReferenceKL,
)
from interlace.methods._policy_gradient import group_advantage, likelihood_term, policy_gradient_term
from interlace.parts.stated import stated
from interlace.rules.alternation import GradientNormSwitch


class SASR(GroupBaseline, Clip, ReferenceKL, Length):
    gamma: NonNegative = 1.0
    kl: NonNegative = 0.01
    denominator: DenominatorName = "sequence_means"
    sft_denominator: DenominatorName = "tokens"
    warmup_steps: Count = 100
    refresh_every: Count | None = None


def sft_probability(g_last: float, g_warmup: float, gamma: float) -> float:
    """g_last / (g_last + gamma g_warmup); without any gradient 0, with gamma = 0 always 1."""
    total = g_last + gamma * g_warmup
    return g_last / total if total > 0 else float(gamma == 0)


def drawn_stage(h: SASR, state: Mapping[str, float]) -> str:
    missing = [key for key in ("g_last", "g_warmup", "u") if key not in state]
    if missing:
        raise MethodError(f"sasr: state lacks {', '.join(missing)}; accepted are g_last, g_warmup and u")
    if min(state["g_last"], state["g_warmup"]) < 0 or not 0 <= state["u"] < 1:
        raise MethodError("sasr: accepted are gradient norms g_last, g_warmup >= 0 and u in [0, 1)")
    return "sft" if state["u"] < sft_probability(state["g_last"], state["g_warmup"], h.gamma) else "rl"


@register("sasr", SASR, paper="008", title="SASR (2025)", arxiv="2505.13026", family="mixed",
          evidence="third-party code", data=("prompts", "demonstrations"), cost=("reference if kl",),
          reductions=("stage rl is grpo", "stage sft is sft", "gamma=0 trains sft alone"))  # fmt: skip
def sasr(h: SASR) -> Method:
    supervised = Method(terms=(likelihood_term(h),), demonstrations="feed", sample=False)
    reinforced = Method(
        terms=(policy_gradient_term(h),),
        advantage=group_advantage(h),
        needs=frozenset({"ref_logp"} if h.kl else ()),
    )
    return Method(
        stages={"sft": supervised, "rl": reinforced},
        explain_stage="rl",
        choose_stage=stated(f"sft where u < g_last/(g_last + {h.gamma:g}*g_warmup), else rl")(
            lambda state: drawn_stage(h, state)
        ),
        demonstrations="feed",
        alternation=GradientNormSwitch(
            lambda state: drawn_stage(h, state), h.warmup_steps, h.refresh_every, supervised
        ),
    )
