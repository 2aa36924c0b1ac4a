"""Evaluating a policy: answer every problem greedily, or n times at a temperature, and count.

    problems -> prompt ids -> engine -> texts -> verifier -> one record per problem -> Evaluation

The policy is seen only through an engine, so a local model and a server are evaluated alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from interlace.evaluation.metrics import best_of_k, majority_curve
from interlace.evaluation.results import GROUPS, Evaluation, ProblemResult
from interlace.types import Engine, Finish, Problem, SampleRequest, Sampling, Score, Verdict

ROWS_PER_CALL = 1024
"""Answers that are asked of the engine at once; no result depends on it."""

SAMPLES_AT_MOST = 1 << 20


@dataclass(frozen=True)
class Answer:
    """What is kept of one answer; its text only where it is the first of its problem."""

    length: int
    truncated: bool
    score: Score
    text: str
    logp: float

    @property
    def scorable(self) -> bool:
        return self.score.verdict != Verdict.UNSCORABLE

    @property
    def correct(self) -> bool:
        return self.score.verdict == Verdict.PASS


class Renderer(Protocol):
    """Turns problems into ids and ids into text."""

    def prompt_ids(self, problem: Problem) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Scorer(Protocol):
    """Scores texts against their problems."""

    def score(self, items: list[tuple[str, Problem]]) -> list[Score]: ...


def evaluate(
    engine: Engine,
    renderer: Renderer,
    problems: Sequence[Problem],
    scorer: Scorer,
    *,
    samples: int = 0,
    sampling: Sampling | None = None,
    greedy: bool = True,
    ks: Sequence[int] | None = None,
    prompt_limit: int | None = None,
    seed: int = 0,
    step: int = 0,
    progress: Callable[[int, int], None] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Accuracy of a policy on problems, greedy and sampled, with pass@k, majority@k and their intervals.

    Args:
        engine: Answers the prompts.
        renderer: Gives prompt ids and texts.
        problems: With distinct ids; every one is answered, unscorable answers are counted apart.
        scorer: Judges the answers.
        samples: Answers per problem at `sampling.temperature`; 0 is none. The samples of a problem are
            a function of (seed, step, its place in `problems`), and the first n of them do not depend on
            how many more are drawn.
        sampling: Temperature and filters of the samples; token limit and stops also of the greedy answer.
        greedy: Also answer once at temperature 0.
        ks: The k of pass@k and majority@k, up to `samples`; `None` takes 1, 2, 4, ... and `samples`.
        prompt_limit: Problems whose prompt has more tokens are left out and listed; never cut.
        progress: Told (answers so far, answers in all).
        settings: Kept with the result.

    Raises:
        ValueError: nothing to do (no problems, neither greedy nor samples, every prompt over the limit),
            an id given twice, samples at temperature 0, or a k over `samples`.
    """
    sampling = sampling or Sampling()
    ks = _checked_ks(ks, samples, sampling, greedy)
    _require_distinct(problems)
    prompts = {p.id: tuple(renderer.prompt_ids(p)) for p in problems}
    places = [i for i, p in enumerate(problems) if prompt_limit is None or len(prompts[p.id]) <= prompt_limit]
    if not places:
        shortest = min(map(len, prompts.values()))
        raise ValueError(
            f"every prompt is over prompt_limit={prompt_limit} tokens (the shortest has {shortest}); raise it"
        )
    once = replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
    total = len(places) * (samples + greedy)
    done = 0

    def ask(n: int, how: Sampling) -> dict[int, list[Answer]]:
        nonlocal done
        answers: dict[int, list[Answer]] = {i: [] for i in places}
        for part in _parts(places, n):
            requests = [
                SampleRequest(
                    problems[i], len(rows), how, prompt_ids=prompts[problems[i].id], rows=_row_ids(i, rows)
                )
                for i, rows in part
            ]
            found = engine.generate(requests, seed=seed, step=step)
            flat = [
                (i, c, renderer.decode(c.ids)) for (i, _), cs in zip(part, found, strict=True) for c in cs
            ]
            scores = scorer.score([(text, problems[i]) for i, _, text in flat])
            for (i, completion, text), score in zip(flat, scores, strict=True):
                cut = completion.finish == Finish.LENGTH
                shown, logp = "" if answers[i] else text, math.fsum(completion.logp)
                answers[i].append(Answer(len(completion.ids), cut, score, shown, logp))
            done += len(flat)
            if progress is not None:
                progress(done, total)
        return answers

    greedily = ask(1, once) if greedy else {}
    sampled = ask(samples, sampling) if samples else {}
    everything = [a for asked in (greedily, sampled) for found in asked.values() for a in found]
    voting = _names_answers(everything)
    records = [_record(problems[i], greedily.get(i, []), sampled.get(i, []), ks, voting) for i in places]
    reasons = Counter(a.score.reason.split(":")[0] or "no reason given" for a in everything if not a.scorable)
    kept = set(places)
    overlong = tuple(p.id for i, p in enumerate(problems) if i not in kept)
    noted = {**(settings or {}), "seed": seed}
    return Evaluation(tuple(records), sampling, samples, ks, overlong, dict(reasons), noted)


