"""Every token's number: the coefficient d(-loss)/d logp of each token under a method.

The same code path as training (`training/objective.py`), in float64, on rows given as plain numbers.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from interlace.methods import Entry, Method, get
from interlace.parts.terms import Term, TermReport
from interlace.training.objective import Prepared, assign, evaluate, prepare
from interlace.types import SOURCE_NAMES, SPANS, Batch, Finish, Verdict


class ExplainError(ValueError):
    """Bad input of `explain`: names the row, the key and what is accepted."""


TOKEN_KEYS = ("old_logp", "ref_logp", "behaviour_logp", "entropy", "values", "topk_mass")
ROW_KEYS = ("logp", "source", "group", "reward", "verdict", "finish", "span", "extra", *TOKEN_KEYS)
OBJECT_KEYS = ("rows", "step", "stage", "state")
SOURCES = ("rollout", "demo", "prefix", "hint")
FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH}
VERDICTS = {Verdict.PASS: 1, Verdict.FAIL: 0, Verdict.UNSCORABLE: -1}


def explain(
    method: str | Entry,
    rows: Sequence[Mapping[str, Any]],
    step: int = 0,
    stage: str | None = None,
    state: Mapping[str, float] | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Loss, terms, and the advantage and coefficient of every token of `rows` under a method.

    Args:
        method: A registered name, `FILE.py:NAME`, or what `register` returned.
        rows: Dicts with `logp` and `source` and optionally `group`, `reward`, `verdict`, `finish`,
            `old_logp`, `ref_logp`, `behaviour_logp`, `entropy`, `values`, `topk_mass`, `span`, `extra`.
            Log-probs in nats, one number per decision token.
        step: Places schedules.
        stage: One of the method's stages; default the first that its documentation lists.
        state: Numbers that a controller holds.
        **parameters: The method's hyper-parameters, as values or as the command line's strings.

    Returns:
        {"loss", "terms": [{"name", "coefficient", "denominator", "n"}],
        "rows": [{"advantage", "coefficient"}]}. A positive coefficient makes the token more likely.

    Raises:
        ValueError: bad rows, an unknown method or parameter; names the row and key and what is accepted.
    """
    numbers = parse_state(state)
    found = evaluate_rows(get(method)(**parameters), parse_rows(rows), checked_step(step), stage, numbers)
    coefficient, advantage = found.coefficient, shown_advantage(found.prepared)
    return {
        "loss": sum(r.loss for r in found.reports),
        "terms": [
            {"name": r.name, "coefficient": r.coefficient, "denominator": r.denominator, "n": r.n}
            for r in found.reports
        ],
        "rows": [
            {"advantage": advantage[a:b].tolist(), "coefficient": coefficient[a:b].tolist()}
            for a, b in itertools.pairwise(row_starts(found.prepared.batch))
        ],
    }


@dataclass(frozen=True)
class Evaluated:
    """One stage of a method on given rows.

    Attributes:
        stage: Its name, `None` where the method has none.
        rule: The method of that stage.
        prepared: The rows after regroup, advantages and select, with the terms that `explain` shows.
        reports: What each of these terms contributes.
        coefficients: For each of them d(-its loss)/d logp, float64 [N].
    """

    stage: str | None
    rule: Method
    prepared: Prepared
    reports: list[TermReport]
    coefficients: list[Tensor]

    @property
    def coefficient(self) -> Tensor:
        """d(-loss)/d logp of every token, [N]."""
        return sum(self.coefficients, torch.zeros(self.prepared.batch.n_decisions, dtype=torch.float64))


def evaluate_rows(
    method: Method, batch: Batch, step: int, stage: str | None, state: Mapping[str, float]
) -> Evaluated:
    """The terms of one stage on rows whose log-probabilities are `arrays["logp"]`."""
    name, rule = method.stage(stage, state)
    prepared = prepare(assign(batch, rule, step=step), rule, step=step, state=state)
    prepared = replace(prepared, terms=tuple(p for p in prepared.terms if p.term.explained))
    results = evaluate(prepared, {"policy": {"logp": batch.arrays["logp"]}})
    nothing = torch.zeros(batch.n_decisions, dtype=torch.float64)
    gradients = [0.0 - found.get("logp", nothing) for _, found in results]
    return Evaluated(name, rule, prepared, [report for report, _ in results], gradients)


