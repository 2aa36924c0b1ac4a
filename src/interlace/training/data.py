"""Problems of a run: taken from a task, checked against their verifier, rendered once, filtered by length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from interlace.config import ConfigError, Configuration, fingerprint
from interlace.policies import Renderer
from interlace.rewards import Scorer
from interlace.tasks import Task, check_problems, drop_failures
from interlace.types import Problem

MAX_PROBLEMS = 6000
"""Training problems of a task that has no end, unless `problems` says otherwise."""

ORDER_STRIDE = 1_000_003
"""Apart from the seeds that people give, so that two runs with neighbouring seeds share no orders."""


@dataclass
class Data:
    """Problems of a run, rendered once and filtered before any backend sees them."""

    task: Task
    prompts: list[Problem]
    demonstrations: list[Problem]
    validation: list[Problem]
    test: list[Problem]
    notes: list[str]
    fingerprint: str


def load_data(
    c: Configuration, renderer: Renderer, scorer: Scorer, task: Task, max_positions: int | None
) -> Data:
    """Problems by split; references and demonstrations checked against their own verifier, long ones dropped.

    Raises:
        ConfigError: nothing is left to train on.
    """
    notes: list[str] = []
    train = take(task, "train", c.run.problems or MAX_PROBLEMS, c.run.seed)
    report = check_problems(train, scorer)
    if not report.ok:
        notes.append(report.summary())
    if any(s.samples for s in c.stages) and not any(report.checked.values()):
        raise ConfigError(
            f"task {c.run.task}: no row has an answer, so no rollout could be scored; give rows an answer, "
            f"or reward=FILE.py:FUNCTION that needs none"
        )
    train = drop_failures(train, report)
    fill_lengths(c, renderer, train)
    prompt_limit = min(filter(None, (s.settings.max_prompt_tokens for s in c.stages)), default=None)
    demo_limit = min(filter(None, (s.settings.max_demo_tokens for s in c.stages)), default=None)
    kept, dropped = [], 0
    for problem in train:
        length = len(renderer.prompt_ids(problem))
        room = (
            None
            if max_positions is None
            else max_positions - max(s.settings.max_new_tokens or 0 for s in c.stages)
        )
        if (prompt_limit and length > prompt_limit) or (room is not None and length > room):
            dropped += 1
        else:
            kept.append(problem)
    if dropped:
        notes.append(
            f"{dropped} of {len(train)} prompts are over the limit and were dropped (max_prompt_tokens)"
        )
    demonstrations: list[Problem] = []
    over = 0
    wanted = c.run.demonstrations if c.run.demonstrations is not None else len(kept)
    parts = [part for s in c.stages for part in (s.method, *s.method.stages.values())]
    if any(part.demonstrations != "none" for part in parts):
        for problem in kept:
            if len(demonstrations) == wanted:
                break
            if problem.demonstration is None:
                continue
            prompt, demo = len(renderer.prompt_ids(problem)), len(renderer.demonstration_ids(problem))
            if (demo_limit and demo > demo_limit) or (max_positions and prompt + demo > max_positions):
                over += 1
            else:
                demonstrations.append(problem)
        if over:
            notes.append(
                f"{over} demonstrations are over the limit and were dropped, never cut (max_demo_tokens)"
            )
        # Whoever asks a problem for its demonstration later gets none that is not used.
        used = {p.id for p in demonstrations}
        kept = [p if p.id in used else replace(p, demonstration=None) for p in kept]
    fill_steps(c, len(demonstrations))
    if not demonstrations and any(part.demonstrations == "group" for part in parts):
        notes.append("this method takes demonstrations into its groups, and there are none")
    if not kept:
        raise ConfigError(f"task {c.run.task}: no training problem is left; {'; '.join(notes)}")
    fed = [s for s in c.stages if s.method.demonstrations == "feed" and s.method.harvest is None]
    if not demonstrations and any(s.settings.demos_per_step for s in fed):
        reason = "; ".join(notes) or "no row has one"
        raise ConfigError(
            f"task {c.run.task}: this method trains on demonstrations, and there are none: {reason}"
        )
    splits = [take(task, split, c.run.eval_problems, c.run.seed) for split in ("validation", "test")]
    if not splits[0] and any(s.settings.keep == "best" for s in c.stages):
        raise ConfigError(
            f"task {c.run.task}: keep=best compares weights on validation problems, and there are none; "
            f"give rows with split=validation, or keep=last"
        )
    key = fingerprint(
        [[(p.id, p.prompt, str(p.answer), p.demonstration) for p in part] for part in (kept, *splits)]
    )
    return Data(task, kept, demonstrations, splits[0], splits[1], notes, key)


def take(task: Task, split: str, n: int, seed: int) -> list[Problem]:
    """At most n problems of a split, fewer where it holds fewer, none where there is no such split.

    Training problems that run out come again in another surface order, where the task has one (the numbers
    of a countdown shuffled): held-out splits go by canonical key, so no order of theirs is among them.
    """
    if split not in task.splits:
        return []
    count = task.count(split)
    if count is None or count >= n:
        return task.problems(split, n, seed=seed)
    found: dict[str, Problem] = {}
    orders = 0
    while len(found) < n:
        known = len(found)
        for problem in task.problems(split, count, seed=seed + orders * ORDER_STRIDE) if count else ():
            if len(found) < n:
                found.setdefault(problem.id, problem)
        orders += 1
        if len(found) == known or split != "train":
            break
    return list(found.values())


def fill_steps(c: Configuration, demonstrations: int) -> None:
    """The steps of stages that are measured in epochs."""
    for stage in c.stages:
        s = stage.settings
        if s.steps is None and (stage.method.epochs is not None or c.run.budget is None):
            s.steps = math.ceil((stage.method.epochs or 0) * demonstrations / max(s.demos_per_step or 0, 1))


def fill_lengths(c: Configuration, renderer: Renderer, problems: Sequence[Problem]) -> None:
    """The limit of a completion where none is given: a quarter over the longest demonstration, or 64.

    Where answers are made of blocks, each of them may be as long.
    """
    if all(s.settings.max_new_tokens for s in c.stages):
        return
    written = (lambda p: p) if c.blocks is None else c.blocks.example
    lengths = [len(renderer.demonstration_ids(written(p))) for p in problems if p.demonstration is not None]
    limit = -(-max(lengths) * 5 // 4) if lengths else 64
    for stage in c.stages:
        stage.settings.max_new_tokens = stage.settings.max_new_tokens or limit
