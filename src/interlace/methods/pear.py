"""PEAR: likelihood weighted by whether the current policy would also have produced what follows the token.

    d_t = clip(logp - behaviour_logp, delta_low, delta_high),  loss(token) = -sg[G_t] logp
    level=token:    log G_t = (T - t) log gamma + sum_{j > t} d_j      (own ratio not included)
    level=block:    the same with t, j counted in blocks of `block` tokens;  level=sequence: sum of all d
    log G_t is clipped to [log_g_min, log_g_max]

behaviour_logp is the author's: a column of the data, or, with `author`, the start weights' (of their own
correct samples, or of the data's demonstrations as if they had written them).

Evidence: a public re-implementation and detailed notes that follow the paper's Algorithm 1; no official code.
Deviations: a token mean (the paper writes a plain sum). Reference: arXiv 2602.01058.
"""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, Length, at_most
from interlace.parts.surrogates import negative_log_likelihood
from interlace.parts.terms import Term, View
from interlace.parts.token_weights import following_log_ratio, row_log_ratio
from interlace.rules.behaviour import KnownAuthor


class PEAR(Length):
    level: Literal["token", "block", "sequence"] = "token"
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.999
    delta_low: float = -0.08
    delta_high: float = 0.3
    log_g_min: float = -10.0
    log_g_max: float = 5.0
    block: Count = 4
    denominator: DenominatorName = "tokens"
    author: Literal["auto", "data", "samples", "start"] = "auto"
    samples: Count = 4

    _deltas = at_most("delta_low", "delta_high")
    _weights = at_most("log_g_min", "log_g_max")


FORMULAS = {
    "token": "(T - t)*log {gamma:g} + sum of d over the tokens after t",
    "block": "(T - t)*log {gamma:g} + sum of d over the blocks after t, counted in blocks of {block} tokens",
    "sequence": "sum of d over the row",
}
LOG_WEIGHTS = {
    "token": lambda h, delta, v: following_log_ratio(delta, v.row, v.n_rows, h.gamma),
    "block": lambda h, delta, v: following_log_ratio(delta, v.row, v.n_rows, h.gamma, h.block),
    "sequence": lambda h, delta, v: row_log_ratio(delta, v.row, v.n_rows),
}


@register("pear", PEAR, paper="020", title="PEAR (2026)", arxiv="2602.01058", family="sft",
          evidence="third-party code", data=("demonstrations",), cost=("behaviour_logp with the data",),
          reductions=("gamma=1 on demonstrations of the policy itself is sft",))  # fmt: skip
def pear(h: PEAR) -> Method:
    def loss(v: View) -> Tensor:
        delta = (v.logp.detach() - v.array("behaviour_logp")).clamp(h.delta_low, h.delta_high)
        log_g = LOG_WEIGHTS[h.level](h, delta, v).clamp(h.log_g_min, h.log_g_max)
        return log_g.exp() * negative_log_likelihood(v.logp)

    term = Term("sft", {"demo": loss}, h.denominator, max_length=h.max_length, likelihood=True,
                formula=f"-sg[exp(g)]*logp, g = {FORMULAS[h.level].format(gamma=h.gamma, block=h.block)} "
                f"inside [{h.log_g_min:g}, {h.log_g_max:g}], d = logp - behaviour_logp inside "
                f"[{h.delta_low:g}, {h.delta_high:g}]")  # fmt: skip
    return Method(terms=(term,), needs=frozenset({"behaviour_logp"}), demonstrations="feed", sample=False,
                  harvest=KnownAuthor(h.author, h.samples))  # fmt: skip
