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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from interlace.config import ConfigError, Configuration, Stage, fingerprint, read_yaml, resolve
from interlace.evaluation.evaluate import Evaluation, evaluate
from interlace.methods import Entry
from interlace.policies import Critic, Renderer, TextPolicy, load_policy
from interlace.rewards import Scorer, load_reward
from interlace.rollout import LocalEngine, engine_for_policy
from interlace.tasks import Task, check_problems, drop_failures, load_task
from interlace.training.checkpoint import RunFolder, load_tensors, save_tensors, write_json, write_text
from interlace.training.collect import Feed, Rollouts
from interlace.training.console import View
from interlace.training.distributed import Ranks, connect
from interlace.training.loop import Progress, StageRun, run_stage
from interlace.training.tracking import Trackers
from interlace.types import Problem, Sampling, Trajectory

MAX_PROBLEMS = 6000
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
    view = view or View()
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
    with folder.locked():
        return Run(configuration, folder, view).train()


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
    demonstrations, over = [], 0
    wanted = c.run.demonstrations if c.run.demonstrations is not None else len(kept)
    if any(s.settings.demos_per_step or s.method.demonstrations != "none" for s in c.stages):
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
    if not kept:
        raise ConfigError(f"task {c.run.task}: no training problem is left; {'; '.join(notes)}")
    if any(s.settings.demos_per_step for s in c.stages) and not demonstrations:
        raise ConfigError(f"task {c.run.task}: this method trains on demonstrations, and there are none")
    splits = [take(task, split, c.run.eval_problems, c.run.seed) for split in ("validation", "test")]
    key = fingerprint(
        [[(p.id, p.prompt, str(p.answer), p.demonstration) for p in part] for part in (kept, *splits)]
    )
    return Data(task, kept, demonstrations, splits[0], splits[1], notes, key)


def take(task: Task, split: str, n: int, seed: int) -> list[Problem]:
    """At most n problems of a split, fewer where it holds fewer, none where there is no such split."""
    if split not in task.splits:
        return []
    count = getattr(task, "count", lambda split: None)(split)
    return task.problems(split, n if count is None else min(n, count), seed=seed)


