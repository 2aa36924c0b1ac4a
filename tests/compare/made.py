"""Results that were never run: right and wrong answers with chosen accuracies, for what reads results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from interlace.compare.jobs import Job
from interlace.compare.results import Results, Run, Search, TaskResults
from interlace.evaluation.results import Evaluation, ProblemResult
from interlace.types import Sampling

SAMPLES = 4


def evaluation(
    accuracy: float, rng: np.random.Generator, problems: int, text: str = "1+1=2"
) -> dict[str, Any]:
    """An evaluation in which every problem is right with this probability."""
    records = []
    for i in range(problems):
        right = int(rng.binomial(SAMPLES, accuracy))
        records.append(
            ProblemResult(
                f"sums:{i}",
                greedy=bool(rng.random() < accuracy),
                greedy_length=5,
                samples=SAMPLES,
                correct=right,
                lengths=(5,) * SAMPLES,
                majority={1: right / SAMPLES, 2: right / SAMPLES, 4: float(right > 1)},
                nats=5.0 * SAMPLES,
                text=text,
            )
        )
    return Evaluation(tuple(records), Sampling(), SAMPLES, (1, 2, 4)).to_dict()


def record(accuracy: float, rng: np.random.Generator, problems: int, text: str = "1+1=2") -> dict[str, Any]:
    return {
        "at": "final",
        "test": evaluation(accuracy, rng, problems, text),
        "validation": evaluation(accuracy, rng, problems),
        "ood": {"ood_large": evaluation(accuracy / 4, rng, 16)},
        "retention": {"arithmetic": {"logp": -2.0 - accuracy, "accuracy": 0.1}},
    }


def outcome(accuracy: float, flops: float = 9e11, charged: float = 0.0) -> dict[str, Any]:
    looks = [
        {
            "at": "train",
            "stage": 0,
            "flops": flops * share,
            "greedy": accuracy * share,
            "sampled": accuracy * share,
            "entropy": 1.5 - share,
            "length": 5.0,
            "truncated": 0.0,
        }
        for share in (0.25, 0.5, 0.75, 1.0)
    ]
    series = {
        "reward/pass": [[flops / 2, 0.2], [flops, 0.4]],
        "groups/live": [[flops / 2, 0.8], [flops, 0.6]],
    }
    totals = {"steps": 40.0, "rows/rollout": 640.0, "rows/demo": 320.0, "rows/unscorable": 0.0}
    return {
        "state": "done",
        "flops": flops,
        "charged": charged,
        "seconds": 61.0,
        "work": {
            "generate": flops / 3,
            "score": 0.0,
            "train": 2 * flops / 3,
            "generated": 5000,
            "trained": 9000,
        },
        "looks": looks,
        "training": {"totals": totals, "series": series, "tokens": [[flops, 14000.0]]},
    }


def run(label: str, seed: int, accuracy: float, problems: int = 60, text: str = "1+1=2", **more: Any) -> Run:
    rng = np.random.default_rng([seed, *label.encode()])
    job = Job(f"runs/sums/{label}/seed-{seed}", "run", label, label.split()[0], "sums", seed)
    return Run(
        job, "done", "", outcome(accuracy, **more), {"final": record(accuracy, rng, problems, text)}, Path()
    )


def failed(label: str, seed: int, state: str, error: str) -> Run:
    job = Job(f"runs/sums/{label}/seed-{seed}", "run", label, label.split()[0], "sums", seed)
    return Run(job, state, error, {"state": state, "error": error}, {}, Path())


def task(runs: list[Run], searches: dict[str, Search] | None = None, name: str = "sums") -> TaskResults:
    labels = list(dict.fromkeys(r.label for r in runs))
    base = {
        "outcome": {"parameters": 370_000},
        "measured": {**record(0.02, np.random.default_rng(7), 60), "at": "base"},
    }
    none = {label: Search("", {}, 0.0, 0) for label in labels}
    return TaskResults(name, base, 9e11, runs, {**none, **(searches or {})}, labels, "greedy")


def results(*tasks: TaskResults) -> Results:
    labels = dict.fromkeys(label for t in tasks for label in t.labels)
    contenders = [{"label": x, "method": x.split()[0], "settings": {}} for x in labels]
    return Results(
        {"contenders": contenders, "budget": "sft:400", "tasks": [t.task for t in tasks]}, list(tasks)
    )
