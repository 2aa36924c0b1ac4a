"""Which jobs a comparison consists of, as far as it is known by now.

    base                                      the start model; what an SFT step costs, hence the budget
    tuning (and what it starts from)          every setting of the declared search, on seeds of its own
    runs (and what they start from)           the chosen setting of every contender, on every seed

A pure function of the settings and of what ended so far: asked again after every job, it is the same after a
restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlace.compare.budget import Budget
from interlace.compare.jobs import Job, measured, outcome
from interlace.compare.measure import score_table
from interlace.compare.settings import ALWAYS, Choice, Comparison, Contender, settings_for, slug
from interlace.config import RUN_KEYS, STAGE_KEYS, fingerprint, resolve


@dataclass(frozen=True)
class Chosen:
    """What a contender's search led to.

    Attributes:
        choice: The chosen setting; `None` if no run of the search ended well.
        scores: Mean validation score by setting, `None` where its runs failed.
    """

    choice: Choice | None
    scores: Mapping[str, float | None]


class Planner:
    """Knows the jobs of a comparison.

    Args:
        comparison: Its settings.
        root: Its folder.
    """

    def __init__(self, comparison: Comparison, root: Path) -> None:
        self.c, self.root = comparison, root

    def jobs(self) -> list[Job]:
        """Every job that is known by now, those that others need before them."""
        found: dict[str, Job] = {}
        for task in self.c.tasks:
            base = self.base(task)
            self._add(found, [base])
            ended = outcome(self.root / base.id)
            if ended is None or ended["state"] != "done":
                continue
            for contender in self.c.contenders:
                self._add(found, self.of_contender(contender, task))
            batch = self.batch(task, list(found.values()))
            self._add(found, [] if batch is None else [batch])
        return list(found.values())

    def _add(self, found: dict[str, Job], jobs: Sequence[Job]) -> None:
        for job in jobs:
            found.setdefault(job.id, job)

    def of_contender(self, contender: Contender, task: str) -> list[Job]:
        """Its search while that is open, then its runs."""
        jobs: list[Job] = []
        if len(contender.choices) > 1:
            for seed in self.c.tuning_seeds:
                for choice in contender.choices:
                    jobs += self.run(contender, choice, task, seed, "tuning")
        chosen = self.chosen(contender, task)
        if chosen is not None and chosen.choice is not None:
            for seed in self.c.settings.seeds:
                jobs += self.run(contender, chosen.choice, task, seed, "run")
        return jobs

    def chosen(self, contender: Contender, task: str) -> Chosen | None:
        """The setting with the highest mean score on validation problems; `None` while runs are missing.

        Of equal ones the first in the order in which they were declared.
        """
        if len(contender.choices) == 1:
            return Chosen(contender.choices[0], {})
        scores: dict[str, float | None] = {}
        for choice in contender.choices:
            of_seeds = []
            for seed in self.c.tuning_seeds:
                *_, job = self.run(contender, choice, task, seed, "tuning")
                ended = outcome(self.root / job.id)
                if ended is None and not self.is_blocked(job):
                    return None
                done = ended is not None and ended["state"] == "done"
                of_seeds.append(self.validation_score(job) if done else None)
            known = [s for s in of_seeds if s is not None]
            scores[choice.name] = sum(known) / len(known) if len(known) == len(of_seeds) else None
        best = max((s for s in scores.values() if s is not None), default=None)
        found = next(
            (c for c in contender.choices if scores[c.name] is not None and scores[c.name] == best), None
        )
        return Chosen(found, scores)

    def is_blocked(self, job: Job) -> bool:
        """Whether something that it needs ended without a result."""
        return any((outcome(self.root / need) or {"state": "done"})["state"] != "done" for need in job.needs)

    def validation_score(self, job: Job) -> float | None:
        """Mean score on validation problems (on none but those a search may look at)."""
        final = measured(self.root / job.id)["final"]
        scores = score_table(final, self.c.settings.metric, "validation")
        return sum(scores.values()) / len(scores) if scores else None

    def base(self, task: str) -> Job:
        """The start model of a task."""
        seed = self.c.settings.seeds[0]
        job_id = f"base/{slug(task)}"
        settings = self._usual(self.c.sft)
        return Job(job_id, "base", "base", "", task, seed, settings, measure=self._suite(seed))

    def run(self, contender: Contender, choice: Choice, task: str, seed: int, kind: str = "run") -> list[Job]:
        """A run and, before it, the SFT checkpoint that it starts from."""
        settings = settings_for(contender, choice, task)
        share, init, needs = contender.start_share, None, [f"base/{slug(task)}"]
        jobs = []
        if contender.entry.name == ALWAYS:
            share = choice.switch
            settings = merged_stage(settings, "sft", {"steps": 0})
        if share is not None:
            shared = self.shared(contender, task, seed, share)
            jobs, init, needs = [shared], shared.id, [shared.id]
        settings = self._usual(settings) | self._limits(contender.method, settings, task, 1.0, share or 0.0)
        folder = f"seed-{seed}"
        if kind == "tuning":
            folder = f"{slug(choice.name) or 'only'}/{folder}"
        place = "tuning" if kind == "tuning" else "runs"
        job = Job(
            f"{place}/{slug(task)}/{contender.slug}/{folder}",
            "tuning" if kind == "tuning" else "run",
            contender.label,
            contender.method,
            task,
            seed,
            {k: v for k, v in settings.items() if k not in ("task", "seed")},
            choice.name,
            init,
            tuple(needs),
            self._suite(seed),
        )
        return [*jobs, job]

    def shared(self, contender: Contender, task: str, seed: int, share: float) -> Job:
        """An SFT checkpoint after a part of the budget, with the rates of a whole SFT run of that size."""
        settings = dict(self.c.sft)
        if contender.entry.name == ALWAYS:
            plain = resolve(contender.method, contender.settings)
            settings = {k: v for k, v in contender.settings.items() if k in (*RUN_KEYS, *STAGE_KEYS)}
            settings |= contender.settings.get("stages", {}).get("sft", {})
            settings["denominator"] = plain.parameters.sft_denominator  # type: ignore[attr-defined]
            settings["max_length"] = plain.parameters.max_length  # type: ignore[attr-defined]
        settings = self._usual(settings)
        settings = {**settings, **self._limits("sft", settings, task, share, 0.0)}
        resolved = resolve("sft", {**settings, "task": task}).to_dict()
        # Whatever leads to the same training is the same checkpoint, however it was written.
        mark = fingerprint({k: v for k, v in resolved.items() if k not in ("method", "out")})[:6]
        return Job(
            f"shared/{slug(task)}/sft-{share:g}-{mark}/seed-{seed}",
            "shared",
            f"SFT to {share:g} of the budget",
            "sft",
            task,
            seed,
            settings,
            needs=(f"base/{slug(task)}",),
            measure=self._suite(seed),
        )

    def batch(self, task: str, jobs: Sequence[Job]) -> Job | None:
        """Rows of the token view, from the first SFT checkpoint or run that is done."""
        own = [j for j in jobs if j.task == task and j.kind in ("shared", "run")]
        if not own or any(outcome(self.root / j.id) is None and not self.is_blocked(j) for j in own):
            return None
        done = [j for j in own if (outcome(self.root / j.id) or {}).get("state") == "done"]
        if not done:
            return None
        source = next((j for j in done if j.kind == "shared"), done[0])
        keep = ("model", "precision", "device", "threads", "max_new_tokens")
        settings = {k: v for k, v in self._usual(self.c.common).items() if k in keep}
        settings |= {"prompts_per_step": 2, "group_size": 4}
        seed = self.c.settings.seeds[0]
        return Job(f"batch/{slug(task)}", "batch", "rows", "", task, seed, settings, init=source.id)

    def flops(self, task: str) -> float | None:
        """The budget of a run in operations; `None` while it is not known, or in steps."""
        ended = outcome(self.root / f"base/{slug(task)}")
        if ended is None or ended["state"] != "done":
            return None
        return self.c.settings.budget.flops(ended["sft_step_flops"])

    def _limits(
        self, method: str, settings: Mapping[str, Any], task: str, share: float, taken: float
    ) -> dict[str, Any]:
        """What ends a run: its budget, or its steps.

        Args:
            share: Part of the budget that is all of the run's.
            taken: Part of it that its start weights cost; operations are charged when the run starts.
        """
        budget: Budget = self.c.settings.budget
        if budget.unit != "steps":
            flops = self.flops(task)
            return {} if flops is None else {"budget": flops * share}
        plain = resolve(method, {k: v for k, v in settings.items() if k != "task"} | {"task": task})
        open_ = [s for s in plain.stages if s.settings.steps != 0]
        whole = sum(s.settings.share for s in open_)
        steps = budget.amount * (share - taken)
        stages = {s.name: {"steps": max(round(steps * s.settings.share / whole), 1)} for s in open_}
        return {"stages": merged_stages(settings.get("stages", {}), stages)}

    def _usual(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What every run of a comparison has unless it is told otherwise."""
        looks = self.c.settings.looks
        usual = {
            "threads": 1,
            "keep_checkpoints": 1,
            "eval_split": "validation",
            "eval_every": round(1 / looks, 6) if looks else 0,
            "eval_problems": 128,
        }
        return {**usual, **settings}

    def _suite(self, seed: int) -> dict[str, Any]:
        s = self.c.settings
        return {
            "problems": s.test_problems,
            "samples": s.test_samples,
            "ood_problems": s.ood_problems,
            "retention": s.retention,
            "metric": s.metric,
            "seed": seed,
        }


def merged_stage(settings: Mapping[str, Any], stage: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with some of one stage's over them."""
    return {**settings, "stages": merged_stages(settings.get("stages", {}), {stage: values})}


def merged_stages(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {**below.get(name, {}), **above.get(name, {})} for name in {**below, **above}}
