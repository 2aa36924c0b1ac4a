"""R-AIRL: GRPO on the dense token reward of a discriminator between expert traces and own samples.

    r_t = token_reward / temperature;  mean, std of the last token's r over the group (demonstration included)
    grpo:  A_t = sum_{k >= t} gamma^(k-t) (r_k - mean) / (std + std_eps)
    prime: the same of r_k - mean of the others' last r;   sparse: z of the last r, on every token
    loss(token) = PG(A_t) (+ kl k(delta)); on an injected demonstration the ratio is taken against itself

Evidence: official code read (fanconic/expert_reasoning). Deviations: a group whose last rewards are all equal
has A = 0 on inner tokens too (the code divides by eps). Reference: arXiv 2510.01857.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName, Fraction, NonNegative, PolicyGradient, Positive
from interlace.methods._policy_gradient import policy_gradient, policy_gradient_term, warn_unrewarded
from interlace.parts.advantages import dense_leave_one_out, dense_normalised, group_normalised
from interlace.parts.extras import extra_per_token, has_extra
from interlace.parts.masks import first_of_episode
from interlace.parts.segments import last_in_row, row_constant, row_count, suffix_sum
from interlace.parts.stated import stated
from interlace.rules.discriminator import TokenDiscriminator
from interlace.rules.samplers import WithDemonstration
from interlace.types import Batch


class IRLDenseReward(PolicyGradient):
    mode: Literal["grpo", "prime", "sparse"] = "grpo"
    gamma: Fraction = 0.9
    inject: bool = True
    temperature: Positive = 1.0
    std_eps: NonNegative = 1e-6
    denominator: DenominatorName = "sequence_means"
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    reward_lr: Positive = 1e-5


def returns(h: IRLDenseReward, a: Tensor, r: Tensor, row: Tensor, last: Tensor, *group: Tensor) -> Tensor:
    return suffix_sum(a, row, last.numel(), h.gamma)


MODES = {
    "grpo": lambda h, *group: returns(h, dense_normalised(*group, eps=h.std_eps), *group),
    "prime": lambda h, *group: returns(h, dense_leave_one_out(*group), *group),
    "sparse": lambda h, r, row, *last: group_normalised(*last, eps=h.std_eps)[row],
}
MODE_FORMULAS = {
    "grpo": "A_t = sum over k >= t of {h.gamma:g}^(k-t)*(r_k - mean)/(std + {h.std_eps:g}), mean and std of "
    "the last r of the group's rows",
    "prime": "A_t = sum over k >= t of {h.gamma:g}^(k-t)*(r_k - mean), mean of the last r of the group's "
    "other rows",
    "sparse": "A = (last r - mean)/(std + {h.std_eps:g}), mean and std of the last r of the group's rows",
}
scored = partial(has_extra, key="token_reward")


@register("irl_dense_reward", IRLDenseReward, paper="078", title="R-AIRL (2025)", arxiv="2510.01857",
          family="mixed", evidence="official code", data=("prompts", "demonstrations"),
          cost=("a discriminator, trained every step", "reference if kl"),
          reductions=("mode=sparse is grpo on the last token's reward",))  # fmt: skip
def irl_dense_reward(h: IRLDenseReward) -> Method:
    losses = {"rollout": policy_gradient(h)}
    injected = {"demo": policy_gradient(h, old_logp=lambda v: v.logp.detach())}
    term = replace(
        policy_gradient_term(h),
        losses={**losses, **(injected if h.inject else {})},
        where=stated("of rows with token_reward")(lambda b: scored(b)[b.row]),
    )

    @stated(
        MODE_FORMULAS[h.mode].format(h=h),
        f"r = token_reward/{h.temperature:g}; with fewer than two rows in the group, or equal last r, A = 0",
    )
    def advantage(batch: Batch) -> Batch:
        covered = term.covers(batch)
        row = batch.row[covered]
        r = extra_per_token(batch, "token_reward")[covered] / h.temperature
        end = last_in_row(row, batch.n_rows)
        last = row_constant(r[end], row[end], batch.n_rows)
        counted = (row_count(row, batch.n_rows) > 0) & first_of_episode(batch)
        a = torch.zeros(batch.n_decisions, dtype=torch.float64)
        a[covered] = MODES[h.mode](h, r, row, last, batch.group, counted)
        return batch.with_arrays(advantage=a)

    warn = partial(warn_unrewarded, scored=scored, key="extra.token_reward")
    needs = frozenset({"ref_logp"} if h.kl else ())
    return Method((term,), advantage, regroup=(warn,) if h.inject else (), scored=scored, needs=needs,
                  demonstrations="group", sample=WithDemonstration() if h.inject else None,
                  row_scorer=TokenDiscriminator(h.reward_lr, h.smoothing))  # fmt: skip
