"""Shared sets of hyper-parameters, and how texts become values.

Method files combine these: `class Parameters(GroupBaseline, Clip, ReferenceKL, Length)`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from interlace.rules.schedules import Schedule, parse_schedule

DenominatorName = Literal["tokens", "sequences", "sequence_means", "length", "length_sum", "longest"]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Scheduled = Annotated[Any, BeforeValidator(parse_schedule)]
"""A number, `cosine:...` or `linear:...`; holds a `Schedule`."""

__all__ = [
    "Clip",
    "Count",
    "DenominatorName",
    "Fraction",
    "GroupBaseline",
    "Length",
    "NonNegative",
    "Parameters",
    "Positive",
    "ReferenceKL",
    "Schedule",
    "Scheduled",
]


class Parameters(BaseModel):
    """Base of every method's hyper-parameters. The text `none` and None are the same."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _none(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {
                k: None if isinstance(v, str) and v.strip().lower() in ("none", "null") else v
                for k, v in data.items()
            }
        return data


class GroupBaseline(Parameters):
    """G: how rewards become advantages within a group.

    std: divide by the standard deviation. std_eps: added to it. std_correction: 1 Bessel, 0 population.
    std_scope: deviation of the group, or of all rewards of the step.
    """

    std: bool = True
    std_eps: NonNegative = 1e-6
    std_correction: Annotated[int, Field(ge=0, le=1)] = 1
    std_scope: Literal["group", "step"] = "group"


class Clip(Parameters):
    """C: bounds of the importance ratio, [1 - clip_low, 1 + clip_high]; `none` is absent."""

    clip_low: Annotated[float, Field(ge=0, le=1)] | None = 0.2
    clip_high: NonNegative | None = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None


class ReferenceKL(Parameters):
    """K: a KL penalty against the reference on the same tokens, inside the rollout term."""

    kl: NonNegative = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"


class Length(Parameters):
    """L: the constant of the `length` denominators; `none` is the run's completion limit."""

    max_length: Count | None = None
