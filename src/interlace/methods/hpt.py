"""HPT: the policy's own pass rate decides, prompt by prompt, between imitation and exploration.

    P = share of correct rollouts of the group
    P <= gate: its rollouts are dropped and every demonstration is an SFT row;  loss = sft_coef NLL
    P >  gate: its rollouts train with PG(A), its demonstrations are ignored
    gate < P <= gate_off: a mixed group, the demonstration a LUFFY row (-A p / (p + gamma)) in the RL term

P is compared with a tolerance of 1e-9. Without a demonstration a prompt falls back to RL; without a valid
rollout there is no P and the group contributes nothing. SFT and RL have a denominator each, counted over the
step, so that their balance does not depend on how the batch is split.

Evidence: official code read. Deviations: the code's gate counts solved rollouts, here it is their share;
`variant=code` is the released run (no std, no clip, a constant length; divided by the rows too).
Reference: Lv et al., arXiv 2509.04419.
"""

import math

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import (
    Clip,
    DenominatorName,
    GroupBaseline,
    Length,
    NonNegative,
    Positive,
    at_most,
)
from interlace.methods._policy_gradient import (
    entropy_bonus_terms,
    group_advantage,
    likelihood_term,
    policy_gradient,
    policy_gradient_formula,
    rewarded,
    warn_unrewarded,
)
from interlace.methods.luffy import shape_formula, shaped_demonstration
from interlace.parts import masks
from interlace.parts.masks import beside_rollouts
from interlace.parts.stated import stated
from interlace.parts.terms import Term
from interlace.rules.samplers import WithDemonstration
from interlace.rules.updates import SkipLargeGradients
from interlace.types import Batch


class HPT(GroupBaseline, Clip, Length):
    gate: float = 0.0
    gate_off: float | None = None
    sft_coef: NonNegative = 1.0
    gamma: Positive = 0.1
    denominator: DenominatorName = "tokens"
    sft_denominator: DenominatorName = "tokens"
    entropy_bonus: NonNegative = 0.001
    skip_grad_norm: Positive | None = 80.0

    _gates = at_most("gate", "gate_off")


def gated(h: HPT, batch: Batch) -> Batch:
    """Leaves each group with what it trains: demonstrations alone, rollouts alone, or both mixed."""
    rate = masks.pass_rate(batch)[batch.group]
    low = rate <= h.gate + masks.TIE_TOLERANCE
    mixed = ~low & (rate <= (-math.inf if h.gate_off is None else h.gate_off + masks.TIE_TOLERANCE))
    imitated = low & masks.in_group_with(batch.group, masks.has_token(batch, "demo") & ~batch.is_rollout)
    unused = (imitated & batch.is_rollout) | (~imitated & ~mixed & ~batch.is_rollout)
    return masks.leave_out(batch, rate.isnan() | unused)


@stated("of groups that kept their rollouts")
def reinforced(batch: Batch) -> Tensor:
    """bool [N], after the gate: decisions of groups that kept their rollouts."""
    return rewarded(batch) & beside_rollouts(batch)[batch.row]


@register("hpt", HPT, paper="x02", title="HPT, Unified Policy Gradient Estimator (2025)", arxiv="2509.04419",
          family="mixed", evidence="official code", data=("prompts", "demonstrations"),
          variants={"code": {"std": False, "clip_low": None, "clip_high": None, "denominator": "length"}},
          reductions=("gate=-1 is grpo denominator=tokens", "gate=1 is sft"))  # fmt: skip
def hpt(h: HPT) -> Method:
    losses = {"rollout": policy_gradient(h), "demo": shaped_demonstration(h, "shaped")}
    policy = Term("policy", losses, h.denominator, where=reinforced, max_length=h.max_length,
                  silent_without_advantage=True, formula=f"rollout: {policy_gradient_formula(h)}; "
                  f"demo: {shape_formula(h, 'shaped')}")  # fmt: skip
    alone = stated("of groups that the gate leaves to SFT")(lambda b: ~beside_rollouts(b)[b.row])
    sft = likelihood_term(h, coefficient=h.sft_coef, where=alone)
    mixed = "" if h.gate_off is None else f", where {h.gate:g} < P <= {h.gate_off:g} both stay"
    gate = stated(f"by the pass rate P of a group: P <= {h.gate:g} drops its rollouts if it has a "
                  f"demonstration, a larger P its demonstrations{mixed}")(lambda b: gated(h, b))  # fmt: skip
    return Method(
        terms=(policy, sft, *entropy_bonus_terms(h, "rollout+demo", reinforced)),
        regroup=(gate, lambda b: warn_unrewarded(b, beside_rollouts)),
        advantage=group_advantage(h, lambda b: masks.counted_mixed(b) & beside_rollouts(b), "rows that stay"),
        demonstrations="group",
        sample=WithDemonstration(),
        update=None if h.skip_grad_norm is None else SkipLargeGradients(h.skip_grad_norm),
    )
