"""iw-SFT: likelihood weighted by how much likelier the current policy makes a demonstration than its source.

    loss(token) = -sg[w] logp,   D = logp - ref_logp
    level=mean: w = clamp(exp(kappa mean D), 0, 16)  product: exp(kappa sum D)  token: clamp(exp D, 0.2, 1.8)

A tighter lower bound of the reward than SFT, which is w = 1. `w_min`, `w_max` replace the bounds.

Evidence: official code read (emmyqin/iw_sft). Deviations: `level=mean` as in the code, the paper's ratio
is `product`. Reference: Qin and Springenberg, arXiv 2507.12856.
"""

from typing import Literal, Self

from pydantic import model_validator
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName, Length, NonNegative
from interlace.parts.surrogates import (
    geometric_ratio,
    importance_ratio,
    negative_log_likelihood,
    sequence_ratio,
)
from interlace.parts.terms import Term, View

RATIOS = {
    "mean": lambda k, v: geometric_ratio(k * v.logp.detach(), k * v.ref_logp, v.row, v.n_rows)[v.row],
    "product": lambda k, v: sequence_ratio(k * v.logp.detach(), k * v.ref_logp, v.row, v.n_rows)[v.row],
    "token": lambda k, v: importance_ratio(v.logp.detach(), v.ref_logp),
}
FORMULAS = {
    "mean": "exp({:g}*mean of D over the row)",
    "product": "exp({:g}*sum of D over the row)",
    "token": "exp(D)",
}
BOUNDS = {"mean": (0.0, 16.0), "product": (0.0, 16.0), "token": (0.2, 1.8)}


class IWSFT(Length):
    level: Literal["mean", "product", "token"] = "mean"
    kappa: NonNegative = 1.0
    w_min: NonNegative | None = None
    w_max: NonNegative | None = None
    denominator: DenominatorName = "tokens"

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = BOUNDS[self.level]
        return (low if self.w_min is None else self.w_min, high if self.w_max is None else self.w_max)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.bounds[0] > self.bounds[1]:
            raise ValueError(f"w_min={self.bounds[0]:g}: accepted are numbers up to w_max={self.bounds[1]:g}")
        return self


@register("iw_sft", IWSFT, paper="029", title="iw-SFT (2025)", arxiv="2507.12856", family="sft",
          evidence="official code", data=("demonstrations",), cost=("reference",),
          reductions=("kappa=0 with level=mean or product is sft",))  # fmt: skip
def iw_sft(h: IWSFT) -> Method:
    def loss(v: View) -> Tensor:
        return RATIOS[h.level](h.kappa, v).clamp(*h.bounds) * negative_log_likelihood(v.logp)

    term = Term("sft", {"demo": loss}, h.denominator, max_length=h.max_length, likelihood=True,
                formula=f"-sg[w]*logp, w = {FORMULAS[h.level].format(h.kappa)} inside "
                f"[{h.bounds[0]:g}, {h.bounds[1]:g}], D = logp - ref_logp")  # fmt: skip
    return Method(terms=(term,), needs=frozenset({"ref_logp"}), demonstrations="feed", sample=False)
