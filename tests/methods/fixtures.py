"""What the worked numbers of the standard objectives are computed on.

Fixture A (advantages): one group, lengths 3, 2, 1, rewards 1, 0, 0. Fixture B (losses): one completion with
old probabilities (.5, .4, .2) and new ones (.55, .2, .3), so ratios (1.1, .5, 1.5), and A = 1 or -1.
A group of two, the second row empty, gives fixture B its A: an empty row keeps its place in the group and is
in no denominator.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.methods.batches import Row


def near(*values: float, abs: float = 6e-7) -> Any:
    return pytest.approx(list(values), abs=abs)


def logs(*p: float) -> list[float]:
    return [math.log(x) for x in p]


FIXTURE_A: list[Row] = [
    {"group": "a", "source": "rollout", "reward": r, "logp": [-1.0] * n}
    for r, n in ((1.0, 3), (0.0, 2), (0.0, 1))
]
B: Row = {"group": "b", "source": "rollout", "logp": logs(0.55, 0.2, 0.3), "old_logp": logs(0.5, 0.4, 0.2)}


def fixture_b(reward: float, other: float | None = None) -> list[Row]:
    """Fixture B, and an empty row of its group with the reward `other`."""
    rest = [] if other is None else [{"group": "b", "source": "rollout", "logp": [], "reward": other}]
    return [{**B, "reward": reward}, *rest]


def first(out: dict[str, Any], key: str = "coefficient") -> list[float]:
    return out["rows"][0][key]


def group(name: str, *rewards: float, **keys: Any) -> list[Row]:
    """Rollouts of one token, one for each reward."""
    return [{"group": name, "source": "rollout", "reward": r, "logp": [-1.0], **keys} for r in rewards]
