"""Shared sets of hyper-parameters, and how texts become values.

Method files combine these: `class Parameters(GroupBaseline, Clip, ReferenceKL, Length)`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from interlace.rules.schedules import Schedule, parse_schedule

DenominatorName = Literal["tokens", "sequences", "sequence_means", "length", "length_sum", "longest"]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Scheduled = Annotated[Any, BeforeValidator(parse_schedule)]
"""A number, `cosine:...` or `linear:...`; holds a `Schedule`."""
Sign = Annotated[Literal[1, -1], BeforeValidator(lambda v: {"1": 1, "-1": -1}.get(str(v), v))]


def spell_phi(value: Any) -> str:
    """The canonical spelling of a token weight: `p1mp` is p(1-p), `4p1mp` 4p(1-p), and a number its text."""
    text = str(value).replace(" ", "").replace("*", "")
    return {"p1mp": "p(1-p)", "4p1mp": "4p(1-p)", "1.0": "1"}.get(text, text)


def within_unit(schedule: Schedule) -> Schedule:
    ends = [v for k, v in vars(schedule).items() if k in ("number", "peak", "valley", "start", "end")]
    if not all(0 <= v <= 1 for v in ends):
        raise ValueError("accepted are values from 0 to 1 throughout the schedule")
    return schedule


def _split_commas(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


ScheduledFraction = Annotated[Any, BeforeValidator(parse_schedule), AfterValidator(within_unit)]
"""A `Scheduled` number that stays in [0, 1]."""
Counts = Annotated[tuple[Count, ...], BeforeValidator(_split_commas)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_split_commas)]
"""Several numbers, as `0,0.2,0.5,1` or a list."""

__all__ = [
    "Clip",
    "Count",
    "Counts",
    "DenominatorName",
    "Fraction",
    "GroupBaseline",
    "GroupClipped",
    "GroupPolicyGradient",
    "Length",
    "NonNegative",
    "Numbers",
    "Parameters",
    "PolicyGradient",
    "Positive",
    "ReferenceKL",
    "Schedule",
    "Scheduled",
    "ScheduledFraction",
    "Sign",
    "at_most",
    "recast",
    "spell_phi",
]


class Parameters(BaseModel):
    """Base of every method's hyper-parameters. The text `none` and None are the same."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _none(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        values = {
            k: None if isinstance(v, str) and v.strip().lower() in ("none", "null") else v
            for k, v in data.items()
        }
        # kl=none is how one says that there is no penalty.
        return {k: 0.0 if k == "kl" and v is None else v for k, v in values.items()}


P = TypeVar("P", bound=Parameters)


def at_most(low: str, high: str) -> Any:
    """A validator: the parameter `low` does not exceed the parameter `high`, where both are given."""

    def check(h: P) -> P:
        a, b = getattr(h, low), getattr(h, high)
        if a is not None and b is not None and a > b:
            raise ValueError(f"{low}={a:g} is above {high}={b:g}; accepted is {low} <= {high}")
        return h

    return model_validator(mode="after")(check)


def recast(h: Parameters, into: type[P]) -> P:
    """The values of `h` as another method's parameters, which keep their defaults where `h` has none."""
    return into(**{k: getattr(h, k) for k in into.model_fields if k in type(h).model_fields})


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


class PolicyGradient(Clip, ReferenceKL, Length):
    """C, K and L together."""


class GroupClipped(GroupBaseline, Clip, Length):
    """G, C and L together."""


class GroupPolicyGradient(GroupClipped, ReferenceKL):
    """G, C, K and L together."""
