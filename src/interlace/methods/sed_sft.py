"""SED-SFT: likelihood, with a pull of p towards 1/2 where several continuations are plausible.

    loss(token) = -logp + lam M (p - 1/2)^2,   p differentiated
    M = 1 where topk_mass < tau;  tau=none: the (1 - mask_ratio)-quantile over the demonstration tokens

A share `mask_ratio` of the tokens (the confident ones) is left to plain likelihood; 0 gates all.

Evidence: official code read (pppa2019/SED-SFT); paper definition cross-checked. Deviations: one `top_k` for
threshold and gate (the shipped script calibrates with 10, gates with 2). Reference: arXiv 2602.07464.
"""

import torch
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, Fraction, Length, NonNegative
from interlace.parts.masks import below, upper_quantile
from interlace.parts.surrogates import negative_log_likelihood, pull_to_half
from interlace.parts.terms import Term, View, annotated
from interlace.types import Batch


class SEDSFT(Length):
    lam: NonNegative = 1.0
    tau: Fraction | None = None
    mask_ratio: Fraction = 0.7
    denominator: DenominatorName = "tokens"
    top_k: Count = 2


def all_positions(batch: Batch) -> Batch:
    return batch.with_arrays(gate=torch.ones(batch.n_decisions, dtype=torch.float64))


def gate_formula(h: SEDSFT) -> str:
    if h.tau is not None:
        return f"where topk_mass < {h.tau:g}, else 0"
    if h.mask_ratio == 0:
        return "everywhere"
    return f"where topk_mass is below its {1 - h.mask_ratio:g}-quantile over the demonstration tokens, else 0"


@register("sed_sft", SEDSFT, paper="048", title="SED-SFT (2026)", arxiv="2602.07464", family="sft",
          evidence="official code", data=("demonstrations",), cost=("topk_mass",),
          reductions=("lam=0 or mask_ratio=1 is sft",))  # fmt: skip
def sed_sft(h: SEDSFT) -> Method:
    def loss(v: View) -> Tensor:
        return negative_log_likelihood(v.logp) + h.lam * v.array("gate") * pull_to_half(v.logp)

    term = Term("sft", {"demo": loss}, h.denominator, max_length=h.max_length, likelihood=True,
                formula=f"-logp + {h.lam:g}*M*(p - 1/2)^2, p differentiated, "
                f"M = 1 {gate_formula(h)}")  # fmt: skip

    def open_positions(batch: Batch) -> Batch:
        covered = term.covers(batch)
        mass = annotated(batch, "topk_mass", covered.nonzero()[:, 0])
        gate = torch.zeros(batch.n_decisions, dtype=torch.float64)
        gate[covered] = below(mass, upper_quantile(mass, h.mask_ratio) if h.tau is None else h.tau).double()
        return batch.with_arrays(gate=gate)

    gated = h.lam > 0 and (h.tau is not None or h.mask_ratio > 0)
    return Method(
        terms=(term,),
        advantage=open_positions if gated else all_positions,
        needs=frozenset({"topk_mass"} if gated else ()),
        demonstrations="feed",
        sample=False,
        topk=h.top_k,
    )
