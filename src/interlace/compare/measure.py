"""What is measured of a model: held-out accuracy, variants that nothing was trained on, what it still knows.

The problems are the same for every run of a comparison; the samples are a function of the run's seed.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from interlace.evaluation.evaluate import evaluate
from interlace.policies import Renderer, TextPolicy
from interlace.rewards import Scorer
from interlace.rollout import LocalEngine
from interlace.tasks import BUILT_IN, Task, load_task
from interlace.training.collect import annotate, pack
from interlace.training.data import take
from interlace.types import Problem, Sampling, Source, Trajectory

USUAL_SPLITS = ("train", "validation", "test", "ood")
PROBLEM_SEED = 0
"""Chooses the problems, whatever the seed of a run."""
TEXT = "english"
"""The retention item that is a few passages of plain English."""


@dataclass(frozen=True)
class Suite:
    """What to measure.

    Attributes:
        problems: Held-out test problems; as many of the validation split.
        samples: Sampled answers to each test problem.
        ood_problems: Problems of each out-of-distribution variant.
        retention: Names of other tasks, `english`, `auto`, or `none`.
        metric: What is compared: the greedy answer, or samples also on validation problems.
        seed: Of the samples.
    """

    problems: int = 256
    samples: int = 8
    ood_problems: int = 128
    retention: str = "auto"
    metric: str = "greedy"
    seed: int = 0


def measure(
    policy: TextPolicy,
    task: Task,
    judge: Any,
    suite: Suite,
    max_new_tokens: int,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Every number that the report shows of one set of weights.

    Args:
        judge: Scores answers of the task (a `Scorer`, or a look into blocks around one).
        max_new_tokens: Limit of an answer; twice as much for harder variants and other tasks.
        say: Told what is measured, and what has to be left out.

    Returns:
        `test` and `validation` (`Evaluation.to_dict`), `ood` by split, `retention` by name.
    """
    engine = LocalEngine.for_policy(policy)
    renderer = Renderer(policy.tokenizer, policy.eos_ids)

    def answers(problems: Sequence[Problem], scorer: Any, samples: int, room: int) -> dict[str, Any]:
        return evaluate(
            engine,
            renderer,
            problems,
            scorer,
            samples=samples,
            sampling=Sampling(max_tokens=room),
            prompt_limit=policy.max_positions - room,
            seed=suite.seed + 1_000_003,
        ).to_dict()

    def retained(name: str, problems: Sequence[Problem]) -> dict[str, float | None]:
        numbers: dict[str, float | None] = {"logp": mean_logp(policy, renderer, problems, ends=name != TEXT)}
        if name != TEXT:
            room = 2 * max(len(renderer.demonstration_ids(p)) for p in problems)
            with Scorer(load_task(name).reward) as scorer:
                greedy = answers(problems, scorer, 0, room)["summary"]["greedy"]
            numbers["accuracy"] = greedy and greedy["value"]
        return numbers

    found: dict[str, Any] = {"max_new_tokens": max_new_tokens, "test": None, "validation": None}
    for split in ("test", "validation"):
        problems = take(task, split, suite.problems, PROBLEM_SEED)
        if problems:
            say(f"measuring {split}")
            samples = suite.samples if split == "test" or suite.metric == "sampled" else 0
            found[split] = answers(problems, judge, samples, max_new_tokens)
    found["ood"], found["retention"] = {}, {}
    for name, problems in variants(task, suite.ood_problems).items():
        say(f"measuring {name}")
        try:
            found["ood"][name] = answers(problems, judge, 0, 2 * max_new_tokens)
        except ValueError as error:  # prompts that this model cannot write or has no room for
            say(f"{name} is left out: {error}")
    for name, problems in kept_tasks(task, suite).items():
        say(f"measuring retention on {name}")
        try:
            found["retention"][name] = retained(name, problems)
        except ValueError as error:
            say(f"retention on {name} is left out: {error}")
    return found


def variants(task: Task, n: int) -> dict[str, list[Problem]]:
    """Problems of each out-of-distribution variant: other rules, other sizes, open text reworded."""
    if not n:
        return {}
    found = {split: take(task, split, n, PROBLEM_SEED) for split in task.splits if split not in USUAL_SPLITS}
    if task.alphabet is None and "test" in task.splits:
        problems = take(task, "test", n, PROBLEM_SEED)
        found["ood_wording"] = [replace(p, prompt=reworded(p.prompt)) for p in problems]
    return {name: problems for name, problems in found.items() if problems}


def reworded(prompt: Any) -> Any:
    """The same request in a frame that no training prompt has."""
    if isinstance(prompt, str):
        return f"Here is a task for you. Read it carefully and solve it.\n\n{prompt}"
    *before, last = [dict(message) for message in prompt]
    return [*before, {**last, "content": reworded(last["content"])}]


def kept_tasks(task: Task, suite: Suite) -> dict[str, list[Problem]]:
    """Problems, each with a demonstration, of tasks that are not trained on."""
    n = max(suite.ood_problems // 2, 16)
    if suite.retention == "none":
        return {}
    if suite.retention != "auto":
        names = [name for name in suite.retention.split(",") if name]
    else:
        others = [name for name in BUILT_IN if name != task.name]
        if task.alphabet is None:
            names = [*(f"{name}:style=text" for name in others), TEXT]
        else:
            names = [name for name in others if set(load_task(name).alphabet or "\0") <= set(task.alphabet)]
    found = {}
    for name in names:
        problems = passages() if name == TEXT else take(load_task(name), "test", n, PROBLEM_SEED)
        found[name] = [p for p in problems if p.demonstration is not None]
    return {name: problems for name, problems in found.items() if problems}


def passages() -> list[Problem]:
    """Plain English, split into a beginning and what follows."""
    text = importlib.resources.files("interlace.compare").joinpath("english.txt").read_text("utf-8")
    found = []
    for i, passage in enumerate(text.strip().split("\n\n")):
        first, _, rest = " ".join(passage.split()).partition(". ")
        found.append(Problem(f"{TEXT}:{i}", f"{first}.", demonstration=f" {rest}", task=TEXT))
    return found


def mean_logp(
    policy: TextPolicy, renderer: Renderer, problems: Sequence[Problem], ends: bool, tokens: int = 8192
) -> float:
    """Mean log-probability of a token of the demonstrations, in nats.

    Args:
        ends: Whether their end token counts.
    """
    rows = []
    for i, problem in enumerate(problems):
        prompt, demo = renderer.prompt_ids(problem), renderer.demonstration_ids(problem)
        demo = demo if ends else demo[:-1]
        source = [int(Source.PROMPT)] * len(prompt) + [int(Source.DEMO)] * len(demo)
        rows.append(Trajectory(i, prompt + demo, source, i, problem))
    batch = annotate(pack(rows), ["old_logp"], {"policy": policy}, micro_batch_tokens=tokens)
    return float(batch.arrays["old_logp"].mean())


def score_table(record: Mapping[str, Any], metric: str, split: str = "test") -> dict[str, float]:
    """Score by problem id: right or wrong greedily, or the share of right samples."""
    out = {}
    for p in (record.get(split) or {"problems": ()})["problems"]:
        if metric == "greedy" and p.get("greedy") is not None:
            out[p["id"]] = float(p["greedy"])
        elif metric == "sampled" and p.get("samples"):
            out[p["id"]] = p.get("correct", 0) / p["samples"]
    return out
