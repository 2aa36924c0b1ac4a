"""AMFT: one loop of SFT and PPO whose balance mu is learned from its effect on held-out reward.

    L = (1 - mu) PG(A) + mu NLL;   A = (whitened) GAE of a critic, or advantage=group: z
    training: mu <- clip(mu + eta_mu G + eta_entropy (H* - H)),  G = -cos(grad U, grad SFT - grad RL)
    U: reward on validation problems, H: entropy of the step's rollouts, H*: that of the first step

`state.mu`, where given, replaces `mu`. Stage sft (the warm-up) is NLL alone.

Evidence: official code read (TSYJ-He/AMFT) and a detailed summary; the paper was withdrawn from arXiv, its
numbers are unverified. Deviations: the code adds the meta-gradient with the wrong sign; here it climbs the
validation reward. Reference: arXiv 2508.06944.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from interlace.methods._method import BatchRule, Method, register
from interlace.methods._mixture import balance, held
from interlace.methods._parameters import (
    Count,
    DenominatorName,
    Fraction,
    GroupClipped,
    NonNegative,
    Sign,
    at_most,
    recast,
)
from interlace.methods._policy_gradient import (
    entropy_bonus_terms,
    group_advantage,
    likelihood_term,
    policy_gradient_term,
)
from interlace.methods.ppo import PPO, gae_rule, value_term
from interlace.methods.rloo import rloo
from interlace.parts.stated import stated
from interlace.parts.terms import Term
from interlace.rules.controllers import MetaGradient


class AMFT(GroupClipped):
    mu: Fraction = 0.8
    advantage: Literal["gae", "group"] = "gae"
    gamma: Fraction = 1.0
    gae_lambda: Fraction = 0.95
    whiten: bool = True
    denominator: DenominatorName = "tokens"
    sft_denominator: DenominatorName = "tokens"
    eta_mu: NonNegative = 0.05
    eta_entropy: NonNegative = 0.0005
    mu_min: Fraction = 0.05
    mu_max: Fraction = 0.95
    every: Count = 20
    entropy_sign: Sign = 1
    meta: Literal["cosine", "raw"] = "cosine"
    value_coef: NonNegative = 0.1
    entropy_bonus: NonNegative = 0.01

    _mu = at_most("mu_min", "mu_max")


def critic(h: PPO) -> tuple[BatchRule, tuple[Term, ...]]:
    return gae_rule(h), (value_term(h),)


ADVANTAGES: dict[str, Callable[[AMFT], tuple[BatchRule, tuple[Term, ...]]]] = {
    "gae": lambda h: critic(recast(h, PPO)),
    "group": lambda h: (group_advantage(h), ()),
}


@register("amft", AMFT, paper="046", title="AMFT (2025, withdrawn)", arxiv="2508.06944", family="mixed",
          evidence="official code", data=("prompts", "demonstrations", "validation prompts"),
          cost=("critic", "validation rollouts and three backward passes every `every` steps"),
          reductions=("mu=0 is ppo", "advantage=group mu=0 is grpo denominator=tokens"))  # fmt: skip
def amft(h: AMFT) -> Method:
    warm_up = Method(terms=(likelihood_term(h),), demonstrations="feed", sample=False)
    rl, sft = balance(held("mu", h.mu))
    advantage, value_terms = ADVANTAGES[h.advantage](h)
    weight = stated(f"{h.entropy_bonus:g} * (1 - mu)")(lambda c: rl(c) * h.entropy_bonus)
    bonus = [replace(t, coefficient=weight) for t in entropy_bonus_terms(h)]
    mixed = (policy_gradient_term(h, coefficient=rl), likelihood_term(h, coefficient=sft))
    needs = {"values": bool(value_terms), "entropy": h.eta_entropy > 0}
    reinforced = Method(terms=(policy_gradient_term(h),), advantage=advantage)
    meta = MetaGradient(h.mu, reinforced, warm_up, rloo(), h.eta_mu, h.eta_entropy,
                        h.mu_min, h.mu_max, h.every, h.entropy_sign, h.meta)  # fmt: skip
    mix = Method(terms=(*mixed, *value_terms, *bonus), advantage=advantage, demonstrations="feed",
                 needs=frozenset(k for k, v in needs.items() if v), controllers=(meta,))  # fmt: skip
    return Method(stages={"sft": warm_up, "mix": mix}, explain_stage="mix")
