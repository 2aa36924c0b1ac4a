"""Rows that a stage is trained on, made before it starts from what earlier weights can do.

    PassRateSplit   own answers where the policy is unsure, demonstrations where it fails    Metis-RISE
    SolvedSplit     rehearse what the start policy always solves, explore the rest           DPH-RL
    ExpertRound     every distinct correct answer, with the demonstrations                   expert iteration
    FormPairs       two right answers that differ in form                                    SPECS
    KeepCorrect     remembers correct rollouts while a stage runs, FromShelf takes them      re-distillation
    AnswerBank      remembers answers of several checkpoints, SelfMixture draws from them    TMS

Sampled ids stay as they were sampled. Every harvest says how its rows came about in its notes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from interlace.rules.bench import Bench, Harvested, Turn, as_demonstration
from interlace.rules.form import corruptions, format_kept
from interlace.types import Batch, Finish, Problem, Trajectory, Verdict

ROWS_PER_CALL = 4096
"""Answers asked for at once; no result depends on it."""


def is_correct(row: Trajectory) -> bool:
    """Verdict pass, or, where no verdict is given, reward above 0.5."""
    if row.verdict is None:
        return row.reward is not None and row.reward > 0.5
    return row.verdict is Verdict.PASS


def is_scored(row: Trajectory) -> bool:
    """Whether anything can be said about the row."""
    return row.verdict is not Verdict.UNSCORABLE and (row.verdict is not None or row.reward is not None)


def answers(
    bench: Bench, problems: Sequence[Problem], n: int, policy: str = "policy"
) -> Iterator[tuple[Problem, list[Trajectory]]]:
    """Each problem with n answers of a policy, sampled in pieces of bounded size."""
    size = max(1, ROWS_PER_CALL // n)
    for first in range(0, len(problems), size):
        part = problems[first : first + size]
        rows = bench.sample(part, n, policy=policy)
        for i, problem in enumerate(part):
            yield problem, rows[i * n : (i + 1) * n]


def alone(row: Trajectory) -> Trajectory:
    """An answer as a row to imitate, in a group of its own."""
    return replace(as_demonstration(row), group=f"{row.problem.id}/{row.row}")


def demonstrated(bench: Bench, problem: Problem) -> list[Trajectory]:
    """The row of a problem's demonstration in a group of its own; none where it has none."""
    row = bench.demonstration_row(problem)
    return [] if row is None else [replace(row, group=f"{problem.id}/demonstration")]


def pass_kind(right: int, scored: int) -> str:
    """What a prompt is called of which `right` of `scored` answers are correct."""
    if not scored:
        return "unscorable"
    return "unsolved" if not right else "solved" if right == scored else "unstable"


@dataclass(frozen=True)
class PassRateSplit:
    """Routes every prompt by its pass rate P under the final policy of the stage before.

    0 < P < 1: the first `per_prompt` distinct correct answers; P = 0: the demonstration (checked against its
    verifier when the data was loaded), if there is one; P = 1: nothing.

    Attributes:
        samples: Answers per prompt.
        per_prompt: Own answers kept of a prompt at most.

    Reference:
        Metis-RISE (arXiv 2506.13056).
    """

    samples: int
    per_prompt: int

    def __call__(self, bench: Bench) -> Harvested:
        rows: list[Trajectory] = []
        kinds = ("solved", "unstable", "unsolved", "unscorable")
        notes = {**{f"prompts_{kind}": 0 for kind in kinds}, "rows_own": 0, "rows_expert": 0}
        for problem, tried in answers(bench, bench.prompts, self.samples):
            scored = [row for row in tried if is_scored(row)]
            right = [row for row in scored if is_correct(row)]
            kind = pass_kind(len(right), len(scored))
            own = distinct(right, bench)[: self.per_prompt] if kind == "unstable" else []
            expert = demonstrated(bench, problem) if kind == "unsolved" else []
            rows += [*map(alone, own), *expert]
            for name, more in ((f"prompts_{kind}", 1), ("rows_own", len(own)), ("rows_expert", len(expert))):
                notes[name] += more
        nothing = "no prompt is unstable, and none is unsolved with a demonstration"
        return Harvested(rows, notes=notes, skip=None if rows else nothing)


@dataclass(frozen=True)
class SolvedSplit:
    """Splits the prompts by whether the start policy solves them in every sample.

    Of each prompt that it does one answer is rehearsed, which carries its log-probabilities under these
    weights (no reference model is kept); the others are explored.

    Attributes:
        samples: Answers per prompt.

    Reference:
        DPH-RL (arXiv 2509.07430).
    """

    samples: int

    def __call__(self, bench: Bench) -> Harvested:
        rehearsed: list[Trajectory] = []
        explored: list[str] = []
        for problem, tried in answers(bench, bench.prompts, self.samples):
            if all(map(is_correct, tried)):
                rehearsed.append(alone(tried[0]))
            else:
                explored.append(problem.id)
        known = bench.log_probs(rehearsed) if rehearsed else []
        rows = [
            replace(row, extra={**row.extra, "ref_logp": logp})
            for row, logp in zip(rehearsed, known, strict=True)
        ]
        notes = {"prompts_rehearsed": len(rows), "prompts_explored": len(explored)}
        nothing = f"the start policy solves every prompt in all of {self.samples} samples"
        return Harvested(rows, explored, notes, skip=None if explored else nothing)


