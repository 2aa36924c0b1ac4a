"""Metis-RISE: RL first, then SFT only on what RL left unstable or unsolved.

    rl:  as DAPO (clip 1.28, group-standardised reward, token mean, equal-reward groups dropped)
    sft: -logp, one token mean over the routed rows; P = the prompt's pass rate under the final RL model
         0 < P < 1: its own correct rollouts;  P = 0: its demonstrations, unless they fail;  P = 1: nothing

Evidence: abstract, README and a partial summary; the split is derived from the abstract, the stabilisers of
RL are from memory. Deviations: none known. Reference: arXiv 2506.13056.
"""

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, GroupPolicyGradient, NonNegative, recast
from interlace.methods._policy_gradient import likelihood_term, supervised
from interlace.methods.dapo import DAPO, dapo
from interlace.parts.masks import correct, pass_rate
from interlace.parts.stated import stated
from interlace.rules.harvest import PassRateSplit
from interlace.types import Batch


class MetisRISE(GroupPolicyGradient):
    clip_high: NonNegative | None = 0.28
    dynamic_sampling: bool = True
    overlong_buffer: Count | None = None
    overlong_penalty: NonNegative = 1.0
    mask_truncated: bool = False
    denominator: DenominatorName = "tokens"
    sft_denominator: DenominatorName = "tokens"
    samples: Count = 8
    per_prompt: Count = 2


@stated("of correct rollouts where 0 < P < 1, and of demonstrations that do not fail where P = 0")
def routed(batch: Batch) -> Tensor:
    """bool [N]: decisions of rows that the SFT stage trains."""
    rate = pass_rate(batch)[batch.group]
    own = (rate > 0) & (rate < 1) & batch.is_rollout & correct(batch)
    expert = (rate == 0) & ~batch.is_rollout & (batch.verdict != 0)
    return (own | expert)[batch.row]


@register("metis_rise", MetisRISE, paper="097", title="Metis-RISE (2025)", arxiv="2506.13056",
          family="pipeline", evidence="derived", data=("prompts", "demonstrations"),
          cost=("`samples` completions per prompt between the stages", "reference if kl"),
          reductions=("stage rl is dapo",))  # fmt: skip
def metis_rise(h: MetisRISE) -> Method:
    rl = dapo.build(recast(h, DAPO))
    sft = Method(terms=(likelihood_term(h, sources="rollout+demo", where=routed),), demonstrations="group")
    # A run routes every prompt once, with the final policy of rl; its rows are then plain demonstrations.
    kept = supervised(h, harvest=PassRateSplit(h.samples, h.per_prompt))
    return Method(stages={"rl": rl, "sft": sft}, explain_stage="rl", pipeline={"rl": rl, "sft": kept})
