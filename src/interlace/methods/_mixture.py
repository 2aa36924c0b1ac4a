"""The balance of methods whose objective is (1 - mu) RL + mu SFT in every step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interlace.methods._parameters import within_unit
from interlace.parts.masks import counted_rollouts
from interlace.parts.stated import stated, text_of
from interlace.parts.terms import Context
from interlace.rules.schedules import ACCEPTED, Schedule, parse_schedule, spell

Balance = Callable[[Context], float]


def balance(mu: Balance) -> tuple[Balance, Balance]:
    """The factors 1 - mu of the rollout term and mu of the demonstration term.

    A step without demonstration tokens takes mu = 0, so that its rollouts keep their full weight; a step
    without rollouts keeps mu.
    """

    definition = f"mu = {text_of(mu)}; 0 in a step without demonstration tokens"

    @stated("mu", definition)
    def supervised(context: Context) -> float:
        batch = context.batch
        demonstrated = batch.is_source("demo") & batch.active[batch.row]
        return mu(context) if bool(demonstrated.any()) else 0.0

    return stated("(1 - mu)", definition)(lambda context: 1 - supervised(context)), supervised


def held(name: str, start: float) -> Balance:
    """The number that a controller holds in the state as `name`, and `start` before it does."""

    @stated(f"state.{name}, {start:g} where no controller holds it")
    def mu(context: Context) -> float:
        value = context.state.get(name, start)
        if not 0 <= value <= 1:
            raise ValueError(f"state.{name}={value:g}: accepted are numbers from 0 to 1")
        return value

    return mu


@dataclass(frozen=True)
class RewardDriven:
    """tau minus the mean reward, inside [0, 1]: the better the policy, the less it imitates.

    Reference:
        CHORD, appendix (arXiv 2508.11408).
    """

    tau: float

    def __call__(self, mean_reward: float) -> float:
        return min(1.0, max(0.0, self.tau - mean_reward))

    def __str__(self) -> str:
        return f"reward:{spell(self.tau)}"


_FORM = re.compile(r"^\s*reward\s*[:(]\s*([^()]*?)\s*\)?\s*$")


def parse_balance(value: Any) -> Schedule | RewardDriven:
    """A schedule, or `reward:tau` (also `reward(tau)`).

    Raises:
        ValueError: none of the accepted forms.
    """
    if isinstance(value, RewardDriven):
        return value
    match = _FORM.match(str(value))
    if match is None:
        return within_unit(parse_schedule(value))
    try:
        tau = float(match.group(1))
        if not math.isfinite(tau):
            raise ValueError
        return RewardDriven(tau)
    except ValueError:
        raise ValueError(f"{value!r}: accepted are {ACCEPTED}, or reward:tau") from None


def mean_reward(context: Context) -> float:
    """Mean reward of the step's valid rollouts, 0 where there is none."""
    rewards = context.batch.reward[counted_rollouts(context.batch)]
    return float(rewards.mean()) if rewards.numel() else 0.0


def mu_of(given: Schedule | RewardDriven) -> Balance:
    """mu of a step, from its number or from its rewards."""
    if isinstance(given, RewardDriven):
        text = f"{given.tau:g} - mean reward of the step's rollouts, inside [0, 1]"
        return stated(text)(lambda context: given(mean_reward(context)))
    return stated(str(given))(lambda context: given(context.step))
