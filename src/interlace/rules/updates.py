"""How the gradients of one optimizer step become an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class UpdateRule:
    """The sum of the terms' gradients, one optimizer step. Other rules change one of these points.

    Attributes:
        per_term: Whether `combine` wants each term's accumulated gradient apart (terms on disjoint rows cost
            no second backward pass, terms that share rows do).
    """

    per_term: bool = False

    def combine(self, gradients: Mapping[str, list[Tensor]]) -> tuple[list[Tensor], dict[str, float]]:
        """One gradient per parameter from those of the policy's terms by name, already summed over
        ranks (so dot products and norms are global), and numbers to log.
        """
        names = list(gradients)
        return [sum(parts[1:], parts[0]) for parts in zip(*(gradients[n] for n in names), strict=True)], {}

    def accepts(self, norm: float) -> bool:
        """Whether a step with this gradient norm (before clipping) is taken."""
        return True

    def step(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Take the optimizer step."""
        optimizer.step()

    def after(self, bench: Any, batch: Any, method: Any) -> dict[str, float]:
        """Called after each optimizer step with its assigned batch; returns numbers to log."""
        return {}
