"""SPECS: a cold start by preference between rows that differ only in form, then GRPO.

    cold_start: -log sigmoid(beta m) per pair, m = sum(logp - ref_logp) chosen - the same of rejected,
                + sft_coef NLL of the chosen tokens
    rl:         as GRPO

Rows carry `extra.role` (`chosen`, `rejected`); pairs are each chosen with each rejected row of a group.
In a run a first stage `zero`, GRPO from the base until `format_stop`, writes the chosen rows; the rejected
ones are the base's own with their form broken. The cold start begins at the base again, its reference.

Evidence: official project page read (no training code), formulas through a secondary summary; beta and
sft_coef are our values. Deviations: no judge of consistency; where the base solves a prompt in no sample, the
chosen text is broken instead; without a part `format` in the reward its accuracy stops the first stage.
Reference: arXiv 2510.25801.
"""

from dataclasses import replace

from interlace.methods._method import Method, register
from interlace.methods._parameters import (
    DenominatorName,
    Fraction,
    GroupPolicyGradient,
    NonNegative,
    Positive,
    recast,
)
from interlace.methods._policy_gradient import likelihood_term
from interlace.methods.grpo import GRPO, grpo
from interlace.methods.mergemix import PAIRS, paired, pairs
from interlace.parts.extras import has_role
from interlace.parts.masks import RESPONSE
from interlace.parts.pair_losses import logistic_preference
from interlace.parts.segments import row_sum
from interlace.parts.stated import stated
from interlace.parts.terms import Losses, Term, View
from interlace.rules.form import FormatReached
from interlace.rules.harvest import FormPairs


class SPECS(GroupPolicyGradient):
    beta: Positive = 0.1
    sft_coef: NonNegative = 1.0
    denominator: DenominatorName = "sequence_means"
    sft_denominator: DenominatorName = "tokens"
    format_stop: Fraction = 0.95


@register("specs", SPECS, paper="087", title="SPECS (2025)", arxiv="2510.25801", family="pipeline",
          evidence="paper", data=("preference pairs", "prompts"),
          cost=("a first short RL run that writes the chosen rows", "reference"),
          reductions=("stage rl is grpo",))  # fmt: skip
def specs(h: SPECS) -> Method:
    def preference(v: View) -> Losses:
        chosen, rejected = pairs(v.batch)
        gain = row_sum(v.logp - v.ref_logp, v.row, v.n_rows)
        return Losses(logistic_preference(h.beta * (gain[chosen] - gain[rejected])), chosen)

    source = "+".join(RESPONSE)
    rank = Term("preference", {source: preference}, PAIRS, where=paired, pool="group", likelihood=True,
                formula=f"-log sigmoid({h.beta:g}*m), "
                "m = sum(logp - ref_logp) of the chosen row - the same of the rejected row")  # fmt: skip
    preferred = stated("of chosen rows")(lambda b: has_role(b, "chosen")[b.row])
    chosen = likelihood_term(h, coefficient=h.sft_coef, sources=source, where=preferred)
    cold_start = Method(terms=(rank, chosen), needs=frozenset({"ref_logp"}), demonstrations="feed",
                        sample=False)  # fmt: skip
    rl = grpo.build(recast(h, GRPO))
    return Method(stages={"cold_start": cold_start, "rl": rl}, explain_stage="cold_start", pipeline={
        "zero": replace(rl, finished=FormatReached(h.format_stop)),
        "cold_start": replace(cold_start, harvest=FormPairs(), start="base"),
        "rl": rl,
    })  # fmt: skip
