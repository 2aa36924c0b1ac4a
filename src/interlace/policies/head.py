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

`logp_t1` is `logp` read at T = 1; every other statistic is read at the decision's temperature.
The logits are z = cap * tanh(scale * (hidden @ weight.T + bias) / cap) / T.

Reference: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, 2024
(arXiv 2411.09009), for recomputing logits in tiles; the statistics beyond logp are ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

STATISTICS = ("logp", "logp_t1", "entropy", "mean_logp", "kl", "reverse_kl", "topk_mass")
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
        For each name a tensor [N]: float64 if `hidden` is, else float32. All but `topk_mass` are
        differentiable (once) in `hidden`, `head.weight` and `head.bias`.

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
    with_reference = "kl" in needs or "reverse_kl" in needs
    if with_reference and (reference_hidden is None or reference_head is None):
        raise ValueError("kl and reverse_kl need a reference: its hidden states and its head")
    if "topk_mass" in needs and not 1 <= k <= head.weight.shape[0]:
        raise ValueError(f"topk_mass: k={k}; accepted are 1 to {head.weight.shape[0]} (the vocabulary)")
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    temperature = temperature.to(hidden.device, dtype)
    if not bool((temperature > 0).all()):
        raise ValueError("temperature: accepted are numbers > 0 (a greedy choice has no log-probability)")
    plan = _Plan.of(slot.to(hidden.device), target.to(hidden.device), temperature)
    plan = replace(
        plan,
        needs=needs,
        k=k,
        tile_bytes=tile_bytes,
        scale=head.scale,
        softcap=head.softcap,
        reference=(reference_hidden.detach(), reference_head.detached()) if with_reference else None,
    )
    values = _FusedHead.apply(hidden, head.weight, head.bias, plan)
    return dict(zip(needs, values, strict=True))


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
    needs: tuple[str, ...] = ()
    k: int = 2
    tile_bytes: int | None = None
    scale: float = 1.0
    softcap: float | None = None
    reference: tuple[Tensor, Head] | None = None

    @classmethod
    def of(cls, slot: Tensor, target: Tensor, temperature: Tensor) -> _Plan:
        view: Tensor | None = None
        if slot.numel() > 1 and not bool((slot[1:] > slot[:-1]).all()):
            pairs = torch.stack([slot.double(), temperature.double()], dim=1)
            distinct, view = torch.unique(pairs, dim=0, return_inverse=True)
            slot = distinct[:, 0].long()
            temperature = distinct[:, 1].to(temperature.dtype)
        warm = bool((temperature != 1).any())
        return cls(view, slot, target, temperature if warm else None)

    def per_decision(self, value: Tensor) -> Tensor:
        return value if self.view is None else value[self.view]

    def per_view(self, value: Tensor) -> Tensor:
        """Sum of decisions' values on each view."""
        if self.view is None:
            return value
        return value.new_zeros(self.view_slot.numel()).index_add_(0, self.view, value)

    def tiles(self, vocabulary: int, dtype: torch.dtype) -> tuple[list[slice], list[slice]]:
        """Blocks of views and blocks of the vocabulary whose product fits in `tile_bytes`."""
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
    size = -(-length // max(1, count))
    return [slice(start, min(start + size, length)) for start in range(0, length, max(1, size))]


class _Rows:
    """The hidden states of one block of views, each distinct slot once."""

    def __init__(self, hidden: Tensor, view_slot: Tensor) -> None:
        self.slot, self.spread = view_slot, None
        if view_slot.numel() > 1 and bool((view_slot[1:] == view_slot[:-1]).any()):
            self.slot, self.spread = torch.unique_consecutive(view_slot, return_inverse=True)
        self.hidden = hidden.index_select(0, self.slot)

    def logits(self, weight: Tensor, bias: Tensor | None, columns: slice, dtype: torch.dtype) -> Tensor:
        """hidden @ weight.T + bias for these columns, one line per view (a fresh tensor)."""
        z = (self.hidden @ weight[columns].to(self.hidden.dtype).T).to(dtype)
        if bias is not None:
            z += bias[columns].to(dtype)
        return z if self.spread is None else z.index_select(0, self.spread)

    def gather_back(self, dz: Tensor) -> Tensor:
        """Sum lines of views that share a slot."""
        if self.spread is None:
            return dz
        return dz.new_zeros(self.slot.numel(), dz.shape[1]).index_add_(0, self.spread, dz)


def _capped(z: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Scale and soft-cap in place, before the temperature."""
    if scale != 1:
        z *= scale
    if softcap is not None:
        z.div_(softcap).tanh_().mul_(softcap)
    return z


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
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, plan: _Plan
    ) -> tuple[Tensor, ...]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        count = plan.view_slot.numel()
        per_view = {name: hidden.new_zeros(count, dtype=dtype) for name in ("lse", "lse_t1", "lse_q", *plan.needs)}
        chosen = hidden.new_zeros(plan.target.numel(), dtype=dtype)
        row_blocks, column_blocks = plan.tiles(weight.shape[0], dtype)
        for rows in row_blocks:
            _forward_rows(hidden, weight, bias, plan, rows, column_blocks, per_view, chosen)
        ctx.plan = plan
        ctx.save_for_backward(hidden, weight, bias, *per_view.values())
        ctx.names = tuple(per_view)
        values = []
        for name in plan.needs:
            if name == "logp":
                warm = 1 if plan.temperature is None else plan.per_decision(plan.temperature)
                values.append(chosen / warm - plan.per_decision(per_view["lse"]))
            elif name == "logp_t1":
                values.append(chosen - plan.per_decision(per_view["lse_t1"]))
            else:
                values.append(plan.per_decision(per_view[name]).clone())
        ctx.mark_non_differentiable(*(v for n, v in zip(plan.needs, values) if n == "topk_mass"))
        return tuple(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        hidden, weight, bias, *saved = ctx.saved_tensors
        per_view = dict(zip(ctx.names, saved))
        given = {
            name: g for name, g in zip(plan.needs, gradients) if g is not None and name != "topk_mass"
        }
        dtype = per_view["lse"].dtype
        wants_hidden, wants_weight, wants_bias, _ = ctx.needs_input_grad
        d_hidden = torch.zeros_like(hidden, dtype=dtype) if wants_hidden else None
        d_weight = torch.zeros_like(weight, dtype=dtype) if wants_weight else None
        d_bias = torch.zeros_like(bias, dtype=dtype) if wants_bias else None
        on_view = {name: plan.per_view(g.to(dtype)) for name, g in given.items()}
        row_blocks, column_blocks = plan.tiles(weight.shape[0], dtype)
        for rows in row_blocks:
            source = _Rows(hidden, plan.view_slot[rows])
            reference = _reference_rows(plan, rows)
            for columns in column_blocks:
                dz = _tile_gradient(source, reference, weight, bias, plan, rows, columns, per_view, given, on_view)
                dz = source.gather_back(dz)
                if d_bias is not None:
                    d_bias[columns] += dz.sum(dim=0)
                dz = dz.to(hidden.dtype)
                if d_hidden is not None:
                    d_hidden.index_add_(0, source.slot, (dz @ weight[columns].to(dz.dtype)).to(dtype))
                if d_weight is not None:
                    _add_product(d_weight[columns], dz, source.hidden)
        cast = [
            None if gradient is None else gradient.to(like.dtype)
            for gradient, like in ((d_hidden, hidden), (d_weight, weight), (d_bias, bias))
        ]
        return (*cast, None)


def _add_product(total: Tensor, dz: Tensor, hidden: Tensor) -> None:
    if dz.dtype == total.dtype:
        total.addmm_(dz.T, hidden)
    else:
        total += dz.T @ hidden


def _reference_rows(plan: _Plan, rows: slice) -> _Rows | None:
    return None if plan.reference is None else _Rows(plan.reference[0], plan.view_slot[rows])


def _reference_logits(plan: _Plan, reference: _Rows, columns: slice, dtype: torch.dtype) -> Tensor:
    assert plan.reference is not None
    head = plan.reference[1]
    return _capped(reference.logits(head.weight, head.bias, columns, dtype), head.scale, head.softcap)


def _forward_rows(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: _Plan,
    rows: slice,
    column_blocks: list[slice],
    per_view: dict[str, Tensor],
    chosen: Tensor,
) -> None:
    """Fill `per_view[rows]` and the chosen logits (before the temperature) of these views' decisions."""
    needs, dtype = set(plan.needs), chosen.dtype
    source, reference = _Rows(hidden, plan.view_slot[rows]), _reference_rows(plan, rows)
    index, view = plan.decisions(rows)
    target = plan.target[index]
    warm = None if plan.temperature is None else plan.temperature[rows, None]
    count = rows.stop - rows.start
    policy, cold, other = (_LogSum(count, chosen) for _ in range(3))
    sum_z = chosen.new_zeros(count)
    top = chosen.new_empty(count, 0)
    picked = chosen.new_zeros(target.numel())
    for columns in column_blocks:
        z = _capped(source.logits(weight, bias, columns, dtype), plan.scale, plan.softcap)
        inside = (target >= columns.start) & (target < columns.stop)
        at = (target - columns.start).clamp(0, columns.stop - columns.start - 1)
        picked = torch.where(inside, z[view, at], picked)
        if "logp_t1" in needs and warm is not None:
            cold.add(z)
        if warm is not None:
            z /= warm
        means = {"z": z} if "entropy" in needs else {}
        if reference is not None:
            zq = _reference_logits(plan, reference, columns, dtype)
            if warm is not None:
                zq /= warm
            gap = z - zq
            if "kl" in needs:
                means["gap"] = gap
            other.add(zq, {"gap": gap} if "reverse_kl" in needs else None)
        policy.add(z, means)
        if "mean_logp" in needs:
            sum_z += z.sum(dim=1)
        if "topk_mass" in needs:
            top = torch.cat([top, z], dim=1).topk(min(plan.k, top.shape[1] + z.shape[1]), dim=1).values
    lse = policy.log()
    chosen[index] = picked
    found = {"lse": lse, "lse_t1": lse if warm is None else cold.log() if "logp_t1" in needs else lse}
    if "entropy" in needs:
        found["entropy"] = lse - policy.mean("z")
    if "mean_logp" in needs:
        found["mean_logp"] = sum_z / weight.shape[0] - lse
    if reference is not None:
        found["lse_q"] = other.log()
        if "kl" in needs:
            found["kl"] = policy.mean("gap") - (lse - found["lse_q"])
        if "reverse_kl" in needs:
            found["reverse_kl"] = (lse - found["lse_q"]) - other.mean("gap")
    if "topk_mass" in needs:
        found["topk_mass"] = (top - lse[:, None]).exp_().sum(dim=1)
    for name, value in found.items():
        if name in per_view:
            per_view[name][rows] = value


def _tile_gradient(
    source: _Rows,
    reference: _Rows | None,
    weight: Tensor,
    bias: Tensor | None,
    plan: _Plan,
    rows: slice,
    columns: slice,
    per_view: dict[str, Tensor],
    given: dict[str, Tensor],
    on_view: dict[str, Tensor],
) -> Tensor:
    """The gradient with respect to this tile of hidden @ weight.T + bias, one line per view."""
    dtype = per_view["lse"].dtype

    def column(name: str) -> Tensor:
        return per_view[name][rows, None]

    raw = _capped(source.logits(weight, bias, columns, dtype), plan.scale, plan.softcap)
    warm = None if plan.temperature is None else plan.temperature[rows, None]
    g = {name: value[rows, None] for name, value in on_view.items()}
    cold = warm is not None and "logp_t1" in g
    if "logp_t1" in g and not cold:
        g["logp"] = g["logp"] + g.pop("logp_t1") if "logp" in g else g.pop("logp_t1")

    logp = (raw if warm is None else raw / warm) - column("lse")
    p = logp.exp()
    factor = _sum(-g[name] for name in ("logp", "mean_logp") if name in g)
    if "reverse_kl" in g:
        factor = factor + g["reverse_kl"]
    if "entropy" in g:
        factor = factor - g["entropy"] * (logp + column("entropy"))
    logq = None
    if reference is not None and ("kl" in g or "reverse_kl" in g):
        logq = _reference_logits(plan, reference, columns, dtype)
        logq = (logq if warm is None else logq.div_(warm)).sub_(column("lse_q"))
    if "kl" in g:
        factor = factor + g["kl"] * (logp - logq - column("kl"))
    dz = p.mul_(factor)
    if "reverse_kl" in g:
        dz -= g["reverse_kl"] * logq.exp()
    if "mean_logp" in g:
        dz += g["mean_logp"] / weight.shape[0]
    if warm is not None:
        dz /= warm
    if cold:
        dz -= g["logp_t1"] * (raw - column("lse_t1")).exp_()
    _add_targets(dz, plan, rows, columns, given)
    if plan.softcap is not None:
        dz *= 1 - (raw / plan.softcap).square_()
    if plan.scale != 1:
        dz *= plan.scale
    return dz


def _add_targets(dz: Tensor, plan: _Plan, rows: slice, columns: slice, given: dict[str, Tensor]) -> None:
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
    amount = torch.where(inside, amount, 0)
    dz.index_put_((view, at.clamp(0, dz.shape[1] - 1)), amount, accumulate=True)


def _sum(values: Any) -> Any:
    total: Any = 0.0
    for value in values:
        total = total + value
    return total
