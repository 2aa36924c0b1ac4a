"""Statistics of decisions straight from hidden states, without ever holding decisions x vocabulary.

Logits are made one tile at a time (some decisions x some of the vocabulary), folded into running
sums, and thrown away; the backward pass makes them again and turns them into gradients analytically.
With z the logits at a decision's temperature T, p = softmax(z), q the reference's p, V the vocabulary:

    statistic    value                       d value / d z
    logp         log p[target]               onehot(target) - p
    entropy      -sum p log p                -p (log p + entropy)
    mean_logp    mean log p                  1/V - p
    kl           sum p (log p - log q)       p (log p - log q - kl)
    reverse_kl   sum q (log q - log p)       p - q
    topk_mass    sum of the k largest p      none
    argmax       id of the largest p         none

`logp_t1` is `logp` read at T = 1; every other statistic is read at the decision's temperature.
The logits are z = cap * tanh(scale * (hidden @ weight.T + bias) / cap) / T.

Reference: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, 2024
(arXiv 2411.09009), for recomputing logits in tiles; the statistics beyond logp are ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

STATISTICS = ("logp", "logp_t1", "entropy", "mean_logp", "kl", "reverse_kl", "topk_mass", "argmax")
"""What the head can give for a decision."""

_TILES = {"cpu": (8 << 20, 2048), "cuda": (256 << 20, 32768)}
"""Bytes of a tile of logits and its columns; a few such buffers live at once. On a CPU, tiles that
stay in the cache run at the speed of the four matrix products alone (measured at 1000 x 576 x 49152);
an accelerator wants few large ones."""


@dataclass(frozen=True)
class Head:
    """The last layer of a language model.

    Attributes:
        weight: [V, H], usually shared with the input embedding.
        bias: [V] or `None`.
        scale: Factor on the logits (Cohere, Granite).
        softcap: The logits are capped * tanh(logits / cap) (Gemma 2), or `None`.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def detached(self) -> Head:
        """The same head, without gradient."""
        bias = None if self.bias is None else self.bias.detach()
        return replace(self, weight=self.weight.detach(), bias=bias)

    def logits(self, hidden: Tensor, dtype: torch.dtype, columns: slice = slice(None)) -> Tensor:
        """Logits [n, columns] of these states [n, H] before the temperature (a new tensor)."""
        z = (hidden @ self.weight[columns].to(hidden.dtype).T).to(dtype)
        if self.bias is not None:
            z += self.bias[columns].to(dtype)
        if self.scale != 1:
            z *= self.scale
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z


