"""REINFORCE: the score function times the reward, with the group mean as an optional baseline.

    loss(token) = -A logp,  A = R, or R minus the group's mean reward

Evidence: official code read (verl `reinforce`, TRL). Deviations: none.
Reference: Williams 1992.
"""

from typing import Literal

import torch

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName, Length
from interlace.parts.advantages import group_centred
from interlace.parts.masks import counted_rollouts
from interlace.parts.stated import stated, text_of
from interlace.parts.surrogates import score_function
from interlace.parts.terms import Term
from interlace.types import Batch


class Reinforce(Length):
    baseline: Literal["mean"] | None = None
    denominator: DenominatorName = "tokens"


def raw_reward(batch: Batch) -> torch.Tensor:
    """A = R."""
    return batch.reward


def centred_reward(batch: Batch) -> torch.Tensor:
    """A = R - mean reward of the group's rollouts."""
    return group_centred(batch.reward, batch.group, counted_rollouts(batch))


BASELINES = {None: raw_reward, "mean": centred_reward}


@register(
    "reinforce", Reinforce, title="REINFORCE (Williams 1992)", evidence="official code",
    reductions=("baseline=mean equals rloo ratio=none up to the factor G/(G-1) of each group",),
)  # fmt: skip
def reinforce(h: Reinforce) -> Method:
    term = Term(
        "policy",
        {"rollout": lambda v: score_function(v.logp, v.advantage)},
        h.denominator,
        max_length=h.max_length,
        silent_without_advantage=True,
        formula="-A*logp",
    )
    baseline = BASELINES[h.baseline]

    @stated(text_of(baseline))
    def advantage(batch: Batch) -> Batch:
        return batch.with_arrays(advantage=baseline(batch)[batch.row])

    return Method(terms=(term,), advantage=advantage)
