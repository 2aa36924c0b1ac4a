"""DFT: likelihood weighted by the model's own probability, which cancels the 1/p of SFT's gradient.

    loss(token) = -sg[w] logp,   w = p;  level=sequence: product of the row's p;  geometric: their
                                 geometric mean

Evidence: official code read (yongliang-wu/DFT, verl fork); paper text read. Deviations: the count of tokens
is that of the whole optimizer step, not of a micro-batch. Reference: Wu et al., arXiv 2508.05629.
"""

from typing import Literal

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName, Length
from interlace.parts.surrogates import negative_log_likelihood
from interlace.parts.terms import Term, View
from interlace.parts.token_weights import PROBABILITY_WEIGHTS


class DFT(Length):
    level: Literal["token", "sequence", "geometric"] = "token"
    denominator: DenominatorName = "tokens"


WEIGHT_FORMULAS = {
    "token": "p",
    "sequence": "product of p over the row",
    "geometric": "geometric mean of p over the row",
}


@register("dft", DFT, paper="086", title="DFT (2025)", arxiv="2508.05629", family="sft",
          evidence="official code", data=("demonstrations",))  # fmt: skip
def dft(h: DFT) -> Method:
    weight = PROBABILITY_WEIGHTS[h.level]

    def loss(v: View) -> Tensor:
        return weight(v.logp.detach(), v.row, v.n_rows) * negative_log_likelihood(v.logp)

    term = Term("sft", {"demo": loss}, h.denominator, max_length=h.max_length, likelihood=True,
                formula=f"-sg[w]*logp, w = {WEIGHT_FORMULAS[h.level]}")  # fmt: skip
    return Method(terms=(term,), demonstrations="feed", sample=False)
