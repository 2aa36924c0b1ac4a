"""IFT: an early token carries the discounted loss of everything that follows it.

    c_t = sum_{k >= t} gamma^(k-t) nll_k,  w_t = c_t T / sum_k c_k  (differentiated too, unless detach)
    loss = mean over rows of (1/T) sum_t w_t nll_t;   weights=sum: w_t = t, counted from 1

gamma=0 is w = 1. In training the log-probs are read with input embeddings mixed with the model's own
greedy tokens by `mix` (two forward passes).

Evidence: official code read (TsinghuaC3I/Intuitive-Fine-Tuning); equations from notes of the text.
Deviations: the code's normalised discounted weights are the default, the paper's double sum is
`weights=sum`. Reference: Hua et al., arXiv 2405.11870.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName, Fraction, Length, ScheduledFraction
from interlace.parts.surrogates import negative_log_likelihood
from interlace.parts.terms import Term, View
from interlace.parts.token_weights import place, propagated_error


class IFT(Length):
    weights: Literal["discounted", "sum"] = "discounted"
    gamma: Fraction = 0.95
    detach: bool = False
    denominator: DenominatorName = "sequence_means"
    mix: ScheduledFraction = Field(0.2, validate_default=True)


WEIGHTS = {
    "discounted": lambda h, nll, v: propagated_error(nll, v.row, v.n_rows, h.gamma),
    "sum": lambda h, nll, v: place(nll, v.row, v.n_rows),
}
FORMULAS = {
    "discounted": "c_t*T/(sum of c over the row), c_t = sum over k >= t of {:g}^(k-t)*nll_k, T = row length",
    "sum": "t, the token's place counted from 1",
}
READ = {False: lambda nll: nll, True: lambda nll: nll.detach()}


@register("ift", IFT, paper="041", title="IFT (2024)", arxiv="2405.11870", family="sft",
          evidence="official code", data=("demonstrations",), cost=("two forward passes if mix",),
          reductions=("gamma=0 is sft denominator=sequence_means",))  # fmt: skip
def ift(h: IFT) -> Method:
    def loss(v: View) -> Tensor:
        nll = negative_log_likelihood(v.logp)
        return WEIGHTS[h.weights](h, READ[h.detach](nll), v) * nll

    term = Term("sft", {"demo": loss}, h.denominator, max_length=h.max_length, likelihood=True,
                formula=f"{'-sg[w]' if h.detach else '-w'}*logp, "
                f"w = {FORMULAS[h.weights].format(h.gamma)}")  # fmt: skip
    return Method(terms=(term,), demonstrations="feed", sample=False, mix=h.mix)
