"""Ranks: the only file that knows there may be more than one process.

Every rank holds the whole batch (ids and detached numbers are small), plans the same micro-batches and
scores every `size`-th of them; gradients are summed, leaf vectors and annotations are gathered.
Denominators are therefore global without being communicated, and no averaging has to be undone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """This process's place among `size` of them."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def mine(self, items: Sequence[Any]) -> Sequence[Any]:
        """Every `size`-th item from `rank` on."""
        return items[self.rank :: self.size]

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Add up tensors over ranks in place, in one message per dtype."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for t in tensors:
            by_dtype.setdefault(t.dtype, []).append(t)
        for group in by_dtype.values():
            flat = torch.cat([t.reshape(-1) for t in group])
            dist.all_reduce(flat)
            for t, part in zip(group, flat.split([t.numel() for t in group]), strict=True):
                t.copy_(part.view_as(t))

    def gather(self, item: Any) -> list[Any]:
        """One object of each rank, in rank order."""
        if self.size == 1:
            return [item]
        out: list[Any] = [None] * self.size
        dist.all_gather_object(out, item)
        return out

    def broadcast(self, item: Any) -> Any:
        """Rank 0's object."""
        if self.size == 1:
            return item
        box = [item]
        dist.broadcast_object_list(box)
        return box[0]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def connect() -> Ranks:
    """The ranks that `torchrun` started, or one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return Ranks(dist.get_rank(), dist.get_world_size())
