"""One stage of a run, step by step: collect, annotate, assign, update, log, evaluate, save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from interlace.config import RunSettings, Stage, StageSettings
from interlace.methods._method import Method
from interlace.policies import meter
from interlace.policies.meter import Work
from interlace.rules.bench import Turn
from interlace.training.bench import TrainingBench
from interlace.training.collect import Collected, Feed, Rollouts, annotate, collect, draw, mix_inputs, pack
from interlace.training.distributed import Ranks
from interlace.training.metrics import Watch, batch_metrics, update_metrics
from interlace.training.objective import assign
from interlace.training.step import StepResult, Trainable, update
from interlace.types import Batch, Policy, Problem, Trajectory


@dataclass
class Progress:
    """Where a run is: everything beside weights and optimizers that a resumed run needs.

    Attributes:
        stage: Index of the stage.
        step: Steps done in it.
        updates: Optimizer steps done in it.
        version: Optimizer steps of the whole run.
        drawn: Problems drawn from each feed in this stage.
        state: Numbers that controllers hold.
        evaluations: Evaluations so far.
        harvests: What was made for stages to train on, one record each.
        best: Accuracy and step of the best evaluation of this stage, where the stage keeps the best.
        kept: By stage that kept the best, the step whose weights it ended with.
        metrics_bytes: Size of the metrics file.
        watch: Counts of the watch for dead runs.
        work: What the run has computed so far, evaluations apart (`policies.meter.Work`).
        before: Operations of it before this stage.
        allowance: Operations that this stage may take, where the run has a budget.
    """

    stage: int = 0
    step: int = 0
    updates: int = 0
    version: int = 0
    drawn: dict[str, int] = field(default_factory=dict)
    state: dict[str, float] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    harvests: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    metrics_bytes: int = 0
    watch: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    work: dict[str, float] = field(default_factory=dict)
    before: float = 0.0
    allowance: float | None = None

    @property
    def flops(self) -> float:
        """Operations so far."""
        return Work(**self.work).flops  # type: ignore[arg-type]

    def add_work(self, work: Work) -> None:
        self.work = vars(Work(**self.work) + work).copy()  # type: ignore[arg-type]


def _ignore(*_: Any) -> None:
    """What a bench without a running stage does with news."""


@dataclass
class StageRun:
    """What one stage works with.

    Attributes:
        policies: `policy`, and where needed `reference`, `critic` and the copies of an update rule.
        optimizers: One for each policy that is trained, and those that an alternation adds.
        peaks: The peak learning rate of each.
        feeds: `rl` problems and `sft` problems with demonstrations.
        log, say, save, evaluate: What the run does with a step's numbers, with a warning, with a checkpoint
            that is due, and with an evaluation that is due.
        stopping: Whether the person asked to stop.
        renew_reference: Lets the reference be the policy as it is now.
        shelf: Rows kept for later stages, by name.
        validation: Problems that are never trained on.
        demonstrated: Training problems whose demonstration is used.
        notes: Numbers to log with the first step.
    """

    stage: Stage
    run: RunSettings
    policies: Mapping[str, Trainable]
    rollouts: Rollouts
    feeds: Mapping[str, Feed]
    progress: Progress
    optimizers: Mapping[str, torch.optim.Optimizer] = field(default_factory=dict)
    peaks: Mapping[str, float] = field(default_factory=dict)
    log: Callable[[dict[str, Any]], None] = _ignore
    say: Callable[[str], None] = _ignore
    save: Callable[[], None] = _ignore
    evaluate: Callable[[], None] = _ignore
    samples: Callable[[Sequence[Trajectory]], None] = _ignore
    stopping: Callable[[], bool] = bool
    renew_reference: Callable[[], None] = _ignore
    shelf: dict[str, list[Trajectory]] = field(default_factory=dict)
    validation: Sequence[Problem] = ()
    demonstrated: Sequence[Problem] = ()
    notes: Mapping[str, float] = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def share(self) -> float:
        """How much of the stage is done: of its budget or of its steps, whichever is further."""
        p, steps = self.progress, self.stage.settings.steps
        by_steps = 0.0 if steps is None else p.step / max(steps, 1)
        if p.allowance is None:
            return by_steps
        return max(by_steps, (p.flops - p.before) / p.allowance if p.allowance > 0 else 1.0)

    @property
    def over(self) -> bool:
        """Whether the steps are done or the budget is spent, as nearly as whole steps can meet it."""
        p, steps = self.progress, self.stage.settings.steps
        if steps is not None and p.step >= steps:
            return True
        half_a_step = (p.flops - p.before) / (2 * p.step) if p.step else 0.0
        return p.allowance is not None and p.flops - p.before + half_a_step >= p.allowance

    @property
    def expected_steps(self) -> int:
        """The steps of the stage; where its budget ends it, as many as it looks like by now."""
        p, steps = self.progress, self.stage.settings.steps
        if p.allowance is None or not p.step:
            return steps if steps is not None else 2**31
        return min(steps or 2**31, max(p.step + 1, round(p.step / self.share)))

    def learning_rate(self, peak: float) -> float:
        """Learning rate of the next optimizer step."""
        by_budget = None if self.progress.allowance is None else self.share
        return learning_rate(self.stage.settings, peak, self.progress.updates, by_budget)


def learning_rate(s: StageSettings, peak: float, update_index: int, share: float | None = None) -> float:
    """Learning rate of one optimizer step: linear warm-up, then the schedule to 0 at the stage's last.

    Args:
        share: How much of the stage's budget is spent; `None` where the stage is measured in steps.
    """
    if update_index < s.warmup_steps:
        return peak * (update_index + 1) / (s.warmup_steps + 1)
    total = max((s.steps or 1) * s.optimizer_steps_per_step - s.warmup_steps, 1)
    progress = min((update_index - s.warmup_steps) / total if share is None else share, 1.0)
    if s.lr_schedule == "linear":
        return peak * (1 - progress)
    if s.lr_schedule == "cosine":
        return peak * (1 + math.cos(math.pi * progress)) / 2
    return peak


def optimizer_batches(
    batch: Batch, s: StageSettings, step: int, seed: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """(epoch, rows) of each optimizer step of one rollout step, rows as int64 in batch order.

    Groups are never split; rows of the demonstration feed, groups of their own, are spread evenly. The
    order is a function of (seed, step, epoch).
    """
    groups = torch.unique(batch.group)
    sampled = torch.zeros(groups.numel(), dtype=torch.bool)
    sampled[batch.group[batch.is_rollout]] = True
    for epoch in range(s.epochs_per_rollout):
        part_of = torch.zeros(groups.numel(), dtype=torch.int64)
        if s.updates_per_epoch > 1:
            generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 1009 + epoch)
            for members in (sampled.nonzero()[:, 0], (~sampled).nonzero()[:, 0]):
                order = torch.randperm(members.numel(), generator=generator)
                part_of[members[order]] = torch.arange(members.numel()) % s.updates_per_epoch
        for part in range(s.updates_per_epoch):
            yield epoch, (part_of[batch.group] == part).nonzero()[:, 0]


def train_step(
    stage: StageRun, method: Method, batch: Batch, bench: TrainingBench, optimizer: str = "policy"
) -> tuple[Batch, list[StepResult]]:
    """Annotate and assign one collected batch, then take its optimizer steps with a method's rule."""
    s = stage.stage.settings
    models: dict[str, Policy] = dict(stage.policies)
    tokens = s.micro_batch_tokens
    if method.mix is not None:
        batch = mix_inputs(batch, stage.policies["policy"], method.mix(stage.progress.step), tokens)
    batch = annotate(batch, method.needs, models, micro_batch_tokens=tokens, ranks=stage.ranks)
    for controller in method.controllers:
        stage.progress.state.update(controller.before(bench, batch))
    batch = assign(batch, method, step=stage.progress.step)
    parts = list(optimizer_batches(batch, s, stage.progress.step, stage.run.seed))
    if len(parts) > 1 and method.terms and "old_logp" not in batch.arrays:
        first = torch.zeros(batch.n_rows, dtype=torch.bool)
        first[parts[0][1]] = True
        later = (~first & batch.active).nonzero()[:, 0]
        batch = annotate(
            batch, ["old_logp"], models, micro_batch_tokens=tokens, rows=later, ranks=stage.ranks
        )
    results = []
    for i, (_, rows) in enumerate(parts):
        part = batch.subset(rows)
        part = replace(part, on_policy=i == 0)
        optimizers = {"policy": stage.optimizers[optimizer]}
        if any(term.policy == "critic" for term in method.terms):
            optimizers["critic"] = stage.optimizers["critic"]
        for name in (optimizer, "critic"):
            if name in stage.optimizers and name in stage.peaks:
                for group in stage.optimizers[name].param_groups:
                    group["lr"] = stage.learning_rate(stage.peaks[name])
        bench.lr = stage.learning_rate(stage.peaks["policy"])
        result = update(
            part,
            method,
            {name: stage.policies[name] for name in optimizers},
            optimizers,
            micro_batch_tokens=tokens,
            clip_grad=s.clip_grad,
            step=stage.progress.step,
            state=stage.progress.state,
            ranks=stage.ranks,
        )
        result.metrics |= update_metrics(part, result)
        if i == 0:
            part = replace(part.with_arrays(old_logp=known_logp(part, result)), on_policy=False)
            if "old_logp" in batch.arrays:
                index = batch.decisions_of(rows)
                old = batch.arrays["old_logp"].index_put((index,), part.arrays["old_logp"])
                batch = batch.with_arrays(old_logp=old)
        stage.progress.updates += 1
        stage.progress.version += 1
        if method.update is not None and result.finite:
            result.metrics |= method.update.after(bench, part, method)
        results.append(result)
    return batch, results


