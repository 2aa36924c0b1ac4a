"""Filling masked texts: every fill of a text is drawn from one forward pass.

The state at a masked position does not depend on what is drawn at the others, so it is known in advance and
n fills cost n draws, not n passes.

Reference: Chen et al., Semi-Offline Reinforcement Learning for Optimized Text Generation, 2023
(arXiv 2306.09712).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from interlace.policies import meter
from interlace.policies.meter import Work
from interlace.rollout.sampling import uniforms
from interlace.rules.samplers import MaskedText
from interlace.types import Slots

TOKENS_AT_ONCE = 8192
"""Tokens of one forward pass; no result depends on it."""

_STATES_AT_ONCE = 64


def fill(
    policy: Any, texts: Sequence[tuple[MaskedText, int]], temperature: float, *, seed: int, step: int
) -> list[list[list[int]]]:
    """Token ids of every fill, prompt included.

    A token is the uniform-quantile of the full softmax at its position, and the uniform is a function of
    (seed, step, row, position in the response).

    Args:
        policy: Has `hidden(slots)` and `head`.
        texts: Each with the row id of its first fill; the others follow.
        temperature: Above 0.

    Returns:
        `n` lists of ids for each text.
    """
    done: list[list[list[int]]] = []
    for part in _parts(texts):
        inputs = [text.inputs for text, _ in part]
        lengths = torch.tensor([len(ids) for ids in inputs])
        none = torch.zeros(0, dtype=torch.int64)
        slots = Slots(
            input=torch.tensor([token for ids in inputs for token in ids], dtype=torch.int64),
            position=torch.cat([torch.arange(n) for n in lengths.tolist()]),
            row=torch.repeat_interleave(torch.arange(len(part)), lengths),
            slot=none,
            target=none,
            temperature=none.float(),
        )
        with torch.no_grad():
            hidden = policy.hidden(slots)
            for (text, row), states in zip(part, hidden.split(lengths.tolist()), strict=True):
                place = torch.tensor(text.masked, dtype=torch.int64)
                read = states.index_select(0, (place - 1).to(states.device))
                rows = torch.arange(row, row + text.n)
                draws = uniforms(seed, step, rows[None, :], (place - text.prompt)[:, None])
                chosen = _quantiles(policy.head, read, draws, temperature)
                choices = 2.0 * policy.head.weight.numel() * len(text.masked)
                meter.add(Work(generate=choices, generated=text.n * len(text.masked)))
                fills = torch.tensor(text.ids).repeat(text.n, 1)
                fills[:, place] = chosen.T
                done.append(fills.tolist())
    return done


def _quantiles(head: Any, states: Tensor, draws: Tensor, temperature: float) -> Tensor:
    """int64 [m, n]: where the running sum of each state's [m] softmax passes its uniforms [m, n]."""
    found = [torch.zeros(0, draws.shape[1], dtype=torch.int64)]
    for some, uniform in zip(states.split(_STATES_AT_ONCE), draws.split(_STATES_AT_ONCE), strict=True):
        logits = head.logits(some, torch.float64 if some.dtype == torch.float64 else torch.float32)
        running = torch.softmax(logits / temperature, -1).cumsum(-1, dtype=torch.float64)
        total = running[:, -1:].contiguous()
        target = uniform.to(running.device) * total
        # Rounding may carry a target onto the total; the last token with a positive weight is meant then.
        last = torch.searchsorted(running, total)
        found.append(torch.minimum(torch.searchsorted(running, target, right=True), last).cpu())
    return torch.cat(found)


def _parts(texts: Sequence[tuple[MaskedText, int]]) -> list[list[tuple[MaskedText, int]]]:
    """Consecutive texts that fit into one pass."""
    parts: list[list[tuple[MaskedText, int]]] = []
    tokens = TOKENS_AT_ONCE
    for item in texts:
        tokens += len(item[0].ids)
        if tokens > TOKENS_AT_ONCE:
            parts.append([])
            tokens = len(item[0].ids)
        parts[-1].append(item)
    return parts
