"""One stage of a run: its policies, optimizers, data and checkpoints around the loop."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from interlace.config import Stage
from interlace.methods._method import Method
from interlace.policies import Critic, TextPolicy, meter
from interlace.policies.meter import Work
from interlace.rollout import LocalEngine
from interlace.rules.bench import Harvested
from interlace.training.bench import TrainingBench, plain_rows, rows_of, stateful
from interlace.training.checkpoint import load_tensors, save_tensors, write_json, write_text
from interlace.training.collect import Feed, Rollouts
from interlace.training.loop import Progress, StageRun, run_stage
from interlace.types import Sampling, Trajectory

if TYPE_CHECKING:
    from interlace.training.run import Run


def train_stage(
    run: Run,
    stage: Stage,
    policy: TextPolicy,
    engine: LocalEngine,
    made: Harvested | None,
    progress: Progress,
    checkpoint: Path | None,
) -> TextPolicy | None:
    """A stage from its start with fresh optimizers, or from a checkpoint in its middle with all of its state.

    Args:
        made: What its harvest made, if it has one.

    Returns:
        The policy that it ends with; `None` if it is not complete, then everything is saved.
    """
    s, folder = stage.settings, run.folder
    middle = checkpoint is not None and progress.step > 0
    policy.topk = stage.method.topk
    policies = build_policies(run, stage, policy, progress, checkpoint if middle else None)
    added = getattr(stage.method.alternation, "optimizers", None) or {}
    trained = ("policy", *copies_of(stage.method), *added)
    peaks = {name: s.lr or 0.0 if added.get(name) is None else added[name] for name in trained}
    if "critic" in policies:
        peaks["critic"] = s.critic_lr or 0.0
    optimizers: dict[str, torch.optim.Optimizer] = {
        name: torch.optim.AdamW(
            policies[name if name in policies else "policy"].trainable(),
            lr=peak,
            betas=(s.beta1, s.beta2),
            weight_decay=s.weight_decay,
        )
        for name, peak in peaks.items()
    }
    if middle:
        assert checkpoint is not None
        memory = load_tensors(checkpoint / "trainer.pt")
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(memory["optimizers"][name])
        for item, state in zip(stateful(stage.method), memory["rules"], strict=True):
            item.load_state_dict(state)
    if stage.samples and sampling_of(stage).truncated:
        run.view.say(
            "[yellow]warning:[/] top_p, top_k or min_p are on: rollouts come from a truncated "
            "distribution, log-probabilities are of the full one; see mismatch/* in the metrics"
        )
    best = folder.path / "best" / f"{progress.stage}-{stage.name}"

    def save() -> None:
        save_checkpoint(run, stage, progress, policies, optimizers)

    def log(line: dict[str, Any]) -> None:
        if run.ranks.first:
            folder.log(line)
            run.trackers.log(line, progress.version)
        run.view.step(progress.step, line)

    def evaluate() -> None:
        found = run.evaluate(policy, engine, progress, stage.name, run.data.validation)
        if s.keep != "best" or found is None or found.greedy is None:
            return
        # Of equally good weights the latest: they have seen more.
        if found.greedy.value >= progress.best.get("accuracy", 0.0):
            progress.best = {"accuracy": found.greedy.value, "step": progress.step}
            if run.ranks.first:
                policy.save(best)
            run.ranks.barrier()

    work = workbench(run, stage, policies, engine, progress)
    work.optimizers, work.peaks = optimizers, peaks
    work.log, work.say, work.save, work.evaluate = log, run.view.say, save, evaluate
    work.samples = lambda rows: run.write_samples(stage, progress.step, rows)
    # A signal reaches the ranks one after the other; they must stop at the same step.
    work.stopping = lambda: any(run.ranks.gather(run.stop_asked))

    def renew_reference() -> None:
        if "reference" in policies:
            policies["reference"] = policy.reference = keep_reference(run, policy, progress)

    work.renew_reference = renew_reference
    if made is not None:
        work.feeds["sft"].problems = together(made.rows)
        if made.prompts is not None:
            work.feeds["rl"].problems = [run.known[name] for name in made.prompts]
        work.notes = {f"harvest/{name}": number for name, number in made.notes.items()}
    for name, feed in work.feeds.items():
        feed.drawn = progress.drawn.get(name, 0)
    if run.c.run.budget is not None and progress.allowance is None:
        progress.allowance = allowance(run, stage, progress)
    on_policy = s.optimizer_steps_per_step == 1 if stage.samples else None
    run.view.start(stage.name, s.steps, progress.step, on_policy)
    try:
        complete = run_stage(work)
    finally:
        run.view.stop()
    if not complete:
        save()
        return None
    if s.keep == "best":
        evaluate()
        progress.kept[stage.name] = int(progress.best.get("step", progress.step))
        if progress.kept[stage.name] != progress.step:
            run.view.say(f"{stage.name}: keeping the weights of step {progress.kept[stage.name]}, the best")
            policy = policies["policy"] = run.load(str(best))
            engine = LocalEngine.for_policy(policy)
    run.evaluate(policy, engine, progress, f"after {stage.name}", run.shown)
    policy.reference = None
    taken = progress.step
    next_stage(progress)
    save_checkpoint(run, stage, progress, policies, optimizers, ended_after=taken)
    return policy


def allowance(run: Run, stage: Stage, progress: Progress) -> float:
    """The stage's part of what is left of the run's budget, by the shares of the stages to come."""
    shares = [s.settings.share for s in run.c.stages[run.c.stages.index(stage) :]]
    left = (run.c.run.budget or 0.0) - run.c.run.charged - progress.flops
    return max(left, 0.0) * shares[0] / sum(shares)


def next_stage(progress: Progress) -> None:
    """Forget what belongs to the stage that ends."""
    progress.stage, progress.step, progress.updates = progress.stage + 1, 0, 0
    progress.before, progress.allowance = progress.flops, None
    progress.drawn, progress.watch, progress.state, progress.best = {}, {}, {}, {}


def sampling_of(stage: Stage) -> Sampling:
    """How the stage samples."""
    s = stage.settings
    return Sampling(s.temperature, s.top_p, s.top_k, s.min_p, s.max_new_tokens or 64, tuple(s.stop))


def workbench(
    run: Run, stage: Stage, policies: dict[str, Any], engine: LocalEngine, progress: Progress
) -> StageRun:
    """A stage with its data and policies, and nothing yet that trains it."""
    seed = run.c.run.seed
    rollouts = Rollouts(
        engine,
        run.renderer,
        run.scorer,
        sampling_of(stage),
        seed,
        version=progress.version,
        policy=policies["policy"],
        ranks=run.ranks,
    )
    return StageRun(
        stage=stage,
        run=run.c.run,
        policies=policies,
        rollouts=rollouts,
        feeds={"rl": Feed(run.data.prompts, seed), "sft": Feed(run.data.demonstrations, seed + 1)},
        progress=progress,
        shelf=run.shelf,
        validation=run.data.validation,
        demonstrated=run.data.demonstrations,
        ranks=run.ranks,
    )


def save_checkpoint(
    run: Run,
    stage: Stage,
    progress: Progress,
    policies: Mapping[str, Any],
    optimizers: Mapping[str, torch.optim.Optimizer],
    ended_after: int | None = None,
) -> None:
    """Weights, optimizers, the memory of rules and the shelf; `ended_after` steps if the stage is over."""

    def write(target: Path) -> None:
        for name, policy in policies.items():
            if name == "policy" or name in optimizers:
                policy.save(target / name)
        everything = {
            "optimizers": {name: o.state_dict() for name, o in optimizers.items()},
            "rules": [item.state_dict() for item in stateful(stage.method)],
            "shelf": {name: plain_rows(rows) for name, rows in run.shelf.items()},
        }
        save_tensors(target / "trainer.pt", everything)

    step = progress.step if ended_after is None else ended_after
    end = "" if ended_after is None else "-end"
    name = f"{run.c.stages.index(stage)}-{stage.name}-{step:06d}{end}"
    if run.ranks.first:
        metrics = run.folder.metrics
        progress.metrics_bytes = metrics.stat().st_size if metrics.exists() else 0
        run.folder.save(name, write, asdict(progress), run.c.run.keep_checkpoints)
        write_json(run.folder.path / "result.json", run.result(progress))
    run.ranks.barrier()


def parts_of(method: Method) -> list[Method]:
    """The method, and the stages that it alternates between."""
    return [method, *(method.stages.values() if method.alternation is not None else ())]


def copies_of(method: Method) -> list[str]:
    """Names of the trained copies that its update rules move."""
    rules = [part.update for part in parts_of(method)]
    return list(dict.fromkeys(name for rule in rules for name in getattr(rule, "copies", ())))


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
    for name in copies_of(stage.method):
        policies[name] = policy.copy() if checkpoint is None else run.load(str(checkpoint / name))
    return policies


def reference(run: Run, policy: TextPolicy, progress: Progress) -> TextPolicy:
    """The weights at the start of the stage, or those that took their place; kept for a resumed run."""
    if progress.step == 0:
        return keep_reference(run, policy, progress)
    kept = (run.folder.path / "references" / str(progress.stage)).glob("[0-9]*")
    # A run that was killed may have got further than the checkpoint it comes back to.
    latest = max(path for path in kept if int(path.name) <= progress.step)
    return run.load(str(latest)).clone_frozen()


def keep_reference(run: Run, policy: TextPolicy, progress: Progress) -> TextPolicy:
    """The present weights, frozen, and kept in the run folder."""
    if run.ranks.first:
        policy.save(run.folder.path / "references" / str(progress.stage) / f"{progress.step:06d}")
    run.ranks.barrier()
    return policy.clone_frozen()


def harvest(
    run: Run,
    stage: Stage,
    policy: TextPolicy,
    start: TextPolicy,
    engine: LocalEngine,
    progress: Progress,
) -> Harvested | None:
    """What the stage is trained on: made once, kept in the run folder, found there by a resumed run.

    Args:
        policy: The weights that the stage before left.
        start: Those that this stage starts from.

    Returns:
        `None` where the stage has no harvest.
    """
    if stage.method.harvest is None:
        return None
    path = run.folder.path / "harvest" / f"{progress.stage}-{stage.name}.pt"
    if run.ranks.broadcast(path.exists()):
        plain = load_tensors(path)
        made = Harvested(**{**plain, "rows": rows_of(plain["rows"], run.known)})
    else:
        run.view.say(f"{stage.name}: making its data")
        began, clock = time.perf_counter(), meter.done()
        policies = {"policy": policy, **({"base": start} if stage.method.start == "base" else {})}
        work = workbench(run, stage, policies, engine, progress)
        made = stage.method.harvest(TrainingBench(work))
        cost = sum(run.ranks.gather(meter.done() - clock), Work())
        made_of = {"rows": len(made.rows), **made.notes, "tokens": work.rollouts.generated}
        made = replace(made, notes={**made_of, **{f"work_{name}": n for name, n in vars(cost).items()}})
        progress.seconds += time.perf_counter() - began
        if run.ranks.first:
            keep_harvest(run, path, made)
        run.ranks.barrier()
    if all(record["stage"] != stage.name for record in progress.harvests):
        prompts = None if made.prompts is None else len(made.prompts)
        spent = {f: made.notes.get(f"work_{f}", 0) for f in vars(Work())}
        progress.add_work(Work(**spent))  # type: ignore[arg-type]
        progress.before = progress.flops
        progress.harvests.append(
            {"stage": stage.name, **made.notes, "prompts_sampled": prompts, "skip": made.skip}
        )
    told = {name: number for name, number in made.notes.items() if not name.startswith("work_")}
    listed = ", ".join(f"{name} {number:g}" for name, number in told.items())
    run.view.say(f"{stage.name}: {listed}")
    return made


def keep_harvest(run: Run, path: Path, made: Harvested) -> None:
    """The rows for the run to come back to (.pt), and for people to read (.jsonl)."""
    lines = [
        json.dumps(
            {
                "problem": row.problem.id,
                "prompt": row.problem.prompt,
                "response": run.renderer.decode(row.response_ids),
                "reward": row.reward,
                "group": row.group,
                **{k: v for k, v in row.extra.items() if isinstance(v, str | int | float)},
            }
        )
        for row in made.rows
    ]
    write_text(path.with_suffix(".jsonl"), "".join(f"{line}\n" for line in lines))
    draft = path.with_suffix(".draft")
    plain = {**vars(made), "rows": plain_rows(made.rows), "notes": dict(made.notes)}
    save_tensors(draft, plain)
    draft.replace(path)


def leave_out(run: Run, stage: Stage, policy: TextPolicy, made: Harvested, progress: Progress) -> None:
    """Go on without a stage that has nothing to train on."""
    rest = " and what follows" if made.ends else ""
    run.view.say(f"[yellow]warning:[/] stage {stage.name}{rest} is left out: {made.skip}")
    next_stage(progress)
    if made.ends:
        progress.stage = len(run.c.stages)
    save_checkpoint(run, stage, progress, {"policy": policy}, {}, ended_after=0)


def together(rows: Sequence[Trajectory]) -> list[tuple[Trajectory, ...]]:
    """Rows by group, in order: what a feed draws as one."""
    groups: dict[str | int, list[Trajectory]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return [tuple(group) for group in groups.values()]


def load_shelf(run: Run, checkpoint: Path) -> dict[str, list[Trajectory]]:
    """The rows that a checkpoint kept for later stages."""
    shelf = load_tensors(checkpoint / "trainer.pt").get("shelf", {})
    return {name: rows_of(rows, run.known) for name, rows in shelf.items()}
