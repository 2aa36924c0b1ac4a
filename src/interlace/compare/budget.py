"""One currency: floating-point operations of the models, generated, scored and trained tokens together.

`policies/meter.py` counts them where they are computed. A budget may be given in them, as the cost of so many
SFT steps on the task's own demonstrations, or (not an equal budget, and shown as such) in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from interlace.policies.meter import Size

ACCEPTED = "operations as 2e12, sft:N (the cost of N SFT steps), or steps:N"


@dataclass(frozen=True)
class Budget:
    """What every run may cost.

    Attributes:
        unit: `flops`, `sft` (steps of SFT, as many operations as they cost), or `steps` (of whatever cost).
        amount: How many.
    """

    unit: Literal["flops", "sft", "steps"]
    amount: float

    def __str__(self) -> str:
        return f"{self.amount:g}" if self.unit == "flops" else f"{self.unit}:{self.amount:g}"

    def flops(self, sft_step: float | None) -> float | None:
        """Operations, given what one SFT step costs; `None` for a budget in steps.

        Raises:
            ValueError: the cost of an SFT step is needed and not known.
        """
        if self.unit == "steps":
            return None
        if self.unit == "flops":
            return self.amount
        if not sft_step:
            raise ValueError(
                f"budget={self}: the task has no demonstrations, so an SFT step has no cost; "
                f"give operations, as budget=2e12"
            )
        return self.amount * sft_step


def parse_budget(value: Any) -> Budget:
    """A budget from its text.

    Raises:
        ValueError: none of the accepted forms.
    """
    text = str(value).strip()
    unit, number = text.split(":", 1) if ":" in text else ("flops", text)
    if unit not in ("flops", "sft", "steps"):
        raise ValueError(f"accepted are {ACCEPTED}")
    try:
        amount = float(number)
    except ValueError:
        raise ValueError(f"accepted are {ACCEPTED}") from None
    if not 0 < amount < float("inf") or (unit == "steps" and amount != round(amount)):
        raise ValueError(f"accepted are {ACCEPTED}, above 0")
    return Budget(unit, amount)  # type: ignore[arg-type]


def sft_step_flops(size: Size, rows: Sequence[tuple[int, int]], demos_per_step: int) -> float:
    """Operations of one SFT step, on average over demonstrations.

    Args:
        size: Of the model.
        rows: For every demonstration the lengths of its prompt and of itself (end token included).
        demos_per_step: Demonstrations in a step.
    """
    total = 0.0
    for prompt, demo in rows:
        read = prompt + demo - 1
        cost = (read, read * (read + 1) // 2, demo)
        total += size.forward(*cost) + size.backward(*cost)
    return demos_per_step * total / max(len(rows), 1)


def short(flops: float) -> str:
    """Operations for people: `1.9 TFLOP`."""
    for name, unit in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if flops >= unit:
            return f"{flops / unit:.3g} {name}FLOP"
    return f"{flops:.3g} FLOP"
