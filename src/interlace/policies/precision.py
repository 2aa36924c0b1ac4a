"""Half-precision weights to compute with, float32 weights to train.

An update of 1e-4 of a weight vanishes when it is added in bfloat16 (8 bits of mantissa), and so does
a gradient added to a large sum of gradients. So the optimizer holds float32 masters, gradients are
added up in float32, and the model gets the masters rounded once after every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import nn

PRECISIONS: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
"""What a policy computes in."""


class MasterWeights:
    """float32 masters of a model's trainable parameters.

    The model's parameters become `dtype` in place; buffers (rotary frequencies) keep their precision.

    Args:
        model: A model in float32.
        dtype: What the model shall compute in.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        """The model's parameters with their masters."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                self.pairs.append((parameter, nn.Parameter(parameter.detach().float().clone())))
            parameter.data = parameter.data.to(dtype)

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The master of a model's parameter; a frozen parameter is its own."""
        return self._of.get(id(parameter), parameter)

    @cached_property
    def _of(self) -> dict[int, nn.Parameter]:
        return {id(own): master for own, master in self.pairs}

    def collect(self) -> None:
        """Move the model's gradients into the masters', adding in float32."""
        for parameter, master in self.pairs:
            if parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = parameter.grad.to(master.dtype)
            else:
                master.grad.add_(parameter.grad)
            parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model."""
        for parameter, master in self.pairs:
            parameter.copy_(master)

    def copy_for(self, twin: nn.Module, model: nn.Module) -> MasterWeights:
        """Masters with the same values for `twin`, a copy of `model`."""
        copied = MasterWeights.__new__(MasterWeights)
        twins = dict(zip(model.parameters(), twin.parameters(), strict=True))
        copied.pairs = [(twins[own], nn.Parameter(master.detach().clone())) for own, master in self.pairs]
        return copied


def to_precision(model: nn.Module, precision: str) -> MasterWeights | None:
    """Bring a float32 model to a precision.

    Args:
        model: Changed in place.
        precision: A name of `PRECISIONS`.

    Returns:
        The masters with `bf16`; `None` where the model's own parameters are trained.

    Raises:
        ValueError: Unknown precision.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: accepted are {', '.join(PRECISIONS)}")
    if precision == "bf16":
        return MasterWeights(model)
    model.to(PRECISIONS[precision])
    return None
