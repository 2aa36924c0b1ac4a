"""Verifiers: what is a completion worth, and is it right?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from interlace.rewards.base import Reward, as_score
from interlace.rewards.compose import PerRow, WeightedSum
from interlace.rewards.function import Function
from interlace.rewards.math_equivalence import Math
from interlace.rewards.verifiers import Exact, FormatTags, Numeric
from interlace.rewards.workers import Scorer
from interlace.tasks import BUILT_IN, load_task, nearest

REWARDS: dict[str, type] = {"math": Math, "exact": Exact, "numeric": Numeric}

__all__ = [
    "REWARDS",
    "Exact",
    "FormatTags",
    "Function",
    "Math",
    "Numeric",
    "PerRow",
    "Reward",
    "Scorer",
    "WeightedSum",
    "as_score",
    "load_reward",
    "per_row",
]


def load_reward(spec: str | Reward | Callable[..., Any]) -> Reward:
    """The reward that a spec names.

    Args:
        spec: `math` · `exact` · `numeric` · `format:think,answer` (tags in order; `<think>` is the same) ·
            the name of a built-in task or `gym:NAME`, for its verifier · `row:DEFAULT`, a row's own
            `reward` column or else the default · `module:function` or
            `file.py:function`, called as `function(completion, problem)` · a weighted sum of these,
            `math+0.1*format:think`. A reward is returned as it is, a plain function is wrapped.

    Raises:
        ValueError: Unknown name, module, file or function; the message says what is accepted.
    """
    if not isinstance(spec, str):
        return spec if hasattr(spec, "bounded") else Function(spec)
    terms = [_term(term.strip(), spec) for term in _summands(spec)]
    if len(terms) == 1 and terms[0][1] == 1:
        return terms[0][2]
    return WeightedSum(terms)


def per_row(default: str | Reward | None = None, by_task: Mapping[str, str | Reward] | None = None) -> PerRow:
    """A reward that judges each row by its own `reward` column, else by its task, else by a default."""
    tasks = {name: load_reward(reward) for name, reward in (by_task or {}).items()}
    return PerRow(None if default is None else load_reward(default), tasks, load_reward)


def _summands(spec: str) -> list[str]:
    """Cut at every +, except in the path of an existing file."""
    path, colon, _ = spec.rpartition(":")
    if colon and path.endswith(".py") and Path(path).is_file():
        return [spec]
    return spec.split("+")


def _term(term: str, spec: str) -> tuple[str, float, Reward]:
    head, star, tail = term.partition("*")
    weight = 1.0
    if star:
        try:
            weight = float(head)
        except ValueError:
            raise ValueError(f"reward {spec!r}: {head!r} is not a weight; accepted: 0.1*{tail}") from None
        term = tail.strip()
    name, colon, rest = term.partition(":")
    if name == "format":
        tags = [t.strip().removeprefix("<").removesuffix(">") for t in rest.split(",")]
        return name, weight, FormatTags(tuple(tags))
    if name in REWARDS and not colon:
        return name, weight, REWARDS[name]()
    if name == "row" and rest:
        return name, weight, per_row(rest)
    if name in BUILT_IN or name == "gym":
        reward = load_task(term).reward
        assert not isinstance(reward, str)
        return name, weight, reward
    if colon:
        function = Function(term)
        return function.name, weight, function
    accepted = [*REWARDS, "format", *BUILT_IN]
    raise ValueError(
        f"reward {spec!r}: unknown name {name!r}{nearest(name, accepted)}; accepted: {', '.join(accepted)} "
        "(as format:think,answer), gym:NAME, row:DEFAULT, module:function, file.py:function, and sums such "
        "as math+0.1*format:think"
    )
