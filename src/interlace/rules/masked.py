"""Sampling at the masked positions of a static text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from interlace.rules.samplers import Collecting, Collector, MaskedText
from interlace.types import Problem, Trajectory


@dataclass(frozen=True)
class MaskedFills:
    """Several fills of each problem's demonstration, and the demonstration itself under another mask.

    Attributes:
        mask_rate: Probability that a token of the demonstration is masked; special tokens never are.
        samples: Fills of each text.

    A fill copies what is not masked; the policy reads masks there also while it is trained. The group holds
    the demonstration as well, all of its tokens to be predicted from a masked input (masked fine-tuning).
    Problems without demonstration have no static text and are left out.

    Reference:
        Semi-offline RL (arXiv 2306.09712). There the static text is one of several candidates, and commas,
        full stops and the rest of a word begun keep together; here it is the demonstration, token by token.
    """

    mask_rate: float
    samples: int

    @property
    def group_size(self) -> int:
        return self.samples

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting:
        rng, renderer = collector.random("mask"), collector.renderer
        texts, taught = [], []
        for i, problem in enumerate(problems):
            group = f"{problem.id}#{i}"
            row = collector.demonstration(problem, group)
            if row is None:
                continue
            start = len(row.ids) - len(collector.solution(problem))
            for_fills, for_teaching = (
                MaskedText(
                    problem,
                    group,
                    tuple(row.ids),
                    start,
                    masked_positions(row.ids, start, renderer.special_ids, self.mask_rate, rng),
                    renderer.mask_id,
                    self.samples,
                )
                for _ in range(2)
            )
            taught.append(replace(row, inputs=for_teaching.inputs))
            if for_fills.masked:
                texts.append(for_fills)
        fills = []
        if texts:
            groups = yield texts
            fills = [row for group in groups for row in group]
        positions = sum(len(text.masked) for text in texts)
        collector.notes["mask/positions"] = positions / max(len(texts), 1)
        collector.notes["mask/equal_neighbours"] = equal_neighbours(texts, fills)
        return [*fills, *taught]


def masked_positions(
    ids: Sequence[int], start: int, special: frozenset[int], rate: float, rng: random.Random
) -> tuple[int, ...]:
    """Positions from `start` on, special tokens left out, each with this probability."""
    return tuple(t for t in range(start, len(ids)) if ids[t] not in special and rng.random() < rate)


def equal_neighbours(texts: Sequence[MaskedText], fills: Sequence[Trajectory]) -> float:
    """Share of neighbouring masked positions that got the same token (independent draws repeat words)."""
    row, same, pairs = 0, 0, 0
    for text in texts:
        beside = [t for t in text.masked if t + 1 in text.masked]
        for fill in fills[row : row + text.n]:
            same += sum(fill.ids[t] == fill.ids[t + 1] for t in beside)
            pairs += len(beside)
        row += text.n
    return same / pairs if pairs else 0.0
