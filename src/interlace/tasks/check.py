"""Does the verifier know its own answers? Asked at load, before anything is truncated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from interlace.types import Problem, Score, Verdict

NONSENSE = "zzz"
NONSENSE_ROWS = 16
"""How many problems are also answered with nonsense, which no verifier may accept."""


@dataclass(frozen=True)
class Failure:
    """One text that did not get the verdict it must get.

    Attributes:
        index: Position of the problem in what was checked.
        id: Its id.
        what: `gold`, `completion`, `demonstration`, or `nonsense` (accepted, and must not be).
        verdict: What the verifier said.
        reason: Why it was unscorable, or what was extracted instead.
    """

    index: int
    id: str
    what: str
    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class CheckReport:
    """What a self-check found.

    Attributes:
        problems: How many problems were looked at.
        checked: Texts checked, by what they are.
        unchecked: Problems with no text to check, or no answer to check it against.
        failures: Every text that failed.
    """

    problems: int
    checked: dict[str, int]
    unchecked: int
    failures: tuple[Failure, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not self.failures

    def summary(self, shown: int = 5) -> str:
        """A few lines for people: counts, and the first failures."""
        failed = Counter(f.what for f in self.failures)
        counts = ", ".join(f"{what} {n - failed[what]}/{n}" for what, n in self.checked.items() if n)
        lines = [f"verifier self-check of {self.problems} problems: {counts or 'nothing to check'}"]
        if self.unchecked:
            lines.append(
                f"{self.unchecked} problems cannot be checked (no answer, or no text that must pass)"
            )
        for f in self.failures[:shown]:
            because = f", {f.reason}" if f.reason else ""
            lines.append(f"  row {f.index} ({f.id}): {f.what}: {f.verdict.value}{because}")
        if len(self.failures) > shown:
            lines.append(f"  and {len(self.failures) - shown} more")
        return "\n".join(lines)


def check_problems(problems: Sequence[Problem], reward: Callable[[str, Problem], Score] | Any) -> CheckReport:
    """Let the verifier judge what must be right: gold answers, reference completions, demonstrations.

    A few problems are answered with nonsense as well, which must not pass.

    Args:
        problems: The problems, demonstrations not truncated.
        reward: A `Scorer` (its time limit protects this check too), or a plain reward, called here.
    """
    gold = getattr(getattr(reward, "reward", reward), "gold", None)
    texts: list[tuple[int, str, str]] = []
    for index, problem in enumerate(problems):
        candidates = {
            "gold": gold(problem) if gold is not None else None,
            "completion": problem.completion,
            "demonstration": problem.demonstration,
            "nonsense": NONSENSE if index < NONSENSE_ROWS else None,
        }
        texts += [(index, what, text) for what, text in candidates.items() if text is not None]
    pairs = [(text, problems[index]) for index, _, text in texts]
    scores = reward.score(pairs) if hasattr(reward, "score") else [reward(t, p) for t, p in pairs]
    checked: Counter[str] = Counter()
    looked_at: set[int] = set()
    failures = []
    for (index, what, _), score in zip(texts, scores, strict=True):
        problem = problems[index]
        if problem.answer is None and score.reason.startswith("gold"):
            continue  # a row to imitate only, which nothing can verify
        checked[what] += 1
        if what != "nonsense":
            looked_at.add(index)
        if (score.verdict is Verdict.PASS) == (what == "nonsense"):
            reason = score.reason or (f"read as {score.extracted!r}" if score.extracted is not None else "")
            failures.append(Failure(index, problem.id, what, score.verdict, reason))
    order = ("gold", "completion", "demonstration", "nonsense")
    return CheckReport(
        len(problems), {w: checked[w] for w in order}, len(problems) - len(looked_at), tuple(failures)
    )


def drop_failures(problems: Sequence[Problem], report: CheckReport) -> list[Problem]:
    """The problems of which no text failed, in order (accepted nonsense is the verifier's fault)."""
    bad = {f.index for f in report.failures if f.what != "nonsense"}
    return [p for i, p in enumerate(problems) if i not in bad]
