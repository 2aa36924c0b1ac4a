"""The same rows under several methods: every token's number, what it is made of, and why it is silent.

    side_by_side(["sft", "grpo", "chord mu=0.3"], **vars(sample_batch())).to_html("batch.html")

For each method and token the coefficient d(-loss)/d logp of `explain` is taken apart by term,

    coefficient = sum over terms of  factor / n * weight * advantage,

and a token without one says why. Sums of |coefficient| over demonstration and over rollout tokens are the
balance of SFT and RL that a method really has on these rows, whatever its mixing parameter says.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interlace.analysis.explain import (
    SOURCES,
    Evaluated,
    ExplainError,
    checked_step,
    evaluate_rows,
    parse_rows,
    parse_state,
    row_starts,
    shown_advantage,
    term_advantage,
)
from interlace.methods import Entry, Method, get
from interlace.parts.masks import has_reward
from interlace.parts.stated import text_of
from interlace.training.objective import PreparedTerm, validity
from interlace.types import SPANS, Batch, Finish, Source

if TYPE_CHECKING:
    from rich.console import Console

MethodSpec = str | Entry | tuple[str | Entry, Mapping[str, Any]]
"""A method, `"chord mu=0.3"` or `("chord", {"mu": 0.3})`; `stage` may stand among the parameters."""

SILENT: Mapping[str, str] = {
    "left out": "its row was dropped: unscorable, without reward, or by a rule of the method",
    "mask": "no term of the method covers it",
    "factor 0": "the only terms that cover it have the factor 0 in this step",
    "dead group": "its advantage is 0: all rewards of its group are equal, or fewer than two",
    "zero advantage": "its advantage is exactly 0",
    "clip": "its importance ratio is beyond the clip bound on the side that its advantage pushes to",
    "weight 0": "a weight in the loss is 0 on it",
}
"""Why a token has coefficient 0, in the order in which the reasons are looked for."""


@dataclass(frozen=True)
class Part:
    """What one term gives one token: coefficient = factor / n * weight * advantage.

    Attributes:
        term: Name of the term.
        coefficient: Its share of the token's coefficient.
        advantage: A in this term; 1 in a likelihood term.
        n: What this row's losses are divided by (the row's own length included in `sequence_means`).
        weight: What is left: ratio, shaping, token weight (and a KL inside the same term); `None` where
            advantage or factor is 0.
    """

    term: str
    coefficient: float
    advantage: float
    n: float
    weight: float | None


@dataclass(frozen=True)
class Token:
    """One token under one method.

    Attributes:
        coefficient: d(-loss)/d logp; positive makes it more likely.
        advantage: As in `explain`.
        parts: One for each term that covers it, the largest first.
        silent: A key of `SILENT` where the coefficient is 0, else `None`.
        detail: What exactly, for a silent token.
    """

    coefficient: float
    advantage: float
    parts: tuple[Part, ...]
    silent: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class Sum:
    """Coefficients of all tokens of one source: signed and absolute sum, tokens, and how many are not 0."""

    signed: float = 0.0
    absolute: float = 0.0
    tokens: int = 0
    trained: int = 0


@dataclass(frozen=True)
class Lane:
    """One method on all rows.

    Attributes:
        name: The method with the parameters that it was given.
        title: Its paper.
        stage: The stage shown, `None` where the method has none.
        loss: The objective's value.
        terms: Name, formula, factor, denominator and its value n of each term.
        advantage: What A is, as text; empty where the method says nothing.
        rows: Every token, row by row.
        notes: Warnings that the method gave on these rows.
        problem: Why the method cannot be shown (a statistic that it needs is missing), else `None`.
    """

    name: str
    title: str
    stage: str | None = None
    loss: float = 0.0
    terms: tuple[Mapping[str, Any], ...] = ()
    advantage: str = ""
    rows: tuple[tuple[Token, ...], ...] = ()
    notes: tuple[str, ...] = ()
    problem: str | None = None
    sums: Mapping[str, Sum] = field(default_factory=dict)

    @property
    def sft(self) -> float:
        """Sum of |coefficient| over demonstration, prefix and hint tokens."""
        return sum(s.absolute for name, s in self.sums.items() if name != "rollout")

    @property
    def rl(self) -> float:
        """Sum of |coefficient| over rollout tokens."""
        return self.sums["rollout"].absolute if "rollout" in self.sums else 0.0

    @property
    def sft_share(self) -> float | None:
        """sft / (sft + rl): the part of the update that imitates; `None` if nothing is trained."""
        return self.sft / (self.sft + self.rl) if self.sft + self.rl > 0 else None

    @property
    def silent(self) -> dict[str, int]:
        """How many tokens are silent for which reason."""
        counts = dict.fromkeys(SILENT, 0)
        for token in itertools.chain.from_iterable(self.rows):
            if token.silent is not None:
                counts[token.silent] += 1
        return {reason: n for reason, n in counts.items() if n}


@dataclass(frozen=True)
class SideBySide:
    """Several methods on the same rows.

    Attributes:
        lanes: One per method, in the order given.
        rows: For each row its group, reward, verdict, finish and, per token, source, logp, ratio and others.
        tokens: The text of each token, or `None`.
        prompts: The text before each row, or `None`.
        step: Where schedules were read.
        about: What the rows are (`task`, `model`, ...), for people to read.
    """

    lanes: tuple[Lane, ...]
    rows: tuple[Mapping[str, Any], ...]
    tokens: Sequence[Sequence[str]] | None = None
    prompts: Sequence[str] | None = None
    step: int = 0
    about: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain lists and dicts, without infinities."""
        return {
            "step": self.step,
            "about": dict(self.about),
            "rows": [dict(row) for row in self.rows],
            "tokens": None if self.tokens is None else [list(row) for row in self.tokens],
            "prompts": None if self.prompts is None else list(self.prompts),
            "methods": [_lane_dict(lane) for lane in self.lanes],
        }

    def to_json(self) -> str:
        """`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False)

    def to_html(self, path: str | Path | None = None) -> str:
        """One self-contained page, written to `path` if given: no network, nothing to install."""
        from interlace.analysis.page import page

        text = page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def show(self, console: Console | None = None) -> None:
        """Print a summary and every row's tokens, method under method."""
        from interlace.analysis.terminal import show

        show(self, console)


