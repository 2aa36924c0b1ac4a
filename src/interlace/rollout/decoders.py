"""Decoders: what turns the last token of every row in flight into logits.

`GenericDecoder` drives any transformers causal language model through its own forward with the keys
on our `Tape`; `PlainDecoder` leaves even the cache to the model. The hand-written one for Llama-like
models is in `fused.py`. `LocalEngine` picks the first of the three that agrees with the plain model.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from interlace.policies.packing import keep_float64
from interlace.rollout.tape import Tape

PREFILL_TOKENS = 8192
"""Prompt tokens (padding included) that one prefill forward reads at most."""


class Unsupported(Exception):
    """A decoder cannot run this model; says why."""


class Decoder(Protocol):
    """Keeps the state of the rows in flight, numbered 0 .. count - 1.

    `guard` is a context that every other call is made in; `refresh` follows a change of weights.
    """

    path: str
    dtype: torch.dtype

    def guard(self) -> contextlib.AbstractContextManager[None]: ...

    def refresh(self) -> None: ...

    def open(self, rows: int, longest_prompt: int, columns: int) -> None:
        """Start anew, for at most `rows` rows at once."""
        ...

    def admit(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Tensor:
        """Let `copies[i]` rows of prompt i enter; logits [sum(copies), V] of their first new token."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per row, int64 [count]; logits [count, V] of the next."""
        ...

    def compact(self, holes: Sequence[int], fillers: Sequence[int], count: int) -> None:
        """Keep `count` rows; row `fillers[i]` moves to place `holes[i]`."""
        ...

    def close(self) -> None:
        """Give memory back where holding it would hurt training."""
        ...


def prefill_chunks(prompts: Sequence[Sequence[int]]) -> Iterator[slice]:
    """Consecutive prompts whose padded size stays within `PREFILL_TOKENS` (at least one prompt each)."""
    begin, width = 0, 0
    for i, prompt in enumerate(prompts):
        if i > begin and max(width, len(prompt)) * (i + 1 - begin) > PREFILL_TOKENS:
            yield slice(begin, i)
            begin, width = i, 0
        width = max(width, len(prompt))
    if len(prompts) > begin:
        yield slice(begin, len(prompts))


