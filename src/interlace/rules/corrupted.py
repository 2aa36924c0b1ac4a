"""Corrupted twins of demonstrations: of their prompt, or of the solution itself."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from interlace.rules.bench import Bench
from interlace.types import Source, Trajectory


@dataclass(frozen=True)
class CorruptedPrompts:
    """Beside each demonstration the same answer after a corrupted prompt, in the same group.

    A share 1 - lambda of the prompt's tokens, lambda uniform in (0, 1) and drawn anew for every row, is
    replaced by tokens of another row's prompt; special tokens stay and are not brought in. The demonstration
    takes `extra.role` chosen, its twin rejected with `extra.mix_lambda`, the share that is left. A row
    without a partner of another problem stays alone.

    Reference:
        MergeMix (arXiv 2510.23479), whose images are here the tokens of a prompt.
    """

    def score_rows(self, bench: Bench, rows: Sequence[Trajectory]) -> list[Trajectory]:
        rng = random.Random(f"mix/{bench.seed}/{bench.step}")
        special = frozenset(bench.policies["policy"].tokenizer.all_special_ids)  # type: ignore[attr-defined]
        out: list[Trajectory] = []
        for row in rows:
            clean = replace(row, row=len(out), extra={**row.extra, "role": "chosen"})
            out.append(clean)
            others = [other for other in rows if other.problem.id != row.problem.id]
            if not others:
                continue
            ids, kept = mixed_prompt(row, rng.choice(others), rng.random(), special, rng)
            extra = {**row.extra, "role": "rejected", "mix_lambda": kept}
            out.append(replace(clean, row=len(out), ids=ids, behaviour_logp=None, extra=extra))
        return out


def mixed_prompt(
    row: Trajectory, other: Trajectory, kept: float, special: frozenset[int], rng: random.Random
) -> tuple[list[int], float]:
    """A row's ids with a share of its prompt from another's, and the share that was kept.

    A replaced token comes from the same relative place of the other prompt.
    """
    own = [t for t, s in enumerate(row.source) if s == Source.PROMPT and row.ids[t] not in special]
    theirs = [i for i, s in zip(other.ids, other.source) if s == Source.PROMPT and i not in special]
    ids = list(row.ids)
    if not own or not theirs:
        return ids, 1.0
    replaced = round((1 - kept) * len(own))
    for place in rng.sample(range(len(own)), replaced):
        ids[own[place]] = theirs[place * len(theirs) // len(own)]
    return ids, 1 - replaced / len(own)


NUMBER = re.compile(r"\d+")
OPERATORS = "+-*/"


def flipped_operator(text: str, rng: random.Random, operators: str) -> str | None:
    """The text with one operator between two numbers changed into another of `operators`."""
    places = [m.start(1) for m in re.finditer(r"\d\s*([-+*/])\s*(?=\d)", text)]
    places = [i for i in places if set(operators) - {text[i]}]
    if not places:
        return None
    i = rng.choice(places)
    return text[:i] + rng.choice(sorted(set(operators) - {text[i]})) + text[i + 1 :]


def near_miss(text: str, rng: random.Random, operators: str) -> str | None:
    """The text with its last number a little off."""
    numbers = list(NUMBER.finditer(text))
    return _other_number(text, numbers[-1], rng) if numbers else None


def corrupted_number(text: str, rng: random.Random, operators: str) -> str | None:
    """The text with any one of its numbers a little off."""
    numbers = list(NUMBER.finditer(text))
    return _other_number(text, rng.choice(numbers), rng) if numbers else None


def swapped_words(text: str, rng: random.Random, operators: str) -> str | None:
    """The text with two neighbouring, different words in the other order."""
    words = re.split(r"(\s+)", text)
    places = [i for i in range(0, len(words) - 2, 2) if words[i] != words[i + 2]]
    if not places:
        return None
    i = rng.choice(places)
    words[i], words[i + 2] = words[i + 2], words[i]
    return "".join(words)


def _other_number(text: str, number: re.Match[str], rng: random.Random) -> str:
    value = int(number[0])
    changed = rng.choice([v for v in range(max(0, value - 3), value + 4) if v != value])
    return text[: number.start()] + str(changed) + text[number.end() :]


CORRUPTIONS: Sequence[Callable[[str, random.Random, str], str | None]] = (
    flipped_operator,
    near_miss,
    corrupted_number,
)


def corruptions(text: str, n: int, rng: random.Random, operators: str = OPERATORS) -> list[str]:
    """At most n distinct corrupted versions of a solution.

    An operator, the last number or any number is changed; where a text has none of them, two words change
    places.

    Args:
        operators: What an operator may become.

    Reference:
        R-AIRL (arXiv 2510.01857): operator flip, near-miss answer, corrupted numbers.
    """
    ways = [*CORRUPTIONS]
    rng.shuffle(ways)
    found = [way(text, rng, operators) for way in ways]
    found = [one for one in found if one is not None] or [swapped_words(text, rng, operators)]
    return list(dict.fromkeys(one for one in found if one is not None and one != text))[:n]
