"""Drawing tokens: counter-based uniforms, logit filters and the inverse of the distribution function.

Pure functions. A token is a function of its logits and of one uniform number, and the uniform is a
function of (seed, step, row, position) alone; so neither the batch that a row happens to share nor the
order of arrival can change what it says.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB
_MASK64 = (1 << 64) - 1
_CHUNK = 256
_DIRECT = 1024


def uniforms(seed: int, step: int, row: Tensor, position: Tensor) -> Tensor:
    """One uniform number in [0, 1) per (row, position), by hashing the counters.

    Args:
        seed: The run's seed.
        step: The rollout step.
        row: int64, row ids.
        position: int64, index of the token in the response; broadcasts against `row`.

    Returns:
        float64, 53 random bits each, in the broadcast shape.

    Reference:
        The mixing function is that of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable
        pseudorandom number generators"), applied once per counter.
    """
    return uniforms_at(row_keys(seed, step, row), position)


def row_keys(seed: int, step: int, row: Tensor) -> Tensor:
    """int64 keys of rows: the part of `uniforms` that does not depend on the position."""
    key = _mix_int(_mix_int(seed + _GOLDEN) + (step + 1) * _GOLDEN)
    return _mix(row * _signed(_GOLDEN) + _signed(key + _GOLDEN))


def uniforms_at(keys: Tensor, position: Tensor) -> Tensor:
    """float64 uniforms in [0, 1) of rows with these `row_keys` at these positions."""
    bits = _mix(keys + (position + 1) * _signed(_GOLDEN))
    return _shift(bits, 11).to(torch.float64) * 2.0**-53


def filter_logits(
    logits: Tensor,
    top_k: int | Tensor = 0,
    top_p: float | Tensor = 1.0,
    min_p: float | Tensor = 0.0,
) -> Tensor:
    """Set the logits of dropped tokens to minus infinity.

    Top-k comes first, top-p acts on what top-k left, min-p compares with the likeliest token. Every
    filter is a threshold on the logit, so tokens with exactly equal logits stay or go together and the
    result does not depend on how a sort breaks ties.

    Args:
        logits: float [B, V], already divided by the temperature.
        top_k: Keep the k likeliest; 0 is off. A number or int64 [B].
        top_p: Keep the smallest set of likeliest tokens whose probability reaches this; 1 is off.
        min_p: Drop tokens below this share of the largest probability; 0 is off.

    Returns:
        float [B, V].
    """
    vocabulary = logits.shape[-1]
    threshold = logits.new_full((logits.shape[0], 1), -torch.inf)
    if _on(top_k, 0):
        k = torch.as_tensor(top_k, device=logits.device).expand(logits.shape[0])
        largest = min(int(k.max()), vocabulary)
        if largest > 0:
            kth = logits.topk(largest).values.gather(-1, (k.clamp(1, largest) - 1)[:, None])
            threshold = torch.where(((k > 0) & (k < vocabulary))[:, None], kth, threshold)
    if _on(top_p, 1):
        p = torch.as_tensor(top_p, device=logits.device, dtype=torch.float64).expand(logits.shape[0])
        threshold = torch.maximum(threshold, _nucleus_threshold(logits, p, threshold))
    if _on(min_p, 0):
        share = torch.as_tensor(min_p, device=logits.device, dtype=logits.dtype).expand(logits.shape[0])
        threshold = torch.maximum(threshold, logits.amax(-1, keepdim=True) + share.log()[:, None])
    return logits.masked_fill(logits < threshold, -torch.inf)


def draw(
    logits: Tensor,
    uniform: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor = 0,
    top_p: float | Tensor = 1.0,
    min_p: float | Tensor = 0.0,
) -> tuple[Tensor, Tensor]:
    """Choose one token per row: the uniform-quantile of the filtered softmax, or the argmax at 0.

    Args:
        logits: float [B, V].
        uniform: float64 [B] in [0, 1).
        temperature, top_k, top_p, min_p: Numbers, or tensors [B] with one value per row.

    Returns:
        `(ids, logp)`: int64 [B] and float64 [B], the log-probability under the distribution the token
        was drawn from (0 for greedy; NaN if the row's logits are not finite).
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if not isinstance(temperature, Tensor):
        if temperature == 0:
            return _greedy(logits)
        scaled = logits if temperature == 1 else logits / temperature
        return _sample(scaled, uniform, top_k, top_p, min_p)
    greedy = temperature == 0
    heat = torch.where(greedy, torch.ones_like(temperature), temperature).to(logits.dtype)
    ids, logp = _sample(logits / heat[:, None], uniform, top_k, top_p, min_p)
    best, zero = _greedy(logits)
    return torch.where(greedy, best, ids), torch.where(greedy, zero, logp)


def _greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    best, ids = logits.max(-1)
    return ids, (best - best).double()


def _sample(
    logits: Tensor,
    uniform: Tensor,
    top_k: int | Tensor,
    top_p: float | Tensor,
    min_p: float | Tensor,
) -> tuple[Tensor, Tensor]:
    if _on(top_k, 0) or _on(top_p, 1) or _on(min_p, 0):
        logits = filter_logits(logits, top_k, top_p, min_p)
    top = logits.amax(-1, keepdim=True)
    weights = (logits - top).exp_()
    ids, total = _quantile(weights, uniform)
    chosen = logits.gather(-1, ids[:, None])
    return ids, ((chosen - top).double() - total.log()[:, None])[:, 0]


def _quantile(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Index at which the running sum of `weights` [B, V] passes `uniform` of the total, and the total.

    A large vocabulary is searched in two levels, so that only sums of chunks and one chunk per row are
    accumulated in float64.
    """
    rows, vocabulary = weights.shape
    if vocabulary <= _DIRECT:
        running = weights.cumsum(-1, dtype=torch.float64)
        return _passes(running, uniform[:, None] * running[:, -1:])[:, 0], running[:, -1]
    if vocabulary % _CHUNK:
        weights = F.pad(weights, (0, -vocabulary % _CHUNK))
    chunks = weights.view(rows, -1, _CHUNK)
    running = chunks.sum(-1).cumsum(-1, dtype=torch.float64)
    target = uniform[:, None] * running[:, -1:]
    chunk = _passes(running, target)
    before = torch.where(chunk > 0, running.gather(-1, (chunk - 1).clamp_min(0)), 0.0)
    inside = chunks[torch.arange(rows, device=weights.device), chunk[:, 0]].cumsum(-1, dtype=torch.float64)
    return (chunk * _CHUNK + _passes(inside, target - before))[:, 0], running[:, -1]


def _passes(running: Tensor, target: Tensor) -> Tensor:
    """First index [B, 1] where `running` exceeds `target`; at the latest the last with a positive weight.

    Rounding may carry the target onto the total, where the plain search would leave the support. (The
    clamp is for sums that are not finite, which `draw` reports.)
    """
    last = torch.searchsorted(running, running[:, -1:].contiguous()).clamp_max(running.shape[-1] - 1)
    return torch.minimum(torch.searchsorted(running, target, right=True), last)


def _nucleus_threshold(logits: Tensor, p: Tensor, floor: Tensor) -> Tensor:
    """Logit [B, 1] of the least likely token that top-p keeps, among the tokens at or above `floor`.

    Sorts only as many of the likeliest tokens as hold the wanted probability.
    """
    vocabulary = logits.shape[-1]
    top = logits.amax(-1, keepdim=True)
    total = (logits - top).exp().masked_fill(logits < floor, 0).sum(-1, keepdim=True, dtype=torch.float64)
    wanted = p[:, None] * total
    count = min(_CHUNK, vocabulary)
    while True:
        values = logits.topk(count).values
        weights = (values - top).exp().masked_fill(values < floor, 0).double()
        above = weights.cumsum(-1) - weights
        if count == vocabulary or bool(((above[:, -1:] >= wanted) | (p[:, None] >= 1)).all()):
            break
        count = min(count * 8, vocabulary)
    kept = (above < wanted).sum(-1, keepdim=True).clamp_min(1)
    return torch.where(p[:, None] >= 1, -torch.inf, values.gather(-1, kept - 1))


def _on(knob: float | Tensor, off: float) -> bool:
    return isinstance(knob, Tensor) or knob != off


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _signed(_MULTIPLY_1)
    z = (z ^ _shift(z, 27)) * _signed(_MULTIPLY_2)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix_int(z: int) -> int:
    z &= _MASK64
    z = ((z ^ (z >> 30)) * _MULTIPLY_1) & _MASK64
    z = ((z ^ (z >> 27)) * _MULTIPLY_2) & _MASK64
    return z ^ (z >> 31)


def _signed(z: int) -> int:
    z &= _MASK64
    return z - (1 << 64) if z >> 63 else z
