"""Running a transformers model over rows of different lengths without padding.

The trunk (the model without its head) reads ONE sequence [1, M]: every row after the other, position
ids restarting. Only attention must know where rows end, so it alone is replaced, through
transformers' attention interface: rows of similar length form a bucket [b, L], each bucket is one
causal attention call, and the padding inside a bucket repeats a row's own last token, behind every
token that matters.

Three ways to run the trunk, all equal, tried in this order when a model is loaded:

    packed       as above
    padded       buckets of rows as right-padded batches with an attention mask
    one_by_one   each row alone (recurrent layers, rotary scaling that depends on the batch)

Measured with `benchmarks/packing.py` (tokens per CPU second of forward and backward, one thread, AVX2,
1.06M-parameter Llama, 4096 tokens): rows of 16 to 128 tokens 8200 packed, 7200 padded in buckets, 4200
padded to the longest; rows of one length 8000, 7700, 8100. One attention call per row instead of per
bucket is as fast on a CPU (8000), but its calls grow with the number of rows, so buckets it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from interlace.types import Slots

PATHS = ("packed", "padded", "one_by_one")
"""How a trunk can be run, fastest first."""

_ATTENTION = "interlace_rows"
_SHARE = 0.8
_SHORT = 16
_PACKABLE_LAYERS = {"full_attention", "sliding_attention"}
_ATTENTION_LAYERS = _PACKABLE_LAYERS | {"chunked_attention"}
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


class NotPackable(Exception):
    """The model does something in attention that rows on one sequence cannot reproduce."""


def without_repeats(slots: Slots) -> Slots:
    """The same decisions, read from the first of several rows that read the same (fills of one text)."""
    if slots.second_input is not None or slots.row.numel() == 0 or slots.row.is_cuda:
        return slots
    count = torch.unique_consecutive(slots.row, return_counts=True)[1]
    inputs, positions = slots.input.split(count.tolist()), slots.position.split(count.tolist())
    first: dict[bytes, int] = {}
    kept, start, taken = [], [], 0
    for i, row in enumerate(zip(inputs, positions, strict=True)):
        seen = first.setdefault(torch.stack(row).numpy().tobytes(), taken)
        if seen == taken:
            kept.append(i)
            taken += row[0].numel()
        start.append(seen)
    if len(kept) == count.numel():
        return slots
    rows = torch.repeat_interleave(torch.arange(count.numel()), count)
    shift = torch.tensor(start) - (count.cumsum(0) - count)
    return replace(
        slots,
        input=torch.cat([inputs[i] for i in kept]),
        position=torch.cat([positions[i] for i in kept]),
        row=torch.repeat_interleave(torch.arange(len(kept)), count[kept]),
        slot=slots.slot + shift[rows][slots.slot],
    )


@dataclass(frozen=True)
class RowLayout:
    """Rows sorted into buckets of similar length.

    Attributes:
        shapes: For each bucket its number of rows and its longest row (b, L).
        gather: int64 [sum b L], the slots in bucket order, padding included; `None` when that is
            the order they are in already.
        restore: int64 [M], where each slot lies in bucket order.
        lengths: For each bucket the lengths of its rows, int64 [b].
    """

    shapes: tuple[tuple[int, int], ...]
    gather: Tensor | None
    restore: Tensor | None
    lengths: tuple[Tensor, ...]

    @classmethod
    def of(cls, row: Tensor, *, single: bool = False, device: torch.device | str | None = None) -> RowLayout:
        """Lay out slots by their row.

        Args:
            row: int64 [M], non-decreasing.
            single: Put every row into a bucket of its own.
            device: Where the values to move are; `None` takes that of `row`.
        """
        length = torch.unique_consecutive(row.cpu(), return_counts=True)[1]
        start = length.cumsum(0) - length
        if single or bool((length == length[0]).all()):
            order = torch.arange(length.numel())
        else:
            order = torch.argsort(length, descending=True, stable=True)
        buckets = _buckets(length[order].tolist(), single)
        shapes, gathers, lengths = [], [], []
        for bucket in buckets:
            rows = order[bucket]
            longest = int(length[rows].max())
            step = torch.arange(longest)[None, :].minimum(length[rows, None] - 1)
            gathers.append((start[rows, None] + step).flatten())
            shapes.append((rows.numel(), longest))
            lengths.append(length[rows])
        gather = torch.cat(gathers)
        device = row.device if device is None else device
        if gather.numel() == row.numel() and bool((gather == torch.arange(gather.numel())).all()):
            return cls(tuple(shapes), None, None, tuple(lengths))
        # Padding repeats the last slot of its row, so the first place of a slot is the real one.
        restore = torch.empty(row.numel(), dtype=torch.int64)
        backwards = torch.arange(gather.numel() - 1, -1, -1)
        restore[gather[backwards]] = backwards
        return cls(tuple(shapes), gather.to(device), restore.to(device), tuple(lengths))

    def split(self, value: Tensor) -> list[Tensor]:
        """From [M, ...] to one [b, L, ...] per bucket."""
        if self.gather is not None:
            value = value.index_select(0, self.gather)
        parts = value.split([b * longest for b, longest in self.shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, self.shapes)]

    def join(self, parts: list[Tensor]) -> Tensor:
        """From one [b, L, ...] per bucket back to [M, ...], without the padding."""
        flat = [part.flatten(0, 1) for part in parts]
        value = flat[0] if len(flat) == 1 else torch.cat(flat)
        return value if self.restore is None else value.index_select(0, self.restore)


def _buckets(lengths: list[int], single: bool) -> list[slice]:
    """Cut a non-increasing list where a row is much shorter than its bucket's first."""
    starts = [0]
    for i, length in enumerate(lengths):
        longest = lengths[starts[-1]]
        if i and (single or length < min(_SHARE * longest, longest - _SHORT)):
            starts.append(i)
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], len(lengths)])]


