"""EGSPO: after an SFT warm-up, policy gradients at full weight on high-entropy tokens, attenuated elsewhere.

    w = 1 where h >= tau, else sg[phi];   loss(token) = w PG(A) (+ kl k(delta), not weighted)
    tau = smallest entropy in the `top_entropy` share of the step's rollout tokens, or `tau` nats
    gate_temperature: w = phi + (1 - phi) sigmoid((h - tau) / gate_temperature)

A multiplies both branches: a confident mistake is pushed down weakly, never up. N counts tokens, not weights.

Evidence: derived from the abstract and two summaries; the threshold rule, phi and all defaults are our
definition. Deviations: none known. Reference: arXiv 2602.03309.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field

from interlace.methods._method import Method, register
from interlace.methods._parameters import (
    DenominatorName,
    Fraction,
    GroupPolicyGradient,
    NonNegative,
    Positive,
    spell_phi,
)
from interlace.methods._policy_gradient import (
    baseline_definitions,
    baseline_formula,
    group_advantage,
    likelihood_term,
    policy_gradient,
    policy_gradient_formula,
)
from interlace.methods._policy_gradient import policy_gradient_term as pg_term
from interlace.parts.masks import hard_gate, soft_gate, top_threshold
from interlace.parts.stated import stated
from interlace.parts.terms import annotated
from interlace.parts.token_weights import attenuated, bernoulli_variance
from interlace.types import Batch


class EGSPO(GroupPolicyGradient):
    top_entropy: Fraction = 0.2
    tau: NonNegative | None = None
    phi: Annotated[Literal["p(1-p)", "4p(1-p)"] | Fraction, BeforeValidator(spell_phi)] = "p(1-p)"
    gate_temperature: Positive | None = None
    denominator: DenominatorName = "tokens"
    sft_denominator: DenominatorName = "tokens"
    warmup_epochs: Annotated[int, Field(ge=0)] = 1


PHI = {"p(1-p)": bernoulli_variance, "4p(1-p)": lambda p: 4 * bernoulli_variance(p)}


@register("egspo", EGSPO, paper="011", title="EGSPO (2026)", arxiv="2602.03309", family="mixed",
          evidence="derived", data=("demonstrations", "prompts"), cost=("entropy", "reference if kl"),
          reductions=("stage rl with top_entropy=1 or phi=1 is grpo denominator=tokens",
                      "stage sft is sft"))  # fmt: skip
def egspo(h: EGSPO) -> Method:
    phi = PHI.get(str(h.phi), lambda p: torch.full_like(p, float(h.phi)))
    gate = hard_gate if h.gate_temperature is None else partial(soft_gate, temperature=h.gate_temperature)
    loss = policy_gradient(h, weight=lambda v: attenuated(v.array("gate"), phi(v.p)))
    plain = pg_term(h)
    bare = policy_gradient_formula(h.model_copy(update={"kl": 0.0}))
    soft = f"s + (1 - s)*sg[{h.phi}], s = sigmoid((h - tau)/{h.gate_temperature})"
    weight = f"1 where h >= tau, else sg[{h.phi}]" if h.gate_temperature is None else soft
    threshold = f"smallest h in the top {h.top_entropy:g} of the step" if h.tau is None else f"{h.tau:g}"
    term = replace(plain, losses={"rollout": loss}, formula=f"w*({bare}){plain.formula.removeprefix(bare)}, "
                   f"w = {weight}, h = entropy, tau = {threshold}")  # fmt: skip

    @stated(f"A = {baseline_formula(h)}", *baseline_definitions(h))
    def advantage(batch: Batch) -> Batch:
        index = term.covers(batch).nonzero()[:, 0]
        entropy = annotated(batch, "entropy", index)
        tau = top_threshold(entropy, h.top_entropy) if h.tau is None else h.tau
        opened = torch.zeros(batch.n_decisions, dtype=torch.float64).index_put((index,), gate(entropy, tau))
        return group_advantage(h)(batch).with_arrays(gate=opened)

    needs = frozenset({"entropy", *({"ref_logp"} if h.kl else ())})
    rl = Method(terms=(term,), advantage=advantage, needs=needs)
    sft = Method(terms=(likelihood_term(h),), demonstrations="feed", sample=False, epochs=h.warmup_epochs)
    return Method(stages={"sft": sft, "rl": rl}, explain_stage="rl")
