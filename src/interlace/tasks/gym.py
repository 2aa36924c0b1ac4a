"""Every reasoning-gym dataset by name, with its own scorer.

The library is imported on first use. Its questions carry no canonical key, so the split of a problem
is a stable hash of its question; draws that fall into another split are passed over (about three of
four for validation and test, which is felt where one item takes a second to make).
"""

from __future__ import annotations

import ast
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, ClassVar

from interlace.tasks.answers import final_answer
from interlace.tasks.base import Reward, Task, nearest, split_of, stable_hash, unscorable
from interlace.types import Problem, Score, Verdict

VALIDATION_SHARE = TEST_SHARE = 0.25
"""Large, because a draw outside the split is thrown away; the generators are all but endless."""

CHUNK = 1000
"""Dataset items made from one seed."""

VAIN_DRAWS = 2000
"""Draws in a row without a new problem after which a generator counts as exhausted."""


def dataset_names() -> list[str]:
    """Names of all reasoning-gym datasets."""
    import reasoning_gym  # noqa: F401  (registers them)
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def gym_knobs(dataset: str) -> dict[str, Any]:
    """The settings of a dataset with their defaults (`seed` and `size` are ours)."""
    fields = dataclasses.fields(_config_class(dataset))
    return {f.name: _default(f) for f in fields if f.name not in ("seed", "size")}


def _default(field: dataclasses.Field) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _config_class(dataset: str) -> Any:
    from reasoning_gym.factory import DATASETS

    names = dataset_names()
    if dataset not in names:
        raise ValueError(f"unknown reasoning-gym dataset {dataset!r}{nearest(dataset, names)}")
    return DATASETS[dataset][1]


def _same_text(answer: str, gold: str) -> bool:
    return answer.strip().lower() == gold.strip().lower()


def _same_number(answer: str, gold: str) -> bool:
    try:
        return abs(float(Fraction(answer.replace(",", ""))) - float(Fraction(gold))) <= 1e-4
    except (ValueError, ZeroDivisionError, OverflowError):
        return False


ALSO_REQUIRED: Mapping[str, Callable[[str, str], bool]] = {
    "coin_flip": _same_number,
    "game_of_life_halting": _same_text,
}
"""Conditions on a full score where a scorer gives it too easily (reasoning-gym 0.1.25): one to every
beginning of the right number (`0` for `0.234`), one to every text that is not empty."""


