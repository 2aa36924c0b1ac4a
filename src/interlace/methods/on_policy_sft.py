"""On-policy SFT: sample, keep what is correct and not cut off, take one likelihood step on it, repeat.

    loss = -sum over kept responses of logp / (kept * longest kept response)
    kept: correct rollouts that end by themselves (the limit of response tokens is the length reward)

Evidence: official code read (EIT-NLP/On-Policy-SFT, verl fork); derivation from detailed notes of the text.
Deviations: none; `variant=code` is the token mean. Reference: arXiv 2602.13407.
"""

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, Length
from interlace.methods._policy_gradient import likelihood_term
from interlace.parts.masks import correct
from interlace.parts.stated import stated
from interlace.rules.samplers import Groups
from interlace.types import Batch, Finish


class OnPolicySFT(Length):
    denominator: DenominatorName = "longest"
    group_size: Count = 32


@stated("of correct rollouts that were not cut off")
def kept(batch: Batch) -> Tensor:
    """bool [N]: decisions of correct rows that were not cut off."""
    return (correct(batch) & (batch.finish != Finish.LENGTH))[batch.row]


@register("on_policy_sft", OnPolicySFT, paper="056", title="On-Policy SFT (2026)", arxiv="2602.13407",
          family="rl", evidence="official code", data=("prompts",), cost=("group_size rollouts a prompt",),
          variants={"code": {"denominator": "tokens"}})  # fmt: skip
def on_policy_sft(h: OnPolicySFT) -> Method:
    term = likelihood_term(h, denominator="denominator", sources="rollout", where=kept)
    return Method(terms=(term,), sample=Groups(h.group_size))