@dataclass(frozen=True)
class ExpertRound:
    """Every correct answer of the present policy, without duplicates, and the demonstrations.

    Two answers are the same if their equations are (see `canonical`).

    Attributes:
        samples: Answers per prompt.
        cap: Answers kept of a prompt at most; `None` is all.
        use_demos: Whether demonstrations are trained too.
        saturates: End the rounds as soon as one did not raise the greedy accuracy on validation problems.

    Reference:
        Expert iteration (arXiv 2403.04642).
    """

    samples: int
    cap: int | None = None
    use_demos: bool = True
    saturates: bool = False

    def __call__(self, bench: Bench) -> Harvested:
        notes: dict[str, float] = {}
        if self.saturates and bench.validation:
            before = bench.shelf.get("validation")
            now = bench.sample(bench.validation, 1, temperature=0.0)
            bench.shelf["validation"] = now
            notes["accuracy"] = accuracy(now)
            if before is not None and accuracy(now) <= accuracy(before):
                reached = f"accuracy on validation problems {accuracy(before):.1%} -> {accuracy(now):.1%}"
                return Harvested([], notes=notes, skip=f"the rounds no longer help: {reached}", ends=True)
        kept: list[Trajectory] = []
        right = solved = 0
        for _, tried in answers(bench, bench.prompts, self.samples):
            found = [row for row in tried if is_correct(row)]
            right, solved = right + len(found), solved + bool(found)
            kept += map(alone, distinct(found, bench)[: self.cap])
        notes |= {"prompts_solved": solved, "rows_correct": right, "rows_own": len(kept)}
        if not kept:
            return Harvested([], notes=notes, skip="no sampled answer is correct", ends=True)
        demos = [row for p in bench.demonstrated if self.use_demos for row in demonstrated(bench, p)]
        return Harvested([*kept, *demos], notes=notes | {"rows_demonstration": len(demos)})


@dataclass(frozen=True)
class FormPairs:
    """Pairs of right answers that differ in form: chosen by the policy, rejected by the base and corrupted.

    Of each prompt the first chosen answer that is correct (and well formed, where the reward has a part
    `format`), and the first correct answer of the base with its form broken by a rule (`form.corruptions`).
    Where the base has none the chosen text itself is broken, so that the pair differs in form alone.
    `group_size` answers are sampled of each.

    Reference:
        SPECS (arXiv 2510.25801).
    """

    def __call__(self, bench: Bench) -> Harvested:
        rows: list[Trajectory] = []
        notes = {"prompts_unsolved": 0, "pairs": 0, "pairs_from_base": 0, "pairs_dropped": 0}
        n = bench.group_size
        base = {p.id: tried for p, tried in answers(bench, bench.prompts, n, "base")}
        for problem, tried in answers(bench, bench.prompts, n):
            chosen = next((row for row in tried if is_correct(row) and format_kept(row) is not False), None)
            if chosen is None:
                notes["prompts_unsolved"] += 1
                continue
            right = next((row for row in base[problem.id] if is_correct(row)), None)
            broken = corruptions(bench.text(right or chosen))
            draw = random.Random(f"{bench.seed}|form|{problem.id}")
            rejected = (
                bench.demonstration_row(replace(problem, demonstration=draw.choice(broken)))
                if broken
                else None
            )
            if rejected is None or len(rejected.response_ids) > bench.max_new_tokens:
                notes["pairs_dropped"] += 1
                continue
            notes["pairs"] += 1
            notes["pairs_from_base"] += right is not None
            rows += [
                replace(row, group=f"{problem.id}/pair", extra={**row.extra, "role": role})
                for row, role in ((as_demonstration(chosen), "chosen"), (rejected, "rejected"))
            ]
        nothing = "no prompt has a correct answer to choose"
        return Harvested(rows, notes=notes, skip=None if rows else nothing)