def row_starts(batch: Batch) -> list[int]:
    """Where each row begins in the flat order of decisions, and where the last ends."""
    return [0, *torch.cumsum(batch.length, 0).tolist()]


def checked_step(step: Any) -> int:
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ExplainError(f"step={step!r}: accepted are integers >= 0")
    return step


def shown_advantage(prepared: Prepared) -> Tensor:
    """A of the reward-driven term on each decision, 1 under a pure likelihood term alone, else 0, [N]."""
    out = torch.zeros(prepared.batch.n_decisions, dtype=torch.float64)
    for p in sorted(prepared.terms, key=lambda p: not p.term.likelihood):
        out[p.covered] = term_advantage(p.term, prepared.batch)[p.covered]
    return out


def term_advantage(term: Term, batch: Batch) -> Tensor:
    """A in one term, [N]: 1 in a likelihood term and where the method sets no advantage."""
    a = batch.arrays.get("advantage")
    return torch.ones(batch.n_decisions, dtype=torch.float64) if term.likelihood or a is None else a


def parse_state(state: Mapping[str, Any] | None) -> dict[str, float]:
    for key, value in (state or {}).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ExplainError(f"state.{key}={value!r}: accepted are finite numbers")
    return {k: float(v) for k, v in (state or {}).items()}


def parse_rows(rows: Sequence[Mapping[str, Any]]) -> Batch:
    """A batch without slots from rows of the `explain` schema; the leaf values are `arrays["logp"]`."""
    if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
        raise ExplainError(f"rows: accepted is a list of objects, not {type(rows).__name__}")
    parsed = [_Row(i, row) for i, row in enumerate(rows)]
    names: dict[tuple[str, Any], int] = {}
    group = [names.setdefault(r.group, len(names)) for r in parsed]
    flat = {
        key: torch.tensor([x for r in parsed for x in r.tokens[key]], dtype=torch.float64)
        for key in ("logp", *TOKEN_KEYS)
    }
    return Batch(
        row_id=torch.arange(len(parsed)),
        group=torch.tensor(group, dtype=torch.int64),
        episode=torch.arange(len(parsed)),
        reward=torch.tensor([r.reward for r in parsed], dtype=torch.float64),
        verdict=torch.tensor([r.verdict for r in parsed], dtype=torch.int8),
        finish=torch.tensor([r.finish for r in parsed], dtype=torch.int8),
        is_rollout=torch.tensor([r.is_rollout for r in parsed], dtype=torch.bool),
        active=torch.ones(len(parsed), dtype=torch.bool),
        extra=tuple(r.extra for r in parsed),
        row=torch.tensor([r.index for r in parsed for _ in r.source], dtype=torch.int64),
        source=torch.tensor([s for r in parsed for s in r.source], dtype=torch.int8),
        span=torch.tensor([s for r in parsed for s in r.span], dtype=torch.int8),
        arrays={k: v for k, v in flat.items() if k == "logp" or not bool(v.isnan().all())},
        group_names=tuple(name for _, name in names),
    )


LARGEST = 1e100
"""Numbers beyond this are mistakes, and their squares are no numbers any more."""

BOUNDS = {"entropy": (-1e-6, LARGEST), "topk_mass": (-1e-6, 1 + 1e-6)}
"""What a statistic can be, with room for rounding."""


