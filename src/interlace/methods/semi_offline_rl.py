"""Semi-offline RL: sample only at masked positions of a static text, so that all fills cost one forward pass.

    rl_coef * (1/groups) sum over fills of (R - mean of the group) mean_t(-logp of the filled positions)
    + NLL of the reference (masked fine-tuning)

A rollout row is one fill, its tokens are the masked positions. The sum over fills is not a mean: rl_coef goes
with `samples`.

Evidence: official code read (ChangyuChen347/semi-offline-RL). Deviations: the full softmax, where the code
sets the logits of tokens that no fill drew to 0. Reference: arXiv 2306.09712.
"""

from pydantic import Field

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, Fraction, Length, NonNegative
from interlace.methods._policy_gradient import likelihood_term
from interlace.parts.advantages import group_centred
from interlace.parts.masks import counted_rollouts
from interlace.parts.reducer import GROUPS
from interlace.parts.segments import row_constant, row_mean
from interlace.parts.stated import stated
from interlace.parts.surrogates import label_smoothing, score_function
from interlace.parts.terms import Losses, Term, View
from interlace.rules.masked import MaskedFills
from interlace.types import Batch


class SemiOfflineRL(Length):
    rl_coef: NonNegative = 20.0
    sft_denominator: DenominatorName = "tokens"
    mask_rate: Fraction = 0.4
    samples: Count = 64
    label_smoothing: Fraction = Field(0.1, lt=1)


def fill(v: View) -> Losses:
    advantage = row_constant(v.advantage, v.row, v.n_rows)
    return v.row_losses(score_function(row_mean(v.logp, v.row, v.n_rows), advantage))


@register("semi_offline_rl", SemiOfflineRL, paper="119", title="Semi-offline RL (2023)", arxiv="2306.09712",
          family="mixed", evidence="official code", data=("prompts", "demonstrations"),
          cost=("one forward pass for all fills of a prompt",), reductions=("rl_coef=0 is sft",))  # fmt: skip
def semi_offline_rl(h: SemiOfflineRL) -> Method:
    @stated("A = R - mean reward of the group's fills, 0 if they are fewer than two, or all equal")
    def advantage(batch: Batch) -> Batch:
        a = group_centred(batch.reward, batch.group, counted_rollouts(batch))
        return batch.with_arrays(advantage=a[batch.row])

    rl = Term("fills", {"rollout": fill}, GROUPS, h.rl_coef, silent_without_advantage=True,
              formula="-A*mean(logp) of the row")  # fmt: skip
    smoothing = Term(
        "label_smoothing", {"demo": lambda v: label_smoothing(v.logp, v.leaf("mean_logp"))},
        h.sft_denominator, h.label_smoothing, max_length=h.max_length, likelihood=True,
        statistics=("logp", "mean_logp"), explained=False, formula="logp - mean over the vocabulary",
    )  # fmt: skip
    terms = (rl, likelihood_term(h), *((smoothing,) if h.label_smoothing else ()))
    return Method(terms=terms, advantage=advantage, demonstrations="group",
                  sample=MaskedFills(h.mask_rate, h.samples))  # fmt: skip
