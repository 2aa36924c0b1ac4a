"""Supervised fine-tuning: maximum likelihood of demonstrations.

    L = -(1/N) sum over demonstration tokens (end-of-sequence included) of logp,  N = their number

N is counted over the whole optimizer step, every micro-batch and rank (paper [044] shows what a mean of
micro-batch means does to a baseline).

Evidence: standard objective. Deviations: none.
"""

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName, Length
from interlace.methods._policy_gradient import likelihood_term


class SFT(Length):
    denominator: DenominatorName = "tokens"


@register(
    "sft",
    SFT,
    title="Supervised fine-tuning",
    family="sft",
    evidence="official code",
    data=("demonstrations",),
)
def sft(h: SFT) -> Method:
    return Method(terms=(likelihood_term(h, denominator="denominator"),), demonstrations="feed", sample=False)
