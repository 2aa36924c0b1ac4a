"""The toy trajectories as rows of `explain`, with every statistic that a method may need."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from interlace.analysis.toy import batch_of, trajectories
from interlace.types import SPANS, Finish, Source


def toy_rows(seed: int = 0) -> list[dict[str, Any]]:
    given = trajectories(seed)
    batch = batch_of(given)
    generator = torch.Generator().manual_seed(seed)
    logp = -torch.rand(batch.n_decisions, generator=generator, dtype=torch.float64) - 0.05
    starts = [0, *torch.cumsum(batch.length, 0).tolist()]
    rows = []
    for row, (a, b) in zip(given, pairwise(starts), strict=True):
        statistics = {k: v[a:b].tolist() for k, v in batch.arrays.items()}
        statistics["old_logp"] = (logp[a:b] + 0.1 * torch.randn(b - a, generator=generator)).tolist()
        rows.append(
            {
                "group": row.group,
                "source": [Source(s).name.lower() for s in batch.source[a:b].tolist()],
                "reward": row.reward,
                "verdict": None if row.verdict is None else str(row.verdict),
                "finish": {Finish.STOP: "stop", Finish.LENGTH: "length"}[row.finish],
                "span": [None if s < 0 else SPANS[s] for s in batch.span[a:b].tolist()],
                "extra": {"class_reward": row.extra["mix_lambda"], **row.extra},
                **statistics,
                "logp": logp[a:b].tolist(),
            }
        )
    return rows