@dataclass
class KeepCorrect:
    """A controller that keeps the correct rollouts of a stage's last steps, the first of each prompt.

    Attributes:
        last_steps: How many steps.
        shelf: Name on the shelf.
    """

    last_steps: int
    shelf: str = "correct"

    def before(self, bench: Bench, batch: Batch) -> Mapping[str, float]:
        return {}

    def after(self, bench: Bench, rows: Sequence[Trajectory], batch: Batch, results: Any) -> None:
        if bench.step < bench.steps - self.last_steps:
            return
        kept = bench.shelf.setdefault(self.shelf, [])
        seen = {row.problem.id for row in kept}
        for row in rows:
            if row.sampling is not None and is_correct(row) and row.problem.id not in seen:
                kept.append(row)
                seen.add(row.problem.id)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class FromShelf:
    """Rows that an earlier stage put on the shelf: one of each prompt, shuffled, `samples` of them.

    Reference:
        Re-distillation, recipe from the rollout buffer (arXiv 2505.17988).
    """

    samples: int
    shelf: str = "correct"

    def __call__(self, bench: Bench) -> Harvested:
        found = bench.shelf.get(self.shelf, [])
        first = list({row.problem.id: row for row in reversed(found)}.values())[::-1]
        random.Random(f"{bench.seed}|{self.shelf}").shuffle(first)
        rows = [alone(row) for row in first[: self.samples]]
        notes = {"prompts_solved": len(first), "rows_own": len(rows)}
        return Harvested(rows, notes=notes, skip=None if rows else "no rollout of its last steps is correct")


@dataclass
class AnswerBank:
    """A controller that lets evenly spaced checkpoints of a stage answer every demonstrated prompt, once.

    Attributes:
        checkpoints: How many; with fewer steps some fall on the same step.
        shelf: Name on the shelf. Answers that are empty are left out.

    Reference:
        TMS (arXiv 2602.03073).
    """

    checkpoints: int
    shelf: str = "answers"

    def places(self, steps: int) -> list[int]:
        """The steps after which the checkpoints are taken."""
        return [max(1, round(i * steps / self.checkpoints)) for i in range(1, self.checkpoints + 1)]

    def before(self, bench: Bench, batch: Batch) -> Mapping[str, float]:
        return {}

    def after(self, bench: Bench, rows: Sequence[Trajectory], batch: Batch, results: Any) -> None:
        bank = bench.shelf.setdefault(self.shelf, [])
        for _ in range(self.places(bench.steps).count(bench.step + 1)):
            for _, (row,) in answers(bench, bench.demonstrated, 1):
                if not is_empty(row):
                    bank.append(as_demonstration(row))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class SelfMixture:
    """Each time a prompt is drawn: its label with probability `alpha`, else one of the bank's answers.

    Where the bank has no answer the label is taken.

    Reference:
        TMS (arXiv 2602.03073): the target alpha q + (1 - alpha) m, drawn.
    """

    alpha: float
    stage: str
    shelf: str = "answers"
    optimizers: Mapping[str, float] = field(default_factory=dict)
    _bank: dict[str, list[Trajectory]] | None = field(default=None, repr=False)

    def turn(self, bench: Bench) -> Turn:
        if self._bank is None:
            self._bank = {}
            for row in bench.shelf.get(self.shelf, []):
                self._bank.setdefault(row.problem.id, []).append(row)
        draw = random.Random(f"{bench.seed}|mixture|{bench.step}")
        chosen: list[Problem | Trajectory] = []
        for i, problem in enumerate(bench.demonstrations(bench.demos_per_step)):
            label, place = draw.random() < self.alpha, draw.random()
            own = self._bank.get(problem.id, [])
            if label or not own:
                chosen.append(problem)
            else:
                chosen.append(replace(own[int(place * len(own))], group=f"demonstration#{i}"))
        labels = sum(isinstance(item, Problem) for item in chosen)
        return Turn(self.stage, chosen, notes={"mixture/labels": labels / max(len(chosen), 1)})

    def observe(
        self, bench: Bench, turn: Turn, rows: Sequence[Trajectory], batch: Batch, results: Any
    ) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._bank = None


def is_empty(row: Trajectory) -> bool:
    """Whether nothing but an end token was sampled."""
    return len(row.response_ids) <= (row.finish is Finish.STOP)


def accuracy(rows: Sequence[Trajectory]) -> float:
    """Share of correct rows among those that were scored, 0 without any."""
    scored = [row for row in rows if is_scored(row)]
    return sum(map(is_correct, scored)) / max(len(scored), 1)


_NUMBER = r"(?:\(\s*)*[-+]?\d+(?:\.\d+)?(?:\s*\))*"
_EQUATION = re.compile(rf"{_NUMBER}(?:\s*[-+*/]\s*{_NUMBER})*\s*=\s*{_NUMBER}")


def canonical(text: str) -> str:
    """What two wordings of one solution share: its equations in order, or, without any, its words."""
    equations = ["".join(found.split()) for found in _EQUATION.findall(text)]
    return ";".join(equations) if equations else " ".join(text.split())


def distinct(rows: Sequence[Trajectory], bench: Bench) -> list[Trajectory]:
    """The first row of every distinct solution, in order."""
    found: dict[str, Trajectory] = {}
    for row in rows:
        found.setdefault(canonical(bench.text(row)), row)
    return list(found.values())
