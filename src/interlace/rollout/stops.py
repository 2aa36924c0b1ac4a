"""Watching a growing completion for stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopText:
    """Tells when the decoded text of a completion first contains one of the stop strings.

    Text is decoded a few tokens at a time, with enough tokens before them that a tokenizer which glues
    pieces together (byte-level characters, leading spaces) says the same as for the whole completion.
    Special tokens are part of the text, so a stop string may name one.

    Args:
        tokenizer: Anything with Hugging Face's `decode`.
        stops: The stop strings, none empty.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._keep = max(map(len, self._stops)) - 1
        self._tail = ""
        self._context = 0
        self._read = 0
        self._context_text = ""

    def found(self, ids: Sequence[int]) -> bool:
        """Whether the text of `ids` (the whole completion so far) now contains a stop string."""
        text = self._decode(ids[self._context :])
        seen = self._tail + text[len(self._context_text) :]
        if any(stop in seen for stop in self._stops):
            return True
        if not text.endswith("\ufffd"):
            # An unfinished character may still change; whatever does not end in one is settled.
            self._tail = seen[-self._keep :] if self._keep else ""
            self._context, self._read = self._read, len(ids)
            self._context_text = self._decode(ids[self._context : self._read])
        return False

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
