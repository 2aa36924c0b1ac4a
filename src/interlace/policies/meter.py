"""How much the models of this process have computed: a clock of floating-point operations that only runs on.

Whoever wants to know what something cost reads it before and after. Text policies and the embedded engine
count where they compute, so nothing that a method does (references, critics, copies, answers of its own)
can be forgotten.

    token, forward     2 x weights of linear layers + 4 x attention width x layers x tokens it attends to
    choice, forward    2 x weights of the head
    backward           once the forward for what is read, once more for what is trained: 6 x weights in all

Left out: embeddings, norms, activations, soft-max, optimizers; what is recomputed to save memory; padding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Work:
    """What was computed.

    Attributes:
        generate, score, train: Floating-point operations of sampling (prompts included), of passes without
            gradient, and of passes with it (forward and backward).
        generated: Tokens sampled.
        scored, trained: Tokens read without gradient, and with it.
    """

    generate: float = 0.0
    score: float = 0.0
    train: float = 0.0
    generated: int = 0
    scored: int = 0
    trained: int = 0

    @property
    def flops(self) -> float:
        """Floating-point operations altogether."""
        return self.generate + self.score + self.train

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))

    def __sub__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Work)))


_done = Work()


def done() -> Work:
    """Everything that was computed in this process so far."""
    return _done


def add(work: Work) -> None:
    """Count some more."""
    global _done
    _done = _done + work


@dataclass(frozen=True)
class Size:
    """What the cost of a model's token follows from.

    Attributes:
        matrices: Weights of its linear layers, the head apart; of experts those that one token uses.
        trained: How many of them are trained.
        attention: Width of all heads x layers.
        head: Weights of the head.
        head_trained: Whether it is trained.
    """

    matrices: float
    trained: float
    attention: int
    head: int
    head_trained: bool = True

    @classmethod
    def of(cls, model: Any) -> Size:
        """Read off a transformers model."""
        config = model.config.get_text_config()
        output = model.get_output_embeddings()
        experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
        used = getattr(config, "num_experts_per_tok", None)
        share = used / experts if experts and used else 1.0
        matrices = trained = 0.0
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | Conv1D) and module is not output:
                n = module.weight.numel() * (share if ".experts." in name else 1.0)
                matrices += n
                trained += n if module.weight.requires_grad else 0.0
        heads = getattr(config, "num_attention_heads", None) or getattr(config, "n_head", 1)
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
        weight = output.weight
        return cls(
            matrices, trained, width * config.num_hidden_layers, weight.numel(), bool(weight.requires_grad)
        )

    def forward(self, tokens: int, attended: float, choices: int) -> float:
        """Operations of a forward pass.

        Args:
            tokens: Tokens read.
            attended: Tokens attended to, summed over the tokens read.
            choices: Distributions over the vocabulary.
        """
        return 2 * self.matrices * tokens + 4 * self.attention * attended + 2 * self.head * choices

    def backward(self, tokens: int, attended: float, choices: int) -> float:
        """Operations of the backward pass of the same."""
        through = self.forward(tokens, attended, choices)
        weights = 2 * self.trained * tokens + 2 * self.head * choices * self.head_trained
        return through + weights + 4 * self.attention * attended


def sampling(size: Size, prompts: Iterable[int], rows: Iterable[tuple[int, int]]) -> Work:
    """The cost of continuing prompts.

    Args:
        prompts: Length of every prompt, each read once whatever the number of its continuations.
        rows: For every continuation the length of its prompt and of what was sampled. The last token
            is chosen but never read.
    """
    read = attended = choices = 0
    for n in prompts:
        read += n
        attended += n * (n + 1) // 2
    for prompt, new in rows:
        choices += new
        steps = max(new - 1, 0)
        read += steps
        attended += steps * prompt + steps * (steps + 1) // 2
    return Work(generate=size.forward(read, attended, choices), generated=choices)
