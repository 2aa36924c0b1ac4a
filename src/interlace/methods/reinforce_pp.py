"""REINFORCE++: token returns, whitened over every token of the step, in PPO's clipped surrogate.

    r_t = -kl k1_t, plus R (minus the group mean if baseline=mean) on the last token
    A_t = whitened sum_{k >= t} gamma^(k-t) r_k

Evidence: official code read (verl `reinforce_plus_plus`, `reinforce_plus_plus_baseline`). Deviations: eps
is added to the std (verl: 1e-8 to the variance). Reference: Hu, arXiv 2501.03262.
"""

from typing import Literal

import torch

from interlace.methods._method import Method, register
from interlace.methods._parameters import Clip, DenominatorName, Fraction, Length, NonNegative
from interlace.methods._policy_gradient import policy_gradient_term, reward_kl
from interlace.methods.reinforce import BASELINES
from interlace.parts.advantages import reward_to_go, whiten
from interlace.parts.stated import stated
from interlace.types import Batch


class ReinforcePP(Clip, Length):
    baseline: Literal["mean"] | None = None
    gamma: Fraction = 1.0
    kl: NonNegative = 0.0
    std_eps: NonNegative = 1e-6
    denominator: DenominatorName = "tokens"


@register("reinforce_pp", ReinforcePP, title="REINFORCE++ (2025)", arxiv="2501.03262",
          evidence="official code", cost=("reference if kl",))  # fmt: skip
def reinforce_pp(h: ReinforcePP) -> Method:
    penalty = f"-{h.kl:g}*(old_logp - ref_logp)" if h.kl else "0"
    baseline = {None: "R", "mean": "R - group mean"}[h.baseline]

    @stated(
        f"A = (G - mean)/(std + {h.std_eps:g}) over all rollout tokens of the step",
        f"G_t = sum over k >= t of {h.gamma:g}^(k-t)*r_k, r = {penalty}, on the last token plus {baseline}",
    )
    def advantage(batch: Batch) -> Batch:
        covered = batch.is_source("rollout") & batch.active[batch.row]
        row = batch.row[covered]
        reward = BASELINES[h.baseline](batch)
        returns = reward_to_go(reward, reward_kl(h.kl, batch)[covered], row, h.gamma)
        a = torch.zeros(batch.n_decisions, dtype=torch.float64)
        a[covered] = whiten(returns, h.std_eps)
        return batch.with_arrays(advantage=a)

    term = policy_gradient_term(h.model_copy(update={"kl": 0.0}))
    return Method(
        terms=(term,), advantage=advantage, needs=frozenset({"old_logp", "ref_logp"} if h.kl else ())
    )
