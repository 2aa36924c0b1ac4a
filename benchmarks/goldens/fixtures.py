"""The seeded ragged batches every peer is asked about, and the JSON its answers are written to.

Needs numpy only, so that it runs in any peer's environment. Deliberately absent: torch and interlace. The
peers compute on padded tensors, made here from rows in the shape that `interlace.explain` takes.

Rewards are multiples of 1/4 (exact in float32, which some peers keep rewards in), log-probabilities have six
decimals. Every batch but `near_policy` has ratios far enough from 1 to reach both clips and the dual clip.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]

MAX_LENGTH = 10
"""The completion limit of the imagined run; the longest row is shorter."""

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "goldens"


def _row(
    rng: np.random.Generator,
    group: str | int,
    reward: float | None,
    length: int,
    *,
    spread: float = 0.8,
    source: str = "rollout",
    finish: str = "stop",
) -> Row:
    logp = -rng.uniform(0.05, 4.0, length)

    def near(scale: float) -> np.ndarray:
        return np.minimum(logp + scale * rng.standard_normal(length), -0.01)

    arrays = {
        "logp": logp,
        "old_logp": near(spread),
        "ref_logp": near(0.5),
        "values": 0.3 + 0.4 * rng.standard_normal(length),
    }
    return {
        "group": group,
        "source": source,
        "reward": reward,
        "finish": finish,
        **{name: [round(x, 6) for x in array.tolist()] for name, array in arrays.items()},
    }


FOUR_EACH: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("mixed", (1.0, 0.0, 0.0, 1.0)),
    ("equal", (0.5, 0.5, 0.5, 0.5)),
    ("graded", (0.25, 1.0, -0.75, 0.5)),
)
LENGTHS = (5, 2, 8, 3, 1, 6, 4, 4, 7, 3, 9, 1)


def groups_of_four(seed: int = 1, spread: float = 0.8) -> list[Row]:
    """Three groups of four rows, group after group; the second has equal rewards, two rows are cut off."""
    rng = np.random.default_rng(seed)
    lengths = iter(LENGTHS)
    rows = [_row(rng, name, r, next(lengths), spread=spread) for name, rewards in FOUR_EACH for r in rewards]
    rows[2]["finish"] = rows[8]["finish"] = "length"
    return rows


def near_policy(seed: int = 2) -> list[Row]:
    """`groups_of_four` with log-ratios of about 0.001: sequence ratios on both sides of GSPO's clips."""
    return groups_of_four(seed, spread=0.001)


def unscored_row(seed: int = 3) -> list[Row]:
    """`groups_of_four` in which one row of the first and one of the third group have no reward."""
    rows = groups_of_four(seed)
    rows[1]["reward"] = rows[10]["reward"] = None
    return rows


def uneven_groups(seed: int = 4) -> list[Row]:
    """Groups of 2, 5 and 3 rows, interleaved; integer group ids."""
    rng = np.random.default_rng(seed)
    groups = (7, 3, 3, 5, 3, 7, 5, 3, 5, 3)
    rewards = (1.0, 0.0, 1.0, 0.25, 0.0, 0.5, 0.25, 1.0, 0.25, -0.5)
    lengths = (4, 6, 1, 3, 8, 2, 5, 3, 7, 4)
    return [_row(rng, g, r, n) for g, r, n in zip(groups, rewards, lengths)]


def empty_row(seed: int = 5) -> list[Row]:
    """Two groups of three rows; one completion of the first is empty and still scored."""
    rng = np.random.default_rng(seed)
    groups, rewards, lengths = "aaabbb", (1.0, 0.0, 0.5, 0.0, 1.0, 0.0), (4, 0, 6, 2, 5, 3)
    return [_row(rng, g, r, n) for g, r, n in zip(groups, rewards, lengths)]


