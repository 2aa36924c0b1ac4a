"""One stage of a run: its policies, optimizers, data and checkpoints around the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from interlace.config import Stage
from interlace.methods._method import Method
from interlace.policies import Critic, TextPolicy
from interlace.rollout import LocalEngine
from interlace.training.bench import TrainingBench, plain_rows, rows_of, stateful
from interlace.training.checkpoint import load_tensors, save_tensors, write_json
from interlace.training.collect import Feed, Rollouts
from interlace.training.loop import Progress, StageRun, run_stage
from interlace.types import Problem, Sampling, Trajectory

if TYPE_CHECKING:
    from interlace.training.run import Run


def train_stage(
    run: Run,
    stage: Stage,
    policy: TextPolicy,
    engine: LocalEngine,
    progress: Progress,
    checkpoint: Path | None,
) -> bool:
    """A stage from its start with fresh optimizers, or from a checkpoint in its middle with all of its state.

    Returns:
        Whether it is complete; if not, everything is saved.
    """
    s, folder = stage.settings, run.folder
    middle = checkpoint is not None and progress.step > 0
    policy.topk = stage.method.topk
    policies = build_policies(run, stage, policy, progress, checkpoint if middle else None)
    peaks = {"policy": s.lr or 0.0, **(getattr(stage.method.alternation, "optimizers", None) or {})}
    if "critic" in policies:
        peaks["critic"] = s.critic_lr or 0.0
    optimizers: dict[str, torch.optim.Optimizer] = {
        name: torch.optim.AdamW(
            policies["critic" if name == "critic" else "policy"].trainable(),
            lr=peak,
            betas=(s.beta1, s.beta2),
            weight_decay=s.weight_decay,
        )
        for name, peak in peaks.items()
    }
    known = {p.id: p for p in (*run.data.prompts, *run.data.demonstrations, *run.data.validation)}
    memory = load_tensors(checkpoint / "trainer.pt") if checkpoint is not None else {}
    run.shelf = {name: rows_of(rows, known) for name, rows in memory.get("shelf", {}).items()} or run.shelf
    if middle:
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(memory["optimizers"][name])
        for item, state in zip(stateful(stage.method), memory["rules"], strict=True):
            item.load_state_dict(state)
    sampling = Sampling(s.temperature, s.top_p, s.top_k, s.min_p, s.max_new_tokens or 64, tuple(s.stop))
    if stage.samples and sampling.truncated:
        run.view.say(
            "[yellow]warning:[/] top_p, top_k or min_p are on: rollouts come from a truncated "
            "distribution, log-probabilities are of the full one; see mismatch/* in the metrics"
        )
    rollouts = Rollouts(
        engine, run.renderer, run.scorer, sampling, run.c.run.seed, version=progress.version, ranks=run.ranks
    )

    def write(target: Path) -> None:
        policy.save(target / "policy")
        if "critic" in policies:
            policies["critic"].save(target / "critic")
        everything = {
            "optimizers": {name: o.state_dict() for name, o in optimizers.items()},
            "rules": [item.state_dict() for item in stateful(stage.method)],
            "shelf": {name: plain_rows(rows) for name, rows in run.shelf.items()},
        }
        save_tensors(target / "trainer.pt", everything)

    def save(end: bool = False) -> None:
        if run.ranks.first:
            progress.metrics_bytes = folder.metrics.stat().st_size if folder.metrics.exists() else 0
            step = s.steps if end else progress.step
            name = f"{run.c.stages.index(stage)}-{stage.name}-{step:06d}{'-end' if end else ''}"
            folder.save(name, write, asdict(progress), run.c.run.keep_checkpoints)
            write_json(folder.path / "result.json", run.result(progress))

    def log(line: dict[str, Any]) -> None:
        if run.ranks.first:
            folder.log(line)
            run.trackers.log(line, progress.version)
        run.view.step(progress.step, line)

    seed = run.c.run.seed
    feeds = {"rl": Feed(run.data.prompts, seed), "sft": Feed(run.data.demonstrations, seed + 1)}
    work = StageRun(
        stage=stage,
        run=run.c.run,
        policies=policies,
        optimizers=optimizers,
        peaks=peaks,
        rollouts=rollouts,
        feeds=feeds,
        progress=progress,
        log=log,
        say=run.view.say,
        save=save,
        evaluate=lambda: run.evaluate(policy, engine, progress, stage.name, run.data.validation),
        samples=lambda rows: run.write_samples(stage, progress.step, rows),
        stopping=lambda: run.stop_asked,
        shelf=run.shelf,
        validation=run.data.validation,
        ranks=run.ranks,
    )
    if stage.method.harvest is not None:
        feeds["sft"].problems = harvest(run, stage, work, known, progress)
    for name, feed in feeds.items():
        feed.drawn = progress.drawn.get(name, 0)
    run.view.start(stage.name, s.steps or 0, progress.step, s.optimizer_steps_per_step == 1)
    try:
        complete = run_stage(work)
    finally:
        run.view.stop()
    if not complete:
        save()
        return False
    run.evaluate(policy, engine, progress, f"after {stage.name}", run.data.test)
    policy.reference = None
    progress.stage, progress.step, progress.updates = progress.stage + 1, 0, 0
    progress.drawn, progress.watch, progress.state = {}, {}, {}
    save(end=True)
    return True


def parts_of(method: Method) -> list[Method]:
    """The method, and the stages that it alternates between."""
    return [method, *(method.stages.values() if method.alternation is not None else ())]


def build_policies(
    run: Run, stage: Stage, policy: TextPolicy, progress: Progress, checkpoint: Path | None
) -> dict[str, Any]:
    """The policies that the stage's terms and annotations name."""
    terms = [term for part in parts_of(stage.method) for term in part.terms]
    policies: dict[str, Any] = {"policy": policy}
    against = {"kl", "reverse_kl"} & {name for term in terms for name in term.statistics}
    if against or any("ref_logp" in part.needs for part in parts_of(stage.method)):
        policies["reference"] = policy.reference = reference(run, policy, progress)
    if any(term.policy == "critic" for term in terms):
        policies["critic"] = Critic(policy if checkpoint is None else run.load(str(checkpoint / "critic")))
    return policies


def reference(run: Run, policy: TextPolicy, progress: Progress) -> TextPolicy:
    """The weights at the start of the stage, kept in the run folder so that a resumed run finds them."""
    path = run.folder.path / "references" / str(progress.stage)
    if progress.step > 0:
        return run.load(str(path)).clone_frozen()
    if run.ranks.first:
        policy.save(path)
    run.ranks.barrier()
    return policy.clone_frozen()


def harvest(
    run: Run, stage: Stage, work: StageRun, known: Mapping[str, Problem], progress: Progress
) -> Sequence[Problem | Trajectory]:
    """Rows that the stage is trained on: made once, kept in the run folder, found there by a resumed run."""
    path = run.folder.path / "harvest" / f"{progress.stage}-{stage.name}.pt"
    if path.exists():
        return rows_of(load_tensors(path), known)
    run.view.say(f"{stage.name}: making its data")
    rows = stage.method.harvest(TrainingBench(work))
    run.view.say(f"{stage.name}: {len(rows)} rows")
    if run.ranks.first:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        save_tensors(draft, plain_rows(rows))
        draft.replace(path)
    run.ranks.barrier()
    return rows
