"""Demonstrations with the log-probabilities of the policy that wrote them."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Literal

from interlace.rules.bench import Bench, Harvested
from interlace.rules.harvest import alone, answers, demonstrated, distinct, is_correct
from interlace.types import Source, Trajectory


@dataclass(frozen=True)
class KnownAuthor:
    """Rows to imitate whose `behaviour_logp` is known on every token.

    Attributes:
        author: Who wrote them. `data`: the column `behaviour_logp` of the data. `samples`: the start weights,
            whose distinct correct answers are the demonstrations. `start`: the start weights give the
            log-probabilities of the data's demonstrations, as if they had written them. `auto`: `data` if a
            demonstration has the column, else `start`, with a warning.
        samples: Answers per prompt with `samples`.

    Raises:
        ValueError: with `data`, a demonstration without the column.

    Reference:
        PEAR (arXiv 2602.01058): the author scores every response once, before training.
    """

    author: Literal["auto", "data", "samples", "start"] = "auto"
    samples: int = 4

    def __call__(self, bench: Bench) -> Harvested:
        author = self.author
        if author == "auto":
            known = any("behaviour_logp" in p.meta for p in bench.demonstrated)
            author = "data" if known else "start"
            if not known:
                warnings.warn(
                    "no demonstration has a column behaviour_logp; the start weights stand in for their "
                    "author (author=samples takes demonstrations that they do write)",
                    stacklevel=2,
                )
        rows = {"data": given, "samples": self.sampled, "start": scored_by_start}[author](bench)
        nothing = {"samples": "no sampled answer is correct"}.get(author, "there is no demonstration")
        return Harvested(rows, notes={f"rows_{author}": len(rows)}, skip=None if rows else nothing)

    def sampled(self, bench: Bench) -> list[Trajectory]:
        """The distinct correct answers of the present weights."""
        return [
            alone(row)
            for _, tried in answers(bench, bench.prompts, self.samples)
            for row in distinct([row for row in tried if is_correct(row)], bench)
        ]


def given(bench: Bench) -> list[Trajectory]:
    """The data's demonstrations with its own log-probabilities."""
    rows = [row for p in bench.demonstrated for row in demonstrated(bench, p)]
    missing = [row.problem.id for row in rows if row.behaviour_logp is None]
    if missing:
        raise ValueError(
            f"problem {missing[0]} (and {len(missing) - 1} more): 'behaviour_logp' is needed beside its "
            f"demonstration; accepted is a list of numbers, one per token, end-of-sequence included"
        )
    return rows


def scored_by_start(bench: Bench) -> list[Trajectory]:
    """The data's demonstrations with the log-probabilities of the present weights."""
    rows = [row for p in bench.demonstrated for row in demonstrated(bench, p)]
    found = bench.log_probs(rows) if rows else []
    scored = []
    for row, logp in zip(rows, found, strict=True):
        values = iter(logp)
        behaviour = [next(values) if source == Source.DEMO else math.nan for source in row.source]
        scored.append(replace(row, behaviour_logp=behaviour))
    return scored
