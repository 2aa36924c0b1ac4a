"""C-RLFT (OpenChat): likelihood weighted by the class of each demonstration, over the sum of the weights.

    L = sum_t w_t nll_t / sum_t w_t,  w = class_weight of the row (1 where absent), or e^(class_reward/beta)
    level=sequence: w over the row's length, so that every row counts by its class alone

Both sums go over the whole optimizer step; the class itself is a tag in the prompt. `class_weight` and
`class_reward` are keys of a row's `extra`.

Evidence: official code read (imoneoi/openchat). Deviations: none. Reference: Wang et al., arXiv 2309.11235.
"""

from typing import Literal

import torch
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Parameters, Positive
from interlace.parts.extras import extra_number
from interlace.parts.masks import has_token
from interlace.parts.reducer import Denominator
from interlace.parts.segments import row_count
from interlace.parts.stated import stated
from interlace.parts.surrogates import negative_log_likelihood
from interlace.parts.terms import Term, View
from interlace.types import Batch


class CRLFT(Parameters):
    level: Literal["token", "sequence"] = "token"
    beta: Positive | None = None


def class_weight(h: CRLFT, batch: Batch) -> Tensor:
    rows = has_token(batch, "demo")
    if h.beta is None:
        return extra_number(batch, "class_weight", rows, default=1.0, low=0.0)
    limit = 700 * h.beta  # e^709 is the largest float64
    return (extra_number(batch, "class_reward", rows, low=-limit, high=limit) / h.beta).exp()


DIVISORS = {"token": torch.ones_like, "sequence": lambda length: length.clamp(min=1)}
WEIGHTS = Denominator("weights", lambda batch, covered: float(batch.arrays["weight"][covered].sum()))


@register("c_rlft", CRLFT, paper="053", title="C-RLFT, OpenChat (2023)", arxiv="2309.11235", family="sft",
          evidence="official code", data=("demonstrations",),
          reductions=("level=token with equal weights is sft",))  # fmt: skip
def c_rlft(h: CRLFT) -> Method:
    def loss(v: View) -> Tensor:
        return v.array("weight") * negative_log_likelihood(v.logp)

    @stated("")
    def weigh(batch: Batch) -> Batch:
        length = row_count(batch.row[batch.is_source("demo")], batch.n_rows)
        return batch.with_arrays(weight=(class_weight(h, batch) / DIVISORS[h.level](length))[batch.row])

    weight = "class_weight (1 where absent)" if h.beta is None else f"exp(class_reward/{h.beta:g})"
    per_row = {"token": "", "sequence": ", over the row's length"}[h.level]
    term = Term("sft", {"demo": loss}, WEIGHTS, likelihood=True, formula=f"-w*logp, w = {weight}{per_row}")
    return Method(terms=(term,), advantage=weigh, demonstrations="feed", sample=False)
