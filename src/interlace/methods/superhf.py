"""SuperHF: SFT on the best-rewarded rollouts of each prompt, held near the start policy by a KL.

    L = mean over tokens of the `keep` best rollouts of a group of -logp
        + kl * mean over those rows of mean_t KL(start || policy), full vocabulary, start policy first

Ties keep the first row. kl_reduction=sum adds the rows' KL instead of averaging it, as the code does.

Evidence: official code read (openfeedback/superhf). Deviations: mean over rows by default; the KL is read
where each token is predicted (the code is off by one). Reference: Mukobi et al., arXiv 2310.16763.
"""

from typing import Any, Literal

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, Length, NonNegative
from interlace.methods._policy_gradient import likelihood_term
from interlace.parts.masks import best_of_group, has_reward, has_token
from interlace.parts.segments import row_mean
from interlace.parts.stated import stated
from interlace.parts.terms import Losses, Term, View
from interlace.types import Batch


class SuperHF(Length):
    keep: Count = 1
    denominator: DenominatorName = "tokens"
    kl: NonNegative = 0.35
    kl_reduction: Literal["mean", "sum"] = "mean"


REDUCTIONS: dict[str, dict[str, Any]] = {
    "mean": {"denominator": "sequences"},
    "sum": {"denominator": "length_sum", "max_length": 1},
}


def divergence(v: View) -> Losses:
    return v.row_losses(row_mean(v.leaf("reverse_kl"), v.row, v.n_rows))


@register("superhf", SuperHF, paper="037", title="SuperHF (2023)", arxiv="2310.16763", family="rl",
          evidence="official code", data=("prompts",), cost=("reference if kl, over the full vocabulary",),
          reductions=("kl=0 and one rollout a group is sft on own samples",))  # fmt: skip
def superhf(h: SuperHF) -> Method:
    @stated(f"of the {h.keep} best-rewarded rollouts of each group")
    def best(batch: Batch) -> Tensor:
        candidates = has_reward(batch) & has_token(batch, "rollout")
        return best_of_group(batch, candidates, h.keep)[batch.row]

    nll = likelihood_term(h, denominator="denominator", sources="rollout", where=best)
    anchor = Term("kl", {"rollout": divergence}, **REDUCTIONS[h.kl_reduction], coefficient=h.kl, where=best,
                  statistics=("reverse_kl",), ratio=False, explained=False,
                  formula="KL(reference || policy) of the vocabulary, mean of the row")  # fmt: skip
    return Method(terms=(nll, anchor) if h.kl else (nll,))
