"""What a comparison found: read from its folders, with every number that the report shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.compare import statistics
from interlace.compare.jobs import Job, measured, outcome, read_job
from interlace.compare.measure import score_table
from interlace.compare.statistics import Difference, Needed
from interlace.config import ConfigError, read_yaml
from interlace.evaluation.metrics import LEVEL, Estimate, pass_at_k

MOST_LETTERED = 16
"""Methods of a ranking that is shown with letters."""

BASELINE = "sft_then_rl"
"""What every method is compared with, if it is there."""


@dataclass(frozen=True)
class Run:
    """One run of the table.

    Attributes:
        job: What it was asked to be.
        state: `done`, `diverged`, `dead`, `failed`, `blocked`, `waiting`.
        error: Why it is not done.
        outcome: How it ended: costs, looks along the way, series.
        measured: What was measured of its weights, by where; the last is `final`.
        folder: Where it is kept.
        before: How the job ended whose weights it started from.
        start: What was measured of those weights.
    """

    job: Job
    state: str
    error: str
    outcome: Mapping[str, Any]
    measured: Mapping[str, Mapping[str, Any]]
    folder: Path
    before: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.job.label

    @property
    def seed(self) -> int:
        return self.job.seed

    @property
    def done(self) -> bool:
        return self.state == "done" and "final" in self.measured

    @property
    def lost(self) -> bool:
        """Whether it will have no result, however long one waits."""
        return not self.done and self.state != "waiting"

    @property
    def reason(self) -> str:
        """Why it has no result."""
        return f"{self.state}: {self.error}" if self.error else self.state

    @property
    def cost(self) -> float:
        """Operations, those that its start weights have cost included."""
        return self.outcome.get("flops", 0.0) + self.outcome.get("charged", 0.0)

    def scores(self, metric: str, split: str = "test") -> dict[str, float]:
        """Score by problem of the final weights."""
        final = self.measured.get("final", {})
        record = final if split in ("test", "validation") else {split: final.get("ood", {}).get(split)}
        return score_table(record, metric, split)

    def pass_scores(self, k: int) -> dict[str, float]:
        """pass@k by problem, of the problems with at least k scorable samples."""
        problems = (self.measured["final"].get("test") or {"problems": ()})["problems"]
        enough = [p for p in problems if p.get("samples", 0) >= k]
        return {p["id"]: pass_at_k(p["samples"], p.get("correct", 0), k) for p in enough}

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Everything measured of the final weights as one number each, and what the run cost."""
        return {**numbers_of(self.measured.get("final", {})), **costs_of(self)}


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one set of weights by name, as `greedy`, `pass@8`, `ood/ood_numbers`."""
    out: dict[str, float | None] = {}
    test = (record.get("test") or {}).get("summary", {})
    for name in ("greedy", "sampled"):
        out[name] = (test.get(name) or {}).get("value")
    for table, short in (("pass_at_k", "pass"), ("majority_at_k", "majority"), ("best_of_k", "best")):
        for k, e in test.get(table, {}).items():
            out[f"{short}@{k}"] = e["value"]
    for name in ("entropy", "truncated", "invalid"):
        out[name] = test.get(name)
    out["length"] = test.get("mean_length")
    validation = (record.get("validation") or {}).get("summary", {})
    out["validation"] = (validation.get("greedy") or {}).get("value")
    for split, found in record.get("ood", {}).items():
        out[f"ood/{split}"] = (found["summary"]["greedy"] or {}).get("value")
    for name, kept in record.get("retention", {}).items():
        for what, value in kept.items():
            out[f"retention/{name}/{what}"] = value
    return {k: float(v) for k, v in out.items() if v is not None}


def costs_of(run: Run) -> dict[str, float]:
    """What a run cost, and what its training was like."""
    ended = run.outcome
    if "work" not in ended:
        return {}
    training, work = ended["training"], ended["work"]
    totals, series = training["totals"], training["series"]
    out = {
        "cost/flops": run.cost,
        "cost/charged": ended["charged"],
        "cost/generate": work.get("generate", 0.0),
        "cost/score": work.get("score", 0.0),
        "cost/train": work.get("train", 0.0),
        "cost/generated tokens": work.get("generated", 0),
        "cost/trained tokens": work.get("trained", 0),
        "cost/scored tokens": work.get("scored", 0),
        "cost/seconds": ended["seconds"],
        "steps": totals["steps"],
        "rollouts": totals["rows/rollout"],
        "demonstrations": totals["rows/demo"],
    }
    for name, key in (("live groups", "groups/live"), ("cut in training", "length/truncated")):
        if key in series:
            out[name] = float(np.mean([y for _, y in series[key]]))
    return {k: float(v) for k, v in out.items()}


@dataclass(frozen=True)
class Search:
    """How one contender's setting was chosen.

    Attributes:
        choice: The chosen setting; empty if there was none to choose.
        scores: Validation score by setting.
        cost: Operations of all runs of the search, shared starts charged.
        runs: How many they were.
    """

    choice: str
    scores: Mapping[str, float | None]
    cost: float
    runs: int


@dataclass(frozen=True)
class Standing:
    """One line of a ranking.

    Attributes:
        label: The contender.
        accuracy: Mean score with its interval.
        letters: Methods that share a letter are not told apart; of very many methods, whether it is told
            apart from the first.
        seeds: Seeds that ended well.
        missing: Seeds that ended without a result, with the reason.
        gain: Over the start model, on the same problems.
        against: Compared with the baseline (`None` for itself, or where there is none).
        numbers: Means over seeds.
        ranges: Smallest and largest over seeds.
    """

    label: str
    accuracy: Estimate
    letters: str
    seeds: tuple[int, ...]
    missing: Mapping[int, str]
    gain: Difference | None
    against: Difference | None
    numbers: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Pair:
    """Two contenders: how much better the second is, and whether that can be said.

    Attributes:
        first, second: Labels; the first stands higher in the ranking.
        difference: Second minus first.
        p: Adjusted for all pairs of the ranking (Holm).
        told: Whether they are told apart at the report's level.
        wins: Chance that a run of the second beats one of the first, ties half.
        needed: What would tell a difference of this size.
    """

    first: str
    second: str
    difference: Difference
    p: float
    told: bool
    wins: float
    needed: Needed


@dataclass
class TaskResults:
    """Everything found on one task.

    Attributes:
        task: Its spec.
        base: The start model's outcome and measurement.
        budget: Operations of every run; `None` where it was in steps.
        runs: Of the table, in the order of contenders and seeds.
        searches: By contender.
        labels: Contenders in the order of the comparison.
        metric, level: Of the ranking.
    """

    task: str
    base: Mapping[str, Any]
    budget: float | None
    runs: list[Run]
    searches: Mapping[str, Search]
    labels: Sequence[str]
    metric: str
    level: float = LEVEL
    batch: Mapping[str, Any] | None = None

    def of(self, label: str) -> list[Run]:
        """The runs of a contender that ended well."""
        return [r for r in self.runs if r.label == label and r.done]

    def table(self, label: str, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Scores [seeds, problems], problems in one order; those that some run cannot score are left out."""
        rows = {r.seed: i for i, r in enumerate(self.of(label))}
        return self._all(label)[[rows[s] for s in seeds]]

    @cached_property
    def problems(self) -> list[str]:
        """Ids of the test problems that every run of the table has a score for."""
        scored = [set(r.scores(self.metric)) for r in self.runs if r.done]
        return sorted(set.intersection(*scored)) if scored else []

    @cached_property
    def ranking(self) -> list[Standing]:
        """Contenders with a result, the best first."""
        told = {(p.first, p.second): p.told for p in self.pairs}
        letters = statistics.not_told_apart(self._order, told) if self.lettered else []
        if not letters:
            first = self._order[0] if self._order else ""
            letters = ["" if told.get((first, label), False) else "=" for label in self._order]
        return [self._standing(*item) for item in zip(self._order, letters, strict=True)]

    @property
    def lettered(self) -> bool:
        """Whether there are few enough methods for letters to be read."""
        return len(self._order) <= MOST_LETTERED

    @cached_property
    def _order(self) -> list[str]:
        """Contenders with a result, by their mean score."""
        shown = [label for label in self.labels if self.of(label)]
        return sorted(shown, key=lambda label: -float(self._all(label).mean()))

    @cached_property
    def pairs(self) -> list[Pair]:
        """Every two contenders, the better one first."""
        raw: dict[tuple[str, str], Difference] = {}
        for i, first in enumerate(self._order):
            for second in self._order[i + 1 :]:
                found = self.difference(first, second)
                if found is not None:
                    raw[first, second] = found
        adjusted = statistics.holm({pair: d.p for pair, d in raw.items()})
        return [
            Pair(
                *pair,
                d,
                adjusted[pair],
                adjusted[pair] < 1 - self.level,
                self._wins(*pair),
                statistics.needed(d, self.level),
            )
            for pair, d in raw.items()
        ]

    def pair(self, first: str, second: str) -> Pair | None:
        """The pair of two contenders, in the order of the ranking."""
        return self._pairs.get((first, second), self._pairs.get((second, first)))

    @cached_property
    def _pairs(self) -> dict[tuple[str, str], Pair]:
        return {(p.first, p.second): p for p in self.pairs}

    def difference(self, first: str, second: str) -> Difference | None:
        """Second minus first over the seeds that both have; `None` without one."""
        seeds = sorted({r.seed for r in self.of(first)} & {r.seed for r in self.of(second)})
        if not seeds or not self.problems:
            return None
        return statistics.difference(self.table(first, seeds), self.table(second, seeds), self.level)

    def pass_curve(self, label: str) -> dict[int, Estimate]:
        """pass@k with intervals over seeds and problems."""
        return self._curve([r.pass_scores for r in self.of(label)], self._ks(label))

    def _ks(self, label: str) -> list[int]:
        test = self.of(label)[0].measured["final"].get("test") or {"ks": ()}
        return list(test["ks"])

    def _curve(self, scores: Sequence[Any], ks: Iterable[int]) -> dict[int, Estimate]:
        out = {}
        for k in ks:
            tables = [of_run(k) for of_run in scores]
            shared = sorted(set.intersection(*map(set, tables)))
            if shared:
                out[k] = statistics.accuracy(_aligned(tables, shared), self.level)
        return out

    def ood(self, label: str) -> dict[str, Estimate]:
        """Accuracy on each variant with its interval."""
        out = {}
        splits = dict.fromkeys(s for r in self.of(label) for s in r.measured["final"].get("ood", {}))
        for split in splits:
            tables = [r.scores("greedy", split) for r in self.of(label)]
            shared = sorted(set.intersection(*map(set, tables)))
            if shared:
                out[split] = statistics.accuracy(_aligned(tables, shared), self.level)
        return out

    def _all(self, label: str) -> NDArray[np.float64]:
        return self._tables[label]

    @cached_property
    def _tables(self) -> dict[str, NDArray[np.float64]]:
        """Scores [seeds, problems] of every contender with a result."""
        of_labels = {label: self.of(label) for label in self.labels}
        return {
            label: _aligned([r.scores(self.metric) for r in runs], self.problems)
            for label, runs in of_labels.items()
            if runs
        }

    def _wins(self, first: str, second: str) -> float:
        a, b = self._all(first).mean(1), self._all(second).mean(1)
        return statistics.probability_of_improvement(a[:, None], b[:, None])

    def _standing(self, label: str, letters: str) -> Standing:
        runs = self.of(label)
        numbers, ranges = _over_seeds([r.numbers for r in runs])
        missing = {r.seed: r.reason for r in self.runs if r.label == label and r.lost}
        against = self.difference(BASELINE, label) if label != BASELINE and self.of(BASELINE) else None
        return Standing(
            label,
            statistics.accuracy(self._all(label), self.level),
            letters,
            tuple(r.seed for r in runs),
            missing,
            self._gain(label),
            against,
            numbers,
            ranges,
        )

    def _gain(self, label: str) -> Difference | None:
        base = score_table(self.base.get("measured", {}), self.metric)
        if not base or not set(self.problems) <= set(base):
            return None
        table = self._all(label)
        start = np.tile([base[p] for p in self.problems], (table.shape[0], 1))
        return statistics.difference(start, table, self.level)

    @property
    def absent(self) -> dict[str, dict[int, str]]:
        """Contenders without any result, with the reasons by seed (none while their runs are to come)."""
        out: dict[str, dict[int, str]] = {}
        for label in self.labels:
            if not self.of(label):
                out[label] = {r.seed: r.reason for r in self.runs if r.label == label and r.lost}
        return out