def with_demonstrations(seed: int = 6) -> list[Row]:
    """Two groups of four rollouts and, between them, three demonstrations without a reward."""
    rng = np.random.default_rng(seed)
    rollouts = [
        _row(rng, g, r, n)
        for g, r, n in zip("aaaabbbb", (1.0, 0.0, 0.0, 0.0, 0.5, 0.5, -0.25, 1.0), (5, 3, 7, 2, 4, 6, 1, 3))
    ]
    demonstrations = [_row(rng, g, None, n, source="demo") for g, n in (("a", 6), ("b", 3), ("c", 8))]
    return rollouts[:4] + demonstrations + rollouts[4:]


def demonstrations_only(seed: int = 7) -> list[Row]:
    """Four demonstrations of different lengths."""
    rng = np.random.default_rng(seed)
    return [_row(rng, i, None, n, source="demo") for i, n in enumerate((5, 1, 9, 3))]


BATCHES = {
    f.__name__: f
    for f in (
        groups_of_four,
        near_policy,
        unscored_row,
        uneven_groups,
        empty_row,
        with_demonstrations,
        demonstrations_only,
    )
}


def mask(rows: list[Row]) -> np.ndarray:
    """bool [rows, longest]: which slots of the right-padded layout hold a token."""
    lengths = np.array([len(row["logp"]) for row in rows])
    return np.arange(lengths.max())[None, :] < lengths[:, None]


def padded(rows: list[Row], key: str, fill: float = 0.0) -> np.ndarray:
    """float64 [rows, longest]: a per-token list of every row, right-padded with `fill`."""
    valid = mask(rows)
    out = np.full(valid.shape, fill)
    out[valid] = [x for row in rows for x in row[key]]
    return out


def ragged(matrix: Any, rows: list[Row]) -> list[list[float]]:
    """The opposite of `padded`: one list per row, padding cut off."""
    return [[float(x) for x in line[: len(row["logp"])]] for line, row in zip(matrix, rows)]


def case(
    name: str,
    batch: str,
    setting: dict[str, Any],
    method: str,
    parameters: dict[str, Any],
    loss: Any,
    gradient: Any,
    *,
    advantages: Any = None,
    tolerance: float = 1e-12,
    factor: float = 1.0,
    deviation: str | None = None,
) -> dict[str, Any]:
    """One golden number.

    Args:
        name: Unique in its file.
        batch: Key of `BATCHES`.
        setting: What the peer was told, in its own words.
        method, parameters: What `interlace.explain` is to be told for the same number.
        loss: Scalar.
        gradient: d loss / d logp, [rows, longest].
        advantages: [rows, longest], where the peer computes them.
        tolerance: Relative and absolute, of loss, gradient and advantages.
        factor: What the peer's loss must be multiplied by to be the loss that interlace defines.
        deviation: Why the tolerance is wide or the factor is not 1.
    """
    rows = BATCHES[batch]()
    result = {
        "name": name,
        "batch": batch,
        "setting": setting,
        "method": method,
        "parameters": parameters,
        "loss": float(loss),
        "gradient": ragged(gradient, rows),
        "tolerance": tolerance,
        "factor": factor,
    }
    if advantages is not None:
        result["advantages"] = ragged(advantages, rows)
    if deviation is not None:
        result["deviation"] = deviation
    return result


def write(
    file: str, library: str, version: str, dtype: str, cases: list[dict[str, Any]], **versions: str
) -> None:
    """Write `tests/goldens/{file}.json`: one row and one case a line."""
    head = {
        "library": library,
        "version": version,
        "with": versions,
        "command": f"python benchmarks/goldens/make_{file}.py",
        "dtype": dtype,
    }
    names = [name for name in BATCHES if any(c["batch"] == name for c in cases)]
    batches = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in BATCHES[name]()) + "\n]" for name in names
    ]
    text = json.dumps(head)[:-1] + ',\n"batches": {\n' + ",\n".join(batches) + '\n},\n"cases": [\n'
    text += ",\n".join(json.dumps(c) for c in cases) + "\n]}\n"
    json.loads(text)
    GOLDENS.mkdir(parents=True, exist_ok=True)
    (GOLDENS / f"{file}.json").write_text(text)
    print(f"{len(cases)} cases from {library} {version} -> tests/goldens/{file}.json")