def _lane_dict(lane: Lane) -> dict[str, Any]:
    return {
        "name": lane.name,
        "title": lane.title,
        "stage": lane.stage,
        "problem": lane.problem,
        "notes": list(lane.notes),
        "loss": lane.loss,
        "terms": [dict(term) for term in lane.terms],
        "advantage": lane.advantage,
        "sums": {source: vars(s).copy() for source, s in lane.sums.items()},
        "sft": lane.sft,
        "rl": lane.rl,
        "sft_share": lane.sft_share,
        "silent": lane.silent,
        "rows": [
            {
                "advantage": [t.advantage for t in row],
                "coefficient": [t.coefficient for t in row],
                "term": [t.parts[0].term if t.parts else None for t in row],
                "weight": [t.parts[0].weight if t.parts else None for t in row],
                "silent": [t.silent for t in row],
            }
            for row in lane.rows
        ],
    }


def side_by_side(
    methods: Sequence[MethodSpec],
    rows: Sequence[Mapping[str, Any]],
    tokens: Sequence[Sequence[str]] | None = None,
    prompts: Sequence[str] | None = None,
    step: int = 0,
    state: Mapping[str, float] | None = None,
    about: Mapping[str, str] | None = None,
) -> SideBySide:
    """Explain the same rows under several methods.

    Args:
        methods: Names, `FILE.py:NAME`, entries, or any of them with parameters: `"chord mu=0.3"`,
            `("chord", {"mu": 0.3})`, `"relift stage=sft"`. A method may appear with several settings.
        rows: As for `interlace.explain`.
        tokens: The text of each token, as many per row as `logp` has.
        prompts: What stands before each row.
        step: Places schedules.
        state: Numbers that controllers hold.
        about: What the rows are, for people to read (`task`, `model`, ...).

    Returns:
        Numbers per method, row and token; `.to_html(path)`, `.to_json()`, `.show()`.

    Raises:
        ValueError: bad rows, an unknown method or parameter. A method that needs a statistic which the rows
            do not have is no error: its lane says which.
    """
    batch, numbers = parse_rows(rows), parse_state(state)
    checked_step(step)
    _check_texts(batch, tokens, prompts)
    lanes: list[Lane] = []
    for spec in methods:
        entry, settings = split_spec(spec)
        stage = settings.pop("stage", None)
        built = entry(**settings)
        if stage is not None:
            built.stage(stage)  # an unknown stage is a mistake, not a lane
        given = {**settings, **({} if stage is None else {"stage": stage})}
        name = " ".join([entry.name, *(f"{k}={v}" for k, v in given.items())])
        if any(lane.name == name for lane in lanes):
            raise ExplainError(f"method '{name}' is named twice; give it other parameters or leave one out")
        lanes.append(_lane(Lane(name, entry.title), built, batch, step, stage, numbers))
    if not lanes:
        raise ExplainError("name at least one method, as in side_by_side(['sft', 'grpo'], rows)")
    return SideBySide(tuple(lanes), tuple(_facts(batch, rows)), tokens, prompts, step, about or {})