class GymTask(Task):
    """One reasoning-gym dataset.

    Args:
        dataset: Its name there.
        partial: Reward the partial scores that its scorer gives; otherwise the reward is 1 for a full
            score and 0 else, and the partial score is only reported.
        settings: Fields of its configuration; texts are read as Python literals where they are ones.

    Raises:
        ValueError: Unknown dataset or setting, or impossible settings.
    """

    system = "Think step by step, then give only the final answer inside <answer></answer> tags."
    max_new_tokens = 512
    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "test")  # type: ignore[assignment]

    def __init__(self, dataset: str, partial: bool = False, **settings: Any) -> None:
        self.dataset = dataset
        self.name = f"gym:{dataset}"
        self.summary = f"reasoning-gym dataset {dataset} with its own scorer"
        known = gym_knobs(dataset)
        for key in settings:
            if key not in known:
                raise ValueError(
                    f"{self.name}: unknown knob {key!r}{nearest(key, known)}; accepted: {', '.join(known)}"
                )
        self.settings = {k: _literal(v) if isinstance(v, str) else v for k, v in settings.items()}
        self.partial = _literal(partial) if isinstance(partial, str) else partial
        try:
            self._dataset(0)
        except (AssertionError, ValueError, TypeError) as error:
            raise ValueError(f"{self.name}: impossible knobs {self.settings}: {error}") from error

    @property
    def reward(self) -> Reward:
        return GymReward(self.dataset, bool(self.partial), self.settings)

    def problems(self, split: str = "train", n: int | None = None, seed: int = 0) -> list[Problem]:
        self._require_split(split)
        if n is None:
            raise ValueError(f"{self.name}: n=None, but problems are generated without end; say how many")
        found: dict[str, Problem] = {}
        vain = 0
        for entry in self._entries(split, seed):
            if len(found) == n or vain == VAIN_DRAWS:
                break
            key = " ".join(entry["question"].split())
            vain += 1
            if key not in found and split_of(self.name, key, VALIDATION_SHARE, TEST_SHARE) == split:
                found[key] = self._problem(key, entry, split)
                vain = 0
        if len(found) < n:
            raise ValueError(
                f"{self.name}: n={n}, but only {len(found)} distinct problems of split {split!r} were found "
                f"with {self.settings or 'default knobs'}; ask for fewer or widen the knobs"
            )
        return list(found.values())

    def _problem(self, key: str, entry: dict[str, Any], split: str) -> Problem:
        answer = entry.get("answer")
        return Problem(
            id=f"{self.name}:{stable_hash(key):016x}",
            prompt=entry["question"],
            answer=answer,
            # No dataset writes worked solutions: the demonstration is the gold answer alone, where its scorer
            # accepts it (checked at load like every demonstration).
            demonstration=None if answer is None else str(answer),
            task=self.name,
            meta={"entry": entry, "split": split},
        )

    def _entries(self, split: str, seed: int) -> Iterator[dict[str, Any]]:
        n_seeds = 2**31 // CHUNK
        first = stable_hash("gym", self.name, split, seed) % n_seeds
        for chunk in range(n_seeds):
            chunk_seed = (first + chunk) % n_seeds * CHUNK
            dataset = self._dataset(chunk_seed)
            for index in range(CHUNK):
                with _global_randomness(chunk_seed + index):
                    entry = dataset[index]
                yield entry

    def _dataset(self, seed: int) -> Any:
        from reasoning_gym import create_dataset

        with _global_randomness(seed):
            return create_dataset(self.dataset, **{**self.settings, "seed": seed, "size": CHUNK})


@contextmanager
def _global_randomness(seed: int) -> Iterator[None]:
    """Seed the process-wide generator, which a few datasets draw from, and put it back."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text


class GymReward:
    """The dataset's own scorer on the final answer of a text; 1.0 is right.

    Parts: `correctness` (1 or 0) and `score` (what the scorer gave, partial scores included).
    """

    bounded = False

    def __init__(self, dataset: str, partial: bool = False, settings: Mapping[str, Any] | None = None):
        self.dataset, self.partial, self.settings = dataset, partial, dict(settings or {})
        self._scorer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scorer": None}

    def prepare(self) -> None:
        """Import the library and build the scorer, which may take seconds."""
        from reasoning_gym import create_dataset

        if self._scorer is None:
            self._scorer = create_dataset(self.dataset, **{**self.settings, "seed": 0, "size": 1})

    def gold(self, problem: Problem) -> str | None:
        """The reference answer, if the dataset gives one (some have many right answers)."""
        return problem.answer

    def __call__(self, completion: str, problem: Problem) -> Score:
        entry = problem.meta.get("entry")
        if entry is None:
            return unscorable("gold", f"{self.dataset} needs meta['entry'], the reasoning-gym item")
        self.prepare()
        said = final_answer(completion)
        answer = completion.strip() if said is None else said
        score = self._score(answer, entry)
        correct = float(score == 1.0)
        return Score(
            score if self.partial else correct,
            Verdict.PASS if correct else Verdict.FAIL,
            {"correctness": correct, "score": score},
            "",
            answer[:200],
        )

    def _score(self, answer: str, entry: Mapping[str, Any]) -> float:
        gold = entry.get("answer")
        try:
            score = float(self._scorer.score_answer(answer, entry))
        except Exception:
            # Some scorers choke on malformed answers. If this one accepts the reference answer, then the
            # text is at fault and wrong; otherwise the scorer is, and the row is unscorable.
            if gold is not None and self._scorer.score_answer(gold, entry) == 1.0:
                return 0.0
            raise
        required = ALSO_REQUIRED.get(self.dataset)
        return 0.0 if score == 1.0 and required is not None and not required(answer, gold or "") else score
