"""CISPO: the importance weight is clipped and detached, so that no token loses its gradient.

    loss(token) = -sg[clip(rho, 1 - clip_low, 1 + clip_high)] A logp

Evidence: official code read. verl and TRL mean different bounds by this name: the default is TRL's (no
lower bound, cap 5), `clip_low=0.2 clip_high=0.28` is verl's; the paper gives no numbers.
Reference: MiniMax-M1, arXiv 2506.13585.
"""

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName, GroupBaseline, Length, NonNegative
from interlace.methods._policy_gradient import clip_formula, group_advantage
from interlace.parts.surrogates import clipped_weight_surrogate, importance_ratio
from interlace.parts.terms import Term, View


class CISPO(GroupBaseline, Length):
    clip_low: NonNegative | None = None
    clip_high: NonNegative | None = 4.0
    denominator: DenominatorName = "tokens"


@register("cispo", CISPO, title="CISPO, MiniMax-M1 (2025)", arxiv="2506.13585", evidence="official code")
def cispo(h: CISPO) -> Method:
    def loss(v: View) -> Tensor:
        ratio = importance_ratio(v.logp, v.old_logp)
        return clipped_weight_surrogate(v.logp, ratio, v.advantage, h.clip_low, h.clip_high)

    term = Term("policy", {"rollout": loss}, h.denominator, max_length=h.max_length,
                silent_without_advantage=True, formula=f"-sg[{clip_formula(h)}]*A*logp")  # fmt: skip
    return Method(terms=(term,), advantage=group_advantage(h))
