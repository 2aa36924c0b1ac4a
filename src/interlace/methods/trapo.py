"""TRAPO: only as much of the expert as a prompt needs, imitated inside a trust region.

    generated token:     -rho A,  A = R - mean over all rows of the prompt, guided or not
    expert-prefix token: -p / max(sg[p], alpha)       coefficient min(1, p / alpha), whatever the reward
    loss = sum of both / (rows max_length)

alpha = 0 is the gradient of NLL, alpha = 1 weighs by p. Rows of a group that share a prefix (the same
`extra.prefix_id` or number of prefix tokens) train it once, on the first of them. A row that is all expert is
scored like any other and trains its tokens by the prefix loss alone. In training a group is built in
micro-groups of `sizes`: where the mean reward so far is below its threshold, one starts from its share
(`ratios`) of the expert.

Evidence: official code read; the paper through a detailed summary. Deviations: the code's ratios are 0.25,
0.5, 1, its cuts move to blank lines and its last micro-group uses a second expert; here the paper's. The sum
is divided by the rows too. Reference: arXiv 2512.17636.
"""

import torch
from pydantic import model_validator
from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import (
    Clip,
    Counts,
    DenominatorName,
    Fraction,
    GroupBaseline,
    Length,
    NonNegative,
    Numbers,
)
from interlace.methods._policy_gradient import (
    baseline_definitions,
    baseline_formula,
    entropy_bonus_terms,
    mixed_advantage,
    policy_gradient,
    policy_gradient_formula,
)
from interlace.parts.extras import carries_prefix
from interlace.parts.stated import stated
from interlace.parts.terms import Term, View
from interlace.parts.token_weights import trust_region_probability
from interlace.rules.samplers import MicroGroups
from interlace.types import Batch


class TRAPO(GroupBaseline, Clip, Length):
    alpha: Fraction = 0.1
    std: bool = False
    clip_low: NonNegative | None = None
    clip_high: NonNegative | None = None
    denominator: DenominatorName = "length"
    sizes: Counts = (4, 2, 1, 1)
    ratios: Numbers = (0.0, 0.2, 0.5, 1.0)
    thresholds: Numbers = (-1.0, 0.5, 0.7, 0.9)
    entropy_bonus: NonNegative = 0.0

    @model_validator(mode="after")
    def _one_each(self) -> "TRAPO":
        if not len(self.sizes) == len(self.ratios) == len(self.thresholds):
            raise ValueError("sizes, ratios, thresholds: accepted are lists of the same length")
        if not all(0 <= r <= 1 for r in self.ratios):
            raise ValueError(f"ratios={self.ratios}: accepted are numbers from 0 to 1")
        return self


def trained(batch: Batch) -> Tensor:
    """bool [N]: generated tokens, and prefix tokens of the rows that carry them."""
    return batch.is_source("rollout") | carries_prefix(batch)[batch.row]


@register("trapo", TRAPO, paper="007", title="TRAPO (2025)", arxiv="2512.17636", family="mixed",
          evidence="official code", data=("prompts", "demonstrations"),
          cost=("rollouts in turn: one round of sampling per micro-group",),
          reductions=("without prefixes it is dr_grpo with no clip bounds",))  # fmt: skip
def trapo(h: TRAPO) -> Method:
    @stated(f"A = {baseline_formula(h)}", *baseline_definitions(h, "rows"),
            "A = 1 on expert tokens, 0 on those that another row of the group carries")  # fmt: skip
    def advantage(batch: Batch) -> Batch:
        z = mixed_advantage(h)(batch).arrays["advantage"]
        given = trained(batch).to(z.dtype)  # the advantage of an expert token is 1
        return batch.with_arrays(advantage=torch.where(batch.is_source("rollout"), z, given))

    def expert(v: View) -> Tensor:
        return -v.advantage * trust_region_probability(v.logp, h.alpha)

    term = Term("policy", {"rollout": policy_gradient(h), "prefix+demo": expert}, h.denominator,
                where=trained, max_length=h.max_length, silent_without_advantage=True,
                formula=f"rollout: {policy_gradient_formula(h)}; "
                f"prefix, demo: -p/max(sg[p], {h.alpha:g})")  # fmt: skip
    return Method(
        terms=(term, *entropy_bonus_terms(h, "rollout+prefix+demo", trained)),
        advantage=advantage,
        demonstrations="group",
        sample=MicroGroups(h.sizes, h.ratios, h.thresholds),
    )
