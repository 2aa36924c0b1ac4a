"""Checking a model at load: how its trunk may be run, and what happens to its logits.

Eight tokens in two rows of different lengths go through the model as transformers runs it and through
each faster way; the first that agrees is taken, and a model that needs a slower one says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from interlace.policies.packing import PATHS, NotPackable, Trunk, keep_float64, slow_path_reason

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_HALF_TOLERANCE = 0.1
_LENGTHS = (5, 3)


class UnsupportedModel(ValueError):
    """A model whose log-probabilities cannot be reproduced from its hidden states."""


@dataclass(frozen=True)
class Probe:
    """What was found.

    Attributes:
        path: One of `PATHS`.
        scale, softcap: What the model does to its logits.
        warning: Why the path is not the fastest one, or empty.
    """

    path: str
    scale: float
    softcap: float | None
    warning: str


@torch.no_grad()
def probe(model: PreTrainedModel) -> Probe:
    """Find the fastest way to run a model that equals the plain one.

    Args:
        model: A causal language model, in evaluation mode.

    Raises:
        UnsupportedModel: No known head reproduces the logits, or no way to run it agrees with it.
    """
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        # Releases of transformers up to 5.19 at least run such a model on SDPA, which drops the cap.
        model.config._attn_implementation = "eager"
    table = cast(torch.nn.Embedding, model.get_input_embeddings()).weight
    device = table.device
    lengths = torch.tensor(_LENGTHS)
    row = torch.repeat_interleave(torch.arange(len(_LENGTHS)), lengths).to(device)
    position = torch.cat([torch.arange(length) for length in _LENGTHS]).to(device)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(table.shape[0], (len(row),), generator=generator).to(device)
    with keep_float64(model.dtype):
        logits = torch.cat([model(input_ids=part[None]).logits[0] for part in ids.split(list(_LENGTHS))])
    alone = Trunk(model, "one_by_one")
    hidden = alone(ids, position, row)
    scale, softcap = _logit_transform(model, hidden, logits)
    path, reason = slow_path_reason(model) or ("", "")
    for candidate in [path] if path else PATHS:
        try:
            trunk = Trunk(model, candidate)
            check = trunk.check_attention if candidate == "packed" else trunk
            distance = _distance(check(ids, position, row), hidden)
        except NotPackable as refused:
            reason = reason or str(refused)
            continue
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            reason = reason or f"{type(error).__name__}: {error}"
            continue
        if distance <= _tolerance(hidden.dtype):
            name = type(model).__name__
            warning = f"{name} is scored {candidate} instead of packed, which is slower: {reason}"
            return Probe(candidate, scale, softcap, "" if candidate == "packed" else warning)
        reason = reason or f"packed rows differ from single ones by {distance:.1e}"
    raise UnsupportedModel(f"{type(model).__name__}: no way to run it agrees with the plain one ({reason})")


def _logit_transform(model: PreTrainedModel, hidden: Tensor, logits: Tensor) -> tuple[float, float | None]:
    """The scale and soft cap that turn hidden @ weight.T + bias into the model's logits."""
    config = model.config.get_text_config()
    output = model.get_output_embeddings()
    if output is None:
        raise UnsupportedModel(
            f"{type(model).__name__} has no output embeddings; accepted are causal language models"
        )
    raw = torch.nn.functional.linear(hidden, output.weight, getattr(output, "bias", None)).to(logits.dtype)
    softcap = getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None)
    scales = [1.0, getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)]
    scales += [1 / scales[2]] if scales[2] else []
    for scale in (float(s) for s in scales if s):
        for cap in dict.fromkeys((softcap, None)):
            made = raw * scale if cap is None else cap * torch.tanh(raw * scale / cap)
            if _distance(made, logits) <= _tolerance(hidden.dtype):
                return scale, cap
    raise UnsupportedModel(
        f"{type(model).__name__}: its logits are not a scaled or soft-capped linear map of its last "
        "hidden state"
    )


def _distance(got: Tensor, plain: Tensor) -> float:
    """The largest relative distance of a token's vector."""
    gap = (got.double() - plain.double()).norm(dim=-1) / plain.double().norm(dim=-1).clamp_min(1e-12)
    return float(gap.max()) if bool(torch.isfinite(gap).all()) else float("inf")


def _tolerance(dtype: torch.dtype) -> float:
    return _TOLERANCE.get(dtype, _HALF_TOLERANCE)