def head_statistics(
    hidden: Tensor,
    head: Head,
    slot: Tensor,
    target: Tensor,
    temperature: Tensor,
    needs: Sequence[str] = ("logp",),
    *,
    reference_hidden: Tensor | None = None,
    reference_head: Head | None = None,
    k: int = 2,
    tile_bytes: int | None = None,
) -> dict[str, Tensor]:
    """Statistics of N decisions read from n hidden states.

    Args:
        hidden: [n, H], the states before the head.
        head: The head; its weight and bias receive gradients if they ask for them.
        slot: int64 [N], the state that each decision reads. Decisions on one slot share its logits.
        target: int64 [N], the chosen token.
        temperature: [N], above 0.
        needs: Names from `STATISTICS`.
        reference_hidden, reference_head: The reference's states (same n) and head, for `kl` and
            `reverse_kl`; they receive no gradient.
        k: How many tokens `topk_mass` counts.
        tile_bytes: Memory for one tile of logits; `None` suits the device.

    Returns:
        For each name a tensor [N]: float64 if `hidden` is, else float32. All but `topk_mass` and
        `argmax` are differentiable (once) in `hidden`, `head.weight` and `head.bias`.

    Raises:
        ValueError: Unknown statistic, a temperature of 0 or below, a missing reference, or k outside
            [1, V].
    """
    needs = tuple(dict.fromkeys(needs))
    for name in needs:
        if name not in STATISTICS:
            near = difflib.get_close_matches(name, STATISTICS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown statistic {name!r}{hint} Accepted: {', '.join(STATISTICS)}")
    reference = None
    if {"kl", "reverse_kl"} & set(needs):
        if reference_hidden is None or reference_head is None:
            raise ValueError("kl and reverse_kl need a reference: its hidden states and its head")
        reference = (reference_hidden.detach(), reference_head.detached())
    if "topk_mass" in needs and not 1 <= k <= head.weight.shape[0]:
        raise ValueError(f"topk_mass: k={k}; accepted are 1 to {head.weight.shape[0]} (the vocabulary)")
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    temperature = temperature.to(hidden.device, dtype)
    if not bool((temperature > 0).all()):
        raise ValueError("temperature: accepted are numbers > 0 (a greedy choice has no log-probability)")
    plan = _Plan.of(slot.to(hidden.device), target.to(hidden.device), temperature, tile_bytes)
    ask = _Ask(needs, k, head.scale, head.softcap, reference)
    values = _FusedHead.apply(hidden, head.weight, head.bias, plan, ask)
    return dict(zip(needs, values, strict=True))


class _Ask(NamedTuple):
    """What is wanted of the head, besides the decisions."""

    needs: tuple[str, ...]
    k: int
    scale: float
    softcap: float | None
    reference: tuple[Tensor, Head] | None


_WITHOUT_GRADIENT = ("topk_mass", "argmax")


@dataclass(frozen=True)
class _Plan:
    """Decisions grouped into views: the distinct (slot, temperature) pairs, ordered by slot.

    A distribution belongs to a view, a target to a decision.
    """

    view: Tensor | None
    """int64 [N], each decision's view; `None` when decision i is view i."""
    view_slot: Tensor
    """int64 [U], each view's row in hidden."""
    target: Tensor
    temperature: Tensor | None
    """[U], `None` when all are 1."""
    tile_bytes: int | None

    @classmethod
    def of(cls, slot: Tensor, target: Tensor, temperature: Tensor, tile_bytes: int | None) -> _Plan:
        view: Tensor | None = None
        if slot.numel() > 1 and not bool((slot[1:] > slot[:-1]).all()):
            pairs = torch.stack([slot.double(), temperature.double()], dim=1)
            distinct, view = torch.unique(pairs, dim=0, return_inverse=True)
            slot = distinct[:, 0].long()
            temperature = distinct[:, 1].to(temperature.dtype)
        warm = bool((temperature != 1).any())
        return cls(view, slot, target, temperature if warm else None, tile_bytes)

    def per_decision(self, value: Tensor) -> Tensor:
        return value if self.view is None else value[self.view]

    def per_view(self, value: Tensor) -> Tensor:
        """Sum of decisions' values on each view."""
        if self.view is None:
            return value
        return value.new_zeros(self.view_slot.numel()).index_add_(0, self.view, value)

    def temperature_of(self, rows: slice) -> Tensor | None:
        """[u, 1], or `None` when all are 1."""
        return None if self.temperature is None else self.temperature[rows, None]

    def tiles(self, vocabulary: int, dtype: torch.dtype) -> tuple[list[slice], list[slice]]:
        """Blocks of views and blocks of the vocabulary whose product is one tile."""
        size, columns = _TILES.get(self.target.device.type, _TILES["cuda"])
        cells = max(1, (self.tile_bytes or size) // (torch.finfo(dtype).bits // 8))
        columns = min(vocabulary, columns, cells)
        rows = max(1, cells // columns)
        return _blocks(self.view_slot.numel(), rows), _blocks(vocabulary, columns)

    def decisions(self, rows: slice) -> tuple[Tensor | slice, Tensor]:
        """The decisions whose view lies in `rows`, and their view counted from its start."""
        if self.view is None:
            return rows, torch.arange(rows.stop - rows.start, device=self.target.device)
        index = ((self.view >= rows.start) & (self.view < rows.stop)).nonzero().squeeze(1)
        return index, self.view[index] - rows.start


def _blocks(length: int, size: int) -> list[slice]:
    count = -(-length // size)
    even = max(1, -(-length // max(1, count)))
    return [slice(start, min(start + even, length)) for start in range(0, length, even)]


class _Rows:
    """The hidden states of one block of views, each distinct slot once."""

    def __init__(self, hidden: Tensor, view_slot: Tensor) -> None:
        self.slot, self.spread = view_slot, None
        if view_slot.numel() > 1 and bool((view_slot[1:] == view_slot[:-1]).any()):
            self.slot, self.spread = torch.unique_consecutive(view_slot, return_inverse=True)
        self.hidden = hidden.index_select(0, self.slot)

    def logits(self, head: Head, columns: slice, dtype: torch.dtype) -> Tensor:
        """The head's logits for these columns before the temperature, one line per view (a new tensor)."""
        z = head.logits(self.hidden, dtype, columns)
        return z if self.spread is None else z.index_select(0, self.spread)

    def gather_back(self, dz: Tensor) -> Tensor:
        """Sum lines of views that share a slot."""
        if self.spread is None:
            return dz
        return dz.new_zeros(self.slot.numel(), dz.shape[1]).index_add_(0, self.spread, dz)


class _LogSum:
    """A running log-sum-exp over blocks of the vocabulary, and running means under its softmax."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self.top = like.new_full((rows,), -torch.inf)
        self.total = like.new_zeros(rows)
        self.sums: dict[str, Tensor] = {}

    def add(self, z: Tensor, means: Mapping[str, Tensor] | None = None) -> None:
        """Fold one block in; `means` are values whose expectation is wanted."""
        top = torch.maximum(self.top, z.amax(dim=1))
        shrink = (self.top - top).exp_()
        weight = (z - top[:, None]).exp_()
        self.total = self.total * shrink + weight.sum(dim=1)
        for name, value in (means or {}).items():
            block = (weight * value).sum(dim=1)
            self.sums[name] = self.sums[name] * shrink + block if name in self.sums else block
        self.top = top

    def log(self) -> Tensor:
        return self.top + self.total.log()

    def mean(self, name: str) -> Tensor:
        return self.sums[name] / self.total


class _FusedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, plan: _Plan, ask: _Ask
    ) -> tuple[Tensor, ...]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        head = Head(weight, bias, ask.scale, ask.softcap)
        names = dict.fromkeys(("lse", "lse_t1", "lse_q", *ask.needs))
        per_view = {name: hidden.new_zeros(plan.view_slot.numel(), dtype=dtype) for name in names}
        chosen = hidden.new_zeros(plan.target.numel(), dtype=dtype)
        for rows in plan.tiles(weight.shape[0], dtype)[0]:
            for name, value in _forward_rows(hidden, head, plan, ask, rows, chosen).items():
                if name in per_view:
                    per_view[name][rows] = value
        ctx.plan, ctx.ask, ctx.names = plan, ask, tuple(per_view)
        ctx.save_for_backward(hidden, weight, bias, *per_view.values())
        values = []
        for name in ask.needs:
            if name == "logp":
                warm = 1 if plan.temperature is None else plan.per_decision(plan.temperature)
                values.append(chosen / warm - plan.per_decision(per_view["lse"]))
            elif name == "logp_t1":
                values.append(chosen - plan.per_decision(per_view["lse_t1"]))
            else:
                values.append(plan.per_decision(per_view[name]).clone())
        ctx.mark_non_differentiable(*(v for n, v in zip(ask.needs, values) if n in _WITHOUT_GRADIENT))
        return tuple(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        plan, ask = ctx.plan, ctx.ask
        hidden, weight, bias, *saved = ctx.saved_tensors
        head = Head(weight, bias, ask.scale, ask.softcap)
        per_view = dict(zip(ctx.names, saved))
        dtype = per_view["lse"].dtype
        given = {
            name: g.to(dtype)
            for name, g in zip(ask.needs, gradients)
            if g is not None and name not in _WITHOUT_GRADIENT
        }
        if plan.temperature is None and "logp_t1" in given:
            given["logp"] = given.pop("logp_t1") + given.get("logp", 0)
        on_view = {name: plan.per_view(g) for name, g in given.items()}
        like = (hidden, weight, bias)
        totals = [
            torch.zeros_like(tensor, dtype=dtype) if wanted else None
            for tensor, wanted in zip(like, ctx.needs_input_grad)
        ]
        row_blocks, column_blocks = plan.tiles(weight.shape[0], dtype)
        for rows in row_blocks if given else []:
            source = _Rows(hidden, plan.view_slot[rows])
            other = _reference_rows(plan, ask, rows) if {"kl", "reverse_kl"} & set(given) else None
            view = {name: value[rows, None] for name, value in per_view.items()}
            g = {name: value[rows, None] for name, value in on_view.items()}
            for columns in column_blocks:
                z = source.logits(head, columns, dtype)
                zq = None if other is None else other[0].logits(other[1], columns, dtype)
                dz = _tile_gradient(z, zq, plan.temperature_of(rows), view, g, weight.shape[0])
                _add_targets(dz, plan, rows, columns, given)
                if ask.softcap is not None:
                    dz *= 1 - (z / ask.softcap).square_()
                if ask.scale != 1:
                    dz *= ask.scale
                _accumulate(totals, source.gather_back(dz), source, weight, columns)
        cast = (None if total is None else total.to(t.dtype) for total, t in zip(totals, like))
        return (*cast, None, None)


def _reference_rows(plan: _Plan, ask: _Ask, rows: slice) -> tuple[_Rows, Head] | None:
    if ask.reference is None:
        return None
    hidden, head = ask.reference
    return _Rows(hidden, plan.view_slot[rows]), head


def _forward_rows(
    hidden: Tensor, head: Head, plan: _Plan, ask: _Ask, rows: slice, chosen: Tensor
) -> dict[str, Tensor]:
    """Statistics [u] of these views; fills `chosen` with their decisions' logits before the temperature."""
    needs, dtype, vocabulary = set(ask.needs), chosen.dtype, head.weight.shape[0]
    source, other = _Rows(hidden, plan.view_slot[rows]), _reference_rows(plan, ask, rows)
    index, view = plan.decisions(rows)
    target = plan.target[index]
    warm = plan.temperature_of(rows)
    count = rows.stop - rows.start
    policy, cold, reference = (_LogSum(count, chosen) for _ in range(3))
    picked = chosen.new_zeros(target.numel())
    sum_z, best, best_id = (
        chosen.new_zeros(count),
        chosen.new_full((count,), -torch.inf),
        chosen.new_zeros(count),
    )
    top = chosen.new_empty(count, 0)
    for columns in plan.tiles(vocabulary, dtype)[1]:
        z = source.logits(head, columns, dtype)
        inside = (target >= columns.start) & (target < columns.stop)
        at = (target - columns.start).clamp(0, columns.stop - columns.start - 1)
        picked = torch.where(inside, z[view, at], picked)
        if "logp_t1" in needs and warm is not None:
            cold.add(z)
        if warm is not None:
            z /= warm
        means = {"z": z} if "entropy" in needs else {}
        if other is not None:
            zq = other[0].logits(other[1], columns, dtype)
            if warm is not None:
                zq /= warm
            gap = z - zq
            if "kl" in needs:
                means["gap"] = gap
            reference.add(zq, {"gap": gap} if "reverse_kl" in needs else None)
        policy.add(z, means)
        if "mean_logp" in needs:
            sum_z += z.sum(dim=1)
        if "argmax" in needs:
            highest = z.max(dim=1)
            best_id = torch.where(highest.values > best, (highest.indices + columns.start).to(dtype), best_id)
            best = torch.maximum(best, highest.values)
        if "topk_mass" in needs:
            top = torch.cat([top, z], dim=1).topk(min(ask.k, top.shape[1] + z.shape[1]), dim=1).values
    chosen[index] = picked
    lse = policy.log()
    found = {"lse": lse, "argmax": best_id, "mean_logp": sum_z / vocabulary - lse}
    if "logp_t1" in needs:
        found["lse_t1"] = lse if warm is None else cold.log()
    if "entropy" in needs:
        found["entropy"] = lse - policy.mean("z")
    if other is not None:
        found["lse_q"] = reference.log()
    if "kl" in needs:
        found["kl"] = policy.mean("gap") - (lse - found["lse_q"])
    if "reverse_kl" in needs:
        found["reverse_kl"] = (lse - found["lse_q"]) - reference.mean("gap")
    if "topk_mass" in needs:
        found["topk_mass"] = (top - lse[:, None]).exp_().sum(dim=1)
    return found


def _tile_gradient(
    z: Tensor,
    zq: Tensor | None,
    warm: Tensor | None,
    view: Mapping[str, Tensor],
    g: Mapping[str, Tensor],
    size: int,
) -> Tensor:
    """The gradient with respect to the logits `z` [u, C] before the temperature, without one-hot parts.

    Args:
        z, zq: Logits of policy and reference.
        warm: Temperatures [u, 1] or `None`.
        view: Saved numbers of each view, [u, 1].
        g: Gradients with respect to each view's statistics, [u, 1].
        size: The whole vocabulary's.
    """
    logp = (z if warm is None else z / warm) - view["lse"]
    factor: Any = 0.0
    for name in ("logp", "mean_logp"):
        if name in g:
            factor = factor - g[name]
    if "reverse_kl" in g:
        factor = factor + g["reverse_kl"]
    if "entropy" in g:
        factor = factor - g["entropy"] * (logp + view["entropy"])
    logq = None
    if zq is not None:
        logq = (zq if warm is None else zq.div_(warm)).sub_(view["lse_q"])
        if "kl" in g:
            factor = factor + g["kl"] * (logp - logq - view["kl"])
    dz = logp.exp_().mul_(factor)
    if logq is not None and "reverse_kl" in g:
        dz -= g["reverse_kl"] * logq.exp_()
    if "mean_logp" in g:
        dz += g["mean_logp"] / size
    if warm is not None:
        dz /= warm
    if "logp_t1" in g:
        dz -= g["logp_t1"] * (z - view["lse_t1"]).exp_()
    return dz


def _add_targets(dz: Tensor, plan: _Plan, rows: slice, columns: slice, given: Mapping[str, Tensor]) -> None:
    """Add the one-hot parts of logp and logp_t1."""
    index, view = plan.decisions(rows)
    at = plan.target[index] - columns.start
    inside = (at >= 0) & (at < columns.stop - columns.start)
    amount = dz.new_zeros(at.numel())
    if "logp" in given:
        warm = 1 if plan.temperature is None else plan.temperature[rows][view]
        amount += given["logp"][index] / warm
    if "logp_t1" in given:
        amount += given["logp_t1"][index]
    dz.index_put_((view, at.clamp(0, dz.shape[1] - 1)), torch.where(inside, amount, 0), accumulate=True)


def _accumulate(
    totals: Sequence[Tensor | None], dz: Tensor, source: _Rows, weight: Tensor, columns: slice
) -> None:
    """Add a tile's gradient to those of hidden states, weight and bias, in the wide type."""
    d_hidden, d_weight, d_bias = totals
    if d_bias is not None:
        d_bias[columns] += dz.sum(dim=0)
    narrow = dz.to(source.hidden.dtype)
    if d_hidden is not None:
        d_hidden.index_add_(0, source.slot, (narrow @ weight[columns].to(narrow.dtype)).to(d_hidden.dtype))
    if d_weight is None:
        return
    if narrow.dtype == d_weight.dtype:
        d_weight[columns].addmm_(narrow.T, source.hidden)
    else:
        d_weight[columns] += narrow.T @ source.hidden
