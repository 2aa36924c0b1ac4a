"""ViSurf: the bare ground-truth label is one more member of the rollout group, until a rollout matches it.

    smoothing: if max R of the valid rollouts >= R of the label, the label's R becomes their mean
    A = (R - mean) / (std + std_eps) over rollouts and label, after smoothing
    loss = PG(A) on both, pi_old of the label from a forward pass, a mean of row means

All rollouts fail: the label's A is large, like SFT. One is as good: its A is 0, plain RLVR. Without smoothing
a label that is always right keeps a positive A for ever. `label` is a text around {answer} in the surface
form of the policy's answers (none: the demonstration). It holds no thinking, so a reward of thinking
(`reward=math+0.1*format:think`) gives it nothing: that reward is the rollouts' alone.

Evidence: paper, through a secondary summary that reproduces its equations; no code. Deviations: the paper
writes sequence probabilities, here tokens averaged over the row (derived); the std is Bessel-corrected.
Reference: arXiv 2510.10606.
"""

from dataclasses import replace

from interlace.methods._method import Method, register
from interlace.methods._parameters import Clip, DenominatorName, GroupBaseline, Length
from interlace.methods._policy_gradient import (
    mixed_advantage,
    policy_gradient_term,
    rewarded,
    warn_unrewarded,
)
from interlace.parts.advantages import smoothed_labels
from interlace.parts.masks import counted_rollouts, has_reward
from interlace.rules.samplers import WithDemonstration
from interlace.types import Batch


class ViSurf(GroupBaseline, Clip, Length):
    smooth: bool = True
    denominator: DenominatorName = "sequence_means"
    label: str | None = None


def smooth_labels(batch: Batch) -> Batch:
    """A label that a valid rollout reaches takes the mean reward of the valid rollouts."""
    label = has_reward(batch) & ~batch.is_rollout
    return replace(batch, reward=smoothed_labels(batch.reward, batch.group, label, counted_rollouts(batch)))


@register("visurf", ViSurf, paper="036", title="ViSurf (2025)", arxiv="2510.10606", family="mixed",
          evidence="paper", data=("prompts", "demonstrations"),
          reductions=("without demonstrations it is grpo",))  # fmt: skip
def visurf(h: ViSurf) -> Method:
    return Method(
        terms=(policy_gradient_term(h, sources="rollout+demo", where=rewarded),),
        regroup=(warn_unrewarded, *((smooth_labels,) if h.smooth else ())),
        advantage=mixed_advantage(h),
        demonstrations="group",
        sample=WithDemonstration(label=h.label),
    )
