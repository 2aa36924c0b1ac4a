"""Dr.GRPO: GRPO without the two biases, no division by the std and a constant length.

    A = R - mean of the group
    loss = sum over tokens of PG(A) / (rows * max_length)

Evidence: official code read (TRL `dr_grpo`; verl's `seq-mean-token-sum-norm` does not divide by the
rows). Deviations: none. Reference: Liu et al., arXiv 2503.20783.
"""

from interlace.methods._method import Method, register
from interlace.methods._parameters import DenominatorName
from interlace.methods.grpo import GRPO, grpo


class DrGRPO(GRPO):
    std: bool = False
    denominator: DenominatorName = "length"


@register("dr_grpo", DrGRPO, title="Dr.GRPO (2025)", arxiv="2503.20783", evidence="official code",
          cost=("reference if kl",), reductions=("std=true denominator=sequence_means is grpo",))  # fmt: skip
def dr_grpo(h: DrGRPO) -> Method:
    return grpo.build(h)
