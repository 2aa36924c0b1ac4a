"""A whole run: build, train stage after stage, evaluate between them, keep everything in its folder.

`train` starts a run or, with `resume`, continues one exactly where it was. `init_from` only takes weights.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from interlace.config import ConfigError, Configuration, Stage, read_yaml, resolve
from interlace.evaluation.evaluate import Evaluation, evaluate
from interlace.methods import Entry
from interlace.policies import Renderer, TextPolicy, load_policy
from interlace.rewards import Scorer, load_reward
from interlace.rollout import LocalEngine
from interlace.tasks import load_task
from interlace.training.checkpoint import RunFolder, write_json, write_text
from interlace.training.console import View
from interlace.training.data import load_data
from interlace.training.distributed import Ranks, connect
from interlace.training.loop import Progress
from interlace.training.stages import harvest, leave_out, load_shelf, train_stage
from interlace.training.tracking import Trackers
from interlace.types import Problem, Sampling, Trajectory

PACKAGES = ("interlace", "torch", "transformers", "tokenizers", "numpy", "math-verify", "reasoning-gym")


@dataclass
class RunResult:
    """What a run ended with.

    Attributes:
        folder: The run folder.
        complete: False if the person stopped it; `resume` continues.
        evaluations: One record per evaluation, in order: where, and its numbers.
    """

    folder: Path
    complete: bool
    evaluations: list[dict[str, Any]]

    @property
    def checkpoint(self) -> Path:
        """The trained model, as transformers loads it."""
        latest = RunFolder(self.folder).latest()
        if latest is None:
            raise ConfigError(f"{self.folder} has no checkpoint")
        return latest[0] / "policy"


def train(
    method: str | Entry | None = None,
    *,
    resume: str | Path | None = None,
    view: View | None = None,
    **settings: Any,
) -> RunResult:
    """Train a model with a method.

    Args:
        method: A registered name or `FILE.py:NAME`; taken from the run folder with `resume`.
        resume: A run folder to continue exactly.
        view: Where progress is shown.
        **settings: `config.RunSettings`, `config.StageSettings`, the method's hyper-parameters, and
            `stages={"sft": {...}}`.

    Raises:
        ValueError: bad settings or data, before any training time is spent.
        DeadRun: nothing could be learnt for too long.
    """
    if resume is not None:
        folder = RunFolder(resume)
        if not folder.has_run():
            raise ConfigError(f"resume={resume}: there is no run in that folder")
        saved = read_yaml(folder.path / "config.yaml")
        changed = {k: v for k, v in settings.items() if saved.get(k) != v}
        if changed:
            raise ConfigError(
                f"a resumed run keeps its settings; {', '.join(changed)} cannot change. To start a new run "
                f"from its weights, use init_from={resume}"
            )
        configuration = resolve(saved["method"], saved)
    else:
        if method is None:
            raise ConfigError("give a method, or resume=RUN_FOLDER")
        configuration = resolve(method, settings)
        name = f"{configuration.entry.name}-{Path(configuration.run.task or '').stem.split(':')[0]}"
        out = configuration.run.out or f"runs/{name}-{configuration.run.seed}"
        configuration.run.out = out
        folder = RunFolder(out)
        if folder.has_run():
            raise ConfigError(
                f"{out} already holds a run; continue it with resume={out} or give another out=FOLDER"
            )
    ranks = connect()
    ranks.barrier()  # every rank has looked at the folder before the first writes into it
    view = view or View(Console(stderr=True, quiet=not ranks.first))
    with folder.locked() if ranks.first else contextlib.nullcontext():
        return Run(configuration, folder, view, ranks).train()


class Run:
    """A run at work. Use `train`."""

    def __init__(self, configuration: Configuration, folder: RunFolder, view: View, ranks: Ranks) -> None:
        self.c = configuration
        self.folder = folder
        self.view = view
        self.ranks = ranks
        self.stop_asked = False
        self.shelf: dict[str, list[Trajectory]] = {}
        self.began = time.monotonic()

    def train(self) -> RunResult:
        """Everything from loading to the last evaluation."""
        run = self.c.run
        latest = self.folder.latest()
        environment = self.ranks.broadcast(self._environment() if self.ranks.first else None)
        torch.set_num_threads(run.threads or environment["threads"])
        self.task = load_task(run.task or "countdown")
        self.scorer = Scorer(
            load_reward(run.reward) if run.reward else self.task.reward,
            workers=run.reward_workers,
            timeout=run.reward_timeout,
        )
        source = str(latest[0] / "policy") if latest else self._initial_model()
        policy = self.load(source)
        self.renderer = Renderer(policy.tokenizer, policy.eos_ids)
        self.data = load_data(self.c, self.renderer, self.scorer, self.task, policy.max_positions)
        # References and demonstrations are checked as they are, answers are judged in their blocks.
        workers, self.scorer = self.scorer, self.c.judge(self.scorer)
        for note in self.data.notes:
            self.view.say(f"[yellow]note:[/] {note}")
        if environment.get("data") not in (None, self.data.fingerprint):
            raise ConfigError(
                f"the data of {self.folder.path} has changed since the run began; start a new run"
            )
        environment["data"] = self.data.fingerprint
        if self.ranks.first:
            if not self.folder.has_run():
                text = yaml.safe_dump(self.c.to_dict(), sort_keys=False)
                write_text(self.folder.path / "config.yaml", text)
            write_json(self.folder.path / "environment.json", environment)
        self.trackers = Trackers(run.track if self.ranks.first else [], self.folder.path)
        progress = Progress(**latest[1]) if latest else Progress()
        if self.ranks.first:
            self.folder.sweep()
            self.folder.metrics.touch()
            self.folder.truncate_metrics(progress.metrics_bytes)
        if latest:
            self.view.say(f"resuming {self.folder.path} at stage {progress.stage}, step {progress.step}")
        self.view.say(f"run folder: {self.folder.path}")
        with self._interruptible(), workers:
            complete = self._stages(policy, progress, latest[0] if latest else None)
        self.trackers.close()
        return RunResult(self.folder.path, complete, progress.evaluations)

    def load(self, source: str) -> TextPolicy:
        """A policy from a model spec or a folder."""
        run = self.c.run
        return load_policy(
            source,
            precision=run.precision,
            device=run.device,
            alphabet=self.c.alphabet(self.task.alphabet),
            seed=run.seed,
        )

    def _initial_model(self) -> str:
        start = self.c.run.init_from
        if start is None:
            return self.c.run.model
        latest = RunFolder(start).latest()
        return str(latest[0] / "policy") if latest else start

    def _environment(self) -> dict[str, Any]:
        """Versions and the probed thread count; a resumed run reuses the latter."""
        path = self.folder.path / "environment.json"
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        return {
            "python": platform.python_version(),
            "versions": versions(),
            "threads": self.c.run.threads or probe_threads(),
            "ranks": self.ranks.size,
        }

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C finishes the step, saves and ends; the second ends at once."""

        def ask(signum: int, frame: Any) -> None:
            if self.stop_asked:
                raise KeyboardInterrupt
            self.stop_asked = True
            self.view.say("stopping after this step; press Ctrl-C again to stop now")

        try:
            before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread
            before = {}
        try:
            yield
        finally:
            for s, handler in before.items():
                signal.signal(s, handler)

    def _stages(self, policy: TextPolicy, progress: Progress, checkpoint: Path | None) -> bool:
        engine = LocalEngine.for_policy(policy)
        if checkpoint is not None:
            self.shelf = load_shelf(self, checkpoint)
        if not progress.evaluations:
            self.evaluate(policy, engine, progress, "start", self.shown)
        while progress.stage < len(self.c.stages):
            stage = self.c.stages[progress.stage]
            restarts = stage.method.start == "base" and progress.step == 0 and progress.stage > 0
            start = self.load(self._initial_model()) if restarts else policy
            made = harvest(self, stage, policy, start, engine, progress)
            if made is not None and made.skip:
                leave_out(self, stage, policy, made, progress)
                continue
            if start is not policy:
                engine = LocalEngine.for_policy(start)
            ended = train_stage(self, stage, start, engine, made, progress, checkpoint)
            checkpoint = None
            if ended is None:
                self.view.say(f"stopped; continue with: interlace train --resume {self.folder.path}")
                return False
            if ended is not start:
                engine = LocalEngine.for_policy(ended)
            policy = ended
        return True

    @property
    def shown(self) -> Sequence[Problem]:
        """The problems of the evaluations at the start and after each stage."""
        return self.data.test if self.c.run.eval_split == "test" else self.data.validation

    @cached_property
    def known(self) -> Mapping[str, Problem]:
        """Problems by id, for rows that come from a file."""
        return {p.id: p for p in (*self.data.validation, *self.data.demonstrations, *self.data.prompts)}

    def evaluate(
        self,
        policy: TextPolicy,
        engine: LocalEngine,
        progress: Progress,
        at: str,
        problems: Sequence[Problem],
    ) -> Evaluation | None:
        """Evaluate, and keep what was found; `None` without problems."""
        if not problems or not self.c.run.eval_problems:
            return None
        limit = max(s.settings.max_new_tokens or 64 for s in self.c.stages)
        result: Evaluation = evaluate(
            engine,
            self.renderer,
            problems,
            self.scorer,
            samples=self.c.run.eval_samples,
            sampling=Sampling(max_tokens=limit),
            seed=self.c.run.seed + 1_000_003,
        )
        where = {"at": at, "stage": progress.stage, "step": progress.step, "flops": progress.flops}
        record = {**where, **result.to_dict()}
        progress.evaluations.append({**where, **record["summary"]})
        place = f"{progress.stage}-{at.replace(' ', '-')}-{progress.step:06d}.json"
        if self.ranks.first:
            write_json(self.folder.path / "evaluations" / place, record)
        self.view.say(f"{at}: {result.summary()}")
        return result

    def result(self, progress: Progress) -> dict[str, Any]:
        return {
            "method": self.c.entry.name,
            "final": progress.stage == len(self.c.stages),
            "seconds": progress.seconds,
            "flops": progress.flops,
            "work": progress.work,
            "evaluations": progress.evaluations,
            "harvests": progress.harvests,
            "kept": progress.kept,
        }

    def write_samples(self, stage: Stage, step: int, rows: Sequence[Trajectory]) -> None:
        if not self.ranks.first:
            return
        lines = [
            json.dumps(
                {
                    "problem": row.problem.id,
                    "prompt": row.problem.prompt,
                    "response": self.renderer.decode(row.response_ids),
                    "reward": row.reward,
                    "verdict": row.verdict,
                    "finish": row.finish.name.lower(),
                }
            )
            for row in rows[:32]
        ]
        write_text(self.folder.path / "samples" / f"{stage.name}-{step:06d}.jsonl", "\n".join(lines) + "\n")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of those of the packages that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def probe_threads() -> int:
    """Torch threads that make small linear layers fastest right now, of 1 and all cores.

    Two threads on cores that other processes hold are several times slower than one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    before = torch.get_num_threads()
    x, w = torch.randn(2048, 256), torch.randn(256, 768)
    best: dict[int, float] = {}
    for threads in (1, cores):
        torch.set_num_threads(threads)
        times = []
        for _ in range(8):
            began = time.perf_counter()
            for _ in range(10):
                torch.nn.functional.silu(x @ w)
            times.append(time.perf_counter() - began)
        best[threads] = sorted(times)[len(times) // 2]
    torch.set_num_threads(before)
    return cores if best[cores] < 0.85 * best[1] else 1