def pad_right(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [n, T] with zeros behind shorter prompts, and the column of each last token, int64 [n].

    Under a causal mask no token sees what is behind it, so this padding needs no mask of its own, and no
    query is left with nothing to attend to.
    """
    width = max(map(len, prompts))
    ids = torch.tensor([list(p) + [0] * (width - len(p)) for p in prompts], device=device)
    return ids, torch.tensor([len(p) - 1 for p in prompts], device=device)


def repeat(x: Tensor, copies: Sequence[int]) -> Tensor:
    """Row i of `x`, `copies[i]` times."""
    return x.repeat_interleave(torch.tensor(copies, device=x.device), dim=0)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No gradients, no dropout, no autocast, float64 throughout where the policy scores in float64.

    Train and eval flags are put back afterwards.
    """
    training = [m for m in model.modules() if m.training]
    model.eval()
    weight = next(model.parameters())
    try:
        with torch.no_grad(), torch.autocast(weight.device.type, enabled=False), keep_float64(weight.dtype):
            yield
    finally:
        for module in training:
            module.training = True


class _TransformersDecoder:
    """What both decoders that call the model's own forward share."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        weight = next(model.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        accepted = inspect.signature(innermost(model).forward).parameters
        names = [n for n in ("cache", "past_key_values") if n in accepted]
        if not names:
            raise Unsupported(f"{type(model).__name__}.forward takes no key-value cache")
        self._cache_name = names[0]
        self._accepts = {n for n in ("position_ids", "attention_mask", "logits_to_keep") if n in accepted}

    def guard(self) -> contextlib.AbstractContextManager[None]:
        return evaluating(self.model)

    def refresh(self) -> None:
        """Nothing is copied from the model, so nothing can be stale."""

    def _forward(
        self, ids: Tensor, cache: Any, columns: Tensor | None = None, **inputs: Tensor | None
    ) -> tuple[Tensor, Any]:
        """Logits [n, len(columns), V] at these columns of `ids` (all for `None`), and the cache."""
        known: dict[str, Any] = {k: v for k, v in inputs.items() if k in self._accepts and v is not None}
        if columns is not None and "logits_to_keep" in self._accepts:
            known["logits_to_keep"] = columns
        out = self.model(
            input_ids=ids, use_cache=True, return_dict=True, **{self._cache_name: cache}, **known
        )
        whole = columns is None or "logits_to_keep" in known
        return out.logits if whole else out.logits[:, columns], out.get("cache", out.get("past_key_values"))


class GenericDecoder(_TransformersDecoder):
    """Any causal language model that keeps keys and values in a transformers `Cache`.

    The model sees a left-padded batch with a two-dimensional attention mask and its own position ids,
    the form that every such model is made for; sliding windows are its own masks over the tape.

    Raises:
        Unsupported: If the model's forward takes no cache.
    """

    path = "generic"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        config = model.config.get_text_config()  # type: ignore[operator, union-attr]
        self._tape = Tape(config.num_hidden_layers, self.device, self.dtype)
        self._cache = _TapeCache(self._tape)

    def open(self, rows: int, longest_prompt: int, columns: int) -> None:
        self._tape.open(rows, longest_prompt, columns)

    def admit(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Tensor:
        logits = []
        for chunk in prefill_chunks(prompts):
            ids, last = pad_right(prompts[chunk], self.device)
            columns, which = last.unique(return_inverse=True)
            positions = torch.arange(ids.shape[1], device=self.device).expand_as(ids)
            with self._cache.recording() as (keys, values):
                out, _ = self._forward(ids, self._cache, columns, position_ids=positions)
            self._tape.admit(keys, values, [len(p) for p in prompts[chunk]], copies[chunk])
            logits.append(repeat(out[torch.arange(len(ids), device=self.device), which], copies[chunk]))
        return torch.cat(logits)

    def step(self, tokens: Tensor) -> Tensor:
        tape = self._tape
        tape.make_room()
        mask = None if tape.aligned else (tape.bias[: tape.count, tape.start : tape.head + 1] == 0).long()
        positions = tape.positions[:, None]
        logits, _ = self._forward(tokens[:, None], self._cache, attention_mask=mask, position_ids=positions)
        tape.head += 1
        return logits[:, 0]

    def compact(self, holes: Sequence[int], fillers: Sequence[int], count: int) -> None:
        self._tape.compact(holes, fillers, count)

    def close(self) -> None:
        if self.device.type != "cpu":
            self._tape.close()


class _TapeCache(Cache):
    """Shows the tape to a transformers model as its cache."""

    def __init__(self, tape: Tape) -> None:
        self.recorded: tuple[list[Tensor | None], list[Tensor | None]] | None = None
        self.tape = tape
        super().__init__(layers=[_TapeLayer(self, i) for i in range(len(tape.keys))])

    @contextlib.contextmanager
    def recording(self) -> Iterator[tuple[list[Tensor | None], list[Tensor | None]]]:
        """Inside, the cache is empty and takes down what each layer would store."""
        none: list[Tensor | None] = [None] * len(self.tape.keys)
        self.recorded = (list(none), list(none))
        try:
            yield self.recorded
        finally:
            self.recorded = None


class _TapeLayer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, cache: _TapeCache, index: int) -> None:
        super().__init__()
        self._cache, self._index = cache, index

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """The tape allocates by itself."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self._cache.recorded is not None:
            self._cache.recorded[0][self._index] = key_states
            self._cache.recorded[1][self._index] = value_states
            return key_states, value_states
        tape = self._cache.tape
        tape.append(self._index, key_states[:, :, 0], value_states[:, :, 0])
        return tape.read(self._index, tape.start, tape.head + 1)

    def get_seq_length(self, *args: Any) -> int:
        return 0 if self._cache.recorded is not None else self._cache.tape.head - self._cache.tape.start

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        # Older transformers pass the tensor of cache positions instead of its length.
        new = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.get_seq_length() + new, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class PlainDecoder(_TransformersDecoder):
    """The slow path: the model's own cache, prompts of equal length together, nothing padded or moved.

    Serves models whose state is not only keys and values (recurrent layers, chunked attention).

    Raises:
        Unsupported: If the model's forward takes no cache.
    """

    path = "transformers"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._waves: list[_Wave] = []

    def open(self, rows: int, longest_prompt: int, columns: int) -> None:
        self._waves = []

    def admit(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Tensor:
        begin = sum(len(w.rows) for w in self._waves)
        ends = torch.tensor(copies).cumsum(0).tolist()
        logits: list[Tensor] = [torch.empty(0)] * ends[-1]
        for length in sorted({len(p) for p in prompts}):
            chosen = [i for i, p in enumerate(prompts) if len(p) == length]
            rows = [r for i in chosen for r in range(ends[i] - copies[i], ends[i])]
            ids = torch.tensor([list(prompts[i]) for i in chosen], device=self.device)
            wave = _Wave(None, length, [begin + r for r in rows])
            each = torch.arange(len(chosen), device=self.device)
            each = repeat(each, [copies[i] for i in chosen])
            out = self._advance(wave, ids)[each]
            wave.cache.reorder_cache(each)
            self._waves.append(wave)
            for r, row_logits in zip(rows, out, strict=True):
                logits[r] = row_logits
        return torch.stack(logits)

    def step(self, tokens: Tensor) -> Tensor:
        outs = [
            self._advance(w, tokens[torch.tensor(w.rows, device=self.device)][:, None]) for w in self._waves
        ]
        rows = torch.tensor([r for w in self._waves for r in w.rows], device=self.device)
        return torch.cat(outs)[rows.argsort()]

    def compact(self, holes: Sequence[int], fillers: Sequence[int], count: int) -> None:
        moved = dict(zip(fillers, holes, strict=True))
        gone = set(holes)
        for wave in self._waves:
            kept = [i for i, r in enumerate(wave.rows) if r in moved or (r < count and r not in gone)]
            if kept and len(kept) < len(wave.rows):
                wave.cache.reorder_cache(torch.tensor(kept, device=self.device))
            wave.rows = [moved.get(wave.rows[i], wave.rows[i]) for i in kept]
        self._waves = [w for w in self._waves if w.rows]

    def close(self) -> None:
        self._waves = []

    def _advance(self, wave: _Wave, ids: Tensor) -> Tensor:
        first = wave.length if wave.cache is not None else 0
        position = torch.arange(first, first + ids.shape[1], device=self.device)
        last = torch.tensor([ids.shape[1] - 1], device=self.device)
        logits, cache = self._forward(ids, wave.cache, last, position_ids=position.expand(len(ids), -1))
        if wave.cache is None:
            wave.cache = cache
            if not hasattr(wave.cache, "reorder_cache"):
                raise Unsupported(f"{type(self.model).__name__} returns no cache whose rows can be chosen")
        else:
            wave.length += 1
        return logits[:, 0]


class _Wave:
    """Rows that entered together with prompts of one length, and the model's cache of them."""

    def __init__(self, cache: Any, length: int, rows: list[int]) -> None:
        self.cache, self.length, self.rows = cache, length, rows


def innermost(model: nn.Module) -> nn.Module:
    """The transformers model inside an adapter wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
