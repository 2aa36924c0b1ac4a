"""Tiny random models of several architectures, and requests to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor

from interlace.policies.packing import keep_float64
from interlace.types import Completion, Problem, SampleRequest, Sampling

VOCABULARY = 67
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GEMMA = {"sliding_window": 4, "query_pre_attn_scalar": 8}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": lambda **k: transformers.LlamaConfig(**{**_SHAPE, **k}),
    "llama-biased": lambda **k: transformers.LlamaConfig(
        **{**_SHAPE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, **k}
    ),
    "qwen2": lambda **k: transformers.Qwen2Config(**{**_SHAPE, **k}),
    "qwen3": lambda **k: transformers.Qwen3Config(**{**_SHAPE, **k}),
    "mistral": lambda **k: transformers.MistralConfig(**{**_SHAPE, "sliding_window": 4, **k}),
    "gemma2": lambda **k: transformers.Gemma2Config(**{**_SHAPE, **_GEMMA, **k}),
    "gemma3": lambda **k: transformers.Gemma3TextConfig(**{**_SHAPE, **_GEMMA, **k}),
    "gpt2": lambda **k: transformers.GPT2Config(**{**_GPT2, **k}),
    "mamba": lambda **k: transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, **k
    ),
}
PROMPTS = ((3, 14, 15, 9, 26), (5, 35, 8), (9, 7, 9, 3, 23, 8, 46, 26, 43, 38))


def tiny_model(name: str, dtype: torch.dtype = torch.float64, **config: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](**config))
    for parameter_name, parameter in model.named_parameters():
        # Fresh norms and biases are all ones and zeros, which would hide a mistake in them.
        if "norm" in parameter_name or "ln_" in parameter_name or "bias" in parameter_name:
            torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.3)
    return model.to(dtype).eval()


def request(
    prompt: Sequence[int],
    rows: Sequence[int] = (0,),
    *,
    prefix: Sequence[int] = (),
    hint: Sequence[int] = (),
    **sampling: Any,
) -> SampleRequest:
    return SampleRequest(
        problem=Problem(id=f"p{rows[0] if rows else ''}", prompt=""),
        n=len(rows),
        sampling=Sampling(**{"max_tokens": 12, **sampling}),
        prompt_ids=tuple(prompt),
        prefix_ids=tuple(prefix),
        hint_ids=tuple(hint),
        rows=tuple(rows),
    )


def greedy_by_hand(model: Any, prompt: Sequence[int], new: int) -> list[int]:
    """The argmax loop without any cache."""
    ids = list(prompt)
    with torch.no_grad(), keep_float64(model.dtype):
        for _ in range(new):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def teacher_forced_logits(model: Any, prompt: Sequence[int], completion: Completion) -> Tensor:
    """Logits [tokens, V] that each token of the completion was chosen from."""
    ids = [*prompt, *completion.ids]
    with torch.no_grad(), keep_float64(model.dtype):
        return model(input_ids=torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
