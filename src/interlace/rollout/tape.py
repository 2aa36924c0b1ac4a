"""The key-value cache of the rows in flight: one time axis for all, rows aligned at its head.

Row r occupies columns `first[r] .. head - 1` and every row writes its next key at column `head`. So an
append is one slice copy for the whole batch, a sliding window is a slice, a row's mask never changes
once it is written, and position ids are `head - first`. A row that leaves is overwritten by the last
one; a row that enters gets its prompt copied in front of the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 256
"""Columns that the tape grows by at least."""


class Tape:
    """Keys and values per layer, `[rows, heads, columns, dim]`, allocated at the first use.

    Args:
        layers: Number of layers.
        device, dtype: Where the keys live and what they are made of.

    Attributes:
        count: Rows in flight (they are rows 0 .. count - 1 of the buffers).
        head: The column that the next token writes.
        first: For each row in flight its first column.
        bias: [rows, columns], minus infinity before a row's first column, else 0.
    """

    def __init__(self, layers: int, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self.count = 0
        self.head = 0
        self.first: list[int] = []
        self._rows = self._columns = self._limit = self._longest_prompt = 0
        self.bias = torch.zeros(0, 0, device=device, dtype=dtype)
        self._first = torch.zeros(0, dtype=torch.int64, device=device)

    @property
    def start(self) -> int:
        """First column that any row in flight reads."""
        return min(self.first)

    @property
    def aligned(self) -> bool:
        """Whether no row in flight needs a mask."""
        return min(self.first) == max(self.first)

    @property
    def positions(self) -> Tensor:
        """int64 [count]: position id of each row's next token."""
        return self.head - self._first[: self.count]

    def open(self, rows: int, longest_prompt: int, columns: int) -> None:
        """Start anew for at most `rows` rows at once, prompts and rows of at most these lengths."""
        self.count, self.head, self.first = 0, longest_prompt, []
        self._longest_prompt, self._limit = longest_prompt, columns
        columns = min(columns, longest_prompt + BLOCK)
        if not rows <= self._rows <= 2 * rows or columns > self._columns:
            self.close()
            self._rows, self._columns = rows, columns
            self.bias = torch.zeros(rows, columns, device=self.device, dtype=self.dtype)
            self._first = torch.zeros(rows, dtype=torch.int64, device=self.device)

    def close(self) -> None:
        """Give the memory back."""
        self.keys = [None] * len(self.keys)
        self.values = [None] * len(self.values)
        self._rows = self._columns = 0

    def admit(
        self,
        keys: Sequence[Tensor | None],
        values: Sequence[Tensor | None],
        lengths: Sequence[int],
        copies: Sequence[int],
    ) -> None:
        """Let rows enter behind those in flight.

        Args:
            keys, values: Per layer [prompts, heads, T, dim], prompts padded on the right; `None` for a
                layer that keeps nothing.
            lengths: Length of each prompt; the longest is T.
            copies: How many rows continue each prompt.
        """
        if self.count == 0:
            self.head = self._longest_prompt
        width = max(lengths)
        left = self.head - width
        aligned = None
        if min(lengths) < width:
            pad = width - torch.tensor(lengths, device=self.device)
            aligned = (torch.arange(width, device=self.device) - pad[:, None]).clamp_min(0)[:, None, :, None]
        source = torch.repeat_interleave(
            torch.arange(len(copies), device=self.device), torch.tensor(copies, device=self.device)
        )
        first = [self.head - n for n, c in zip(lengths, copies, strict=True) for _ in range(c)]
        begin, end = self.count, self.count + len(first)
        for buffers, entering in ((self.keys, keys), (self.values, values)):
            for layer, new in enumerate(entering):
                if new is None:
                    continue
                if aligned is not None:
                    new = new.take_along_dim(aligned, 2)
                buffer = buffers[layer]
                if buffer is None:
                    buffer = buffers[layer] = new.new_zeros(
                        self._rows, new.shape[1], self._columns, new.shape[3]
                    )
                # Masked columns are multiplied by zero, so they must hold finite numbers.
                buffer[begin:end, :, :left] = 0
                buffer[begin:end, :, left : self.head] = new[source]
        self.first += first
        self.count = end
        self._mark(begin)

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write the next key and value of every row, [count, heads, dim] each, at the head."""
        self.keys[layer][: self.count, :, self.head] = key  # type: ignore[index]
        self.values[layer][: self.count, :, self.head] = value  # type: ignore[index]

    def read(self, layer: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values [count, heads, end - start, dim] of columns `start .. end - 1`."""
        keys, values = self.keys[layer], self.values[layer]
        assert keys is not None and values is not None
        return keys[: self.count, :, start:end], values[: self.count, :, start:end]

    def make_room(self) -> None:
        """Make sure that the head is a column that exists."""
        if self.head < self._columns:
            return
        base = max(self._longest_prompt, self.head - self.start)
        if self.head - base >= BLOCK or self._columns >= self._limit:
            self._slide(self.head - base)
        else:
            self._grow(min(self._limit, self._columns + max(BLOCK, self._columns // 2)))

    def compact(self, holes: Sequence[int], fillers: Sequence[int], count: int) -> None:
        """Keep `count` rows: row `fillers[i]` moves to place `holes[i]`, rows from `count` on leave."""
        for hole, filler in zip(holes, fillers, strict=True):
            self.first[hole] = self.first[filler]
        self.first = self.first[:count]
        self.count = count
        if holes:
            to = torch.tensor(holes, device=self.device)
            source = torch.tensor(fillers, device=self.device)
            start = min(self.first)
            for buffer in self._buffers():
                buffer[to, :, start : self.head] = buffer[source, :, start : self.head]
            self.bias[to] = self.bias[source]
            self._first[to] = self._first[source]

    def _buffers(self) -> list[Tensor]:
        return [buffer for buffer in (*self.keys, *self.values) if buffer is not None]

    def _mark(self, begin: int) -> None:
        first = torch.tensor(self.first[begin:], device=self.device)
        self._first[begin : self.count] = first
        before = torch.arange(self._columns, device=self.device) < first[:, None]
        self.bias[begin : self.count] = before.to(self.dtype).masked_fill_(before, -torch.inf)

    def _slide(self, by: int) -> None:
        start = self.start
        for buffer in self._buffers():
            buffer[: self.count, :, start - by : self.head - by] = buffer[
                : self.count, :, start : self.head
            ].clone()
        self.head -= by
        self.first = [f - by for f in self.first]
        self._mark(0)

    def _grow(self, columns: int) -> None:
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                if buffer is None:
                    continue
                larger = buffer.new_zeros(*buffer.shape[:2], columns, buffer.shape[3])
                larger[: self.count, :, : self.head] = buffer[: self.count, :, : self.head]
                buffers[layer] = larger
        self._columns = columns
        self.bias = torch.zeros(self._rows, columns, device=self.device, dtype=self.dtype)
        self._mark(0)
