"""SFT-then-RL with the two faults of published SFT baselines, on purpose: test-only.

    dropped         of the n micro-batches of a step only the first and the last reach the update
                    (DeepSpeed ZeRO-2 with CPU offload, v0.15.2 to v0.18.9)
    mean_of_means   every micro-batch is averaged over its own tokens, then the micro-batches
                    (OpenRLHF's SFT loss, v0.7.0 to v0.10.2)

Both are weights of demonstration tokens: with N tokens in the step and T_k in micro-batch k, a correct token
weighs 1 / N. `dropped` multiplies it by 0 in the middle micro-batches, `mean_of_means` by N / (n T_k). The RL
stage is that of `sft_then_rl`.

Reference: paper 044, arXiv 2604.23747; deepspeedai/DeepSpeed PR 6550 and 7967, OpenRLHF PR 1249.
"""

from __future__ import annotations

import torch

from interlace.methods import Method, register
from interlace.methods._parameters import Count
from interlace.methods._policy_gradient import group_advantage, policy_gradient_term
from interlace.methods.sft_then_rl import SFTThenRL
from interlace.parts.surrogates import negative_log_likelihood
from interlace.parts.terms import Term
from interlace.types import Batch


class Faulty(SFTThenRL):
    micro_batches: Count = 8
    dropped: bool = False
    mean_of_means: bool = False


def fault_weights(batch: Batch, micro_batches: int, *, dropped: bool, mean_of_means: bool) -> torch.Tensor:
    """float64 [N]: what the faults multiply each decision by; micro-batches hold consecutive rows, evenly."""
    n = min(micro_batches, max(batch.n_rows, 1))
    micro = torch.arange(batch.n_rows) * n // max(batch.n_rows, 1)
    of = micro[batch.row]
    weight = torch.ones(batch.n_decisions, dtype=torch.float64)
    if mean_of_means:
        tokens = torch.bincount(of, minlength=n).double()
        weight *= batch.n_decisions / (n * tokens[of])
    if dropped:
        weight *= ((of == 0) | (of == n - 1)).double()
    return weight


def faulty_sft(h: Faulty) -> Method:
    """The SFT stage with its faults."""

    def inject(batch: Batch) -> Batch:
        weights = fault_weights(batch, h.micro_batches, dropped=h.dropped, mean_of_means=h.mean_of_means)
        return batch.with_arrays(fault=weights)

    term = Term(
        "sft",
        {"demo": lambda v: v.array("fault") * negative_log_likelihood(v.logp)},
        "tokens",
        likelihood=True,
        formula="-fault*logp",
    )
    return Method(terms=(term,), regroup=(inject,), demonstrations="feed", sample=False)


def faulty_then_rl(h: Faulty) -> Method:
    """The faulty SFT stage, then the RL stage of `sft_then_rl`."""
    reinforced = Method(
        terms=(policy_gradient_term(h),),
        advantage=group_advantage(h),
        needs=frozenset({"ref_logp"} if h.kl else ()),
    )
    return Method(stages={"sft": faulty_sft(h), "rl": reinforced}, explain_stage="sft")


@register("dropped_then_rl", Faulty, paper="044", family="pipeline", data=("demonstrations", "prompts"))
def dropped(h: Faulty) -> Method:
    """The middle micro-batches are lost."""
    return faulty_then_rl(h.model_copy(update={"dropped": True}))


@register("mean_of_means_then_rl", Faulty, paper="044", family="pipeline", data=("demonstrations", "prompts"))
def mean_of_means(h: Faulty) -> Method:
    """Every micro-batch is averaged by itself."""
    return faulty_then_rl(h.model_copy(update={"mean_of_means": True}))


@register("both_then_rl", Faulty, paper="044", family="pipeline", data=("demonstrations", "prompts"))
def both(h: Faulty) -> Method:
    """Both faults."""
    return faulty_then_rl(h.model_copy(update={"dropped": True, "mean_of_means": True}))