@dataclass
class _Call:
    """One run of the trunk: the rows, and what its attention layers asked for."""

    layout: RowLayout
    windows: list[int | None] = field(default_factory=list)


_current: ContextVar[_Call | None] = ContextVar("interlace_rows", default=None)


def attend_rows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each row of a packed sequence (a transformers attention function).

    Args:
        query: [1, heads, M, D]; key and value may have fewer heads.

    Returns:
        [1, M, heads, D], and no attention weights.
    """
    call = _current.get()
    if call is None:
        raise NotPackable("attention over rows was called outside of a packed run")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    strange = [name for name in ("s_aux", "position_bias") if others.get(name) is not None]
    if strange or not causal or query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise NotPackable(f"attention with {strange or 'a mask that is not causal'}")
    call.windows.append(sliding_window)
    dtype = query.dtype
    if query.device.type == "cpu" and dtype in (torch.bfloat16, torch.float16):
        # The backward pass of half-precision attention on a CPU is about ten times slower.
        query, key, value = query.float(), key.float(), value.float()
    parts = [call.layout.split(x[0].transpose(0, 1)) for x in (query, key, value)]
    attended = [
        _attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scaling, sliding_window, softcap)
        for q, k, v in zip(*parts)
    ]
    return call.layout.join([a.transpose(1, 2) for a in attended]).to(dtype)[None], None


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, attend_rows)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Causal attention [b, heads, L, D] within a window, with or without a soft cap."""
    length = query.shape[2]
    grouped = query.shape[1] != key.shape[1]
    mask = None
    if window is not None and length > window:
        at = torch.arange(length, device=query.device)
        mask = (at[:, None] >= at) & (at[:, None] - at < window)
    if softcap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
    if grouped:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    score = query @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scaling is None else scaling)
    score = softcap * torch.tanh(score / softcap)
    return score.masked_fill(~mask, -torch.inf).softmax(-1) @ value