def split_spec(spec: MethodSpec) -> tuple[Entry, dict[str, Any]]:
    """A method and the settings that were written with it."""
    if isinstance(spec, tuple):
        return get(spec[0]), dict(spec[1])
    if isinstance(spec, Entry):
        return spec, {}
    words = spec.split()
    first = next((i for i, word in enumerate(words) if "=" in word), len(words))
    settings = {}
    for word in words[first:]:
        key, equals, value = word.partition("=")
        if not equals:
            raise ExplainError(f"method '{spec}': '{word}' is not key=value, as in 'chord mu=0.3'")
        settings[key] = value
    return get(" ".join(words[:first])), settings


def _check_texts(batch: Batch, tokens: Any, prompts: Any) -> None:
    lengths = batch.length.tolist()
    if prompts is not None and len(prompts) != len(lengths):
        raise ExplainError(f"prompts: {len(prompts)} texts for {len(lengths)} rows; they must agree")
    if tokens is None:
        return
    if len(tokens) != len(lengths):
        raise ExplainError(f"tokens: {len(tokens)} rows of texts for {len(lengths)} rows; they must agree")
    for i, (texts, n) in enumerate(zip(tokens, lengths, strict=True)):
        if len(texts) != n:
            raise ExplainError(f"row {i}: {len(texts)} token texts, 'logp' has {n}; they must agree")