@dataclass
class Results:
    """A comparison on one or several tasks.

    Attributes:
        comparison: Its settings, as in `comparison.yaml`.
        tasks: What was found on each.
        open: How many jobs are still to be done.
    """

    comparison: Mapping[str, Any]
    tasks: list[TaskResults]
    open: int = 0
    environments: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(label for t in self.tasks for label in t.labels))

    @cached_property
    def overall(self) -> dict[str, dict[str, float]]:
        """By contender with a result on every task: interquartile mean over runs and tasks with its interval.

        Empty for one task.
        """
        if len(self.tasks) < 2:
            return {}
        out = {}
        for label in self.labels:
            means = [[float(row.mean()) for row in t._all(label)] for t in self.tasks if t.of(label)]
            if len(means) < len(self.tasks):
                continue
            runs = min(map(len, means))
            scores = np.array([m[:runs] for m in means]).T
            low, high = statistics.interquartile_interval(scores)
            value = statistics.interquartile_mean(scores)
            out[label] = {"value": value, "low": low, "high": high, "runs": runs}
        return dict(sorted(out.items(), key=lambda item: -item[1]["value"]))

    def overall_difference(self, first: str, second: str) -> Difference | None:
        """Second minus first on average over tasks; `None` if one of them is missing somewhere."""
        found = [t.difference(first, second) for t in self.tasks]
        return None if not found or None in found else statistics.mean_of(found)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, for `report.json`."""
        return {
            "comparison": dict(self.comparison),
            "open": self.open,
            "overall": self.overall,
            "tasks": [_task_dict(t) for t in self.tasks],
            "environments": list(self.environments),
        }


def _task_dict(t: TaskResults) -> dict[str, Any]:
    return {
        "task": t.task,
        "metric": t.metric,
        "level": t.level,
        "budget": t.budget,
        "base": {"numbers": numbers_of(t.base.get("measured", {})), **t.base.get("outcome", {})},
        "problems": len(t.problems),
        "ranking": [asdict(s) for s in t.ranking],
        "pairs": [asdict(p) for p in t.pairs],
        "absent": t.absent,
        "searches": {label: asdict(s) for label, s in t.searches.items()},
        "pass_at_k": {s.label: {k: asdict(e) for k, e in t.pass_curve(s.label).items()} for s in t.ranking},
        "ood": {s.label: {k: asdict(e) for k, e in t.ood(s.label).items()} for s in t.ranking},
        "runs": [
            {
                "label": r.label,
                "seed": r.seed,
                "state": r.state,
                "error": r.error,
                "choice": r.job.choice,
                "numbers": r.numbers if r.done else {},
                "looks": r.outcome.get("looks", []),
                "series": r.outcome.get("training", {}).get("series", {}),
            }
            for r in t.runs
        ],
    }


def _over_seeds(
    of_runs: Sequence[Mapping[str, float]],
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    names = [n for n in of_runs[0] if all(n in numbers for numbers in of_runs)]
    values = {n: [numbers[n] for numbers in of_runs] for n in names}
    means = {n: float(np.mean(v)) for n, v in values.items()}
    return means, {n: (min(v), max(v)) for n, v in values.items()}


def _aligned(tables: Sequence[Mapping[str, float]], problems: Sequence[str]) -> NDArray[np.float64]:
    return np.array([[table[p] for p in problems] for table in tables], dtype=np.float64)


def load_results(folders: Sequence[str | Path]) -> Results:
    """Read comparisons, or parts of one that ran on several machines.

    Args:
        folders: Comparison folders, or folders inside of them.

    Raises:
        ConfigError: there is nothing to report in them.
    """
    roots = [Path(f) for f in folders]
    jobs: dict[str, tuple[Job, Path]] = {}
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"{root}: there is no such folder")
        for path in sorted(root.rglob("job.json")):
            job = read_job(path.parent)
            known = jobs.get(job.id)
            if known is None or outcome(known[1]) is None:
                jobs[job.id] = (job, path.parent)
    if not jobs:
        raise ConfigError(
            f"{', '.join(map(str, roots))}: no run of a comparison in there; accepted are folders that "
            f"interlace compare made"
        )
    settings = _comparison_of(roots)
    tasks = settings.get("tasks") or list(dict.fromkeys(job.task for job, _ in jobs.values()))
    found = [_task(task, jobs, settings) for task in tasks if any(j.task == task for j, _ in jobs.values())]
    open_ = sum(outcome(folder) is None for _, folder in jobs.values())
    environments = [o["environment"] for _, f in jobs.values() if "environment" in (o := outcome(f) or {})]
    unique = {json.dumps(e, sort_keys=True): e for e in environments}
    return Results(settings, found, open_, list(unique.values()))


def _comparison_of(roots: Sequence[Path]) -> dict[str, Any]:
    """Settings of the comparison that the folders belong to; contenders of several are joined."""
    joined: dict[str, Any] = {}
    for root in roots:
        place = next((p for p in (root, *root.absolute().parents) if (p / "comparison.yaml").exists()), None)
        if place is None:
            continue
        read = read_yaml(place / "comparison.yaml")
        if not joined:
            joined = read
            continue
        known = [c["label"] for c in joined["contenders"]]
        joined["contenders"] += [c for c in read["contenders"] if c["label"] not in known]
        for key in ("seeds", "tasks"):
            joined[key] = list(dict.fromkeys([*joined[key], *read[key]]))
    return joined


def _task(task: str, jobs: Mapping[str, tuple[Job, Path]], settings: Mapping[str, Any]) -> TaskResults:
    mine = [(job, folder) for job, folder in jobs.values() if job.task == task]
    labels = [c["label"] for c in settings.get("contenders", [])]
    labels += [job.label for job, _ in mine if job.kind == "run"]
    labels += [job.label for job, _ in mine if job.kind == "tuning"]
    labels = list(dict.fromkeys(labels))
    runs = [_run(job, folder, jobs) for job, folder in mine if job.kind == "run"]
    runs.sort(key=lambda r: (labels.index(r.label), r.seed))
    base = next((folder for job, folder in mine if job.kind == "base"), None)
    about: dict[str, Any] = {}
    if base is not None:
        about = {"outcome": outcome(base) or {}, "measured": measured(base).get("base", {})}
    batch = next((f / "batch.json" for job, f in mine if job.kind == "batch"), None)
    return TaskResults(
        task,
        about,
        next((float(r.job.settings["budget"]) for r in runs if r.job.settings.get("budget")), None),
        runs,
        {label: _search(label, mine, jobs, settings) for label in labels},
        labels,
        settings.get("metric", "greedy"),
        settings.get("level", LEVEL),
        json.loads(batch.read_text(encoding="utf-8")) if batch is not None and batch.exists() else None,
    )


def _run(job: Job, folder: Path, jobs: Mapping[str, tuple[Job, Path]]) -> Run:
    ended = outcome(folder)
    start = jobs.get(job.init or "")
    before = (outcome(start[1]) or {}) if start is not None else {}
    if ended is not None:
        at_start = {} if start is None else measured(start[1]).get("final", {})
        found = measured(folder)
        return Run(job, ended["state"], ended.get("error", ""), ended, found, folder, before, at_start)
    for need in job.needs:
        failed = outcome(jobs[need][1]) if need in jobs else None
        if failed is not None and failed["state"] != "done":
            return Run(job, "blocked", f"{need}: {failed['state']}: {failed['error']}", {}, {}, folder)
    return Run(job, "waiting", "", {}, {}, folder)


def _search(
    label: str,
    mine: Sequence[tuple[Job, Path]],
    jobs: Mapping[str, tuple[Job, Path]],
    settings: Mapping[str, Any],
) -> Search:
    metric = settings.get("metric", "greedy")
    tried: dict[str, list[float | None]] = {}
    cost = 0.0
    for job, folder in mine:
        if job.kind != "tuning" or job.label != label:
            continue
        ended = outcome(folder) or {}
        cost += ended.get("flops", 0.0) + ended.get("charged", 0.0)
        scores = score_table(measured(folder).get("final", {}), metric, "validation")
        done = ended.get("state") == "done" and scores
        tried.setdefault(job.choice, []).append(sum(scores.values()) / len(scores) if done else None)
    means = {name: None if None in s else float(np.mean(s)) for name, s in tried.items()}  # type: ignore[arg-type]
    chosen = next((job.choice for job, _ in mine if job.kind == "run" and job.label == label), "")
    return Search(chosen, means, cost, sum(map(len, tried.values())))