class Trunk:
    """The model without its head, run over packed rows.

    Args:
        model: A causal language model of transformers.
        path: One of `PATHS`.
    """

    def __init__(self, model: PreTrainedModel, path: str = "packed") -> None:
        self.model, self.path = model, path
        self.module: Any = getattr(model, model.base_model_prefix)
        self._accepts = inspect.signature(self.module.forward).parameters

    def __call__(self, input: Tensor, position: Tensor, row: Tensor) -> Tensor:
        """Hidden states before the head.

        Args:
            input: int64 [M] token ids, or [M, H] input embeddings.
            position: int64 [M], restarting at 0 in every row.
            row: int64 [M], non-decreasing.

        Returns:
            [M, H].
        """
        if input.shape[0] == 0:
            width = self.model.config.get_text_config().hidden_size
            return torch.zeros(0, width, dtype=self.model.dtype, device=input.device)
        layout = RowLayout.of(row, single=self.path == "one_by_one", device=input.device)
        with keep_float64(self.model.dtype):
            if self.path == "packed":
                return self._packed(input, position, _Call(layout))
            return self._in_batches(input, position, layout)

    def check_attention(self, input: Tensor, position: Tensor, row: Tensor) -> Tensor:
        """Run packed and refuse what a short check cannot see: windows, chunks, missed layers.

        Raises:
            NotPackable: With the reason.
        """
        config = self.model.config.get_text_config()
        layers = getattr(config, "layer_types", None) or []
        if set(layers) - _PACKABLE_LAYERS:
            raise NotPackable(f"layers of type {', '.join(sorted(set(layers) - _PACKABLE_LAYERS))}")
        call = _Call(RowLayout.of(row, device=input.device))
        with keep_float64(self.model.dtype):
            hidden = self._packed(input, position, call)
        window = getattr(config, "sliding_window", None)
        expected = [window if kind == "sliding_attention" else None for kind in layers]
        expected = expected or [window] * config.num_hidden_layers
        if call.windows != expected:
            raise NotPackable(f"attention windows {call.windows} instead of {expected}")
        return hidden

    def _packed(self, input: Tensor, position: Tensor, call: _Call) -> Tensor:
        if "position_ids" not in self._accepts:
            raise NotPackable("no position ids")
        with _attention(self.model, call):
            return self._run(input[None], position_ids=position[None])[0]

    def _in_batches(self, input: Tensor, position: Tensor, layout: RowLayout) -> Tensor:
        parts = []
        for tokens, places, lengths in zip(layout.split(input), layout.split(position), layout.lengths):
            longest = tokens.shape[1]
            real = (torch.arange(longest)[None, :] < lengths[:, None]).to(input.device)
            padded = not bool((lengths == longest).all())
            parts.append(
                self._run(tokens, position_ids=places, attention_mask=real.long() if padded else None)
            )
        return layout.join(parts)

    def _run(self, input: Tensor, **arguments: Tensor | None) -> Tensor:
        name = "inputs_embeds" if input.is_floating_point() else "input_ids"
        known: dict[str, Any] = {k: v for k, v in arguments.items() if k in self._accepts and v is not None}
        if "use_cache" in self._accepts:
            known["use_cache"] = False
        return self.module(**{name: input}, **known)[0]


def slow_path_reason(model: PreTrainedModel) -> tuple[str, str] | None:
    """A path that the model's configuration prescribes, and why; `None` if nothing does."""
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or [])
    if getattr(model, "_is_stateful", False) or layers - _ATTENTION_LAYERS:
        return "one_by_one", "its layers are recurrent"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = {rope.get("rope_type"), *(v.get("rope_type") for v in rope.values() if isinstance(v, dict))}
    if kinds & _LENGTH_DEPENDENT_ROPE:
        return "one_by_one", "its rotary scaling depends on the longest row of a batch"
    return None


@contextmanager
def _attention(model: PreTrainedModel, call: _Call) -> Iterator[None]:
    """Let the model's layers attend within rows, for the length of one forward pass."""
    config = model.config
    before = config._attn_implementation
    token = _current.set(call)
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before
        _current.reset(token)


class _KeepFloat64(TorchFunctionMode):
    """Models cast norms, softmaxes and rotary angles to float32; in float64 they must not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.float:
            return args[0].double()
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.to and (torch.float32 in args or kwargs.get("dtype") is torch.float32):
                args = tuple(torch.float64 if a is torch.float32 else a for a in args)
                kwargs.pop("dtype", None)
                return func(*args, **kwargs) if len(args) > 1 or kwargs else args[0]
            if kwargs.get("dtype") is torch.float32 and func in (F.softmax, torch.softmax, Tensor.softmax):
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def keep_float64(dtype: torch.dtype) -> Iterator[None]:
    """Run a float64 model in float64 throughout; nothing changes for other types."""
    if dtype != torch.float64:
        yield
        return
    with _KeepFloat64():
        yield
