"""Random batches in the schema of `explain`, and exact comparison of two rules on them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from interlace import explain

Row = dict[str, Any]


def row(source: str | list[str], p: Sequence[float], reward: float | None = None, **given: Any) -> Row:
    """A row of group `a` from token probabilities; `given` are further keys of the schema."""
    reward_key = {} if reward is None else {"reward": reward}
    return {"group": "a", "source": source, "logp": [math.log(x) for x in p], **reward_key, **given}


def coefficients(result: dict[str, Any]) -> list[list[float]]:
    """The coefficients of each row of an explanation."""
    return [r["coefficient"] for r in result["rows"]]


def advantages(result: dict[str, Any]) -> list[list[float]]:
    """The advantages of each row of an explanation."""
    return [r["advantage"] for r in result["rows"]]


def assert_gradient(method: str, rows: list[Row], h: float = 1e-6, **given: Any) -> None:
    """The coefficient is minus the central difference of the loss in every log-probability.

    For rules that put nothing that depends on `logp` under a stop-gradient; `old_logp` must be given.
    """
    shown = coefficients(explain(method, rows, **given))
    for i, one in enumerate(rows):
        for t in range(len(one["logp"])):
            loss = []
            for step in (h, -h):
                logp = [x + step * (j == t) for j, x in enumerate(one["logp"])]
                moved = [*rows[:i], {**one, "logp": logp}, *rows[i + 1 :]]
                loss.append(explain(method, moved, **given)["loss"])
            slope = (loss[0] - loss[1]) / (2 * h)
            assert math.isclose(shown[i][t], -slope, rel_tol=1e-6, abs_tol=1e-8), f"row {i}, token {t}"


def random_rows(
    seed: int = 0,
    *,
    groups: int = 5,
    rollouts: int = 4,
    longest: int = 6,
    demos: bool = True,
    prefixes: bool = True,
    hints: bool = True,
    empty: bool = True,
    left_out: bool = True,
    old: bool = True,
) -> list[Row]:
    """Rows of several groups with unequal lengths, shuffled, every per-token statistic given.

    Besides plain groups: group 0 has equal rewards throughout, one demonstration has no reward, a single
    rollout has a group of its own (its key `group` is absent), some rows have a verdict and some not, some
    are truncated. `extra` holds `class_weight`, `class_reward`, `token_reward` and `mix_lambda`.

    Args:
        seed: The same seed and switches give the same rows.
        groups, rollouts: Number of groups, and of plain rollout rows in each.
        longest: Rows have 1 to this many tokens.
        demos: One demonstration in all groups but the last, two in group 1.
        prefixes: In groups 1 and 2 one more rollout row that starts with prefix tokens.
        hints: The rollouts of group 2 have hint tokens in front.
        empty: One empty rollout row, and an empty demonstration if `demos`.
        left_out: One unscorable rollout row, one rollout without reward, an unscorable demonstration.
        old: Rows carry `old_logp` (some lack it anyway).
    """
    rng = random.Random(seed)
    rows: list[Row] = []

    def add(group: int, sources: Sequence[str], reward: float | None, **given: Any) -> None:
        n = len(sources)
        logp = [-rng.expovariate(1.0) for _ in range(n)]
        near = {
            key: [min(0.0, x + rng.gauss(0, 0.4)) for x in logp]
            for key in ("old_logp", "ref_logp", "behaviour_logp")
        }
        if not old or rng.random() < 0.2:
            del near["old_logp"]
        row: Row = {
            "group": f"g{group}",
            "source": list(sources) if n else "rollout",
            "reward": reward,
            "finish": rng.choice(["stop", "stop", "length"]),
            "logp": logp,
            **near,
            "entropy": [rng.uniform(0.0, 2.0) for _ in range(n)],
            "values": [rng.gauss(0.0, 1.0) for _ in range(n)],
            "topk_mass": [rng.uniform(0.2, 1.0) for _ in range(n)],
            "span": [rng.choice([None, "guess", "think", "answer"]) for _ in range(n)],
            "extra": {
                "class_weight": rng.choice([0.1, 1.0]),
                "class_reward": rng.choice([0.0, 0.5, 1.0]),
                "token_reward": [rng.gauss(0.0, 1.0) for _ in range(n)],
                "mix_lambda": rng.uniform(0.1, 0.9),
            },
        }
        if rng.random() < 0.5 and reward is not None:
            row["verdict"] = "pass" if reward > 0.5 else "fail"
        rows.append({**row, **given})

    def length() -> int:
        return rng.randint(1, longest)

    for g in range(groups):
        for _ in range(rollouts):
            head = ["hint"] * rng.randint(1, 2) if hints and g == 2 else []
            add(g, head + ["rollout"] * length(), 1.0 if g == 0 else rng.choice([0.0, 0.0, 0.5, 1.0]))
        if prefixes and g in (1, 2):
            add(g, ["prefix"] * length() + ["rollout"] * length(), rng.choice([0.0, 1.0]))
        if demos and g < groups - 1:
            for k in range(2 if g == 1 else 1):
                add(g, ["demo"] * length(), None if g == 3 else 1.0 - 0.5 * k)
    add(groups, ["rollout"] * length(), 1.0)
    del rows[-1]["group"]
    if empty:
        add(1, [], 0.0)
        if demos:
            add(1, [], 1.0, source="demo")
    if left_out:
        add(min(2, groups - 1), ["rollout"] * length(), 1.0, verdict="unscorable")
        add(min(3, groups - 1), ["rollout"] * length(), None)
        if demos:
            add(min(2, groups - 1), ["demo"] * length(), 1.0, verdict="unscorable")
    rng.shuffle(rows)
    return rows


def assert_same_rule(
    first: tuple[str, dict[str, Any]],
    second: tuple[str, dict[str, Any]],
    make: Callable[[int], list[Row]] = random_rows,
    seeds: Sequence[int] = (0, 1, 2),
) -> None:
    """Two methods give the same loss and the same coefficients, bit for bit, on random batches.

    Args:
        first, second: Method name and the keyword arguments of `explain` (stage, state, parameters).
        make: From a seed to rows.
    """
    for seed in seeds:
        rows = make(seed)
        a = explain(first[0], rows, **first[1])
        b = explain(second[0], rows, **second[1])
        assert a["loss"] == b["loss"], f"seed {seed}: loss {a['loss']} is not {b['loss']}"
        for i, (x, y) in enumerate(zip(a["rows"], b["rows"], strict=True)):
            assert x["coefficient"] == y["coefficient"], f"seed {seed}: row {i}"
        assert any(c for r in b["rows"] for c in r["coefficient"]), f"seed {seed}: nothing is trained"
