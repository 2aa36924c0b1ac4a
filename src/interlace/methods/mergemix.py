"""MergeMix: the same answer should be likelier after a clean prompt than after a corrupted one.

    L = (NLL of the chosen row + -log sigmoid(beta (mean logp chosen - mean logp rejected - margin))) / 2
    margin=none: 1 - mix_lambda of the rejected row, so that more corruption asks for a larger gap

Rows carry `extra.role` (`chosen`: clean prompt, `rejected`: mixed prompt) and `extra.mix_lambda`; each chosen
row of a group pairs with each rejected one.

Evidence: official code read (JinXins/MergeMix, LLaVA fork). Deviations: both sides carry a gradient (the
code's mixed pass has none: `variant=code`), means go over the answer. Reference: arXiv 2510.23479.
"""

import torch
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName, Length, Positive
from interlace.methods._policy_gradient import likelihood_term
from interlace.parts.extras import extra_number, has_role
from interlace.parts.masks import RESPONSE, has_token
from interlace.parts.pair_losses import logistic_preference, pairs_in_group
from interlace.parts.reducer import Denominator
from interlace.parts.segments import row_mean
from interlace.parts.stated import stated
from interlace.parts.terms import Losses, Term, View
from interlace.rules.corrupted import CorruptedPrompts
from interlace.types import Batch


class MergeMix(Length):
    beta: Positive = 1.0
    margin: float | None = None
    detach_rejected: bool = False
    denominator: DenominatorName = "tokens"


REJECTED = {False: lambda mean: mean, True: lambda mean: mean.detach()}


def pairs(batch: Batch) -> tuple[Tensor, Tensor]:
    """int64 [P] each: the chosen and the rejected row of each pair."""
    scored = has_token(batch, *RESPONSE)
    return pairs_in_group(
        batch.group, has_role(batch, "chosen") & scored, has_role(batch, "rejected") & scored
    )


@stated("of rows in a pair")
def paired(batch: Batch) -> Tensor:
    """bool [N]: decisions of rows in a pair."""
    return torch.isin(batch.row, torch.cat(pairs(batch)))


def corruption(batch: Batch, rejected: Tensor) -> Tensor:
    """[P]: the share of the prompt that was replaced."""
    rows = torch.isin(torch.arange(batch.n_rows), rejected)
    return 1 - extra_number(batch, "mix_lambda", rows, low=0.0, high=1.0)[rejected]


PAIRS = Denominator("pairs", lambda batch, covered: pairs(batch)[0].numel())


@register("mergemix", MergeMix, paper="094", title="MergeMix (2025)", arxiv="2510.23479", family="sft",
          evidence="official code", data=("demonstrations",), cost=("each row twice: clean and corrupted",),
          variants={"code": {"detach_rejected": True}})  # fmt: skip
def mergemix(h: MergeMix) -> Method:
    def preference(v: View) -> Losses:
        chosen, rejected = pairs(v.batch)
        mean = row_mean(v.logp, v.row, v.n_rows)
        gap = mean[chosen] - REJECTED[h.detach_rejected](mean)[rejected]
        margin = corruption(v.batch, rejected) if h.margin is None else h.margin
        return Losses(logistic_preference(h.beta * (gap - margin)), chosen)

    rejected = "sg[that of the rejected row]" if h.detach_rejected else "that of the rejected row"
    margin = "(1 - mix_lambda)" if h.margin is None else f"{h.margin:g}"
    source = "+".join(RESPONSE)
    nll = likelihood_term(h, denominator="denominator", coefficient=0.5, sources=source,
                          where=stated("of chosen rows")(lambda b: has_role(b, "chosen")[b.row]))  # fmt: skip
    rank = Term("rank", {source: preference}, PAIRS, 0.5, where=paired, pool="group", ratio=False,
                formula=f"-log sigmoid({h.beta:g}*(mean logp of the chosen row - {rejected} - "
                f"{margin}))")  # fmt: skip
    return Method(terms=(nll, rank), demonstrations="feed", sample=False, row_scorer=CorruptedPrompts())
