"""What a task is, and how its problems are split.

A split is a function of the problem itself: a stable hash of a *canonical key* (the same for every
wording and order) says whether a problem belongs to training, validation or test. So no setting of
a knob, seed or process can move a problem from one split to another.
"""

from __future__ import annotations

import difflib
import hashlib
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Protocol

from interlace.types import Problem, Score, Verdict

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2

DRAWS_AT_LEAST = 20_000
DRAWS_PER_PROBLEM = 500
"""How often a random generator may draw in vain before it says that its space is exhausted."""


class Reward(Protocol):
    """Judges one completion; a picklable callable object.

    Attributes:
        bounded: True only for pure code that always returns, quickly, whatever the text: it is called
            in this process; everything else is called in worker processes with a time limit.
    """

    @property
    def bounded(self) -> bool: ...

    def __call__(self, completion: str, problem: Problem) -> Score: ...


def judged(correct: bool, extracted: str | None = None) -> Score:
    """The score of a verifier that only says right or wrong."""
    if correct:
        return Score(1.0, Verdict.PASS, {"correctness": 1.0}, "", extracted)
    return Score(0.0, Verdict.FAIL, {"correctness": 0.0}, "", extracted)


def unscorable(kind: str, detail: str = "") -> Score:
    """The score of a row about which nothing can be said; `kind` is what it is counted under."""
    return Score(None, Verdict.UNSCORABLE, {}, f"{kind}: {detail}" if detail else kind)


def nearest(name: str, accepted: Iterable[str]) -> str:
    """`" (nearest: x)"`, or nothing if no accepted name is close."""
    close = difflib.get_close_matches(name, list(accepted), n=1)
    return f" (nearest: {close[0]})" if close else ""


