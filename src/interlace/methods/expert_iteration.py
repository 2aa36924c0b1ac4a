"""Expert iteration: SFT of the start weights on everything correct that the last policy sampled.

    each round: `samples` rollouts a prompt from the current policy; keep the correct ones, drop duplicates
    (at most `cap` a prompt), add the demonstrations; restart from the pretrained weights; loss = -logp

restart=false continues from the current policy (self-training, another algorithm). rounds=none goes on
until a round does not raise the greedy accuracy on validation problems, at most 3 rounds.

Evidence: abstract, and knowledge of the paper without a re-reading; no official code. Deviations: none known.
Reference: Havrilla et al., arXiv 2403.04642.
"""

from torch import Tensor

from interlace.methods._method import Method, register
from interlace.methods._parameters import Count, DenominatorName, Length
from interlace.methods._policy_gradient import likelihood_term, supervised
from interlace.parts.masks import correct
from interlace.parts.stated import stated
from interlace.rules.harvest import ExpertRound
from interlace.types import Batch


class ExpertIteration(Length):
    use_demos: bool = True
    denominator: DenominatorName = "tokens"
    samples: Count = 100
    rounds: Count | None = None
    restart: bool = True
    cap: Count | None = None


MOST_ROUNDS = 3
START = {True: "base", False: "previous"}
SOURCES = {True: "rollout+demo", False: "rollout"}


@stated("of correct rollouts, and of every demonstration")
def expert(batch: Batch) -> Tensor:
    """bool [N]: tokens of correct rows, and demonstrations as they are."""
    return correct(batch)[batch.row] | batch.is_source("demo")


@register("expert_iteration", ExpertIteration, paper="065", title="Expert iteration (2024)",
          arxiv="2403.04642", family="mixed", evidence="paper", data=("prompts", "demonstrations"),
          cost=("samples rollouts a prompt and round", "a training run each round"),
          reductions=("without rollouts it is sft",))  # fmt: skip
def expert_iteration(h: ExpertIteration) -> Method:
    term = likelihood_term(h, denominator="denominator", sources=SOURCES[h.use_demos], where=expert)
    found = ExpertRound(h.samples, h.cap, h.use_demos, saturates=h.rounds is None)
    one = supervised(h, "denominator", harvest=found, start=START[h.restart])
    return Method(terms=(term,), demonstrations="feed" if h.use_demos else "none",
                  pipeline={f"round_{i + 1}": one for i in range(h.rounds or MOST_ROUNDS)})  # fmt: skip
