"""ReLIFT: RL all the time, and an SFT step whenever enough always-failed prompts have gathered.

    rl:  A = R - mean of the group, loss = -rho A / (rows max_length)
    sft: -logp of the demonstrations of prompts whose rollouts all got `fail_reward`

The gradients never meet: in training the sft step follows an rl step once `buffer_size` failed prompts wait,
with its own optimizer (sft_lr). Stage sft takes the demonstrations of groups without a rollout row (from the
buffer) or whose valid rewards all equal `fail_reward`; a group whose rollouts are all left out is in neither.

Evidence: official code read. Deviations: the RL loss is divided by the rows too; SFT is a token mean over the
step, not over a micro-batch, and has no entropy bonus (the code has 0.001).
Reference: Ma et al., arXiv 2506.07527.
"""

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import (
    Clip,
    Count,
    DenominatorName,
    GroupBaseline,
    Length,
    NonNegative,
    Positive,
)
from interlace.methods._policy_gradient import (
    entropy_bonus_terms,
    group_advantage,
    likelihood_term,
    policy_gradient_term,
)
from interlace.parts.masks import counted_rollouts, in_group_with
from interlace.parts.stated import stated
from interlace.rules.alternation import FailureBuffer
from interlace.types import Batch


class ReLIFT(GroupBaseline, Clip, Length):
    std: bool = False
    clip_low: NonNegative | None = None
    clip_high: NonNegative | None = None
    fail_reward: float = 0.0
    denominator: DenominatorName = "length"
    sft_denominator: DenominatorName = "tokens"
    buffer_size: Count = 128
    sft_lr: Positive = 1e-6
    entropy_bonus: NonNegative = 0.001


def failed(h: ReLIFT, batch: Batch) -> Tensor:
    """bool [R]: rows of groups with valid rollouts, all of which failed."""
    valid = counted_rollouts(batch)
    other = in_group_with(batch.group, valid & (batch.reward != h.fail_reward))
    return in_group_with(batch.group, valid) & ~other


def unseen(batch: Batch) -> Tensor:
    """bool [R]: rows of groups without a rollout row, which come from the buffer."""
    return ~in_group_with(batch.group, batch.is_rollout)


@register("relift", ReLIFT, paper="093", title="ReLIFT (2025)", arxiv="2506.07527", family="mixed",
          evidence="official code", data=("prompts", "demonstrations"), cost=("a second optimizer state",),
          reductions=("stage rl is dr_grpo with no clip bounds",))  # fmt: skip
def relift(h: ReLIFT) -> Method:
    reinforced = Method(
        terms=(policy_gradient_term(h), *entropy_bonus_terms(h)), advantage=group_advantage(h)
    )
    hard = stated(f"of groups whose rollouts all have reward {h.fail_reward:g}, or that have none")(
        lambda b: (failed(h, b) | unseen(b))[b.row]
    )
    supervised = Method(
        terms=(likelihood_term(h, where=hard),),
        demonstrations="group",
        sample=False,
    )
    return Method(
        stages={"rl": reinforced, "sft": supervised},
        explain_stage="rl",
        alternation=FailureBuffer(lambda b: failed(h, b), h.buffer_size, h.sft_lr),
    )