def _record(
    problem: Problem, greedy: list[Answer], sampled: list[Answer], ks: Sequence[int], voting: bool
) -> ProblemResult:
    scorable = [a for a in sampled if a.scorable]
    first = next((a for a in greedy if a.scorable), None)
    rewards = [a.score.reward for a in scorable if a.score.reward is not None]
    shown = (greedy or sampled)[0]
    return ProblemResult(
        id=problem.id,
        groups=_groups(problem),
        greedy=first.correct if first else None,
        greedy_reward=first.score.reward if first else None,
        greedy_length=greedy[0].length if greedy else None,
        greedy_truncated=bool(greedy) and greedy[0].truncated,
        samples=len(scorable),
        correct=sum(a.correct for a in scorable),
        reward=sum(rewards) / len(rewards) if rewards else None,
        lengths=tuple(a.length for a in sampled),
        truncated=sum(a.truncated for a in sampled),
        unscorable=sum(not a.scorable for a in (*greedy, *sampled)),
        invalid=sum(a.truncated or (voting and a.score.extracted is None) for a in greedy or sampled),
        majority=_majority(scorable, ks) if voting else {},
        best={k: _best(scorable, k) for k in ks if k <= len(scorable)},
        nats=-math.fsum(a.logp for a in sampled) if sampled else None,
        text=shown.text,
        extracted=shown.score.extracted,
    )


def _names_answers(answers: Sequence[Answer]) -> bool:
    """Whether the verifier says which answer it read, without which no vote can be held."""
    named = any(a.score.extracted is not None for a in answers)
    return named and not any(a.correct and a.score.extracted is None for a in answers)


def _majority(scorable: list[Answer], ks: Sequence[int]) -> dict[int, float]:
    reached = [k for k in ks if k <= len(scorable)]
    if not reached:
        return {}
    answers = [a.score.extracted for a in scorable]
    curve = majority_curve(answers, [a.correct for a in scorable], max(reached))
    return {k: curve[k - 1] for k in reached}


def _best(scorable: list[Answer], k: int) -> float:
    """Accuracy of the answer of k whose tokens are likeliest on average."""
    confidence = [a.logp / max(a.length, 1) for a in scorable]
    return best_of_k(confidence, [float(a.correct) for a in scorable], k)


def _groups(problem: Problem) -> dict[str, str]:
    found = {"task": problem.task, **{k: problem.meta.get(k) for k in GROUPS if k != "task"}}
    return {k: str(v) for k, v in found.items() if v not in (None, "")}


def _parts(places: Sequence[int], n: int) -> list[list[tuple[int, range]]]:
    """Requests of the engine, at most `ROWS_PER_CALL` answers each (but at least one)."""
    pieces = [
        (i, range(start, min(start + ROWS_PER_CALL, n)))
        for i in places
        for start in range(0, n, ROWS_PER_CALL)
    ]
    parts: list[list[tuple[int, range]]] = []
    room = 0
    for piece in pieces:
        if len(piece[1]) > room:
            parts.append([])
            room = ROWS_PER_CALL
        parts[-1].append(piece)
        room -= len(piece[1])
    return parts


def _row_ids(place: int, rows: range) -> tuple[int, ...]:
    # Apart from the ids of training rows of the same step, and the same however many samples are drawn.
    return tuple((place + 1) * SAMPLES_AT_MOST + i for i in rows)


def _checked_ks(ks: Sequence[int] | None, samples: int, sampling: Sampling, greedy: bool) -> tuple[int, ...]:
    if not 0 <= samples < SAMPLES_AT_MOST:
        raise ValueError(f"samples={samples}: accepted are integers from 0 (greedy only)")
    if not samples and not greedy:
        raise ValueError("samples=0 and greedy=false: nothing to do; give samples, or greedy=true")
    if samples and sampling.temperature == 0:
        raise ValueError(
            f"samples={samples} at temperature=0 are all the same; give a temperature > 0, or samples=0"
        )
    if ks is None:
        return tuple(
            sorted(
                {k for k in (1 << i for i in range(20)) if k <= samples} | ({samples} if samples else set())
            )
        )
    if not samples:
        return ()
    wrong = [k for k in ks if not 1 <= k <= samples]
    if wrong:
        raise ValueError(
            f"k={wrong[0]}: accepted are 1 to samples={samples}; draw more samples or ask for less"
        )
    return tuple(sorted(set(ks)))


def _require_distinct(problems: Sequence[Problem]) -> None:
    if not problems:
        raise ValueError("no problems to evaluate on")
    twice = [i for i, count in Counter(p.id for p in problems).items() if count > 1]
    if twice:
        raise ValueError(
            f"problem id '{twice[0]}' appears more than once ({len(twice)} such ids); ids must be unique"
        )
