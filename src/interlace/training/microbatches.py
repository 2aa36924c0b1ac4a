"""Which rows are scored together: a pure plan over the whole optimizer step, the same on every rank."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def plan(lengths: Sequence[int], budget: int, ranks: int = 1) -> list[list[int]]:
    """Rows of each micro-batch, balanced by tokens, the longest rows first.

    Args:
        lengths: Tokens of each row; rows of equal length keep their order.
        budget: Tokens of a micro-batch; a longer row stands alone.
        ranks: The number of micro-batches is a multiple of it (some may be empty), rank r takes every
            `ranks`-th from r on.

    Returns:
        Lists of row indices, each row in exactly one of them.

    Raises:
        ValueError: the budget is not positive.
    """
    if budget < 1:
        raise ValueError(f"micro_batch_tokens={budget}: accepted are integers >= 1")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    count = max(1, -(-sum(lengths) // budget)) if order else 0
    while True:
        count = -(-count // ranks) * ranks
        bins: list[list[int]] = [[] for _ in range(count)]
        loads = [(0, i) for i in range(count)]
        for row in order:
            load, i = heapq.heappop(loads)
            bins[i].append(row)
            heapq.heappush(loads, (load + lengths[row], i))
        if all(load <= budget or len(bins[i]) == 1 for load, i in loads):
            return bins
        count += 1