def stable_hash(*parts: object) -> int:
    """64 bits that are the same in every process and Python version."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")


def split_of(name: str, key: object, validation: float = VALIDATION_SHARE, test: float = TEST_SHARE) -> str:
    """The split that a canonical key belongs to.

    Args:
        name: Task name; different tasks are split independently.
        key: Canonical key, with a stable `str`.
        validation, test: Shares of all keys.

    Returns:
        `train`, `validation` or `test`.
    """
    u = stable_hash("split", name, key) / 2**64
    if u < validation:
        return "validation"
    return "test" if u < validation + test else "train"


class Task:
    """Problems with a verifier.

    Attributes:
        name: What it is called in specs, ids and reports.
        summary: One line for listings.
        system: A system message that a chat model may be given, or `None`.
        max_new_tokens: A sensible limit for answers, or `None` if it knows none.
    """

    name: str
    summary: str
    system: str | None = None
    max_new_tokens: int | None = None

    @property
    def alphabet(self) -> str | None:
        """Every character of its prompts and demonstrations, sorted; `None` for open text."""
        return None

    @property
    def reward(self) -> Reward | str:
        """Its verifier, or the spec of one for `interlace.rewards.load_reward`."""
        raise NotImplementedError

    @property
    def splits(self) -> tuple[str, ...]:
        raise NotImplementedError

    def problems(self, split: str = "train", n: int | None = None, seed: int = 0) -> list[Problem]:
        """`n` distinct problems of a split, the same for the same knobs, split, n and seed.

        Args:
            split: One of `splits`.
            n: How many; `None` takes all of them where they can be counted.
            seed: Chooses which problems, in which order, and their surface order.

        Raises:
            ValueError: Unknown split, or fewer than `n` distinct problems exist.
        """
        raise NotImplementedError

    def count(self, split: str = "train") -> int | None:
        """How many distinct problems a split holds, or `None` if they are too many to list."""
        self._require_split(split)
        return None

    def _require_split(self, split: str) -> None:
        if split not in self.splits:
            raise ValueError(
                f"{self.name}: unknown split {split!r}{nearest(split, self.splits)}; "
                f"accepted: {', '.join(self.splits)}"
            )


@dataclass(frozen=True)
class PuzzleTask(Task):
    """A built-in task: knobs are the fields, problems are made, solved and split by canonical key.

    A subclass gives `name` and `summary` (class attributes without annotation, so no fields), `space`
    (all keys, where they can be listed) or `draw` (one random key), and `write`, which turns a key into
    a problem with shuffled surface order and a worked solution.
    """

    def ood(self) -> Mapping[str, PuzzleTask]:
        """Out-of-distribution variants by split name; the first one is also called `ood`."""
        return {}

    def space(self) -> Sequence[Hashable] | None:
        """All keys in a fixed order, or `None` if they are too many to list."""
        return None

    def draw(self, rng: random.Random) -> Hashable | None:
        """A random key; `None` if this draw led nowhere."""
        raise NotImplementedError

    def write(self, key: Any, rng: random.Random) -> Problem:
        """The problem of a key, its surface order drawn from `rng`."""
        raise NotImplementedError

    @property
    def max_new_tokens(self) -> int | None:  # type: ignore[override]
        """Twice the longest of a few demonstrations, one token a character; 512 for English text."""
        if self.alphabet is None:
            return 512
        count = self.count("train")
        few = self.problems("train", 32 if count is None else min(32, count))
        return 2 * max((len(p.demonstration or "") for p in few), default=32)

    @property
    def splits(self) -> tuple[str, ...]:
        ood = tuple(self.ood())
        return ("train", "validation", "test", *(("ood",) if ood else ()), *ood)

    def problems(self, split: str = "train", n: int | None = None, seed: int = 0) -> list[Problem]:
        source, part, split = self._source(split)
        rng = random.Random(f"{self.name}|{split}|{seed}")
        choose = _drawn if source.space() is None else _listed
        keys = choose(source, part, n, rng, split)
        made = (source.write(key, random.Random(f"{source.name}|{key}|{seed}")) for key in keys)
        return [replace(p, meta={**p.meta, "split": split}) for p in made]

    def count(self, split: str = "train") -> int | None:
        source, part, _ = self._source(split)
        return None if source.space() is None else len(_keys(source, part))

    def _source(self, split: str) -> tuple[PuzzleTask, str, str]:
        self._require_split(split)
        variants = self.ood()
        if split == "ood":
            split = next(iter(variants))
        # A variant may share keys with this task (another rule on the same cards), so all of them
        # draw from the part of the keys that this task keeps for its test.
        return (variants[split], "test", split) if split in variants else (self, split, split)


@lru_cache(maxsize=32)
def _keys(task: PuzzleTask, part: str) -> tuple[Hashable, ...]:
    return tuple(key for key in task.space() or () if split_of(task.name, key) == part)


def _listed(task: PuzzleTask, part: str, n: int | None, rng: random.Random, split: str) -> list[Hashable]:
    keys = list(_keys(task, part))
    rng.shuffle(keys)
    if n is not None and n > len(keys):
        raise ValueError(
            f"{task.name}: n={n}, but split {split!r} holds {len(keys)} distinct problems with "
            f"{_knobs_text(task)}; ask for at most {len(keys)} (another seed gives the same problems in "
            "another surface order), or widen the knobs"
        )
    return keys[:n]


def _drawn(task: PuzzleTask, part: str, n: int | None, rng: random.Random, split: str) -> list[Hashable]:
    if n is None:
        raise ValueError(
            f"{task.name}: n=None, but with {_knobs_text(task)} the problems of split {split!r} are too "
            "many to list; say how many"
        )
    found: dict[Hashable, None] = {}
    for _ in range(DRAWS_AT_LEAST + DRAWS_PER_PROBLEM * n):
        if len(found) == n:
            return list(found)
        key = task.draw(rng)
        if key is not None and key not in found and split_of(task.name, key) == part:
            found[key] = None
    if len(found) == n:
        return list(found)
    raise ValueError(
        f"{task.name}: n={n}, but only {len(found)} distinct problems of split {split!r} were found with "
        f"{_knobs_text(task)}; ask for at most {len(found)} or widen the knobs"
    )


def _knobs_text(task: PuzzleTask) -> str:
    return ", ".join(f"{f.name}={getattr(task, f.name)}" for f in fields(task))


def require(condition: bool, task: str, knob: str, value: object, accepted: str) -> None:
    """Refuse an impossible knob, saying what is accepted."""
    if not condition:
        raise ValueError(f"{task}: {knob}={value!r}; accepted: {accepted}")
