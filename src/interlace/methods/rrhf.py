"""RRHF: rank scored responses by their length-normalised log-probability, and imitate the best one.

    p_i = sum_t logp / T_i^length_power over every row with a reward, whoever wrote it
    L = rank_coef * sum over pairs r_i < r_j of max(0, p_i - p_j) - sum_t logp of the best row, a group's mean

Equal rewards form no pair; ties at the top go to the first row. ft=mean averages over the best row's tokens.

Evidence: official code read (GanjinZero/RRHF), issues read. Deviations: T is a row's own length; the code
divides by the padded length (`length=padded`, a known bug). Reference: Yuan et al., arXiv 2304.05302.
"""

from typing import Literal

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import NonNegative, Parameters
from interlace.methods._policy_gradient import warn_unrewarded
from interlace.parts.masks import RESPONSE, best_of_group, has_reward, has_token
from interlace.parts.pair_losses import length_normalised, longest_of_group, pairs_by_reward, ranking_hinge
from interlace.parts.reducer import GROUPS
from interlace.parts.segments import row_count, row_mean, row_sum
from interlace.parts.stated import stated
from interlace.parts.surrogates import negative_log_likelihood
from interlace.parts.terms import Losses, Term, View
from interlace.rules.samplers import WithDemonstration
from interlace.types import Batch


class RRHF(Parameters):
    rank_coef: NonNegative = 1.0
    length_power: NonNegative = 1.0
    length: Literal["own", "padded"] = "own"
    ft: Literal["sum", "mean"] = "sum"


LENGTHS = {"own": lambda length, group: length, "padded": longest_of_group}
REDUCTIONS = {"sum": row_sum, "mean": row_mean}


def candidates(batch: Batch) -> Tensor:
    """bool [R]: rows with a reward and something to score."""
    return has_reward(batch) & has_token(batch, *RESPONSE)


@register("rrhf", RRHF, paper="112", title="RRHF (2023)", arxiv="2304.05302", family="mixed",
          evidence="official code", data=("prompts", "demonstrations"),
          reductions=("one candidate a group is sft denominator=sequences",))  # fmt: skip
def rrhf(h: RRHF) -> Method:
    def rank(v: View) -> Losses:
        length = row_count(v.row, v.n_rows)
        scale = LENGTHS[h.length](length, v.batch.group)
        p = length_normalised(row_sum(v.logp, v.row, v.n_rows), scale, h.length_power)
        worse, better = pairs_by_reward(v.batch.group, v.batch.reward, length > 0)
        return Losses(ranking_hinge(p[worse], p[better]), worse)

    def imitate(v: View) -> Losses:
        return v.row_losses(REDUCTIONS[h.ft](negative_log_likelihood(v.logp), v.row, v.n_rows))

    source, length = "+".join(RESPONSE), {"own": "length", "padded": "padded length"}[h.length]
    everyone = stated("of rows with a reward")(lambda b: candidates(b)[b.row])
    best = stated("of the best-rewarded row of each group")(lambda b: best_of_group(b, candidates(b))[b.row])
    return Method(
        terms=(
            Term("rank", {source: rank}, GROUPS, h.rank_coef, everyone, pool="group", ratio=False,
                 formula=f"max(0, s_i - s_j) of pairs with R_i < R_j, "
                 f"s = (sum of logp)/T^{h.length_power:g}, T = {length} of the row"),
            Term("best", {source: imitate}, GROUPS, where=best, likelihood=True,
                 formula=f"-({h.ft} of logp over the row)"),
        ),
        regroup=(warn_unrewarded,),
        demonstrations="group",
        sample=WithDemonstration(),
    )  # fmt: skip
