"""CHORD: on-policy GRPO and weighted SFT on a separate stream of demonstrations, in every step.

    L = (1 - mu) PG(A) + mu sg[phi] NLL,   a token mean of each over the whole step
    phi=p(1-p) (CHORD-phi), 1 (CHORD-mu), p (DFT), entropy_top: 1 on the top_entropy share, else 0,
        entropy_norm: h / mean h, is_clip: p and 0 where p > cutoff, focal: (1 - p)^gamma
    mu: a number, a schedule, or reward:tau = tau minus the mean rollout reward, inside [0, 1]

Evidence: official code (Trinity-RFT) and paper text read, ms-swift's too. Deviations: Trinity weights
micro-batch means by rows and dual-clips at 3; phi is detached (ms-swift first shipped it attached).
Reference: arXiv 2508.11408.
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._mixture import balance, mu_of, parse_balance
from interlace.methods._parameters import DenominatorName, Fraction, GroupClipped, NonNegative, spell_phi
from interlace.methods._policy_gradient import group_advantage, policy_gradient_term
from interlace.parts.masks import hard_gate, top_threshold
from interlace.parts.stated import stated
from interlace.parts.surrogates import negative_log_likelihood
from interlace.parts.terms import Term, View, annotated
from interlace.parts.token_weights import bernoulli_variance, focal, probability_up_to, share_of_mean
from interlace.types import Batch


class CHORD(GroupClipped):
    mu: Annotated[Any, BeforeValidator(parse_balance)] = Field(0.1, validate_default=True)
    phi: Annotated[
        Literal["1", "p", "p(1-p)", "entropy_top", "entropy_norm", "is_clip", "focal"],
        BeforeValidator(spell_phi),
    ] = "p(1-p)"
    top_entropy: Fraction = 0.05
    cutoff: Fraction = 0.4
    gamma: NonNegative = 2.0
    denominator: DenominatorName = "tokens"
    sft_denominator: DenominatorName = "tokens"


PHI = {
    "1": lambda h, v: torch.ones_like(v.p),
    "p": lambda h, v: v.p,
    "p(1-p)": lambda h, v: bernoulli_variance(v.p),
    "is_clip": lambda h, v: probability_up_to(v.p, h.cutoff),
    "focal": lambda h, v: focal(v.p, h.gamma),
}
PHI_FORMULAS = {
    "is_clip": "p, and 0 where p > {h.cutoff:g}",
    "focal": "(1 - p)^{h.gamma:g}",
    "entropy_top": "1 in the top {h.top_entropy:g} of the step by entropy, else 0",
    "entropy_norm": "entropy / its mean over the term's tokens",
}
BY_ENTROPY = {
    "entropy_top": lambda h, entropy: hard_gate(entropy, top_threshold(entropy, h.top_entropy)),
    "entropy_norm": lambda h, entropy: share_of_mean(entropy),
}


@register("chord", CHORD, paper="050", title="CHORD (2025)", arxiv="2508.11408", family="mixed",
          evidence="official code", data=("prompts", "demonstrations"), cost=("entropy if entropy_*",),
          reductions=("mu=0 is grpo denominator=tokens", "mu=1 phi=1 is sft"))  # fmt: skip
def chord(h: CHORD) -> Method:
    phi = PHI.get(h.phi, lambda h, v: v.array("phi"))

    def loss(v: View) -> Tensor:
        return phi(h, v) * negative_log_likelihood(v.logp)

    @stated("")
    def weigh(batch: Batch) -> Batch:
        index = supervised.covers(batch).nonzero()[:, 0]
        weights = torch.zeros(batch.n_decisions, dtype=torch.float64)
        weights[index] = BY_ENTROPY[h.phi](h, annotated(batch, "entropy", index))
        return batch.with_arrays(phi=weights)

    rl, sft = balance(mu_of(h.mu))
    supervised = Term("sft", {"demo": loss}, h.sft_denominator, sft, max_length=h.max_length,
                      likelihood=True,
                      formula=f"-sg[{PHI_FORMULAS.get(h.phi, h.phi).format(h=h)}]*logp")  # fmt: skip
    pooled = h.phi in BY_ENTROPY
    return Method(
        terms=(policy_gradient_term(h, coefficient=rl), supervised),
        regroup=(weigh,) if pooled else (),
        advantage=group_advantage(h),
        needs=frozenset({"entropy"} if pooled else ()),
        demonstrations="feed",
    )