def _facts(batch: Batch, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is known of each row and token whatever the method."""
    old = batch.arrays.get("old_logp", torch.full_like(batch.arrays["logp"], math.nan))
    log_ratio = (batch.arrays["logp"] - old).clamp(-20, 20)
    facts = []
    for i, (a, b) in enumerate(itertools.pairwise(row_starts(batch))):
        finish = Finish(int(batch.finish[i]))
        source = [Source(s).name.lower() for s in batch.source[a:b].tolist()]
        known = {k: v[a:b] for k, v in batch.arrays.items() if k != "old_logp"}
        facts.append(
            {
                "group": rows[i].get("group"),
                "kind": "+".join(dict.fromkeys(source)) or ("rollout" if batch.is_rollout[i] else "demo"),
                "reward": _number(float(batch.reward[i])),
                "verdict": rows[i].get("verdict"),
                "finish": None if finish == Finish.NONE else finish.name.lower(),
                "source": source,
                "span": [None if s < 0 else SPANS[s] for s in batch.span[a:b].tolist()],
                "ratio": [_number(x) for x in log_ratio[a:b].exp().tolist()],
                **{k: [_number(x) for x in v.tolist()] for k, v in known.items()},
            }
        )
    return facts


def _number(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _lane(
    lane: Lane, method: Method, batch: Batch, step: int, stage: str | None, state: Mapping[str, float]
) -> Lane:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = evaluate_rows(method, batch, step, stage, state)
        except ValueError as error:
            return replace(lane, problem=str(error))
    terms = tuple(
        {
            "name": p.term.name,
            "formula": p.term.formula,
            "sources": list(p.term.sources),
            "coefficient": p.coefficient,
            "denominator": p.denominator,
            "n": p.n,
        }
        for p in found.prepared.terms
    )
    tokens = _tokens(found, _left_out(batch, found.rule, step))
    rows = tuple(tuple(tokens[a:b]) for a, b in itertools.pairwise(row_starts(batch)))
    return replace(
        lane,
        stage=found.stage,
        loss=sum(r.loss for r in found.reports),
        terms=terms,
        advantage=text_of(found.rule.advantage),
        rows=rows,
        notes=tuple(dict.fromkeys(str(w.message) for w in caught)),
        sums=_sums(batch, found.coefficient),
    )


def _sums(batch: Batch, coefficient: Tensor) -> dict[str, Sum]:
    sums = {}
    for source in SOURCES:
        of = coefficient[batch.is_source(source)]
        if of.numel():
            sums[source] = Sum(float(of.sum()), float(of.abs().sum()), of.numel(), int((of != 0).sum()))
    return sums


def _left_out(batch: Batch, rule: Method, step: int) -> dict[int, str]:
    """By row, which rule took it out of the loss."""
    found: dict[int, str] = {}

    def note(active: Tensor, after: Batch, why: str) -> Batch:
        for row in (active & ~after.active).nonzero()[:, 0].tolist():
            found[row] = why
        return after

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = replace(batch, step=step)
        now = validity(start, rule)
        note(start.active & (start.verdict == -1), now, "unscorable")
        note(start.active & (start.verdict != -1), now, "a rollout without reward")
        advantage = () if rule.advantage is None else (rule.advantage,)
        for apply in (*rule.regroup, *advantage, *rule.select):
            now = note(now.active, apply(now), text_of(apply) or "by the method's own rule")
    return found


def _tokens(found: Evaluated, left_out: Mapping[int, str]) -> list[Token]:
    coefficient, advantage = found.coefficient.tolist(), shown_advantage(found.prepared).tolist()
    parts = _parts(found)
    reasons = _Reasons(found, left_out)
    return [
        Token(c, a, parts[i], *((None, "") if c != 0 else reasons(i)))
        for i, (c, a) in enumerate(zip(coefficient, advantage, strict=True))
    ]


def _parts(found: Evaluated) -> list[tuple[Part, ...]]:
    batch = found.prepared.batch
    parts: list[list[Part]] = [[] for _ in range(batch.n_decisions)]
    for p, coefficients in zip(found.prepared.terms, found.coefficients, strict=True):
        divisor = (p.n / p.scale)[batch.row].tolist()
        a, c = term_advantage(p.term, batch).tolist(), coefficients.tolist()
        for i in p.covered.nonzero()[:, 0].tolist():
            whole = p.coefficient * a[i]
            weight = c[i] * divisor[i] / whole if whole else None
            parts[i].append(Part(p.term.name, c[i], a[i], divisor[i], weight))
    return [tuple(sorted(of, key=lambda part: -abs(part.coefficient))) for of in parts]


class _Reasons:
    """Why a token is silent; asked only where its coefficient is 0."""

    def __init__(self, found: Evaluated, left_out: Mapping[int, str]) -> None:
        self.batch, self.terms, self.left_out = found.prepared.batch, found.prepared.terms, left_out
        self.row, self.source = self.batch.row.tolist(), self.batch.source.tolist()
        self.advantage = [term_advantage(p.term, self.batch) for p in self.terms]
        self.dead = _dead_groups(self.batch, self.terms, self.advantage)
        old = self.batch.arrays.get("old_logp", self.batch.arrays["logp"])
        moved = (old != self.batch.arrays["logp"]) & ~old.isnan()
        self.moved_rows = set(self.batch.row[moved].tolist())

    def __call__(self, i: int) -> tuple[str, str]:
        row = self.row[i]
        if row in self.left_out:
            return "left out", self.left_out[row]
        covering = [k for k, p in enumerate(self.terms) if bool(p.covered[i])]
        if not covering:
            return "mask", self._uncovered(i)
        if all(self.terms[k].coefficient == 0 for k in covering):
            return "factor 0", f"the factor of {self._names(covering)} is 0"
        covering = [k for k in covering if self.terms[k].coefficient != 0]
        rewarded = [k for k in covering if not self.terms[k].term.likelihood]
        if rewarded and all(float(self.advantage[k][i]) == 0 for k in rewarded):
            dead = self.dead.get(int(self.batch.group[row]))
            return ("zero advantage", "A = 0") if dead is None else ("dead group", dead)
        driven = [k for k in covering if not self.terms[k].term.at_temperature_one]
        if driven and row in self.moved_rows:
            return "clip", "the ratio is beyond the bound"
        return "weight 0", f"the loss of {self._names(covering)} does not move with it"

    def _uncovered(self, i: int) -> str:
        source = Source(self.source[i]).name.lower()
        reading = [k for k, p in enumerate(self.terms) if source in p.term.sources]
        if not reading:
            return f"no term reads {source} tokens"
        texts = [text_of(self.terms[k].term.where) for k in reading]
        return f"outside {self._names(reading)}" + "".join(f" ({text})" for text in texts if text)

    def _names(self, terms: Sequence[int]) -> str:
        return " and ".join(self.terms[k].term.name for k in terms)


def _dead_groups(batch: Batch, terms: Sequence[PreparedTerm], advantages: Sequence[Tensor]) -> dict[int, str]:
    """By group in which every reward-driven term has advantage 0 everywhere: why."""
    largest = torch.zeros(int(batch.group.max()) + 1 if batch.n_rows else 0, dtype=torch.float64)
    for p, a in zip(terms, advantages, strict=True):
        if not p.term.likelihood:
            of = batch.group[batch.row[p.covered]]
            largest = largest.scatter_reduce(0, of, a[p.covered].abs(), "amax")
    dead = {}
    for group in (largest == 0).nonzero()[:, 0].tolist():
        rewards = batch.reward[has_reward(batch) & (batch.group == group)]
        own = batch.reward[has_reward(batch) & (batch.group == group) & batch.is_rollout]
        if rewards.numel() < 2 or own.numel() == 1:
            dead[group] = "fewer than two rewards in the group"
        elif rewards.unique().numel() == 1 or own.unique().numel() == 1:
            dead[group] = f"all rewards of the group are {float(own[0] if own.numel() else rewards[0]):g}"
    return dead
