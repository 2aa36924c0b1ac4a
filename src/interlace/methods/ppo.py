"""PPO: a critic's generalised advantages in the clipped surrogate.

    r_t = -kl k1_t, plus R on the last token;  A = (whitened) GAE(gamma, gae_lambda)
    loss(token) = PG(A);  value loss = value_coef * max((v - ret)^2, (clip(v) - ret)^2) / 2

Evidence: official code read (verl, TRL). Deviations: whitening adds eps to the std; the KL is in the
reward and nowhere else. Reference: Schulman et al., arXiv 1707.06347; GAE arXiv 1506.02438.
"""

import torch

from interlace.methods._method import BatchRule, Method, register
from interlace.methods._parameters import Clip, DenominatorName, Fraction, Length, NonNegative
from interlace.methods._policy_gradient import policy_gradient_term, reward_kl
from interlace.parts.advantages import generalised_advantage, whiten
from interlace.parts.stated import stated
from interlace.parts.surrogates import clipped_value_loss
from interlace.parts.terms import Term, View
from interlace.types import Batch


class PPO(Clip, Length):
    gamma: Fraction = 1.0
    gae_lambda: Fraction = 0.95
    whiten: bool = True
    kl: NonNegative = 0.0
    std_eps: NonNegative = 1e-6
    denominator: DenominatorName = "tokens"
    value_coef: NonNegative = 0.1
    value_clip: NonNegative | None = 0.2


def gae_advantage(h: PPO, batch: Batch) -> Batch:
    """Sets `advantage`, and `values` and `returns` for the value loss; V is 0 where `values` is absent."""
    covered = batch.is_source("rollout") & batch.active[batch.row]
    values = batch.arrays.get("values", torch.zeros(batch.n_decisions, dtype=torch.float64)).nan_to_num()
    raw = generalised_advantage(
        batch.reward,
        reward_kl(h.kl, batch)[covered],
        values[covered],
        batch.row[covered],
        h.gamma,
        h.gae_lambda,
    )
    a, returns = torch.zeros_like(values), torch.zeros_like(values)
    a[covered] = whiten(raw, h.std_eps) if h.whiten else raw
    returns[covered] = raw + values[covered]
    return batch.with_arrays(advantage=a, values=values, returns=returns)


def gae_rule(h: PPO) -> BatchRule:
    """`gae_advantage` with its formula."""
    penalty = f"-{h.kl:g}*(old_logp - ref_logp)" if h.kl else "0"
    whitened = f", whitened over the step's rollout tokens (std + {h.std_eps:g})" if h.whiten else ""
    delta = f"delta_t = r_t + {h.gamma:g}*V_(t+1) - V_t, r = {penalty}, on the last token plus R"
    text = f"A_t = sum over k >= t of ({h.gamma:g}*{h.gae_lambda:g})^(k-t)*delta_k{whitened}"
    return stated(text, delta)(lambda batch: gae_advantage(h, batch))


def value_term(h: PPO) -> Term:
    def loss(v: View) -> torch.Tensor:
        return clipped_value_loss(v.leaf("value"), v.array("values"), v.array("returns"), h.value_clip)

    return Term("value", {"rollout": loss}, h.denominator, h.value_coef, max_length=h.max_length,
                statistics=("value",), policy="critic", explained=False,
                formula="(V - return)^2/2" if h.value_clip is None else "max((V - return)^2, (V' - return)^2)"
                f"/2, V' = V within {h.value_clip:g} of its old value")  # fmt: skip


@register("ppo", PPO, title="PPO (2017)", arxiv="1707.06347", evidence="official code",
          cost=("critic: a second model, forward and backward", "reference if kl"))  # fmt: skip
def ppo(h: PPO) -> Method:
    term = policy_gradient_term(h.model_copy(update={"kl": 0.0}))
    needs = frozenset({"values", *({"old_logp", "ref_logp"} if h.kl else ())})
    return Method(terms=(term, value_term(h)), advantage=gae_rule(h), needs=needs)
