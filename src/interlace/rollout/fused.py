"""A hand-written decode loop for Llama-like models (Llama, SmolLM, Mistral, Qwen2, Qwen3).

What it does differently from the model's own forward, with the same result:

- queries, keys and values come from one matrix, gate and up from another, each with the weight of the
  norm before it multiplied in; these copies are read again when the weights have changed;
- the two halves that rotary embedding turns are interleaved in the rows of that matrix, so that the
  turn is one complex product (a permutation common to queries and keys leaves their products alone);
- attention reads only the live columns of a preallocated cache, and grouped queries share their keys
  without copies.

Absent on purpose: biased norms, partial or length-dependent rotary embeddings, mixtures of experts;
models with these take the generic decoder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interlace.rollout.decoders import Unsupported, evaluating, innermost, pad_right, prefill_chunks, repeat
from interlace.rollout.tape import Tape

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_FIXED_ROPE = ("default", "linear", "llama3", "yarn")

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
_Linear = tuple[Tensor, Tensor | None]


@dataclass
class _Layer:
    """Weights of one layer as the loop multiplies them; `[out, in]` like `nn.Linear`."""

    qkv: Tensor
    qkv_bias: Tensor | None
    head_scale: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class FusedDecoder:
    """Decoder for Llama-like models.

    Args:
        model: A causal language model of one of `MODEL_TYPES`; LoRA adapters are merged into the copies.
        dtype: What to compute in; `None` is the model's own.

    Raises:
        Unsupported: If the model has something that the loop does not know.
    """

    path = "fused"

    def __init__(self, model: nn.Module, dtype: torch.dtype | None = None) -> None:
        base: Any = innermost(model)
        config = base.config
        if config.model_type not in MODEL_TYPES:
            raise Unsupported(f"model type {config.model_type!r} is not one of {', '.join(MODEL_TYPES)}")
        rope = getattr(base.model.rotary_emb, "rope_type", "default")
        if rope not in _FIXED_ROPE:
            raise Unsupported(f"rotary embedding of type {rope!r} changes with the length")
        attention = base.model.layers[0].self_attn
        self.model, self._base = model, base
        weight = base.lm_head.weight
        self.device, self.dtype = weight.device, dtype or weight.dtype
        self._real = torch.promote_types(self.dtype, torch.float32)
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._dim, self._scale = attention.head_dim, attention.scaling
        self._eps = torch.tensor([config.rms_norm_eps], device=self.device, dtype=self._real)
        self._windows = [_window(config, layer) for layer in base.model.layers]
        self._activation = base.model.layers[0].mlp.act_fn
        half = torch.arange(self._dim).view(2, -1)
        self._interleave = half.t().reshape(-1).to(self.device)
        self._turns = torch.empty(0, device=self.device)
        self._tape = Tape(len(base.model.layers), self.device, self.dtype)
        self._layers: list[_Layer] = []
        self.refresh()

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        with evaluating(self.model), torch.inference_mode():
            yield

    def refresh(self) -> None:
        """Read the weights again."""
        with torch.no_grad():
            base = self._base
            self._layers = [self._read(layer) for layer in base.model.layers]
            self._embedding = _plain_weight(base.model.embed_tokens, nn.Embedding)
            self._norm = base.model.norm.weight.to(self.dtype)
            self._head, self._head_bias = self._linear(base.lm_head)

    def open(self, rows: int, longest_prompt: int, columns: int) -> None:
        self._tape.open(rows, longest_prompt, columns)
        if len(self._turns) < columns:
            self._turns = self._rotations(columns)

    def admit(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Tensor:
        logits = []
        for chunk in prefill_chunks(prompts):
            ids, last = pad_right(prompts[chunk], self.device)
            logits.append(repeat(self._prefill(ids, last, copies[chunk]), copies[chunk]))
        return torch.cat(logits)

    def step(self, tokens: Tensor) -> Tensor:
        tape = self._tape
        tape.make_room()
        start, end = tape.start, tape.head + 1
        bias = None if tape.aligned else tape.bias[: tape.count, None, None, :end]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            tape.append(layer, key, value)
            window = self._windows[layer]
            begin = start if window is None else max(start, end - window)
            keys, values = tape.read(layer, begin, end)
            query = query.unflatten(1, (self._kv_heads, -1))
            added = None if bias is None else bias[..., begin:]
            return _attention(query, keys, values, added, self._scale).reshape(len(query), -1)

        x = self._run(self._embed(tokens), self._turns[tape.positions][:, None], attend)
        tape.head += 1
        return self._logits(x)

    def compact(self, holes: Sequence[int], fillers: Sequence[int], count: int) -> None:
        self._tape.compact(holes, fillers, count)

    def close(self) -> None:
        if self.device.type != "cpu":
            self._tape.close()

    def _prefill(self, ids: Tensor, last: Tensor, copies: Sequence[int]) -> Tensor:
        n, width = ids.shape
        column = torch.arange(width, device=self.device)
        back = column[:, None] - column
        masks = {w: None if w is None or w >= width else (back >= 0) & (back < w) for w in set(self._windows)}
        keys: list[Tensor | None] = []
        values: list[Tensor | None] = []

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            q, k, v = (t.unflatten(0, (n, width)).transpose(1, 2) for t in (query, key, value))
            keys.append(k)
            values.append(v)
            allowed = masks[self._windows[layer]]
            out = F.scaled_dot_product_attention(
                q,
                k,
                v,
                allowed,
                is_causal=allowed is None,
                scale=self._scale,
                enable_gqa=self._heads != self._kv_heads,
            )
            return out.transpose(1, 2).reshape(n * width, -1)

        x = self._run(self._embed(ids.view(-1)), self._turns[column.repeat(n)][:, None], attend)
        self._tape.admit(keys, values, (last + 1).tolist(), copies)
        return self._logits(x.view(n, width, -1)[torch.arange(n, device=self.device), last])

    def _run(self, x: Tensor, turns: Tensor, attend: Attend) -> Tensor:
        """The layers, over [N, hidden]; only `attend` knows how the N tokens see each other."""
        turned = self._heads + self._kv_heads
        for i, layer in enumerate(self._layers):
            qkv = F.linear(self._normed(x), layer.qkv, layer.qkv_bias).view(len(x), -1, self._dim)
            qk, value = qkv[:, :turned], qkv[:, turned:]
            if layer.head_scale is not None:
                qk = self._normed(qk) * layer.head_scale
            qk = _turned(qk, turns)
            attended = attend(i, qk[:, : self._heads], qk[:, self._heads :], value)
            x = _add_linear(x, attended, layer.out, layer.out_bias)
            gate, up = F.linear(self._normed(x), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            x = _add_linear(x, self._activation(gate).mul_(up), layer.down, layer.down_bias)
        return x

    def _embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._embedding).to(self.dtype)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self._normed(x) * self._norm, self._head, self._head_bias)

    def _normed(self, x: Tensor) -> Tensor:
        """Root-mean-square norm over the last axis, without its weight, in at least float32."""
        y = x.to(self._real)
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        inverse = torch.addcmul(self._eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()
        return (y * inverse).to(x.dtype)

    def _rotations(self, columns: int) -> Tensor:
        """Complex [columns, dim / 2]: the model's own rotary embedding of each position."""
        positions = torch.arange(columns, device=self.device)[None]
        like = torch.empty(0, dtype=self._real, device=self.device)
        cos, sin = self._base.model.rotary_emb(like, positions)
        if cos.shape[-1] != self._dim:
            raise Unsupported("rotary embedding of only a part of each head")
        return torch.complex(cos[0, :, : self._dim // 2], sin[0, :, : self._dim // 2])

    def _read(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        query, key, value = (self._linear(m) for m in (attention.q_proj, attention.k_proj, attention.v_proj))
        gate, up = self._linear(mlp.gate_proj), self._linear(mlp.up_proj)
        qkv = self._joined([self._paired(query), self._paired(key), value], layer.input_layernorm)
        gate_up = self._joined([gate, up], layer.post_attention_layernorm)
        scale = None
        if hasattr(attention, "q_norm"):
            norms = ((attention.q_norm, self._heads), (attention.k_norm, self._kv_heads))
            scale = torch.cat([n.weight[self._interleave].expand(heads, -1) for n, heads in norms])
            scale = scale.to(self.dtype)
        return _Layer(*qkv, scale, *self._linear(attention.o_proj), *gate_up, *self._linear(mlp.down_proj))

    def _joined(self, parts: Sequence[_Linear], norm: Any) -> _Linear:
        """Linear layers of one input as one, behind a norm whose weight they take over."""
        weight = torch.cat([w for w, _ in parts]) * norm.weight.to(self.dtype)
        biases = [b for _, b in parts if b is not None]
        if biases and len(biases) < len(parts):
            raise Unsupported("some of the layers that are joined have a bias and some do not")
        return weight, torch.cat(biases) if biases else None

    def _paired(self, linear: _Linear) -> _Linear:
        """Rows of each head reordered so that the two numbers that rotate together are neighbours."""

        def reorder(x: Tensor) -> Tensor:
            return x.unflatten(0, (-1, self._dim))[:, self._interleave].flatten(0, 1)

        weight, bias = linear
        return reorder(weight), None if bias is None else reorder(bias)

    def _linear(self, module: Any) -> _Linear:
        """Weight and bias of a linear layer, an active LoRA adapter merged in."""
        adapted = hasattr(module, "get_base_layer")
        if adapted and module.disable_adapters and module.merged:
            module.unmerge()  # as the layer's own forward would
        base = module.get_base_layer() if adapted else module
        weight = _plain_weight(base, nn.Linear)
        if adapted and not (module.disable_adapters or module.merged):
            for name in module.active_adapters:
                if getattr(module, "use_dora", {}).get(name) or getattr(module, "lora_bias", {}).get(name):
                    raise Unsupported("an adapter that is more than a low-rank addition")
                if name in module.lora_A:
                    weight = weight + module.get_delta_weight(name)
        bias = None if base.bias is None else base.bias.detach().to(self.dtype)
        return weight.to(self.dtype), bias


def _plain_weight(module: Any, kind: type[nn.Module]) -> Tensor:
    weight: Tensor = module.weight
    if type(module) is not kind:
        raise Unsupported(f"a {type(module).__name__} where a plain {kind.__name__} is expected")
    return weight.detach()


def _attention(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Attention of each row's one new token: query [rows, kv_heads, group, dim], same for the result."""
    if query.device.type != "cpu" or query.dtype.itemsize == 2:
        return F.scaled_dot_product_attention(query, keys, values, bias, scale=scale)
    # In full precision on a CPU two batched products beat the fused kernel by a quarter.
    rows, heads, columns = keys.shape[:3]
    if bias is None:
        bias = query.new_zeros(1)
    else:
        bias = bias.expand(rows, heads, 1, columns).reshape(rows * heads, 1, columns)
    scores = torch.baddbmm(bias, query.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1), values.flatten(0, 1)).view(query.shape)


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary embedding of [N, heads, dim] (in place where the precision allows), `turns` [N, 1, dim / 2]."""
    pairs = x.unflatten(-1, (-1, 2))
    if x.dtype == turns.real.dtype:
        torch.view_as_complex(pairs).mul_(turns)
        return x
    return torch.view_as_real(torch.view_as_complex(pairs.float()) * turns).flatten(-2).to(x.dtype)


def _add_linear(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    residual.addmm_(x, weight.t())
    return residual if bias is None else residual.add_(bias)


def _window(config: Any, layer: Any) -> int | None:
    """Sliding window of a layer: how many of the latest tokens it reads, itself included."""
    if config.model_type == "mistral":
        return config.sliding_window
    return getattr(layer.self_attn, "sliding_window", None)