def fill_lengths(c: Configuration, renderer: Renderer, problems: Sequence[Problem]) -> None:
    """The limit of a completion where none is given: a quarter over the longest demonstration, or 64."""
    if all(s.settings.max_new_tokens for s in c.stages):
        return
    lengths = [len(renderer.demonstration_ids(p)) for p in problems if p.demonstration is not None]
    limit = -(-max(lengths) * 5 // 4) if lengths else 64
    for stage in c.stages:
        stage.settings.max_new_tokens = stage.settings.max_new_tokens or limit


class Run:
    """A run at work. Use `train`."""

    def __init__(self, configuration: Configuration, folder: RunFolder, view: View) -> None:
        self.c = configuration
        self.folder = folder
        self.view = view
        self.ranks: Ranks = connect()
        self.stop_asked = False
        self.began = time.monotonic()

    def train(self) -> RunResult:
        """Everything from loading to the last evaluation."""
        run = self.c.run
        latest = self.folder.latest()
        environment = self._environment()
        torch.set_num_threads(run.threads or environment["threads"])
        self.task = load_task(run.task or "countdown")
        self.scorer = Scorer(
            load_reward(run.reward) if run.reward else self.task.reward,
            workers=run.reward_workers,
            timeout=run.reward_timeout,
        )
        source = str(latest[0] / "policy") if latest else self._initial_model()
        policy = load_policy(
            source, precision=run.precision, device=run.device, alphabet=self.task.alphabet, seed=run.seed
        )
        for warning in policy.warnings:
            self.view.say(f"[yellow]warning:[/] {warning}")
        self.renderer = Renderer(policy.tokenizer, policy.eos_ids)
        self.data = load_data(self.c, self.renderer, self.scorer, self.task, policy.max_positions)
        for note in self.data.notes:
            self.view.say(f"[yellow]note:[/] {note}")
        if environment.get("data") not in (None, self.data.fingerprint):
            raise ConfigError(
                f"the data of {self.folder.path} has changed since the run began; start a new run"
            )
        environment["data"] = self.data.fingerprint
        if not self.folder.has_run():
            write_text(self.folder.path / "config.yaml", yaml.safe_dump(self.c.to_dict(), sort_keys=False))
        write_json(self.folder.path / "environment.json", environment)
        self.trackers = Trackers(run.track, self.folder.path)
        progress = Progress(**latest[1]) if latest else Progress()
        if latest:
            self.folder.truncate_metrics(progress.metrics_bytes)
            self.view.say(f"resuming {self.folder.path} at stage {progress.stage}, step {progress.step}")
        self.view.say(f"run folder: {self.folder.path}")
        with self._interruptible(), self.scorer:
            complete = self._stages(policy, progress, latest[0] if latest else None)
        self.trackers.close()
        return RunResult(self.folder.path, complete, progress.evaluations)

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
        versions = {}
        for package in PACKAGES:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package)
        return {
            "python": platform.python_version(),
            "versions": versions,
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
        engine = engine_for_policy(policy)
        if not progress.evaluations:
            self._evaluate(policy, engine, progress, "start", self.data.test)
        while progress.stage < len(self.c.stages):
            stage = self.c.stages[progress.stage]
            complete = self._stage(stage, policy, engine, progress, checkpoint)
            checkpoint = None
            if not complete:
                self.view.say(f"stopped; continue with: interlace train --resume {self.folder.path}")
                return False
        return True

    def _stage(
        self,
        stage: Stage,
        policy: TextPolicy,
        engine: LocalEngine,
        progress: Progress,
        checkpoint: Path | None,
    ) -> bool:
        """One stage, from its start with fresh optimizers or from a checkpoint with all of their state."""
        s, run = stage.settings, self.c.run
        policies: dict[str, Any] = {"policy": policy}
        statistics = {term.policy: term.statistics for term in stage.method.terms}
        if "ref_logp" in stage.method.needs or {"kl", "reverse_kl"} & {
            x for t in statistics.values() for x in t
        }:
            policies["reference"] = policy.reference = self._reference(policy, progress)
        if "critic" in statistics:
            middle = checkpoint is not None and progress.step
            saved = (
                load_policy(str(checkpoint / "critic"), precision=run.precision, device=run.device)
                if middle
                else None
            )
            policies["critic"] = Critic(saved or policy)
        trained = [name for name in ("policy", "critic") if name in policies]
        optimizers = {
            name: torch.optim.AdamW(
                policies[name].trainable(), lr=0.0, betas=(s.beta1, s.beta2), weight_decay=s.weight_decay
            )
            for name in trained
        }
        feeds = {"rl": Feed(self.data.prompts, run.seed), "sft": Feed(self.data.demonstrations, run.seed + 1)}
        if checkpoint is not None and progress.step:
            tensors = load_tensors(checkpoint / "trainer.pt")
            for name, optimizer in optimizers.items():
                optimizer.load_state_dict(tensors[name])
        for name, feed in feeds.items():
            feed.drawn = progress.drawn.get(name, 0)
        sampling = Sampling(s.temperature, s.top_p, s.top_k, s.min_p, s.max_new_tokens or 64, tuple(s.stop))
        if stage.samples and sampling.truncated:
            self.view.say(
                "[yellow]warning:[/] top_p, top_k or min_p are on: rollouts come from a truncated "
                "distribution, log-probabilities are of the full one; see mismatch/* in the metrics"
            )
        rollouts = Rollouts(
            engine, self.renderer, self.scorer, sampling, run.seed, version=progress.version, ranks=self.ranks
        )

        def write(folder: Path) -> None:
            policy.save(folder / "policy")
            if "critic" in policies:
                policies["critic"].save(folder / "critic")
            save_tensors(folder / "trainer.pt", {name: o.state_dict() for name, o in optimizers.items()})

        def save(end: bool = False) -> None:
            if not self.ranks.first:
                return
            progress.metrics_bytes = self.folder.metrics.stat().st_size if self.folder.metrics.exists() else 0
            name = f"{self.c.stages.index(stage)}-{stage.name}-{s.steps if end else progress.step:06d}"
            self.folder.save(name + ("-end" if end else ""), write, asdict(progress), run.keep_checkpoints)
            write_json(self.folder.path / "result.json", self._result(progress, final=False))

        def log(line: dict[str, Any]) -> None:
            if self.ranks.first:
                self.folder.log(line)
                self.trackers.log(line, progress.version)
            self.view.step(progress.step, line)

        self.view.start(stage.name, s.steps or 0, progress.step, s.optimizer_steps_per_step == 1)
        try:
            complete = run_stage(
                StageRun(
                    stage=stage,
                    run=run,
                    policies=policies,
                    optimizers=optimizers,
                    rollouts=rollouts,
                    feeds=feeds,
                    progress=progress,
                    log=log,
                    say=self.view.say,
                    save=save,
                    evaluate=lambda: self._evaluate(
                        policy, engine, progress, stage.name, self.data.validation
                    ),
                    samples=lambda rows: self._write_samples(stage, progress.step, rows),
                    stopping=lambda: self.stop_asked,
                    ranks=self.ranks,
                )
            )
        finally:
            self.view.stop()
        if not complete:
            save()
            return False
        self._evaluate(policy, engine, progress, f"after {stage.name}", self.data.test)
        policy.reference = None
        progress.stage, progress.step, progress.updates = progress.stage + 1, 0, 0
        progress.drawn, progress.watch, progress.state = {}, {}, {}
        save(end=True)
        write_json(
            self.folder.path / "result.json", self._result(progress, progress.stage == len(self.c.stages))
        )
        return True

    def _reference(self, policy: TextPolicy, progress: Progress) -> TextPolicy:
        """The weights at the start of the stage, kept in the run folder so that a resumed run finds them."""
        path = self.folder.path / "references" / str(progress.stage)
        if progress.step == 0 and self.ranks.first:
            policy.save(path)
        self.ranks.barrier()
        if progress.step == 0:
            return policy.clone_frozen()
        return load_policy(str(path), precision=self.c.run.precision, device=self.c.run.device).clone_frozen()

    def _evaluate(
        self,
        policy: TextPolicy,
        engine: LocalEngine,
        progress: Progress,
        at: str,
        problems: Sequence[Problem],
    ) -> None:
        if not problems or not self.c.run.eval_problems:
            return
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
        where = {"at": at, "stage": progress.stage, "step": progress.step}
        record = {**where, **result.to_dict()}
        progress.evaluations.append({**where, **record["summary"]})
        place = f"{progress.stage}-{at.replace(' ', '-')}-{progress.step:06d}.json"
        if self.ranks.first:
            write_json(self.folder.path / "evaluations" / place, record)
        self.view.say(f"{at}: {result.summary()}")

    def _result(self, progress: Progress, final: bool) -> dict[str, Any]:
        return {
            "method": self.c.entry.name,
            "final": final,
            "seconds": progress.seconds,
            "evaluations": progress.evaluations,
        }

    def _write_samples(self, stage: Stage, step: int, rows: Sequence[Trajectory]) -> None:
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