def is_number(value: Any) -> bool:
    """A finite number that fits a float, and no bool."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


class _Row:
    """One row of the schema, checked key by key."""

    def __init__(self, index: int, row: Any) -> None:
        self.index = index
        if not isinstance(row, Mapping):
            raise self._error(None, row, "an object with 'logp' and 'source'")
        for key in row:
            if key not in ROW_KEYS:
                near = difflib.get_close_matches(str(key), ROW_KEYS, 1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise ExplainError(
                    f"row {index}: unknown key '{key}'{hint or '.'} Accepted are {', '.join(ROW_KEYS)}"
                )
        if "logp" not in row:
            raise ExplainError(f"row {index}: 'logp' is required, a list of numbers <= 0")
        if "source" not in row:
            raise ExplainError(
                f"row {index}: 'source' is required, one of {', '.join(SOURCES)} or a list of them"
            )
        n = len(self._list(row, "logp"))
        self.tokens = {"logp": self._numbers(row, "logp", n, absent=False)}
        for value in self.tokens["logp"]:
            if value > 1e-6:  # rounding of a probability of 1
                raise self._error("logp", value, "log-probabilities, numbers <= 0")
        for key in TOKEN_KEYS:
            self.tokens[key] = self._numbers(row, key, n) if row.get(key) is not None else [math.nan] * n
        self.source = self._sources(row, n)
        self.is_rollout = row["source"] == "rollout" or int(SOURCE_NAMES["rollout"]) in self.source
        self.span = self._spans(row, n)
        group = row.get("group")
        if group is not None and (isinstance(group, bool) or not isinstance(group, str | int)):
            raise self._error("group", group, "a string or an integer")
        self.group = ("own", index) if group is None else (type(group).__name__, group)
        self.reward = self._reward(row)
        self.verdict = self._choice(row, "verdict", {str(k): v for k, v in VERDICTS.items()}, 2)
        self.finish = self._choice(row, "finish", {k: int(v) for k, v in FINISHES.items()}, int(Finish.NONE))
        extra = row.get("extra")
        if extra is not None and not isinstance(extra, Mapping):
            raise self._error("extra", extra, "an object")
        self.extra = dict(extra or {})

    def _error(self, key: str | None, value: Any, accepted: str) -> ExplainError:
        where = f"row {self.index}" + (f": '{key}'" if key else "")
        return ExplainError(f"{where}: {value!r:.80} is not accepted; accepted is {accepted}")

    def _list(self, row: Mapping[str, Any], key: str) -> Sequence[Any]:
        value = row[key]
        if isinstance(value, Tensor):
            value = value.tolist()
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise self._error(key, value, "a list")
        return value

    def _numbers(self, row: Mapping[str, Any], key: str, n: int, absent: bool = True) -> list[float]:
        values = self._list(row, key)
        if len(values) != n:
            raise ExplainError(
                f"row {self.index}: '{key}' has {len(values)} numbers, 'logp' has {n}; they must agree"
            )
        low, high = BOUNDS.get(key, (-LARGEST, LARGEST))
        out = []
        for value in values:
            if value is None and absent:
                out.append(math.nan)
            elif not is_number(value):
                raise self._error(key, value, "finite numbers" + (" (null where absent)" if absent else ""))
            elif not low <= value <= high:
                raise self._error(key, value, f"numbers from {low:g} to {high:g}")
            else:
                out.append(float(value))
        return out

    def _sources(self, row: Mapping[str, Any], n: int) -> list[int]:
        given = row["source"]
        if isinstance(given, str):
            names: Sequence[Any] = [given] * max(n, 1)
        else:
            names = self._list(row, "source")
            if n == 0:
                raise self._error(
                    "source", given, f"one string for an empty row, one of {', '.join(SOURCES)}"
                )
            if len(names) != n:
                raise ExplainError(
                    f"row {self.index}: 'source' has {len(names)} entries, 'logp' has {n}; they must agree"
                )
        for name in names:
            if name not in SOURCES:
                raise self._error("source", name, ", ".join(SOURCES))
        return [int(SOURCE_NAMES[name]) for name in names][:n]

    def _spans(self, row: Mapping[str, Any], n: int) -> list[int]:
        if row.get("span") is None:
            return [-1] * n
        names = self._list(row, "span")
        if len(names) != n:
            raise ExplainError(
                f"row {self.index}: 'span' has {len(names)} entries, 'logp' has {n}; they must agree"
            )
        for name in names:
            if name is not None and name not in SPANS:
                raise self._error("span", name, f"{', '.join(SPANS)} or null")
        return [-1 if name is None else SPANS.index(name) for name in names]

    def _reward(self, row: Mapping[str, Any]) -> float:
        reward = row.get("reward")
        if reward is None:
            return math.nan
        if not is_number(reward) or abs(reward) > LARGEST:
            raise self._error("reward", reward, f"a number from {-LARGEST:g} to {LARGEST:g}, or null")
        return float(reward)

    def _choice(self, row: Mapping[str, Any], key: str, accepted: Mapping[str, int], default: int) -> int:
        value = row.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in accepted:
            raise self._error(key, value, ", ".join(accepted))
        return accepted[value]