def known_logp(part: Batch, result: StepResult) -> torch.Tensor:
    """float64 [N]: log-probabilities before the first update, where the update or an annotation has them."""
    annotated = part.arrays.get("old_logp", torch.full_like(result.logp, math.nan))
    return torch.where(result.logp.isnan(), annotated, result.logp)


def collect_step(stage: StageRun, method: Method, turn: Turn | None) -> Collected:
    """Draw problems and demonstrations, sample and score."""
    s = stage.stage.settings
    samples = method.sample is not False and (turn is None or turn.sample)
    problems = stage.feeds["rl"].take(s.prompts_per_step) if samples else []
    demonstrations: Sequence[Problem | Trajectory] = ()
    if turn is not None and turn.demonstrations is not None:
        demonstrations = turn.demonstrations
    elif method.demonstrations == "feed" and s.demos_per_step:
        demonstrations = draw(stage.feeds["sft"], s.demos_per_step)
    stage.rollouts.version = stage.progress.version
    return collect(
        stage.rollouts,
        method.sample or None,
        problems,
        step=stage.progress.step,
        group_size=s.group_size,
        feed=stage.feeds.get("rl"),
        demonstrations=demonstrations,
        demonstrated=stage.demonstrated,
    )


def run_stage(stage: StageRun) -> bool:
    """Train until the stage is complete or the person stops it.

    Returns:
        Whether the stage is complete.

    Raises:
        DeadRun: nothing could be learnt for too long.
    """
    s, progress = stage.stage.settings, stage.progress
    watch = Watch(stage.run.stop_dead_after, counts=dict(progress.watch))
    bench = TrainingBench(stage)
    whole = stage.stage.method
    while not stage.over:
        if stage.stopping():
            return False
        clock, share = meter.done(), stage.share
        began, generated = time.perf_counter(), stage.rollouts.generated
        bench.begin_step()
        turn = None if whole.alternation is None else whole.alternation.turn(bench)
        method = whole if turn is None else whole.stages[turn.stage]
        progress.state.update({} if turn is None else turn.numbers)
        collected = collect_step(stage, method, turn)
        if method.row_scorer is not None:
            changed = list(method.row_scorer.score_rows(bench, collected.rows))
            notes = {**collected.notes, **getattr(method.row_scorer, "notes", {})}
            collected = replace(collected, rows=changed, notes=notes)
        sampled = time.perf_counter()
        batch = pack(collected.rows, completion_limit=s.max_new_tokens)
        metrics: dict[str, Any] = {**batch_metrics(batch), **collected.notes}
        if progress.step == 0:
            metrics |= stage.notes
        if (
            stage.run.log_samples_every
            and progress.step % stage.run.log_samples_every == 0
            and metrics["rows/rollout"]
        ):
            stage.samples(collected.rows)
        batch, results = train_step(stage, method, batch, bench, "policy" if turn is None else turn.optimizer)
        stage.rollouts.engine.refresh()
        for result in results:
            metrics.update(result.metrics)
        for controller in method.controllers:
            controller.after(bench, collected.rows, batch, results)
        if turn is not None:
            whole.alternation.observe(bench, turn, collected.rows, batch, results)
            metrics |= {"turn": turn.stage, **turn.notes}
        metrics |= {f"state/{key}": value for key, value in progress.state.items()}
        seconds = time.perf_counter() - began
        work = sum(stage.ranks.gather(meter.done() - clock), Work())
        progress.seconds += seconds
        progress.step += 1
        progress.add_work(work)
        generated = stage.rollouts.generated - generated
        metrics |= {
            "lr": bench.lr,
            "stage/share": stage.share,
            "flops": progress.flops,
            "flops/generate": work.generate,
            "flops/score": work.score,
            "flops/train": work.train,
            "tokens/generated": generated,
            "tokens/trained": sum(r.tokens for r in results),
            "tokens/read": work.scored,
            "speed/seconds": seconds,
            "speed/tokens_per_s": (generated + sum(r.tokens for r in results)) / seconds,
            "speed/generate_share": (sampled - began) / seconds,
        }
        for warning in watch.observe(metrics, results):
            stage.say(f"[yellow]warning:[/] {warning}")
        progress.watch = dict(watch.counts)
        progress.drawn = {name: feed.drawn for name, feed in stage.feeds.items()}
        stage.log({"stage": stage.stage.name, "step": progress.step, "updates": progress.updates, **metrics})
        bench.rows = collected.rows
        if whole.finished is not None and whole.finished(bench):
            stage.say(f"stage {stage.stage.name} is finished by its own rule after {progress.step} steps")
            return True
        if not stage.over:
            if is_due(s.eval_every, progress.step, share, stage.share):
                stage.evaluate()
            if is_due(s.save_every, progress.step, share, stage.share):
                stage.save()
    return True


def is_due(every: float, step: int, before: float, after: float) -> bool:
    """Whether what happens every so many steps, or every such share of a stage, happens after this step.

    Args:
        every: Steps from 1 on, a share below 1, never at 0.
        step: Steps done.
        before, after: The share of the stage that was done before this step, and is now.
    """
    if every >= 1:
        return step % round(every) == 0
    return every > 0 and math.floor(after / every) > math.floor(before / every)
