"""Tiny models and batches for the tests of policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from interlace.policies import TextPolicy
from interlace.policies.scratch import build_model, character_tokenizer, parse_spec
from interlace.types import Batch, Slots

ALPHABET = "0123456789+-*/=()?"
FAMILIES = ("llama", "qwen3", "gemma2", "gemma3", "gpt2", "mistral")
"""Grouped queries, norms on queries and keys, windows, soft caps, learned positions."""


def tiny_model(arch: str = "llama", *, seed: int = 0, **options: Any) -> PreTrainedModel:
    """A two-layer model whose weights are large enough that every part of it matters."""
    chosen = {"hidden": 32, "layers": 2, "heads": 4, "ffn": 48, "positions": 64, **options}
    if arch != "gpt2":
        chosen.setdefault("kv_heads", 2)
    if arch in ("gemma2", "gemma3", "mistral", "qwen3"):
        chosen.setdefault("window", 4)
    pairs = ",".join(f"{key}={value}" for key, value in chosen.items())
    tokenizer = character_tokenizer(ALPHABET)
    model = build_model(parse_spec(f"scratch:nano,arch={arch},{pairs}"), len(tokenizer), 1, 0, seed)
    if arch == "gemma2":
        # transformers 5.19 runs it on SDPA, which knows no soft cap.
        model.config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25, generator=generator)
    return model


def tiny_policy(arch: str = "llama", *, precision: str = "fp32", seed: int = 0, **options: Any) -> TextPolicy:
    model = tiny_model(arch, seed=seed, **options)
    return TextPolicy(model, character_tokenizer(ALPHABET), precision=precision, device="cpu")


def random_rows(
    lengths: Sequence[tuple[int, int]], vocabulary: int = 20, seed: int = 0
) -> list[tuple[list, list]]:
    """(prompt ids, response ids) for each (prompt length, response length)."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        return torch.randint(2, vocabulary, (count,), generator=generator).tolist()

    return [(ids(prompt), ids(response)) for prompt, response in lengths]


def batch_of(rows: Sequence[tuple[list, list]], temperature: float | Sequence[float] = 1.0) -> Batch:
    """Pack rows; every response token is a decision, read from the slot before it."""
    input, position, row, slot, target, decision_row = [], [], [], [], [], []
    for r, (prompt, response) in enumerate(rows):
        ids = [*prompt, *response]
        start = len(input)
        input += ids[:-1]
        position += range(len(ids) - 1)
        row += [r] * (len(ids) - 1)
        slot += [start + len(prompt) - 1 + i for i in range(len(response))]
        target += response
        decision_row += [r] * len(response)
    n, count = len(slot), len(rows)
    warm = torch.tensor([temperature] * n if isinstance(temperature, int | float) else temperature)
    slots = Slots(
        input=torch.tensor(input),
        position=torch.tensor(position),
        row=torch.tensor(row),
        slot=torch.tensor(slot),
        target=torch.tensor(target),
        temperature=warm.float(),
    )
    zero, byte = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int8)
    return Batch(
        row_id=torch.arange(count),
        group=zero,
        episode=torch.arange(count),
        reward=zero.double(),
        verdict=byte,
        finish=byte,
        is_rollout=zero.bool(),
        active=~zero.bool(),
        extra=({},) * count,
        row=torch.tensor(decision_row),
        source=torch.zeros(n, dtype=torch.int8),
        span=torch.full((n,), -1, dtype=torch.int8),
        arrays={},
        slots=slots,
    )


def plain_logp(model: PreTrainedModel, rows: Sequence[tuple[list, list]], temperature: float = 1.0) -> Tensor:
    """log pi of every response token from the model's own forward pass, one row at a time."""
    found = []
    for prompt, response in rows:
        ids = torch.tensor([[*prompt, *response]])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        logp = torch.log_softmax(logits / temperature, -1)
        found.append(logp.gather(1, torch.tensor(response)[:, None])[:, 0])
    return torch.cat(found)


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_gap(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest relative distance of one parameter's gradient."""
    assert got.keys() == expected.keys()
    return max(float((got[k] - expected[k]).norm() / expected[k].norm().clamp_min(1e-12)) for k in expected)
