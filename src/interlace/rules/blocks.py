"""Answers made of tagged blocks: guess, think, answer. Their spans, their reward, and their sampler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from interlace.rules.samplers import Collecting, Collector, rewritten, short_answer
from interlace.types import SPANS, Problem, SampleRequest, Score, Source, Trajectory, Verdict

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Blocks:
    """How the blocks of an answer are written, in their order.

    Attributes:
        tags: Opening and closing tag of each block, by span name.
        space: What stands between a tag and its content.
        judged: What a reward sees: the content of `answer` (1 is added for the form), or the whole text.
    """

    tags: Mapping[str, tuple[str, str]]
    space: str = ""
    judged: Literal["answer", "text"] = "answer"

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        parts = (rf"\s*{re.escape(a)}(.*?){re.escape(b)}" for a, b in self.tags.values())
        return re.compile("".join(parts) + r"\s*", re.DOTALL)

    def write(self, **blocks: str) -> str:
        """The text of these blocks."""
        return self.space.join(
            self.space.join((self.tags[name][0], content, self.tags[name][1]))
            for name, content in blocks.items()
        )

    def find(self, text: str, name: str) -> tuple[int, int] | None:
        """Where the content of the first complete block of that name lies, without the space around it."""
        opening, closing = self.tags[name]
        at = text.find(opening)
        end = text.find(closing, at + len(opening)) if at >= 0 else -1
        if end < 0:
            return None
        start = at + len(opening)
        stripped = text[start:end].strip()
        start += text[start:end].find(stripped)
        return start, start + len(stripped)

    def content(self, text: str, name: str) -> str | None:
        """The content of the first complete block of that name, without the space around it."""
        found = self.find(text, name)
        return None if found is None else text[slice(*found)]

    def well_formed(self, text: str) -> bool:
        """Whether a text is all blocks in order, each tag once, no block blank, nothing outside."""
        if any(text.count(tag) != 1 for pair in self.tags.values() for tag in pair):
            return False
        match = self._whole.fullmatch(text)
        return match is not None and all(content.strip() for content in match.groups())

    def spans(self, ids: Sequence[int], decode: Decode) -> list[tuple[int, int, str]]:
        """`(start, end, name)` of the tokens of every complete block's content.

        A token belongs to the content if its text reaches into it; tags stay outside. The ids are decoded
        from their beginning and never re-tokenised.
        """
        text = decode(ids)
        spans = []
        for name in self.tags:
            found = self.find(text, name)
            if found is not None and found[0] < found[1]:
                start = _tokens_until(ids, decode, found[0] + 1) - 1
                spans.append((start, _tokens_until(ids, decode, found[1]), name))
        return spans

    def mark(self, row: Trajectory, decode: Decode) -> Trajectory:
        """The row with the spans of its response."""
        start = sum(source in (Source.PROMPT, Source.HINT) for source in row.source)
        spans = self.spans(row.ids[start:], decode)
        return replace(row, span=[(start + a, start + b, name) for a, b, name in spans])

    def alphabet(self, characters: Iterable[str] | None) -> Iterable[str] | None:
        """Characters that a tokenizer of single characters needs; `None` stays open."""
        written = {*"".join(map("".join, self.tags.values())), *self.space}
        return None if characters is None else "".join(sorted({*characters, *written}))

    def example(self, problem: Problem) -> Problem:
        """The problem with an answer whose every block is as long as its demonstration."""
        return rewritten(problem, self.write(**dict.fromkeys(self.tags, problem.demonstration or "")))

    def scorer(self, scorer: Any) -> Any:
        """A scorer of whole answers, from one of what is judged."""
        return BlockScorer(scorer, self) if self.judged == "answer" else scorer


def _tokens_until(ids: Sequence[int], decode: Decode, length: int) -> int:
    """How many of the first tokens it takes to write that many characters."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if len(decode(ids[:middle])) >= length:
            high = middle
        else:
            low = middle + 1
    return low


STYLES: Mapping[str, Blocks] = {
    "words": Blocks({name: (f"<{name}>", f"</{name}>") for name in SPANS}, " "),
    "symbols": Blocks({"guess": ("⟨", "⟩"), "think": ("«", "»"), "answer": ("‹", "›")}),
}
"""Tags as words, and as single characters for models whose tokens are characters."""


@dataclass
class BlockScorer:
    """Judges the content of `answer` with another scorer; the reward is 1 more for a well-formed text.

    The verdict is that of the content, and fail without an answer block.
    """

    inner: Any
    blocks: Blocks

    def score(self, items: Sequence[tuple[str, Problem]]) -> list[Score]:
        contents = [self.blocks.content(text, "answer") for text, _ in items]
        judged = [
            (content, problem)
            for content, (_, problem) in zip(contents, items, strict=True)
            if content is not None
        ]
        inner = iter(self.inner.score(judged))
        return [
            self._sum(text, Score(0.0, Verdict.FAIL) if content is None else next(inner))
            for (text, _), content in zip(items, contents, strict=True)
        ]

    def _sum(self, text: str, score: Score) -> Score:
        form = float(self.blocks.well_formed(text))
        reward = None if score.reward is None else score.reward + form
        return replace(score, reward=reward, parts={**score.parts, "blocks": form})


@dataclass(frozen=True)
class GuessFirst:
    """Rollouts with their spans marked, and beside them the label written as a guess.

    Attributes:
        blocks: How guess, think and answer are written.

    The label is the problem's answer where that is a text or a number, else its demonstration.

    Reference:
        GTA (arXiv 2509.12108).
    """

    blocks: Blocks

    def __call__(self, problems: Sequence[Problem], collector: Collector) -> Collecting:
        decode = collector.renderer.decode
        groups = yield [SampleRequest(p, collector.group_size) for p in problems]
        rows, formed, told, differ = [], 0, 0, 0
        for problem, group in zip(problems, groups, strict=True):
            rows += [self.blocks.mark(row, decode) for row in group]
            for row in group:
                text = decode(row.response_ids)
                guess, answer = (self.blocks.content(text, name) for name in ("guess", "answer"))
                formed += self.blocks.well_formed(text)
                told += guess is not None and answer is not None
                differ += guess is not None and answer is not None and guess != answer
            label = short_answer(problem)
            label = problem.demonstration if label is None else label
            if label is not None:
                guess_only = rewritten(problem, self.blocks.write(guess=label))
                taught = collector.demonstration(guess_only, group[0].group)
                assert taught is not None
                rows.append(self.blocks.mark(taught, decode))
        collector.notes["blocks/well_formed"] = formed / max(sum(map(len, groups)), 1)
        if told:
            collector.notes["blocks/answer_differs_from_guess"] = differ / told
        return rows
