"""Rewards made of rewards: weighted sums, and one verifier per row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from interlace.rewards.base import Reward, unscorable
from interlace.types import Problem, Score, Verdict


class WeightedSum:
    """Sum of weight times reward over several rewards.

    The verdict is that of the first term that is not a format reward: format never makes an answer
    right or wrong. If all are format rewards, a text must satisfy all of them. If any term is
    unscorable, so is the sum.

    Args:
        terms: Names, weights and rewards.
    """

    def __init__(self, terms: Sequence[tuple[str, float, Reward]]) -> None:
        seen: Counter[str] = Counter()
        self.terms: list[tuple[str, float, Reward]] = []
        for name, weight, reward in terms:
            seen[name] += 1
            self.terms.append((name if seen[name] == 1 else f"{name}_{seen[name]}", weight, reward))
        self.judges = [i for i, (_, _, r) in enumerate(terms) if not getattr(r, "is_format", False)][:1]
        self.judges = self.judges or list(range(len(terms)))

    @property
    def bounded(self) -> bool:
        return all(reward.bounded for _, _, reward in self.terms)

    @property
    def is_format(self) -> bool:
        return all(getattr(reward, "is_format", False) for _, _, reward in self.terms)

    def prepare(self) -> None:
        for _, _, reward in self.terms:
            prepare(reward)

    def gold(self, problem: Problem) -> str | None:
        """The reference text of the term that decides on the verdict."""
        gold = getattr(self.terms[self.judges[0]][2], "gold", None)
        return None if gold is None else gold(problem)

    def __call__(self, completion: str, problem: Problem) -> Score:
        scores = [reward(completion, problem) for _, _, reward in self.terms]
        total, parts = 0.0, {}
        for (name, weight, _), score in zip(self.terms, scores, strict=True):
            if score.reward is None:
                kind, _, detail = score.reason.partition(": ")
                return unscorable(kind, f"{name}: {detail}" if detail else name)
            total += weight * score.reward
            parts.update(_named(name, score.parts))
        right = all(scores[i].verdict is Verdict.PASS for i in self.judges)
        verdict = Verdict.PASS if right else Verdict.FAIL
        return Score(total, verdict, parts, "", scores[self.judges[0]].extracted)


def _named(name: str, parts: Mapping[str, float]) -> dict[str, float]:
    if len(parts) == 1:
        return {name: next(iter(parts.values()))}
    return {f"{name}.{part}": value for part, value in parts.items()}


class PerRow:
    """A row's own verifier (`meta["reward"]`, a spec), or that of its task, or a default.

    Args:
        default: For all other rows; `None` makes them unscorable.
        by_task: Rewards by `problem.task`.
        load: How a spec becomes a reward; a spec that names none makes its rows unscorable.
    """

    bounded = False

    def __init__(
        self, default: Reward | None, by_task: Mapping[str, Reward], load: Callable[[str], Reward]
    ) -> None:
        self.default, self.by_task, self.load = default, dict(by_task), load
        self._by_spec: dict[str, Reward] = {}

    def prepare(self) -> None:
        for reward in (self.default, *self.by_task.values()):
            if reward is not None:
                prepare(reward)

    def of(self, problem: Problem) -> Reward | None:
        """The reward that judges this problem.

        Raises:
            ValueError: Its own spec names nothing.
        """
        spec = problem.meta.get("reward")
        if not isinstance(spec, str):
            return self.by_task.get(problem.task, self.default)
        if spec not in self._by_spec:
            self._by_spec[spec] = self.load(spec)
        return self._by_spec[spec]

    def gold(self, problem: Problem) -> str | None:
        try:
            gold = getattr(self.of(problem), "gold", None)
        except ValueError:
            return ""  # judging it shows what is wrong with the spec
        return None if gold is None else gold(problem)

    def __call__(self, completion: str, problem: Problem) -> Score:
        reward = self.of(problem)
        if reward is None:
            return unscorable("gold", f"no reward for task {problem.task!r}")
        return reward(completion, problem)


def prepare(reward: Any) -> None:
    """Do a reward's slow imports now, if it has any."""
    step = getattr(reward, "prepare", None)
    if step is not None:
        step()
